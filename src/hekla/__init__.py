"""Hekla: one scheduling platform for training jobs, LLM serving and AI-agent sandboxes."""

__version__ = "0.1.0"
