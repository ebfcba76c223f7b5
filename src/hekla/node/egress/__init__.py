"""The way out of sandboxes: a proxy on the node that lets through what a pod's rules allow, and says so in an audit log.

`rules.py` decides (pure), `broker.py` does it. A sandbox has a loopback device and nothing else; the broker accepts connections from a port of
that loopback, and is the only way anywhere.
"""
