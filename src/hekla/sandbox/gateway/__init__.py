"""The gateway: one listener, front doors in several dialects, and a data plane that passes bytes both ways without keeping them."""
