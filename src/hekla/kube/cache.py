"""A local copy of all objects of a kind, with the indexes that decisions ask for. `informer.py` keeps it true."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from hekla.api.meta import Resource

T = TypeVar("T", bound=Resource)
ObjectKey = tuple[str, str]
"""(namespace, name); the namespace of a cluster-wide object is empty."""


def key_of(obj: Resource) -> ObjectKey:
    """Where an object lives."""
    meta = obj.metadata
    return meta.namespace, meta.name


def node_of(obj: Resource) -> str:
    """The node that a pod is placed on; empty for one that is not, and for objects that never are."""
    spec = getattr(obj, "spec", None)
    return str(getattr(spec, "node_name", ""))


def selector_of(obj: Resource) -> Mapping[str, str]:
    """The labels that a Service selects pods by; empty of one that selects none, and of objects that never do."""
    return getattr(getattr(obj, "spec", None), "selector", None) or {}


def controller_uid(obj: Resource) -> str:
    """The uid of the object's controller; empty if it has none."""
    for owner in obj.metadata.owner_references:  # no generator: every pod of a start passes here
        if owner.controller:
            return owner.uid
    return ""


class Cache(Generic[T]):
    """Objects by key, by namespace, by controller, and by any label or node somebody has asked for."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, T] = {}
        self._by_namespace: dict[str, set[ObjectKey]] = {}
        self._by_controller: dict[str, set[ObjectKey]] = {}
        self._by_label: dict[str, dict[str, set[ObjectKey]]] = {}
        self._by_node: dict[str, set[ObjectKey]] | None = None
        self._selecting: _Selecting | None = None

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def keys(self) -> set[ObjectKey]:
        """Where all objects live."""
        return set(self._objects)

    def get(self, namespace: str, name: str) -> T | None:
        """One object."""
        return self._objects.get((namespace, name))

    def put(self, obj: T) -> T | None:
        """Add or replace an object; returns the one before."""
        key = key_of(obj)
        old = self.remove(key) if key in self._objects else None
        self._objects[key] = obj
        for index, value in self._entries(obj):
            index.setdefault(value, set()).add(key)
        if self._selecting is not None:
            self._selecting.put(key, selector_of(obj))
        return old

    def remove(self, key: ObjectKey) -> T | None:
        """Forget an object; returns it."""
        old = self._objects.pop(key, None)
        if old is not None:
            for index, value in self._entries(old):
                keys = index[value]
                keys.discard(key)
                if not keys:
                    del index[value]
            if self._selecting is not None:
                self._selecting.remove(key)
        return old

    def list(self, namespace: str = "", labels: dict[str, str] | None = None) -> Sequence[T]:
        """Objects of a namespace ("" for all) that carry all the labels, in order of namespace and name."""
        candidates: Iterable[ObjectKey] = self._by_namespace.get(namespace, ()) if namespace else self._objects
        for label, value in (labels or {}).items():
            selected = self._label_index(label).get(value, set())
            candidates = selected.intersection(candidates)
        if not candidates:  # asked for the services of each of 150,000 pods, where there is none
            return ()
        return [self._objects[key] for key in sorted(candidates)]

    def owned(self, uid: str) -> Sequence[T]:
        """Objects whose controller is `uid`, in order of namespace and name."""
        return [self._objects[key] for key in sorted(self._by_controller.get(uid, ()))]

    def placed(self, node: str) -> Sequence[T]:
        """Objects placed on a node, in order of namespace and name."""
        if self._by_node is None:
            self._by_node = {}
            for key, obj in self._objects.items():
                if on := node_of(obj):
                    self._by_node.setdefault(on, set()).add(key)
        return [self._objects[key] for key in sorted(self._by_node.get(node, ()))]

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> Sequence[T]:
        """Objects of a namespace whose selector these labels satisfy, in order of name."""
        if self._selecting is None:
            self._selecting = _Selecting()
            for key, obj in self._objects.items():
                self._selecting.put(key, selector_of(obj))
        near = sorted(self._selecting.near(namespace, labels))
        return [obj for key in near if selector_of(obj := self._objects[key]).items() <= labels.items()]

    def _entries(self, obj: T) -> Iterator[tuple[dict[str, set[ObjectKey]], str]]:
        if obj.metadata.namespace:
            yield self._by_namespace, obj.metadata.namespace
        uid = controller_uid(obj)
        if uid:
            yield self._by_controller, uid
        if self._by_node is not None and (node := node_of(obj)):
            yield self._by_node, node
        for label, index in self._by_label.items():
            value = obj.metadata.labels.get(label)
            if value is not None:
                yield index, value

    def _label_index(self, label: str) -> dict[str, set[ObjectKey]]:
        """The index of one label, built when it is first asked for and kept from then on."""
        index = self._by_label.get(label)
        if index is None:
            index = self._by_label[label] = {}
            for key, obj in self._objects.items():
                value = obj.metadata.labels.get(label)
                if value is not None:
                    index.setdefault(value, set()).add(key)
        return index


Place = tuple[str, str, str]
"""A namespace, a label and its value."""


class _Selecting:
    """Each selector under one of its labels: whoever has the label may be selected, nobody else.

    A namespace of 5,000 services, each with a pod, cost 25 million comparisons, and all again with each change of the pods.
    """

    def __init__(self) -> None:
        self._keys: dict[Place, set[ObjectKey]] = {}
        self._place: dict[ObjectKey, Place] = {}

    def put(self, key: ObjectKey, selector: Mapping[str, str]) -> None:
        """Under the label that the fewest others stand under."""
        places = ((key[0], label, value) for label, value in selector.items())
        place = min(places, key=lambda one: len(self._keys.get(one, ())), default=None)
        if place is not None:
            self._keys.setdefault(place, set()).add(key)
            self._place[key] = place

    def remove(self, key: ObjectKey) -> None:
        """It selects nothing any more."""
        place = self._place.pop(key, None)
        if place is not None:
            keys = self._keys[place]
            keys.discard(key)
            if not keys:
                del self._keys[place]

    def near(self, namespace: str, labels: Mapping[str, str]) -> Iterator[ObjectKey]:
        """Those that may select these labels."""
        if self._keys:
            for label, value in labels.items():
                yield from self._keys.get((namespace, label, value), ())
