"""Whose turn it is, and who may take back, where shares were dealt out in rounds (`over_quota.py`).

    next       below its fair share; then within what it deserves with the job; then priority; then who has any share at
               all; then the smaller dominant share with the job, and without; then the smaller allocatable share; then age
    reclaim    the asker stays within its fair share with the job, within what it deserves if the job cannot be preempted,
               and the victim's branch, where the two part, has more than its allocatable share of something asked for, or
               more than it deserves while the asker stays within what it deserves
    saturated  refused where the asker would be as full, in proportion to its fair share, as the sibling that gives

allocatable = limit where all is deserved, else min(max(deserved, fair), limit). After KAI's queue order and reclaim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hekla.quota.amounts import Amounts
from hekla.quota.over_quota import NO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStanding:
    """What a queue has, and what it may have, by resource; -1 stands for no bound."""

    name: str
    parent: str = ""
    held: Amounts = field(default_factory=dict)
    held_firm: Amounts = field(default_factory=dict)
    """The part of it that belongs to jobs which cannot be preempted."""

    deserved: Amounts = field(default_factory=dict)
    fair: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)
    priority: int = 100
    created: float = 0.0

    def allocatable(self, resource: str) -> int:
        """The most it is meant to hold of a resource; -1: no bound."""
        deserved, limit = self.deserved.get(resource, 0), self.limit.get(resource, NO_LIMIT)
        if deserved == NO_LIMIT:
            return limit
        share = max(deserved, self.fair.get(resource, 0))
        return share if limit == NO_LIMIT else min(share, limit)


def dominant(standing: QueueStanding, extra: Amounts, resources: Sequence[str]) -> Fraction:
    """The largest part of what it is meant to hold; of nothing, each unit counts a thousandfold."""
    return max((_part(standing, extra, resource) for resource in resources), default=Fraction(0))


def turn_of(standing: QueueStanding, asked: Amounts, resources: Sequence[str]) -> tuple[Any, ...]:
    """The sort key of a queue with its next job: smaller goes first."""
    shares = [standing.allocatable(resource) for resource in resources]
    return (
        not _is_below(standing, {}, standing.fair, resources, strictly=True),
        not _is_below(standing, asked, standing.deserved, resources, strictly=False),
        -standing.priority,
        all(share == 0 for share in shares),
        dominant(standing, asked, resources),
        dominant(standing, {}, resources),
        [share if share != NO_LIMIT else 1 << 63 for share in shares],
        standing.created,
        standing.name,
    )


def may_take_back(
    standings: Mapping[str, QueueStanding], asker: str, asked: Amounts, victims: Sequence[tuple[str, Amounts]], *,
    is_preemptible: bool = True, saturation: Fraction = Fraction(1),
) -> bool:  # fmt: skip
    """Whether a queue may have these victims go, given by queue and what they hold, one after the other."""
    return _Claim(standings, asker, asked, saturation).holds(victims, is_preemptible=is_preemptible)


class _Claim:
    def __init__(
        self, standings: Mapping[str, QueueStanding], asker: str, asked: Amounts, saturation: Fraction
    ) -> None:
        self._standings, self._asked, self._saturation = standings, asked, saturation
        self._involved = [resource for resource, amount in asked.items() if amount > 0]
        self._path = self._up(asker)

    def holds(self, victims: Sequence[tuple[str, Amounts]], *, is_preemptible: bool) -> bool:
        if not all(self._stays_within(self._standings[name], is_preemptible=is_preemptible) for name in self._path):
            return False
        gone: dict[str, dict[str, int]] = {}
        for queue, amounts in victims:
            mine, theirs = self._parting(queue)
            if mine is None or theirs is None:
                return False  # of its own branch nothing is taken back
            left = gone.setdefault(theirs.name, {})
            if not self._is_fair(mine, theirs, left):
                return False
            for resource, amount in amounts.items():
                left[resource] = left.get(resource, 0) + amount
        return all(self._is_emptier(*self._parting(queue), gone) for queue, _ in victims)

    def _stays_within(self, standing: QueueStanding, *, is_preemptible: bool) -> bool:
        if is_preemptible:
            return _is_below(standing, self._asked, standing.fair, self._involved, strictly=False)
        held = {resource: standing.held_firm.get(resource, 0) for resource in self._involved}
        return _covers(standing.deserved, held, self._asked, self._involved)

    def _is_fair(self, mine: QueueStanding, theirs: QueueStanding, gone: Amounts) -> bool:
        """Whether the next victim of a branch may go, by one of the two strategies, when these are gone already."""
        held = {resource: theirs.held.get(resource, 0) - gone.get(resource, 0) for resource in self._involved}
        if any(_exceeds(held[resource], theirs.allocatable(resource)) for resource in self._involved):
            return True
        is_owed = _is_below(mine, self._asked, mine.deserved, self._involved, strictly=False)
        return is_owed and any(_exceeds(held[r], theirs.deserved.get(r, 0)) for r in self._involved)

    def _is_emptier(
        self, mine: QueueStanding | None, theirs: QueueStanding | None, gone: Mapping[str, Amounts]
    ) -> bool:  # fmt: skip
        """Whether the asker's branch would still be less full than the one that gives, by what is fair for each."""
        assert mine is not None
        assert theirs is not None
        left = gone[theirs.name]
        for resource in self._involved:
            fair, other = mine.fair.get(resource, 0), theirs.fair.get(resource, 0)
            if NO_LIMIT in (fair, other) or not fair:
                continue
            full = Fraction(mine.held.get(resource, 0) + self._asked[resource], fair)
            rest = theirs.held.get(resource, 0) - left.get(resource, 0)
            if full > 1 and other > 0 and full * self._saturation >= Fraction(rest, other):
                return False
        return True

    def _parting(self, queue: str) -> tuple[QueueStanding | None, QueueStanding | None]:
        """The two queues below the lowest that both have above them."""
        theirs = self._up(queue)
        mine = self._path
        while mine and theirs and mine[-1] == theirs[-1]:
            mine, theirs = mine[:-1], theirs[:-1]
        return (
            self._standings[mine[-1]] if mine else None,
            self._standings[theirs[-1]] if theirs else None,
        )

    def _up(self, name: str) -> list[str]:
        """A queue and those above it; a ring is cut where it closes."""
        path: list[str] = []
        while name in self._standings and name not in path:
            path.append(name)
            name = self._standings[name].parent
        return path


def _part(standing: QueueStanding, extra: Amounts, resource: str) -> Fraction:
    held, most = standing.held.get(resource, 0) + extra.get(resource, 0), standing.allocatable(resource)
    if most == NO_LIMIT:
        return Fraction(0)
    return Fraction(held, most) if most else Fraction(held * 1000)


def _is_below(
    standing: QueueStanding, extra: Amounts, bound: Amounts, resources: Sequence[str], *, strictly: bool
) -> bool:
    """Whether it holds less than a bound, or no more than that with what is extra, of all resources."""
    if strictly:
        return all(_exceeds(bound.get(r, 0), standing.held.get(r, 0)) or bound.get(r, 0) == NO_LIMIT for r in resources)
    return _covers(bound, standing.held, extra, resources)


def _covers(bound: Amounts, held: Amounts, extra: Amounts, resources: Sequence[str]) -> bool:
    return not any(_exceeds(held.get(r, 0) + extra.get(r, 0), bound.get(r, 0)) for r in resources)


def _exceeds(amount: int, bound: int) -> bool:
    return bound != NO_LIMIT and amount > bound
