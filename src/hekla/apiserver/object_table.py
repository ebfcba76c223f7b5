"""The current objects of a store, in memory, by resource and namespace; `revision_log.py` fills it.

Lists come in order of (namespace, name). Sorting is put off until somebody asks, and an answer is kept until the next
write to that namespace: a burst of creations pays nothing for order, and the pages of one list share one sort.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from hekla.apiserver.store import Key, Stored

FEW = 16
"""Changes are few where the list is so many times as long: then each is looked up in it."""


class _Shelf:
    """The objects of one namespace of one resource."""

    __slots__ = ("_listed", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, Stored] = {}
        self._listed: tuple[Stored, ...] | None = None

    def set(self, name: str, stored: Stored | None) -> None:
        """Put or (None) remove."""
        self._listed = None
        if stored is None:
            self.by_name.pop(name, None)
        else:
            self.by_name[name] = stored

    def listed(self) -> tuple[Stored, ...]:
        """In order of name."""
        if self._listed is None:
            self._listed = tuple(sorted(self.by_name.values(), key=_by_name))
        return self._listed


class ObjectTable:
    """Objects by key, with ordered lists."""

    def __init__(self) -> None:
        self._shelves: dict[str, dict[str, _Shelf]] = {}
        self._listed: dict[str, tuple[Stored, ...]] = {}
        """All objects of a resource, from when somebody asked to the next write."""
        self._versions: dict[str, int] = {}

    def version_of(self, resource: str) -> int:
        """How often an object of a resource has been put or taken away."""
        return self._versions.get(resource, 0)

    def get(self, key: Key) -> Stored | None:
        """One object."""
        shelf = self._shelf(key.resource, key.namespace)
        return shelf.by_name.get(key.name) if shelf else None

    def set(self, key: Key, stored: Stored | None) -> None:
        """Put one object, or (None) take it away."""
        self._listed.pop(key.resource, None)
        self._versions[key.resource] = self._versions.get(key.resource, 0) + 1
        shelves = self._shelves.setdefault(key.resource, {})
        shelf = shelves.get(key.namespace)
        if shelf is None:
            if stored is None:
                return
            shelf = shelves[key.namespace] = _Shelf()
        shelf.set(key.name, stored)
        if not shelf.by_name:
            del shelves[key.namespace]

    def list(self, resource: str, namespace: str = "") -> Sequence[Stored]:
        """Objects of one namespace or, with "", of all, in order."""
        shelves = self._shelves.get(resource, {})
        if namespace or len(shelves) <= 1:
            only = shelves.get(namespace) if namespace else next(iter(shelves.values()), None)
            return only.listed() if only else ()
        whole = self._listed.get(resource)
        if whole is None:  # kept, because 150,000 pods are asked for in hundreds of pages
            whole = tuple(stored for name in sorted(shelves) for stored in shelves[name].listed())
            self._listed[resource] = whole
        return whole

    def count(self, resource: str) -> int:
        """How many objects a resource has."""
        return sum(len(shelf.by_name) for shelf in self._shelves.get(resource, {}).values())

    def resources(self) -> Sequence[str]:
        """Resources with at least one object."""
        return sorted(name for name, shelves in self._shelves.items() if shelves)

    def _shelf(self, resource: str, namespace: str) -> _Shelf | None:
        shelves = self._shelves.get(resource)
        return shelves.get(namespace) if shelves else None


def overlaid(listed: Sequence[Stored], instead: Iterable[tuple[Key, Stored | None]]) -> Sequence[Stored]:
    """A list with some keys replaced by what they were (None: they were not there), still in order."""
    others = dict(instead)
    if len(others) * FEW < len(listed):
        return _patched(list(listed), others)
    by_key = {stored.key: stored for stored in listed}
    for key, stored in others.items():
        if stored is None:
            by_key.pop(key, None)
        else:
            by_key[key] = stored
    return sorted(by_key.values(), key=_by_key)


def _patched(listed: list[Stored], instead: dict[Key, Stored | None]) -> Sequence[Stored]:
    """The same, looking each key up: the pages of a long list go on while others write."""
    for key, stored in instead.items():
        at = bisect_left(listed, key, key=_by_key)
        is_there = at < len(listed) and listed[at].key == key
        listed[at : at + is_there] = [] if stored is None else [stored]
    return listed


def _by_name(stored: Stored) -> str:
    return stored.key.name


def _by_key(stored: Stored) -> Key:
    return stored.key
