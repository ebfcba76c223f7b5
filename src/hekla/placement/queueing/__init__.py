"""The scheduling queue: whose turn is next, among queues and within each (`turns.py`), and how many turns are decided at once.

Lines of jobs outlive cycles (`kept_lines.py`); turns are told ahead (`turns_ahead.py`, `lookahead.py`) so that many pods are
placed in one pass; `strict_fifo.py` keeps those back who are behind a head that waits.
"""
