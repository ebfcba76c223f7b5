"""Dice: what every other policy has to beat."""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint


@dataclass(frozen=True)
class Random:
    """Kthena's `random`: a score of 0 to 100 by dice."""

    name = "random"
    wants_prefix = False

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """A new throw for each."""
        return [100.0 * look.dice() for _ in candidates]
