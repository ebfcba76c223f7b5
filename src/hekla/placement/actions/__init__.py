"""Passes over the waiting jobs, one file each; `registry.py` scans this folder."""
