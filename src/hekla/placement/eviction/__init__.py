"""Evictions: who may be evicted for whom (`eligibility.py`), in which order, and how few suffice.

The actions preempt, reclaim, gangpreempt and gangreclaim make room here: for one task (`evict_for_task.py`) or for a whole gang
(`evict_for_gang.py`). `precedence.py` keeps evictions from going in circles, `refusals.py` and `trial.py` tell a user why
nobody is evicted, or whom it would take.
"""
