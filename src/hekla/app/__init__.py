"""Composition roots and settings: the only place that wires."""
