"""The runtime `oci`: sandboxes in containers of crun, runc or gVisor's runsc, with the same daemon inside.

engines.py  which programs there are, and what each can      config.py   what they are told
keeper.py   starts and ends containers                       runtime.py  the runtime, and what the host refuses
"""
