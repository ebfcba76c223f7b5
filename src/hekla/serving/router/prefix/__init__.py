"""Which engine holds the beginning of a prompt in its KV cache: guessed from where prompts were sent, or known from the engines' events."""
