"""Devices beyond bare counts: what is left of each GPU of a node, and which of them a pod gets."""
