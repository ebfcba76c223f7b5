"""Prefer engines that are known to hold the prompt: Kthena's `kvcache-aware`.

    score = blocks of the prompt held from its beginning on / blocks of the prompt * 100     where Redis was asked
    score = tokens of the prompt held from its beginning on / tokens of the prompt * 100     elsewhere

Where the router has a Redis, side-cars of Kthena's wrote into it who holds which block (`prefix/recorded.py`). Elsewhere the engines'
events are followed in the router (`prefix/precise.py`) and blocks are chained, so that a block in the middle of another document is no
match; an engine without events is guessed at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.prefix.recorded import Recorded


@dataclass(frozen=True)
class KvCacheAware:
    """By what is known to be held."""

    name = "kvcache-aware"
    wants_prefix = True

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """A whole number, as Kthena's."""
        recorded: Recorded | None = look.question.recorded
        if recorded is not None:
            return [recorded.score(one) for one in candidates]
        tokens = max(1, look.tokens)
        return [min(100, int(look.matched[one.slot] * 100 / tokens)) for one in candidates]
