"""Prefer engines with little to prefill, this prompt's uncached part included: llm-d's `token-load-scorer` with look-ahead.

load = uncached tokens in flight + prompt - cached        score = (1 - load / max) * 100
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint


@dataclass(frozen=True)
class TokenLoad:
    """Counted here when a request is sent and until its first byte, so that a burst is seen while it comes."""

    name = "token-load"
    wants_prefix = True

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """100 for nothing to do, 0 for the most."""
        loads = [
            one.prefill_tokens + one.elsewhere_prefill_tokens + look.tokens - look.matched[one.slot]
            for one in candidates
        ]
        most = max(loads, default=0)
        return [100.0 * (1 - load / most) if most > 0 else 100.0 for load in loads]
