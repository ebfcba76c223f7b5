"""Choose an endpoint for a request: the shape of a policy, what it may look at, and Kthena's chain of filters and weighted scores.

A policy chooses; asked to explain, it says what it saw (`explaining.py`). Choosing is on the path of every request, so nothing is
worded there. The policies are in `policies/`, one file each; `pool.py` asks them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.prefix.blocks import Blocks
from hekla.serving.router.question import Question

Dice = Callable[[], float]
"""Uniform in [0, 1); handed in, so that a choice can be repeated."""


class Look(Struct, gc=False):
    """What a policy looks at for one request: the request, and who has how much of its prompt in cache."""

    question: Question
    tokens: int
    """Of the prompt, estimated."""
    matched: Sequence[int]
    """By slot: tokens of the prompt that the endpoint is believed to hold."""
    blocks: Blocks | None
    now: float
    dice: Dice
    rate: float
    """Tokens that an endpoint of this pool prefills in a second, as learned."""
    token_load: float = 0.0
    """What share of an endpoint's recent time one token of its `prefilled_lately` took."""
    step_s: float = 0.0
    """How long a step takes in which answers grow, as learned."""
    adapter: str = ""
    """The LoRA adapter that is asked for; empty: the base model."""
    session: str = ""
    """What ties requests together, where stickiness is configured."""


class Policy(Protocol):
    """Chooses among endpoints."""

    @property
    def wants_prefix(self) -> bool:
        """Whether the pool is to look prompts up; without it `matched` is all zeros."""

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """The endpoint to send to; None: none of these will do."""

    def weigh(self, look: Look, candidates: Sequence[Endpoint]) -> "Weighed":
        """Everything that `choose` saw, for an explanation; no faster than it needs to be."""


@dataclass(frozen=True)
class Weighed:
    """What a policy made of its candidates."""

    refused: dict[str, str] = field(default_factory=dict)
    """Why an endpoint was filtered out, by name."""
    columns: dict[str, dict[str, float]] = field(default_factory=dict)
    """By the name of a score or of a part of the cost: what each endpoint got."""
    totals: dict[str, float] = field(default_factory=dict)
    """What decides, by endpoint."""
    is_cost: bool = False
    """Whether the lowest total wins; else the highest."""


class Filter(Protocol):
    """Takes endpoints out."""

    @property
    def name(self) -> str:
        """As configurations spell it."""

    @property
    def wants_prefix(self) -> bool:
        """As a policy's."""

    def keep(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those that may be chosen."""

    def reason(self, look: Look, endpoint: Endpoint) -> str:
        """Why this one may not, as a sentence."""


class Scorer(Protocol):
    """Says how much it likes each endpoint, 0 to 100."""

    @property
    def name(self) -> str:
        """As configurations spell it."""

    @property
    def wants_prefix(self) -> bool:
        """As a policy's."""

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """In the candidates' order."""


@dataclass(frozen=True)
class Chain:
    """Kthena's scheduler: filters in turn, then the weighted sum of scores; dice among the best."""

    filters: Sequence[Filter] = ()
    scorers: Sequence[tuple[Scorer, float]] = ()
    """With their weights."""
    wants_prefix: bool = field(init=False)
    """Whether any part does; asked for every request, so found out once."""

    def __post_init__(self) -> None:
        wants = [one.wants_prefix for one in self.filters] + [one.wants_prefix for one, _ in self.scorers]
        object.__setattr__(self, "wants_prefix", any(wants))

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """The best of those that pass."""
        for one in self.filters:
            candidates = one.keep(look, candidates)
        if not candidates:
            return None
        totals = self._totals(look, candidates)
        best = max(totals)
        tied = [endpoint for endpoint, total in zip(candidates, totals, strict=True) if total == best]
        return tied[0] if len(tied) == 1 else tied[int(look.dice() * len(tied))]

    def weigh(self, look: Look, candidates: Sequence[Endpoint]) -> Weighed:
        """Who was refused by which filter, and each score of the others."""
        refused: dict[str, str] = {}
        for one in self.filters:
            kept = one.keep(look, candidates)
            refused |= {e.name: one.reason(look, e) for e in candidates if e not in kept}
            candidates = kept
        columns = {
            scorer.name: {e.name: float(s) for e, s in zip(candidates, scorer.scores(look, candidates), strict=True)}
            for scorer, _ in self.scorers
        }
        totals = dict(zip((e.name for e in candidates), self._totals(look, candidates), strict=True))
        return Weighed(refused=refused, columns=columns, totals=totals)

    def _totals(self, look: Look, candidates: Sequence[Endpoint]) -> list[float]:
        totals = [0.0] * len(candidates)
        for scorer, weight in self.scorers:
            for number, score in enumerate(scorer.scores(look, candidates)):
                totals[number] += weight * score
        return totals
