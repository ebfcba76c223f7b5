"""Prefer engines with room in their KV cache: Kthena's `gpu-usage`.

score = (1 - use of the KV cache) * 100
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint

UNKNOWN = 50.0


@dataclass(frozen=True)
class KvCacheUsage:
    """As scraped; an engine that has not told is neither full nor empty."""

    name = "gpu-usage"
    wants_prefix = False

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """A whole number, as Kthena's."""
        return [UNKNOWN if one.kv_usage is None else int((1 - one.kv_usage) * 100) for one in candidates]
