"""Sandboxes that wait in pools, by template, and those that are a session's: what `kube_stock.py` gives out, as an informer tells of them.

Each candidate is given to one order at a time, and to none again before the informer has told what became of it. A cache is behind:
an order that picked from it met what others had adopted again and again, and as no answer had to be waited for, nobody else had a turn.
"""

import heapq
from collections.abc import Callable
from typing import TypeVar

from hekla.api.agents import Sandbox, names
from hekla.sandbox.observing import is_true
from hekla.sandbox.owning import controller_of

_POOL = "SandboxWarmPool"
SPARE_ENTRIES = 64
Key = TypeVar("Key")
_Shelf = dict[str, Sandbox]
"""By uid."""


def is_free(sandbox: Sandbox) -> bool:
    """Whether it waits in a pool, ready for whoever comes."""
    owner = controller_of(sandbox)
    return (
        sandbox.metadata.deletion_timestamp is None
        and names.SESSION_ID not in sandbox.metadata.labels
        and owner is not None
        and owner.kind == _POOL
        and is_true(sandbox.status.conditions, "Ready")
    )


class Candidates:
    """Who can be adopted, and who was."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, str], _Shelf] = {}
        """By namespace and template."""
        self._by_age: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
        """A heap beside each shelf, its entries checked when they come up: looking for the oldest of 300, 300 times, took 40 ms."""
        self._of_sessions: dict[str, _Shelf] = {}
        self._given: dict[str, Sandbox | None] = {}
        """Those that an order has, by uid, with what the informer told of each meanwhile."""
        self.on_change: Callable[[], None] = lambda: None
        """Told that others are taken next from now on, or may be."""

    def changed(self, old: Sandbox | None, new: Sandbox | None) -> None:
        """What an informer tells."""
        if old is not None:
            _drop(self._free, _template_of(old), old)
            _drop(self._of_sessions, _session_of(old), old)
        if new is None or not is_free(new):
            gone = new if new is not None else old
            assert gone is not None, "a change is of something"
            self._given.pop(gone.metadata.uid, None)
        elif new.metadata.uid in self._given:
            self._given[new.metadata.uid] = new
        else:
            self._put(new)
        if new is not None and new.metadata.deletion_timestamp is None and (session := _session_of(new)):
            self._of_sessions.setdefault(session, {})[new.metadata.uid] = new

    def of_session(self, session: str) -> Sandbox | None:
        """The one that carries a session's label."""
        return next(iter(self._of_sessions.get(session, {}).values()), None)

    def take(self, namespace: str, template: str) -> Sandbox | None:
        """The oldest that waits; it is the caller's until `let_go`, or for good once it is adopted."""
        key = namespace, template
        shelf, by_age = self._free.get(key, {}), self._by_age.get(key, [])
        while by_age:
            oldest = shelf.get(heapq.heappop(by_age)[2])
            if oldest is not None:
                _drop(self._free, key, oldest)
                self._given[oldest.metadata.uid] = None
                self.on_change()
                return oldest
        assert not shelf, "whoever is on a shelf is in its heap"
        self._by_age.pop(key, None)
        return None

    def take_near(self, namespace: str, template: str, most: int, is_near: Callable[[Sandbox], bool]) -> list[Sandbox]:
        """Those of a place, as `take` gives one: the youngest, so that who is taken next stays as it is."""
        key = namespace, template
        near = heapq.nlargest(most, filter(is_near, self._free.get(key, {}).values()), key=_age)
        for one in near:
            _drop(self._free, key, one)
            self._given[one.metadata.uid] = None
        if near:
            self.on_change()
        return near

    def next_up(self, each: int) -> list[Sandbox]:
        """Who is taken next: so many of each template."""
        return [one for shelf in self._free.values() for one in heapq.nsmallest(each, shelf.values(), key=_age)]

    def let_go(self, sandbox: Sandbox, *, is_as_it_was: bool = False) -> None:
        """It was not adopted. What the informer told meanwhile holds; if nothing, it waits again where it is as it was."""
        told = self._given.pop(sandbox.metadata.uid, None)
        if told is None and is_as_it_was:
            told = sandbox
        if told is not None:
            self._put(told)

    def _put(self, one: Sandbox) -> None:
        key, meta = _template_of(one), one.metadata
        shelf, by_age = self._free.setdefault(key, {}), self._by_age.setdefault(key, [])
        shelf[meta.uid] = one
        heapq.heappush(by_age, _age(one))
        self.on_change()
        if len(by_age) > 2 * len(shelf) + SPARE_ENTRIES:  # they are told of again and again, and nobody takes any
            by_age[:] = sorted({entry for entry in by_age if entry[2] in shelf})


def _age(sandbox: Sandbox) -> tuple[str, str, str]:
    meta = sandbox.metadata
    return meta.creation_timestamp or "", meta.name, meta.uid


def _drop(shelves: dict[Key, _Shelf], key: Key, one: Sandbox) -> None:
    shelf = shelves.get(key)
    if shelf is not None:
        shelf.pop(one.metadata.uid, None)
        if not shelf:
            del shelves[key]


def _template_of(sandbox: Sandbox) -> tuple[str, str]:
    return sandbox.metadata.namespace, sandbox.metadata.annotations.get(names.TEMPLATE_REF, "")


def _session_of(sandbox: Sandbox) -> str:
    return sandbox.metadata.labels.get(names.SESSION_ID, "")
