"""The router: an OpenAI endpoint in front, engines behind; decisions are pure, and `plan.py` is where they meet the data plane."""
