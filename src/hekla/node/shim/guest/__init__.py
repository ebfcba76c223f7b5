"""What runs inside a sandbox that no descriptor of the node's can reach, a container of an OCI runtime or a virtual machine.

`mux.py` carries many streams over one, `bridge.py` stands between it and the daemon, `machine.py` is the first process of a virtual machine.
Standard library only, Python 3.9 or newer: it travels with the daemon in one file (`node/runtimes/guest/carry.py`).
"""
