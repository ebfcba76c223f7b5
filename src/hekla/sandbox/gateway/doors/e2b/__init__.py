"""E2B's API: the control plane (`control.py`) and the way to what runs inside (`inside.py`)."""
