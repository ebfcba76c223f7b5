"""Decides who may run: quota trees, borrowing, fair shares. Pure: numbers in, decisions with reasons out.

`tree.py` has queues with what is guaranteed, deserved and allowed; `water_fill.py` shares a cluster by weight;
`fairness.py` has shares for ordering; `verdict.py` how a no is told. Volcano's plug-ins (`placement/plugins/`) stand on it.
"""
