"""Small parts that know nothing of Kubernetes: quantities, clocks, heaps, windows."""
