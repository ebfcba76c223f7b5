"""Times of objects as seconds since 1970."""

from datetime import datetime
from functools import lru_cache


@lru_cache(maxsize=65536)  # pods made together carry equal times
def seconds(timestamp: str | None) -> float:
    """A time of an object as seconds since 1970; 0 for none, or one that cannot be read."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except (ValueError, OverflowError):
        return 0.0
