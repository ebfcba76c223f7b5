"""Deals a resource out in rounds: first what queues deserve, then what is left by weight, higher priority first.

    fair      min(deserved, request, limit)                              for all, whatever their priority
    rounds    per priority, high to low: left * part / sum of parts, in whole units, to those who still want some
              part = max(0, weight' + k * (weight' - usage'))            weight', usage' as parts of their sums
    scraps    what rounding kept back: a unit each, by the largest fraction, then age, then uid

`usage'` is what a queue had in the past beside the others (`decay.py`): who had more than its weight gets less of what
nobody deserves. Amounts are whole numbers of a base unit; `unit` is what is dealt out (a GPU of 1,000 thousandths), so
that fractions that are asked for are kept and others never arise. In a tree, what a queue gets is dealt out below it.
After KAI's fair share, whose figures the tests assert.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

NO_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What one queue brings to the dealing of one resource."""

    name: str
    parent: str = ""
    deserved: int = 0
    """What it gets before anybody gets more; -1: all there is."""

    weight: int = 0
    """Its part of what nobody deserves."""

    request: int = 0
    limit: int = NO_LIMIT
    priority: int = 100
    usage: Fraction = Fraction(0)
    """Its part of what all had in the past."""

    created: float = 0.0
    uid: str = ""

    @property
    def requestable(self) -> int:
        """What it may ask for."""
        return self.request if self.limit == NO_LIMIT else min(self.request, self.limit)


def divide(
    total: int, wants: Iterable[Want], *, unit: int = 1, pull: Fraction = Fraction(1)
) -> tuple[Mapping[str, int], int]:  # fmt: skip
    """What each queue gets, and what is left over; `pull` is how strongly the past counts."""
    dealing = _Dealing(total, sorted(wants, key=lambda want: (want.created, want.uid, want.name)), unit, pull)
    return dealing.run()


def divide_tree(
    total: int, wants: Iterable[Want], *, unit: int = 1, pull: Fraction = Fraction(1)
) -> Mapping[str, int]:  # fmt: skip
    """The same from the top down: what a queue gets is dealt out among those below it. Rings get nothing."""
    below: dict[str, list[Want]] = {}
    for want in wants:
        below.setdefault(want.parent, []).append(want)
    asked = {name: _asked(name, below, frozenset()) for name in below}
    shares: dict[str, int] = {}
    level = [("", total)]
    while level:
        name, amount = level.pop()
        siblings = [
            replace(want, request=asked[want.name]) if want.name in below else want for want in below.get(name, ())
        ]
        given, _ = divide(amount, siblings, unit=unit, pull=pull)
        shares |= given
        level += given.items()
    return shares


def _asked(name: str, below: Mapping[str, Sequence[Want]], above: frozenset[str]) -> int:
    """What the queues below one ask for together."""
    return sum(
        min(_asked(want.name, below, above | {name}), _bound(want)) if want.name in below else want.requestable
        for want in below[name]
        if want.name not in above
    )


def _bound(want: Want) -> int:
    return want.limit if want.limit != NO_LIMIT else 1 << 63


class _Dealing:
    def __init__(self, total: int, wants: Sequence[Want], unit: int, pull: Fraction) -> None:
        self._wants, self._unit, self._pull = wants, unit, pull
        self._given = {
            want.name: min(total if want.deserved == NO_LIMIT else want.deserved, want.requestable) for want in wants
        }
        self._left = max(0, total - sum(self._given.values()))
        self._cut: dict[str, Fraction] = {}
        """By name, the fraction of a unit that rounding kept back."""

    def run(self) -> tuple[Mapping[str, int], int]:
        priorities = sorted({want.priority for want in self._wants}, reverse=True)
        ranks = [[want for want in self._wants if want.priority == priority] for priority in priorities]
        for rank in ranks:
            while self._left > 0 and self._round(rank):
                pass
        for rank in ranks:
            self._scraps(rank)
        return self._given, self._left

    def _lacks(self, want: Want) -> int:
        return want.requestable - self._given[want.name]

    def _round(self, rank: Sequence[Want]) -> bool:
        """Deal what is left out once; whether somebody needed less than its part, so that there is more for others."""
        hungry = [want for want in rank if want.weight > 0 and self._lacks(want) > 0]
        parts = self._parts(hungry)
        whole, pot, is_over = sum(parts), self._left, True
        for want, part in zip(hungry, parts, strict=True) if whole else ():
            exact = pot * part / whole
            lacking = self._lacks(want)
            if lacking <= exact:
                amount = lacking
                self._cut.pop(want.name, None)
                is_over = is_over and lacking == exact
            else:
                amount = int(exact // self._unit) * self._unit
                self._cut[want.name] = exact - amount
            self._given[want.name] += amount
            self._left -= amount
        return not is_over

    def _parts(self, hungry: Sequence[Want]) -> list[Fraction]:
        weights = sum(want.weight for want in hungry)
        has_past = any(want.usage for want in hungry)  # without one the pull would only scale all parts alike
        parts = []
        for want in hungry:
            weight = Fraction(want.weight, weights)
            parts.append(max(Fraction(0), weight + self._pull * (weight - want.usage) if has_past else weight))
        return parts

    def _scraps(self, rank: Sequence[Want]) -> None:
        cut = [want for want in rank if self._cut.get(want.name) and self._lacks(want) > 0]
        for want in sorted(cut, key=lambda want: -self._cut[want.name]):  # stable: then by age and uid
            amount = min(self._unit, self._left, self._lacks(want))
            self._given[want.name] += amount
            self._left -= amount
