"""A serving engine, step by step: vLLM's scheduler, paged cache and timing, without a model and without a clock.

`engine.py` is the engine; `shape.py` says how large and how fast it is. `hekla engine` serves one over HTTP in real
time, `simulation/routing.py` runs dozens of them through a trace in virtual time.
"""
