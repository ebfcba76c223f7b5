"""Node selection: filter and score all nodes for a task, or for many at once, and take the best.

`placer.py` is the way in. `score.py` is what plug-ins say; the other files are faster ways for pods that come in numbers, each
of which gives what placing them one after the other gives.
"""
