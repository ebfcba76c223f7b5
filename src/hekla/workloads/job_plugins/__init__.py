"""Job plug-ins: what a Job's pods are given so that they find one another. One file each; `plugin.py` is their shape."""
