"""Agents' sandboxes: isolated places to run code, claimed by sessions, and the daemon inside each."""
