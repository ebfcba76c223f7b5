"""How many sandboxes should wait: forecasts of demand (`sizing.py`), and who moves pools by them (`sizer.py`)."""
