"""How many replicas serve: metrics in, decisions with reasons out.

`algorithms/` is arithmetic; `decision.py` puts it together for one policy; `collector.py` reads metrics; `scaler.py` is the
loop that carries decisions out.
"""
