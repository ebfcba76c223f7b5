"""Sessions: who holds which sandbox, how long, and what becomes of it; `desk.py` is where they are asked for."""
