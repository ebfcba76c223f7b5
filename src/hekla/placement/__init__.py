"""Decides where work runs: numbers in, decisions with reasons out. Knows no Kubernetes, no clock, no dice."""
