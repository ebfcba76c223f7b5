"""LLM serving: engines brought up from one object, and one router that finds the best of them for each request."""
