"""Sets of opinions that actions ask, one file each; `registry.py` scans this folder."""
