"""The router's data plane: bytes between clients and engines, on uvloop's own protocols, without a task per request."""
