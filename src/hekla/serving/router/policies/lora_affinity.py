"""Send a request for a LoRA adapter to an engine that has it, best to one that runs it now.

score: 100 running, 80 room for one more, 60 waiting to be loaded, 0 full of others
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint

RUNNING, ROOM, WAITING, FULL = 100.0, 80.0, 60.0, 0.0


@dataclass(frozen=True)
class LoraAffinity:
    """Kthena's filter `lora-affinity`, and llm-d's score."""

    name = "lora-affinity"
    wants_prefix = False

    def keep(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """All of them for the base model; else those that list the adapter."""
        if not look.adapter:
            return candidates
        return [one for one in candidates if look.adapter in one.adapters]

    def reason(self, look: Look, endpoint: Endpoint) -> str:
        """What it has instead."""
        listed = ", ".join(sorted(endpoint.adapters)) or "none"
        return f'it does not list the adapter "{look.adapter}"; it lists {listed}'

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """How soon the adapter can be used."""
        return [_score(look.adapter, one) for one in candidates]


def _score(adapter: str, one: Endpoint) -> float:
    if not adapter or adapter in one.running_adapters:
        return RUNNING
    if one.max_adapters is None or len(one.running_adapters | one.waiting_adapters) < one.max_adapters:
        return ROOM
    return WAITING if adapter in one.waiting_adapters else FULL
