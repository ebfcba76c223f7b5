"""Measures Hekla against its peers and its own promises: `python -m bench [NAME...]`.

Each module here with a function `run(report)` is a bench, named after the module; `report.py` says on what machine and
how quiet it was, and keeps the figures in one form. Figures are ratios wherever a baseline runs beside us.
"""
