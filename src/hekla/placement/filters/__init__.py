"""Hard constraints of a pod, one file each: whether a node may take it, and if not, why."""
