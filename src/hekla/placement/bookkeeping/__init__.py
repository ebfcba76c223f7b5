"""Running totals, kept right with every event instead of being counted anew: of queues, of domains, of single nodes.

What queues hold is in `ledger.py`, how many pods of a kind a domain runs in `tallies.py`, what nodes were measured to use in
`measured_usage.py`. Only `cluster.py` and the jobs in it write here.
"""
