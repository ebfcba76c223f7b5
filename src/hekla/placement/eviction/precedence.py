"""Who made way for whom: the memory that keeps evictions from going round in circles.

Whenever a job has another one's tasks evicted it *goes before* it, and nobody is evicted for a job that it goes before,
directly or by others between. So the relation never closes a ring, whatever plug-ins say, and evictions come to an end:

    a pair that is new: one pair of strangers less (`termination_measure.py`)
    a pair that is known: the job for whose sake it happens has more than before, and all who lose tasks come after it

Nothing is held for ever: when what shares follow from has changed (a job came or ended, a queue or a node changed), a
pair that is older than `COOL_OFF_S` is forgotten. So in a cluster where nothing arrives evictions end, and in one that
is busy two jobs change places at most once in that time.
"""

from collections.abc import Iterator

COOL_OFF_S = 300.0

Party = str
"""What a job is known by, also after it was made anew: its lineage or its uid."""


class Precedence:
    """The relation, kept by the cluster across cycles."""

    def __init__(self) -> None:
        self._after: dict[Party, dict[Party, float]] = {}
        """By the party that made way, those for whom, and when last."""

        self._before: dict[Party, set[Party]] = {}
        self._changed = False
        """Whether the world has changed since something was forgotten."""

        self.changes = 0
        """Grows with everything that is noted or forgotten."""

    def __len__(self) -> int:
        """How many pairs are known."""
        return sum(len(ones) for ones in self._after.values())

    @property
    def is_in_use(self) -> bool:
        """Whether anybody made way for anybody; else nothing can be forgotten, whatever changes."""
        return bool(self._after)

    def knows(self, party: Party) -> bool:
        """Whether a party has made way, or others for it."""
        return party in self._after or party in self._before

    def before(self, party: Party) -> frozenset[Party]:
        """All who go before a party: nobody of these makes way for it."""
        found: set[Party] = set()
        front = [party]
        while front:
            for one in self._after.get(front.pop(), ()):
                if one not in found:
                    found.add(one)
                    front.append(one)
        return frozenset(found)

    def note(self, first: Party, second: Party, now: float) -> None:
        """The second has made way for the first."""
        if first == second:
            return  # within a job priorities say who goes first, and they form no ring
        assert second not in self.before(first), f"{second} goes before {first}, so it cannot make way for it"
        self.changes += 1
        self._after.setdefault(second, {})[first] = now
        self._before.setdefault(first, set()).add(second)

    def world_changed(self) -> None:
        """What shares follow from has changed: old pairs may be forgotten."""
        self._changed = bool(self._after)

    def forget_old(self, now: float) -> None:
        """Forget what has cooled off, if the world has changed since."""
        if not self._changed:
            return
        for second, first in list(self._pairs(older_than=now - COOL_OFF_S)):
            self.changes += 1
            del self._after[second][first]
            self._before[first].discard(second)
            if not self._after[second]:
                del self._after[second]
            if not self._before[first]:
                del self._before[first]
        self._changed = bool(self._after)  # those that are too young now are looked at again

    def pairs(self) -> list[tuple[Party, Party, float]]:
        """All that is known, in order of name: who made way, for whom, and when last; `note` takes it in again."""
        return sorted((second, first, at) for second, ones in self._after.items() for first, at in ones.items())

    @property
    def is_stale(self) -> bool:
        """Whether the world has changed since something was forgotten."""
        return self._changed

    def _pairs(self, older_than: float) -> Iterator[tuple[Party, Party]]:
        for second, ones in self._after.items():
            for first, at in ones.items():
                if at < older_than:
                    yield second, first
