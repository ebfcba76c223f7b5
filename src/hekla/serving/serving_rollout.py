"""Which of a set of like units come and go: the arithmetic of scaling, rolling updates, partitions and surges. Pure numbers.

A unit is a serving group of a ModelServing, or an instance of a role in a group; the rules are the same for both.

    missing       ordinals below the target, the lowest first
    too many      those that are not ready first, then the cheapest to delete, then the highest ordinal; protected ones last
    outdated      as many as keep `replicas - max_unavailable` ready, broken ones first, then the highest ordinal
    protected     the first `partition` units keep their revision; those of them that are not ready count as unavailable
    surge         while an update runs there may be `max_surge` more; they go when the first `replicas` ordinals are ready

`serving_plan.py` applies it; `serving_view.py` says what is ready and current.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hekla.lib.digits import whole_number

UNBOUNDED = 1 << 30
MOST_MISSING = 5_000
"""Ordinals that are told to be missing; the rest are when these are there."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One group, or one instance of a role."""

    ordinal: int
    is_ready: bool = True
    is_current: bool = True
    """Whether it is of the revision that the spec asks for."""
    is_leaving: bool = False
    """Whether it is on its way out already; its name is still taken."""
    cost: int = 0
    """How dear it is to delete."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a set of units should come to."""

    replicas: int
    partition: int = 0
    max_unavailable: int = 1
    max_surge: int = 0
    is_rolling: bool = False
    """Whether an update is under way; units of a surge are kept only then."""
    most_updates: int = UNBOUNDED
    """How many ready units may be taken down for the update at this moment, whatever their own budget says."""


@dataclass(frozen=True)
class Change:
    """What to do."""

    create: list[int] = field(default_factory=list)
    """Ordinals to make."""
    surplus: list[int] = field(default_factory=list)
    """Ordinals to remove because there are too many."""
    outdated: list[int] = field(default_factory=list)
    """Ordinals to remove so that they are made anew."""

    @property
    def removed(self) -> set[int]:
        """Every ordinal that goes."""
        return {*self.surplus, *self.outdated}


def change(units: Sequence[Unit], wish: Wish) -> Change:
    """What brings the units a step closer to the wish."""
    ordered = sorted(units, key=lambda unit: unit.ordinal)
    protected = {unit.ordinal for unit in ordered[: wish.partition]}
    target = wish.replicas + _surge(ordered, protected, wish)
    surplus = _surplus(ordered, protected, target)
    rest = [unit for unit in ordered if unit.ordinal not in surplus]
    return Change(
        create=_missing({unit.ordinal for unit in ordered}, target),
        surplus=surplus,
        outdated=_outdated(rest, protected, wish),
    )


def _surge(units: Sequence[Unit], protected: set[int], wish: Wish) -> int:
    """How many units there may be above `replicas` now.

    When nothing outdated is left to replace, those above stay until the places below are filled and ready: an update ends
    with the same ordinals that it began with (Kthena's issue 1743).
    """
    if not wish.is_rolling or wish.max_surge == 0:
        return 0
    to_replace = sum(
        1 for unit in units if not unit.is_current and not unit.is_leaving and unit.ordinal not in protected
    )
    if to_replace:
        return min(wish.max_surge, to_replace)
    ready_below = sum(1 for unit in units if unit.ordinal < wish.replicas and unit.is_ready and not unit.is_leaving)
    above = sum(1 for unit in units if unit.ordinal >= wish.replicas)
    return min(wish.max_surge, above) if ready_below < wish.replicas else 0


def _missing(taken: set[int], target: int) -> list[int]:
    count = min(max(0, target - len(taken)), MOST_MISSING)
    free = (ordinal for ordinal in range(target) if ordinal not in taken)
    return [ordinal for ordinal, _ in zip(free, range(count), strict=False)]


def _surplus(units: Sequence[Unit], protected: set[int], target: int) -> list[int]:
    staying = [unit for unit in units if not unit.is_leaving]
    first_to_go = sorted(
        staying, key=lambda unit: (unit.ordinal in protected, unit.is_ready, unit.cost, -unit.ordinal)
    )  # fmt: skip
    return [unit.ordinal for unit in first_to_go[: max(0, len(staying) - target)]]


def _outdated(units: Sequence[Unit], protected: set[int], wish: Wish) -> list[int]:
    exposed = [unit for unit in units if unit.ordinal not in protected]
    starting = sum(1 for unit in exposed if unit.is_current and not unit.is_ready)
    budget = len(units) - max(0, wish.replicas - wish.max_unavailable) - starting
    old = sorted((unit for unit in exposed if not unit.is_current), key=lambda unit: -unit.ordinal)
    broken = [unit for unit in old if not unit.is_ready]
    # what is broken serves nobody, so replacing it needs no leave of others, nor of protected ones that are broken as well:
    # the update may be what mends it
    down = len(broken) + sum(1 for unit in units if unit.ordinal in protected and not unit.is_ready)
    chosen = broken[: max(0, budget)] + [unit for unit in old if unit.is_ready][: max(0, budget - down)]
    allowed = len(broken) + wish.most_updates
    return [unit.ordinal for unit in chosen[:allowed] if not unit.is_leaving]


def share(value: int | str | None, of: int, *, round_up: bool) -> int:
    """A number, or a percentage of `of`, as Kubernetes reads it; absent, or neither of the two, is 0."""
    if isinstance(value, int):
        return value
    percent = whole_number((value or "").removesuffix("%")) or 0
    return -(-of * percent // 100) if round_up else of * percent // 100


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the update of one role is."""

    done: int
    """Instances that are of the new revision and ready."""
    begun: int
    """Those, and those that are on their way to it."""
    total: int
    """Instances that will be, in the end."""

    @property
    def part(self) -> float:
        """From 0 to 1; a role of which nothing is to be updated is done."""
        return min(1.0, self.done / self.total) if self.total > 0 else 1.0


def most_updates(role: str, progress: dict[str, Progress], max_skew: float) -> int:
    """How many instances of a role may go down now, so that no role runs ahead of another by more than `max_skew` (0..1).

    The role that is furthest behind may always go on with one: a bound narrower than one instance must not stop the update.
    """
    own = progress[role]
    behind = min(one.part for one in progress.values())
    within_bound = int((behind + max_skew) * own.total + 1e-9) - own.begun
    is_last = own.part <= behind and own.begun <= own.done
    return max(within_bound, 1 if is_last else 0)
