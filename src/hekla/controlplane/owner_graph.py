"""Who owns whom, and what that means for deletion. Pure: `garbage_collector.py` feeds it and carries out what it says.

an owner is gone                              its dependants go, unless another owner still lives
an owner is leaving, finalizer foreground     its dependants go first, then the finalizer
an owner is leaving, finalizer orphan         its dependants forget it, then the finalizer goes
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from hekla.api.meta import Kind, OwnerReference, Resource
from hekla.kube.commands import Command, Delete, Patch, Target
from hekla.kube.metadata_kinds import metadata_only

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"


@dataclass(frozen=True, slots=True)
class Item:
    """One object of any kind, as far as ownership goes."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    resource_version: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    is_leaving: bool = False

    @property
    def target(self) -> Target:
        """The item as a command names it."""
        return Target(
            kind=metadata_only(self.kind), name=self.name, namespace=self.namespace, uid=self.uid,
            resource_version=self.resource_version,
        )  # fmt: skip

    @property
    def is_leaving_foreground(self) -> bool:
        """Whether it waits for its dependants."""
        return self.is_leaving and FOREGROUND in self.finalizers


def item_of(obj: Resource) -> Item:
    """The item that an object is."""
    meta = obj.metadata
    return Item(
        type(obj).kind_info, meta.namespace, meta.name, meta.uid, meta.resource_version, tuple(meta.owner_references),
        tuple(meta.finalizers), meta.deletion_timestamp is not None,
    )  # fmt: skip


class OwnerGraph:
    """All items and their dependants."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._dependents: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def get(self, uid: str) -> Item | None:
        """One item."""
        return self._items.get(uid)

    def dependents(self, uid: str) -> list[Item]:
        """Items that name `uid` as an owner, in a fixed order."""
        found = (self._items[one] for one in self._dependents.get(uid, ()))
        return sorted(found, key=lambda item: (item.kind.resource, item.namespace, item.name))

    def put(self, item: Item) -> set[str]:
        """Add or replace an item; returns the uids that are worth a look."""
        old = self._items.get(item.uid)
        self._unlink(old)
        self._items[item.uid] = item
        for owner in item.owners:
            self._dependents.setdefault(owner.uid, set()).add(item.uid)
        if old is not None and (old.owners, old.finalizers, old.is_leaving) == (
            item.owners,
            item.finalizers,
            item.is_leaving,
        ):
            return set()
        look = {item.uid} if item.owners or item.is_leaving else set()
        if item.is_leaving_foreground:
            look.update(self._dependents.get(item.uid, ()))
        owners = {owner.uid for owner in (*item.owners, *(old.owners if old else ()))}
        return look | {uid for uid in owners if (one := self._items.get(uid)) is not None and one.is_leaving}

    def remove(self, uid: str) -> set[str]:
        """Forget an item; returns those that depended on it or waited for it."""
        old = self._items.pop(uid, None)
        self._unlink(old)
        waiting = {owner.uid for owner in old.owners} if old else set()
        return {one for one in waiting if one in self._items} | set(self._dependents.get(uid, ()))

    def _unlink(self, item: Item | None) -> None:
        for owner in item.owners if item else ():
            dependents = self._dependents.get(owner.uid, set())
            dependents.discard(item.uid)  # type: ignore[union-attr]  # there are owners only if there is an item
            if not dependents:
                self._dependents.pop(owner.uid, None)


IsAbsent = Callable[[Item, OwnerReference], bool]
"""Whether an owner surely does not exist (any more)."""


def decide(item: Item, graph: OwnerGraph, is_absent: IsAbsent) -> Iterator[Command]:
    """What is to be done about one item."""
    if item.is_leaving and ORPHAN in item.finalizers:
        yield from _orphan_dependents(item, graph)
    elif item.is_leaving_foreground:
        yield from _collect_first(item, graph)
    elif item.owners and not item.is_leaving:
        yield from _judge(item, graph, is_absent)


def _orphan_dependents(item: Item, graph: OwnerGraph) -> Iterator[Command]:
    for dependent in graph.dependents(item.uid):
        yield _forget_owners(dependent, {item.uid})
    yield _without_finalizer(item, ORPHAN)


def _collect_first(item: Item, graph: OwnerGraph) -> Iterator[Command]:
    """Delete dependants; those that block hold the owner back until they are gone."""
    is_held = False
    for dependent in graph.dependents(item.uid):
        mine = next(owner for owner in dependent.owners if owner.uid == item.uid)
        is_held = is_held or mine.block_owner_deletion
        if not dependent.is_leaving and _all_leave(dependent, graph):
            policy = "Foreground" if graph.dependents(dependent.uid) else ""
            reason = f"its owner {item.name} is being deleted"
            yield Delete(dependent.target, reason=reason, propagation=policy, is_guarded=True)
    if not is_held:
        yield _without_finalizer(item, FOREGROUND)


def _all_leave(item: Item, graph: OwnerGraph) -> bool:
    """Whether no owner would remain: one that stays keeps its dependants."""
    for owner in item.owners:
        found = graph.get(owner.uid)
        if found is not None and not found.is_leaving_foreground:
            return False
    return True


def _judge(item: Item, graph: OwnerGraph, is_absent: IsAbsent) -> Iterator[Command]:
    gone = {owner.uid for owner in item.owners if is_absent(item, owner)}
    waiting = {
        owner.uid for owner in item.owners
        if owner.uid not in gone and (found := graph.get(owner.uid)) is not None and found.is_leaving_foreground
    }  # fmt: skip
    if not gone and not waiting:
        return
    if len(gone) + len(waiting) < len(item.owners):
        # Somebody still owns it: only the references to the others go.
        yield _forget_owners(item, gone | waiting)
        return
    policy = "Foreground" if waiting and graph.dependents(item.uid) else "Background"
    if ORPHAN in item.finalizers:
        policy = "Orphan"
    elif FOREGROUND in item.finalizers:
        policy = "Foreground"
    # guarded, as Kubernetes' own does it: a session may take it from a pool that is gone, and has it then
    yield Delete(item.target, reason="none of its owners exists any more", propagation=policy, is_guarded=True)


def _forget_owners(item: Item, uids: set[str]) -> Command:
    rest = [_reference(owner) for owner in item.owners if owner.uid not in uids]
    return Patch(item.target, {"metadata": {"ownerReferences": rest or None}}, is_guarded=True)


def _without_finalizer(item: Item, finalizer: str) -> Command:
    rest = [one for one in item.finalizers if one != finalizer]
    return Patch(item.target, {"metadata": {"finalizers": rest or None}}, is_guarded=True)


def _reference(owner: OwnerReference) -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(owner)
    return {key: value for key, value in document.items() if value is not False}
