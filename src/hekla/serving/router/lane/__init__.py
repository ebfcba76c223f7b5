"""The fast lane: plain requests from client to engine and back in machine code; Python is told afterwards, in lots.

`layout.py` says where each number stands, `compiled_pump.py` is the code (`compiled_*.py` its parts), `slabs.py` its memory, `ways.py` what it
may decide by itself, `lane.py` lends it sockets (`connecting.py` opens those to engines) and takes back whatever is not plain (`stopping.py` reads
how far that is, `resuming.py` goes on with it), `folding.py` makes of its records what metrics, log and policies learn from. Everything it
does not take goes the way of `proxy/` and `exchange.py`, to the same effect.
"""
