"""Groups live watches of one resource, so that an event is matched and encoded once for all who see it alike.

A scope is a namespace ("" for all) and at most one pinned field; within a scope, watches with the same encoder and the
same condition form a cohort. A change is offered to the scopes it can concern and to no others. `watch_hub.py` owns
the watches and does the writing.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from hekla.apiserver.store import Change, Stored

log = structlog.get_logger(__name__)

Encode = Callable[[str, Stored, int], bytes]
"""From an event's type, object and revision to a whole frame."""

Matches = Callable[[Stored], bool]
Field = tuple[str, str]
Scope = tuple[str, Field | None]
Event = tuple[str, Stored]
Frames = dict[tuple[Encode, str, int], bytes]

W = TypeVar("W", bound=Hashable)


def event_of(change: Change, matches: Matches | None) -> Event | None:
    """What a change is to one who sees only matching objects; None: nothing.

    An object that begins to match is ADDED, one that ceases to match is DELETED with its former state.
    """
    previous, current = change.previous, change.current
    was_seen = previous is not None and (matches is None or matches(previous))
    if current is not None and (matches is None or matches(current)):
        return "MODIFIED" if was_seen else "ADDED", current
    if was_seen:
        shown = change.last or previous
        assert shown is not None, "what was seen was there"
        return "DELETED", shown
    return None


class Cohort(Generic[W]):
    """Watches that see the same events in the same bytes."""

    __slots__ = ("_encode", "_field", "_matches", "after", "watches")

    def __init__(self, pinned: Field | None, encode: Encode, matches: Matches | None, after: int) -> None:
        self._field, self._encode, self._matches = pinned, encode, matches
        self.after = after  # a client that has seen more than is durable is told nothing twice
        self.watches: dict[W, None] = {}

    def frame(self, change: Change, frames: Frames) -> bytes | None:
        """The frame of a change, taken from or put into the cache of this batch."""
        if change.revision <= self.after:
            return None
        event = event_of(change, self._matches if self._field is None else self._is_wanted)
        if event is None:
            return None
        at = (self._encode, event[0], change.revision)
        frame = frames.get(at)
        if frame is None:
            frame = frames[at] = self._encode(*event, change.revision)
        return frame

    def _is_wanted(self, stored: Stored) -> bool:
        assert self._field is not None, "asked only where a field is pinned"
        if stored.fields.get(self._field[0], "") != self._field[1]:
            return False
        return self._matches is None or self._matches(stored)


@dataclass(slots=True)
class Sent(Generic[W]):
    """What is to be written to whom, and who cannot be served."""

    blobs: list[tuple[bytes, list[W]]] = field(default_factory=list)
    broken: list[W] = field(default_factory=list)


class Channel(Generic[W]):
    """The live watches of one resource."""

    def __init__(self) -> None:
        self._scopes: dict[Scope, dict[Hashable, Cohort[W]]] = {}
        self._places: dict[W, tuple[Scope, Hashable]] = {}
        self._fields: Counter[str] = Counter()

    @property
    def is_empty(self) -> bool:
        """Whether nobody watches."""
        return not self._places

    def members(self) -> list[W]:
        """All watches."""
        return list(self._places)

    def add(self, watch: W, namespace: str, pinned: Field | None, kind: tuple[Encode, Matches | None, int]) -> None:
        """Put a watch into its cohort."""
        scope = (namespace, pinned)
        cohorts = self._scopes.get(scope)
        if cohorts is None:
            cohorts = self._scopes[scope] = {}
            if pinned is not None:
                self._fields[pinned[0]] += 1
        cohort = cohorts.get(kind)
        if cohort is None:
            cohort = cohorts[kind] = Cohort(pinned, *kind)
        cohort.watches[watch] = None
        self._places[watch] = scope, kind

    def remove(self, watch: W) -> None:
        """Take a watch out, and with the last one its cohort and its scope."""
        scope, kind = self._places.pop(watch)
        cohorts = self._scopes[scope]
        del cohorts[kind].watches[watch]
        if not cohorts[kind].watches:
            del cohorts[kind]
        if not cohorts:
            del self._scopes[scope]
            if scope[1] is not None:
                self._fields[scope[1][0]] -= 1
                self._fields += Counter()  # drops names that nobody pins any more

    def dispatch(self, changes: Sequence[Change]) -> Sent[W]:
        """Match and encode a batch."""
        frames: Frames = {}
        pieces: dict[Cohort[W], list[bytes]] = {}
        broken: dict[Cohort[W], None] = {}
        for change in changes:
            for cohort in self._concerned(change):
                try:
                    frame = cohort.frame(change, frames)
                except Exception:  # a task boundary: one cohort's encoder must not cost the others their events
                    log.exception("watch failed", resource=change.key.resource, revision=change.revision)
                    broken[cohort] = None
                    continue
                if frame is not None:
                    pieces.setdefault(cohort, []).append(frame)
        sent: Sent[W] = Sent(broken=[watch for cohort in broken for watch in cohort.watches])
        for cohort, parts in pieces.items():
            if cohort not in broken:
                sent.blobs.append((parts[0] if len(parts) == 1 else b"".join(parts), list(cohort.watches)))
        return sent

    def _concerned(self, change: Change) -> Iterator[Cohort[W]]:
        namespaces = ("", change.key.namespace) if change.key.namespace else ("",)
        for pinned in (None, *self._pinned(change)):
            for namespace in namespaces:
                cohorts = self._scopes.get((namespace, pinned))
                if cohorts is not None:
                    yield from cohorts.values()

    def _pinned(self, change: Change) -> set[Field]:
        states = [stored.fields for stored in (change.previous, change.current) if stored is not None]
        return {(name, fields.get(name, "")) for name in self._fields for fields in states}
