"""How an endpoint is chosen, one policy, filter or score per file; `configuration.py` names them as Kthena does."""
