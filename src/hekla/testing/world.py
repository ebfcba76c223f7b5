"""A world made of objects, for tests of pure reconcilers: they read it, and their commands can be carried out in it.

    world = FakeWorld(job, queue, pod)
    commands = list(reconcile_job.decide(world.get(Job, "ns", "train"), world, now))
    world.execute(commands)

It behaves as an API server does where reconcilers can tell (names are taken, finalizers hold, a status is separate),
and it refuses worlds that cannot be, with advice. `reconcilers.py` has the properties every reconciler must keep.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from hekla.api.meta import Document, Kind, Resource
from hekla.kube.cache import node_of, selector_of
from hekla.kube.commands import (
    Apply,
    Command,
    Create,
    Delete,
    Event,
    Evict,
    Patch,
    RequeueAfter,
    SetStatus,
    Target,
)
from hekla.testing.documents import as_document, merge

T = TypeVar("T", bound=Resource)
StoreKey = tuple[str, str, str]


class ImpossibleWorldError(AssertionError):
    """A world that cannot exist; the sentence says what to change in the test."""


class CommandRefusedError(Exception):
    """The world refuses a command, as an API server would."""


class FakeWorld:
    """A `World` that carries out commands."""

    def __init__(self, *objects: Resource | Document, created: str = "2026-01-01T00:00:00Z") -> None:
        self.events: list[Event] = []
        self.requeues: list[float] = []
        self._created = created
        self._documents: dict[StoreKey, Document] = {}
        self._kinds: dict[StoreKey, Kind] = {}
        self._revision = 0
        self._suffix = 0
        for obj in objects:
            kind, document = as_document(obj)
            self._add(kind, document)
        self._check_possible()

    # ---- what reconcilers read

    def get(self, kind: type[T], namespace: str, name: str) -> T | None:
        """One object, or None."""
        document = self._documents.get((kind.kind_info.resource, namespace, name))
        return None if document is None else msgspec.convert(document, kind)

    def list(self, kind: type[T], namespace: str = "", labels: dict[str, str] | None = None) -> Sequence[T]:
        """Objects of a namespace ("" for all) that carry all the labels, in order."""
        found = (document for key, document in sorted(self._documents.items()) if key[0] == kind.kind_info.resource)
        wanted = (labels or {}).items()
        return [
            msgspec.convert(document, kind)
            for document in found
            if namespace in ("", document["metadata"].get("namespace"))
            and wanted <= (document["metadata"].get("labels") or {}).items()
        ]

    def owned(self, kind: type[T], uid: str) -> Sequence[T]:
        """Objects whose controller is `uid`, in order."""
        return [
            obj for obj in self.list(kind) if any(o.controller and o.uid == uid for o in obj.metadata.owner_references)
        ]

    def placed(self, kind: type[T], node: str) -> Sequence[T]:
        """Objects placed on a node, in order."""
        return [obj for obj in self.list(kind) if node_of(obj) == node]

    def selecting(self, kind: type[T], namespace: str, labels: Mapping[str, str]) -> Sequence[T]:
        """Objects of a namespace whose selector these labels satisfy, in order."""
        found = ((obj, selector_of(obj)) for obj in self.list(kind, namespace))
        return [obj for obj, selector in found if selector and selector.items() <= labels.items()]

    # ---- what tests do

    def document(self, kind: type[Resource], namespace: str, name: str) -> Document:
        """One object as a document."""
        return self._documents[kind.kind_info.resource, namespace, name]

    def documents(self) -> dict[StoreKey, Document]:
        """Everything, by (resource, namespace, name)."""
        return dict(self._documents)

    def put(self, obj: Resource | Document) -> None:
        """Add or replace an object from outside."""
        kind, document = as_document(obj)
        self._documents.pop(_key(kind, document), None)
        self._add(kind, document)

    def change(self, kind: type[Resource], namespace: str, name: str, patch: Document) -> None:
        """Merge a patch into an object, its status included, from outside."""
        key = (kind.kind_info.resource, namespace, name)
        self._store(key, merge(self._documents[key], patch))

    def remove(self, kind: type[Resource], namespace: str, name: str) -> None:
        """Take an object away from outside."""
        key = (kind.kind_info.resource, namespace, name)
        del self._documents[key], self._kinds[key]

    def execute(self, commands: Iterable[Command]) -> None:
        """Carry out commands in order; raises CommandRefusedError at the first that is refused."""
        for command in commands:
            self.execute_one(command)

    def execute_one(self, command: Command) -> None:
        """Carry out one command."""
        match command:
            case Create():
                self._create(command)
            case Patch(target, patch, subresource, is_guarded, others):
                for other in others:
                    self._check_gone(other)
                if is_guarded:
                    self._check_revision(target)
                self._patch(target, patch, subresource)
            case SetStatus(target, status):
                self._patch(target, {"status": status}, "status" if target.kind.kind_info.has_status else "")
            case Apply():
                self._apply(command)
            case Delete(target):
                if command.is_guarded:
                    self._check_revision(target)
                self._delete(target)
            case Evict(target):
                self._delete(target)
            case Event():
                self.events.append(command)
            case RequeueAfter(seconds):
                self.requeues.append(seconds)

    # ---- how commands change it

    def _create(self, command: Create) -> None:
        kind, document = command.kind.kind_info, _copied(command.document)
        if command.filled_by is not None:
            document = command.filled_by(document)
        metadata = document.setdefault("metadata", {})
        if not metadata.get("name"):
            self._suffix += 1
            metadata["name"] = f"{metadata['generateName']}{self._suffix:05d}"
        if kind.is_namespaced and not metadata.get("namespace"):
            raise CommandRefusedError(f"{kind.kind} {metadata['name']!r} is created without a namespace")
        key = _key(kind, document)
        if key in self._documents:
            if _controller(self._documents[key]) == _controller(document):
                return
            raise CommandRefusedError(f"{kind.resource} {metadata['name']!r} already exists")
        if kind.has_status:
            document.pop("status", None)
        self._add(kind, document)

    def _patch(self, target: Target, patch: Document, subresource: str) -> None:
        key = _target_key(target)
        old = self._documents.get(key)
        if old is None:
            return
        patch = _copied(patch)
        if subresource == "status":
            patch = {"status": patch.get("status", {})}
        elif not subresource and target.kind.kind_info.has_status:
            patch.pop("status", None)
        new = merge(old, patch)
        if new == old:
            return
        if new.get("spec") != old.get("spec"):
            new["metadata"] = {**new["metadata"], "generation": old["metadata"].get("generation", 1) + 1}
        self._store(key, new)
        self._finalize(key)

    def _apply(self, command: Apply) -> None:
        kind, metadata = command.kind.kind_info, command.document["metadata"]
        key = (kind.resource, metadata.get("namespace", ""), metadata["name"])
        if key in self._documents:
            target = Target(kind=command.kind, name=metadata["name"], namespace=metadata.get("namespace", ""))
            self._patch(target, command.document, "")
        else:
            self._add(kind, _copied(command.document))

    def _delete(self, target: Target) -> None:
        key = _target_key(target)
        document = self._documents.get(key)
        if document is None or (target.uid and document["metadata"]["uid"] != target.uid):
            return
        if not document["metadata"].get("deletionTimestamp"):
            self._store(key, merge(document, {"metadata": {"deletionTimestamp": self._created}}))
        self._finalize(key)

    def _finalize(self, key: StoreKey) -> None:
        """What is marked as leaving and held by nothing goes. A bound pod is held by its node."""
        document = self._documents[key]
        metadata = document["metadata"]
        is_bound = key[0] == "pods" and bool(document.get("spec", {}).get("nodeName"))
        is_over = document.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and (not is_bound or is_over):
            del self._documents[key], self._kinds[key]

    def _add(self, kind: Kind, document: Document) -> None:
        metadata = document.setdefault("metadata", {})
        if kind.is_namespaced:
            metadata.setdefault("namespace", "default")
        key = _key(kind, document)
        if key in self._documents:
            raise ImpossibleWorldError(f"{kind.kind} {_where(key)} is in the world twice; give one another name")
        document.setdefault("apiVersion", kind.api_version)
        document.setdefault("kind", kind.kind)
        metadata.setdefault("uid", f"uid-{kind.resource}-{key[1]}-{key[2]}")
        metadata.setdefault("generation", 1)
        metadata.setdefault("creationTimestamp", self._created)
        self._kinds[key] = kind
        self._store(key, document)

    def _store(self, key: StoreKey, document: Document) -> None:
        self._revision += 1
        document["metadata"] = {**document["metadata"], "resourceVersion": str(self._revision)}
        self._documents[key] = document

    def _check_revision(self, target: Target) -> None:
        document = self._documents.get(_target_key(target))
        if document is not None and document["metadata"]["resourceVersion"] != target.resource_version:
            raise CommandRefusedError(f"{target.kind.kind_info.resource} {target.name!r} has changed since it was read")

    def _check_gone(self, target: Target) -> None:
        document = self._documents.get(_target_key(target))
        if document is not None and target.uid in ("", document["metadata"]["uid"]):
            raise CommandRefusedError(f"{target.kind.kind_info.resource} {target.name!r} is not gone")

    # ---- what cannot be

    def _check_possible(self) -> None:
        uids = {document["metadata"]["uid"]: key for key, document in self._documents.items()}
        nodes = {key[2] for key in self._documents if key[0] == "nodes"}
        for key, document in self._documents.items():
            self._check_owners(key, document, uids)
            if key[0] == "pods":
                _check_pod(key, document, nodes)

    def _check_owners(self, key: StoreKey, document: Document, uids: dict[str, StoreKey]) -> None:
        for owner in document["metadata"].get("ownerReferences") or ():
            owner_key = uids.get(owner.get("uid", ""))
            if owner_key is None:
                raise ImpossibleWorldError(
                    f"{self._kinds[key].kind} {_where(key)} is owned by {owner.get('kind')} {owner.get('name')!r} with uid "
                    f"{owner.get('uid')!r}, which nothing has; add that object to the world with this uid"
                )
            if owner_key[1] not in ("", key[1]):
                raise ImpossibleWorldError(
                    f"{self._kinds[key].kind} {_where(key)} is owned by an object of namespace {owner_key[1]!r}; "
                    f"an owner lives in the same namespace or in none"
                )


def _check_pod(key: StoreKey, document: Document, nodes: set[str]) -> None:
    phase, node = document.get("status", {}).get("phase", ""), document.get("spec", {}).get("nodeName", "")
    if phase == "Running" and not node:
        raise ImpossibleWorldError(f"Pod {_where(key)} is Running on no node; set spec.nodeName or make it Pending")
    if node and nodes and node not in nodes:
        raise ImpossibleWorldError(f"Pod {_where(key)} is on node {node!r}, which is not in the world; add it")


def _copied(document: Document) -> Document:
    copied: Document = msgspec.json.decode(msgspec.json.encode(document))
    return copied


def _key(kind: Kind, document: Document) -> StoreKey:
    metadata: dict[str, Any] = document["metadata"]
    return kind.resource, metadata.get("namespace", "") if kind.is_namespaced else "", metadata["name"]


def _target_key(target: Target) -> StoreKey:
    return target.kind.kind_info.resource, target.namespace, target.name


def _controller(document: Document) -> str:
    owners = document["metadata"].get("ownerReferences") or ()
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


def _where(key: StoreKey) -> str:
    return f"{key[1]}/{key[2]}" if key[1] else key[2]
