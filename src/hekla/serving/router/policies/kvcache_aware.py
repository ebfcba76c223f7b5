"""Prefer engines whose own events say that they hold the prompt: Kthena's `kvcache-aware`.

    score = tokens of the prompt held from its beginning / tokens of the prompt * 100

Kthena asks Redis and hashes each block by itself; here the events are followed in the router (`prefix/precise.py`) and blocks are
chained, so that a block in the middle of another document is no match. An engine without events is guessed at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint


@dataclass(frozen=True)
class KvCacheAware:
    """By what is known to be held."""

    name = "kvcache-aware"
    wants_prefix = True

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """A whole number, as Kthena's."""
        tokens = max(1, look.tokens)
        return [min(100, int(look.matched[one.slot] * 100 / tokens)) for one in candidates]
