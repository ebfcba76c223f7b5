"""The recent past of a store: the changes from which an interrupted watch can go on; `revision_log.py` fills it.

Bounded by number, bytes and age. What falls out moves `oldest` up, and a watch from before it is told so (410). Age
is measured on the monotonic clock, so that a clock that jumps forgets nothing.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from hekla.apiserver.store import Change, CompactedError


@dataclass(frozen=True, kw_only=True)
class WindowLimits:
    """How much of the past is kept."""

    changes: int = 50_000
    superseded_bytes: int = 64 << 20
    """Bytes of bodies that are kept only for the past: former states, and last states of deleted objects."""

    age_s: float = 3600.0


class _Track:
    """The changes of one resource, oldest first; the head is cut off lazily."""

    __slots__ = ("changes", "head")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.head = 0

    def drop_first(self) -> None:
        self.head += 1
        if self.head > 64 and self.head * 2 > len(self.changes):
            del self.changes[: self.head]
            self.head = 0

    def after(self, revision: int) -> list[Change]:
        start = bisect_right(self.changes, revision, lo=self.head, key=_revision)
        return self.changes[start:]


class ChangeWindow:
    """Recent changes in order of revision, in all and by resource."""

    def __init__(self, oldest: int, limits: WindowLimits) -> None:
        self.oldest = oldest
        self._limits = limits
        self._tracks: dict[str, _Track] = {}
        self._order: deque[Change] = deque()
        self._times_s: deque[float] = deque()  # beside `_order`: pairs would give the garbage collector more to visit
        self._bytes = 0

    def add(self, changes: Iterable[Change], now_s: float) -> list[Change]:
        """Append durable changes; returns those that fell out."""
        for change in changes:
            track = self._tracks.get(change.key.resource)
            if track is None:
                track = self._tracks[change.key.resource] = _Track()
            track.changes.append(change)
            self._order.append(change)
            self._times_s.append(now_s)
            self._bytes += _superseded_bytes(change)
        return self._trim(now_s)

    def after(self, resource: str, revision: int) -> Sequence[Change]:
        """Changes of a resource ("" for all) above a revision; CompactedError if some of them are gone."""
        if revision < self.oldest:
            raise CompactedError(revision, self.oldest)
        if not resource:
            return [change for change in self._order if change.revision > revision]
        track = self._tracks.get(resource)
        return track.after(revision) if track else ()

    def _trim(self, now_s: float) -> list[Change]:
        fallen: list[Change] = []
        while self._order and self._is_over(now_s):
            change = self._order.popleft()
            self._times_s.popleft()
            self._tracks[change.key.resource].drop_first()
            self._bytes -= _superseded_bytes(change)
            self.oldest = change.revision
            fallen.append(change)
        return fallen

    def _is_over(self, now_s: float) -> bool:
        limits = self._limits
        return (
            len(self._order) > limits.changes
            or self._bytes > limits.superseded_bytes
            or now_s - self._times_s[0] > limits.age_s
        )


_revision = attrgetter("revision")


def _superseded_bytes(change: Change) -> int:
    previous = change.previous.size if change.previous else 0
    return previous + (change.last.size if change.last else 0)
