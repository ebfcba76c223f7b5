"""Whose turn it is, and who may take back, where shares were dealt out in rounds (`over_quota.py`).

    next       not above its fair share of everything; then within what it deserves with the job; then priority; then who
               would hold nothing that it has no share of; then the smaller dominant share with the job, and without; then the
               smaller allocatable share; then age
    reclaim    the asker stays within its fair share with the job, and if the job cannot be preempted it and all above it
               within what they deserve with jobs of that kind; each victim's branch, where the two part, has more than its
               allocatable share of something as the victim's turn comes, or more than it deserves of something while the
               asker's branch stays within what that deserves
    saturated  refused where a branch of the asker would be above its fair share and as full, in proportion to that, as a
               sibling that gives; judged by what the job and the victims of that sibling are made of

allocatable = limit where all is deserved, else min(max(deserved, fair), limit). A department that is full does not keep its
projects from taking back from one another. After KAI's queue order and reclaim.
"""

from collections.abc import Iterator, Mapping, Sequence
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


def dominant(standing: QueueStanding, extra: Amounts, resources: Sequence[str], total: Amounts) -> Fraction:
    """The largest part of what it is meant to hold, which is all there is where nothing bounds it; of nothing, each unit
    counts a thousandfold.
    """
    return max((_part(standing, extra, resource, total) for resource in resources), default=Fraction(0))


def turn_of(standing: QueueStanding, asked: Amounts, resources: Sequence[str], *, total: Amounts) -> tuple[Any, ...]:
    """The sort key of a queue with its next job, where there is so much in all: smaller goes first."""
    shares = {resource: standing.allocatable(resource) for resource in resources}
    held = {resource: standing.held.get(resource, 0) for resource in resources}
    return (
        all(_exceeds(held[resource], standing.fair.get(resource, 0)) for resource in resources),
        not _covers(standing.deserved, standing.held, asked, resources),
        -standing.priority,
        any(not share and held[resource] + asked.get(resource, 0) > 0 for resource, share in shares.items()),
        dominant(standing, asked, resources, total),
        dominant(standing, {}, resources, total),
        [share if share != NO_LIMIT else 1 << 63 for share in shares.values()],
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
        self._resources = sorted({*asked, *(name for one in standings.values() for name in _named(one))})
        self._path = self._up(asker)
        self._left: dict[str, dict[str, int]] = {}
        """By queue, what it and those below it hold when the victims so far are gone; of those that give alone."""

        self._touched: dict[str, set[str]] = {}
        """By queue that gives, the resources that its victims have."""

    def holds(self, victims: Sequence[tuple[str, Amounts]], *, is_preemptible: bool) -> bool:
        if not self._stays_within(is_preemptible=is_preemptible):
            return False
        for queue, amounts in victims:
            mine, theirs = self._parting(queue)
            if mine is None or theirs is None or not self._is_fair(mine, theirs):
                return False  # of its own branch nothing is taken back
            self._let_go(queue, amounts)
        return all(self._is_emptier(self._standings[name]) for name in self._path)

    def _stays_within(self, *, is_preemptible: bool) -> bool:
        path = [self._standings[name] for name in self._path]
        if not path or not _covers(path[0].fair, path[0].held, self._asked, self._resources):
            return False
        return is_preemptible or all(_covers(one.deserved, one.held_firm, self._asked, self._resources) for one in path)

    def _is_fair(self, mine: QueueStanding, theirs: QueueStanding) -> bool:
        """Whether the next victim of a branch may go, by one of the two strategies."""
        held = self._left.get(theirs.name, theirs.held)
        if any(_exceeds(held.get(r, 0), theirs.allocatable(r)) for r in self._resources):
            return True
        is_owed = _covers(mine.deserved, mine.held, self._asked, self._resources)
        return is_owed and not _covers(theirs.deserved, held, {}, self._resources)

    def _let_go(self, queue: str, amounts: Amounts) -> None:
        for name in self._up(queue):
            left = self._left.setdefault(name, dict(self._standings[name].held))
            touched = self._touched.setdefault(name, set())
            for resource, amount in amounts.items():
                left[resource] = left.get(resource, 0) - amount
                if amount > 0:
                    touched.add(resource)

    def _is_emptier(self, mine: QueueStanding) -> bool:
        """Whether a branch of the asker would still be less full than its siblings that give, by what is fair for each."""
        held = self._left.get(mine.name, mine.held)
        for name, left in self._left.items():
            sibling = self._standings[name]
            if sibling.parent != mine.parent or name == mine.name:
                continue
            for resource in {*self._touched[name], *(r for r, amount in self._asked.items() if amount > 0)}:
                fair, other = mine.fair.get(resource, 0), sibling.fair.get(resource, 0)
                full = held.get(resource, 0) + self._asked.get(resource, 0)
                if fair == NO_LIMIT or other <= 0 or full <= fair:
                    continue
                if not fair or Fraction(full, fair) * self._saturation >= Fraction(left.get(resource, 0), other):
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


def _named(standing: QueueStanding) -> Iterator[str]:
    for amounts in (standing.held, standing.held_firm, standing.deserved, standing.fair, standing.limit):
        yield from amounts


def _part(standing: QueueStanding, extra: Amounts, resource: str, total: Amounts) -> Fraction:
    held, most = standing.held.get(resource, 0) + extra.get(resource, 0), standing.allocatable(resource)
    if most == NO_LIMIT:
        most = total.get(resource, 0)
    return Fraction(held, most) if most else Fraction(held * 1000)


def _covers(bound: Amounts, held: Amounts, extra: Amounts, resources: Sequence[str]) -> bool:
    return not any(_exceeds(held.get(r, 0) + extra.get(r, 0), bound.get(r, 0)) for r in resources)


def _exceeds(amount: int, bound: int) -> bool:
    return bound != NO_LIMIT and amount > bound
