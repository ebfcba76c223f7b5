"""Sandboxes whose daemon no descriptor of the node's reaches: what the runtimes `oci` and `microvm` have in common.

`channel.py` is the node's end of the link, `carry.py` the file that travels inside; `hekla.node.shim.guest` is the other end.
"""
