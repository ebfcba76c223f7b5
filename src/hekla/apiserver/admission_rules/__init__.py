"""The admission rules that a Kubernetes cluster has switched on by default, one file each; `platform.py` orders them."""
