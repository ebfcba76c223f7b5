"""`hekla engine`: the simulated engine as a process that speaks vLLM's HTTP, metrics and KV events.

`process.py` runs it, `api.py` answers, `worker.py` makes steps take their time, `kv_publisher.py` tells of blocks.
"""
