"""Talks to an API server: client, transports, informers, reconcile runtime, commands, leases."""
