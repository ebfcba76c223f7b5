"""Whose an object is: owner references, and taking in or letting go pods as labels and selectors say."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from hekla.api.meta import Document, Resource
from hekla.api.pods import Pod
from hekla.api.selectors import LabelSelector
from hekla.controlplane.selecting import selects
from hekla.kube.cache import controller_uid
from hekla.kube.commands import Command, Delete, Event, Patch, target_of
from hekla.kube.reconcile import World

T = TypeVar("T", bound=Resource)


def controller_reference(owner: Resource) -> Document:
    """The reference that makes `owner` the controller of an object."""
    info = type(owner).kind_info
    return {
        "apiVersion": info.api_version,
        "kind": info.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def claimed(owner: Resource, selector: LabelSelector | None, kind: type[T], world: World) -> Sequence[T]:
    """The objects that belong to `owner`: those it controls and still selects, and those that `claim` adopts."""
    mine = [obj for obj in world.owned(kind, owner.metadata.uid) if selects(selector, obj.metadata.labels)]
    return [*mine, *_free(owner, selector, kind, world)]


def claim(owner: Resource, selector: LabelSelector | None, kind: type[Resource], world: World) -> Iterator[Command]:
    """Adopt objects that match and have no controller; let go those that no longer match."""
    for obj in world.owned(kind, owner.metadata.uid):
        if not selects(selector, obj.metadata.labels) and not obj.metadata.deletion_timestamp:
            yield _set_owners(obj, _owners(obj, without=owner.metadata.uid))
    for obj in _free(owner, selector, kind, world):
        yield _set_owners(obj, [*_owners(obj, without=""), controller_reference(owner)])


def _free(owner: Resource, selector: LabelSelector | None, kind: type[T], world: World) -> Iterator[T]:
    """Objects that the owner selects and nobody controls."""
    if owner.metadata.deletion_timestamp or selector is None:
        return
    for obj in world.list(kind, owner.metadata.namespace, selector.match_labels):
        is_free = not controller_uid(obj) and not obj.metadata.deletion_timestamp
        if is_free and selects(selector, obj.metadata.labels) and not _has_ended(obj):
            yield obj


def _has_ended(obj: Resource) -> bool:
    phase = getattr(getattr(obj, "status", None), "phase", "")
    return phase in ("Succeeded", "Failed")


def delete_surplus(owner: Resource, surplus: Sequence[Pod], reason: str) -> Iterator[Command]:
    """Delete pods that are too many, and tell of each; the events come last, so that the deletions go together."""
    for pod in surplus:
        yield Delete(target_of(pod), reason=reason)
    for pod in surplus:
        yield Event(target_of(owner), "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")


def _owners(obj: Resource, without: str) -> list[Document]:
    return [msgspec.to_builtins(owner) for owner in obj.metadata.owner_references if owner.uid != without]


def _set_owners(obj: Resource, owners: list[Document]) -> Command:
    # Guarded: a list is replaced whole, and somebody else may have added an owner meanwhile.
    return Patch(target_of(obj), {"metadata": {"ownerReferences": owners or None}}, is_guarded=True)
