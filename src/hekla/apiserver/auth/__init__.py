"""Who asks, and whether they may: certificates, tokens, RBAC. `server.py` takes these as values."""
