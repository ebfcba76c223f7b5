"""The node agent: how a pod is run, with Kubernetes or without it."""
