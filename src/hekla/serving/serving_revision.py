"""Revisions of a ModelServing: what its roles are made from, told apart by content, remembered in ControllerRevisions.

Kthena names a revision by a hash of how Go prints its structs. We name our own by a hash of the content, and go by content
where we can: a ModelServing that ran under Kthena keeps the names that its pods carry, and no pod is made anew for a name.

    spec = a ControllerRevision that exists      its name
    nothing is remembered, but the status says
    that this very generation is revision X      X
    else                                         the hash
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from hekla.api.apps import ControllerRevision
from hekla.api.core import Pod
from hekla.api.kthena import ModelServing, labels
from hekla.api.meta import Document
from hekla.kube.commands import Command, Create, Delete, Patch, target_of
from hekla.lib import quantity
from hekla.serving.serving_names import owner_reference

NO_CONTENT = ("replicas", "maxUnavailable", "maxSurge", "partition")
"""Fields of a role that change how many pods there are, or how fast, but no pod."""

NUMBERS = "hekla.dev/role-replicas"
"""Annotation of a ControllerRevision: how many instances of each role a group of it has now, as JSON."""

_FALSE_IS_ABSENT = frozenset(
    {"hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "readOnly", "controller", "optional"}
)
_ZERO_IS_ABSENT = frozenset(
    {"hostPort", "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"}
)
"""Fields that Go leaves out of JSON when they are false or 0, so that both ways to write them are one."""
_SAY_ALL = frozenset({"labels", "annotations", "nodeSelector", "matchLabels"})
"""Maps whose keys are anybody's: an empty value is one there, and no key has a default."""


@dataclass(frozen=True)
class RoleTemplate:
    """A role as some revision has it."""

    document: Document
    """As in the spec."""

    @cached_property
    def name(self) -> str:
        """Its name."""
        return str(self.document["name"])

    @cached_property
    def replicas(self) -> int:
        """Instances in a group; 1 if absent."""
        found = self.document.get("replicas")
        return 1 if found is None else int(found)

    @cached_property
    def workers(self) -> int:
        """Pods of an instance besides its entry; none without a template for them."""
        return int(self.document.get("workerReplicas") or 0) if self.document.get("workerTemplate") else 0

    @cached_property
    def size(self) -> int:
        """Pods of an instance."""
        return 1 + self.workers

    @cached_property
    def content(self) -> bytes:
        """What pods are made from, the same for documents that mean the same."""
        kept = {key: value for key, value in self.document.items() if key not in NO_CONTENT}
        return msgspec.json.encode(normal(kept), order="deterministic")

    @cached_property
    def hash(self) -> str:
        """The role's own revision."""
        return _name(self.content)


Roles = tuple[RoleTemplate, ...]


@dataclass(frozen=True)
class Revisions:
    """The revision that the spec asks for, and those that are remembered."""

    update: str
    """Name of the spec's revision."""
    roles: Roles
    """The spec's roles."""
    known: Mapping[str, Roles]
    """Roles of remembered revisions, by name."""
    hashes: Mapping[tuple[str, str], str]
    """By revision and role, the hash that pods of it carry: Kthena's or ours."""

    def roles_at(self, revision: str) -> Roles | None:
        """The roles of a revision; None if it is not remembered."""
        return self.roles if self.is_update(revision) else self.known.get(revision)

    def is_update(self, revision: str) -> bool:
        """Whether a revision, whatever its name, is what the spec asks for."""
        return revision == self.update or (revision in self.known and contents(self.known[revision]) == self._content)

    def is_current(self, role: str, revision: str, template_hash: str) -> bool:
        """Whether an instance with these labels is as the spec wants its role.

        One whose template nobody remembers counts as current: pods of an old controller are not made anew on suspicion.
        """
        wanted = next((one for one in self.roles if one.name == role), None)
        if wanted is None:
            return False
        if self.is_update(revision) or template_hash in (wanted.hash, self.hashes.get((self.update, role))):
            return True
        return revision not in self.known or self.has_same(role, revision)

    def has_same(self, role: str, revision: str) -> bool:
        """Whether a remembered revision has the role as the spec wants it."""
        wanted, before = (
            next((one.content for one in roles if one.name == role), None)
            for roles in (self.roles, self.known.get(revision, ()))
        )
        return wanted is not None and wanted == before

    def hash_of(self, revision: str, role: RoleTemplate) -> str:
        """The hash that further pods of a revision get: that of those which are there."""
        return self.hashes.get((revision, role.name), role.hash)

    @cached_property
    def _content(self) -> bytes:
        return contents(self.roles)


def revisions_of(
    serving: ModelServing, roles: Roles, kept: Sequence[ControllerRevision], pods: Sequence[Pod]
) -> Revisions:
    """What is known about the revisions of a ModelServing."""
    known = {_label(one): found for one in kept if (found := _remembered(one)) is not None}
    hashes = {
        (pod.metadata.labels.get(labels.REVISION, ""), pod.metadata.labels.get(labels.ROLE, "")): name
        for pod in pods
        if (name := pod.metadata.labels.get(labels.ROLE_TEMPLATE_HASH))
    }
    return Revisions(update=_update(serving, roles, known), roles=roles, known=known, hashes=hashes)


def roles_of(serving: ModelServing) -> Roles:
    """The roles of the spec."""
    return tuple(RoleTemplate(_without_none(msgspec.to_builtins(role))) for role in serving.spec.template.roles)


def contents(roles: Roles) -> bytes:
    """What a revision consists of, for comparison."""
    return b"\n".join(role.content for role in roles)


def remember(serving: ModelServing, revisions: Revisions, kept: Sequence[ControllerRevision]) -> Iterator[Command]:
    """Keep what the spec says now, so that it can still be made when the spec says something else."""
    found = next((one for one in kept if _label(one) == revisions.update), None)
    if found is None:
        data = {"data": [role.document for role in revisions.roles]}
        yield Create(ControllerRevision, _document(serving, revisions.update, data))
        return
    numbers, known = _numbers_of(revisions.roles), revisions.known.get(revisions.update)
    if known is not None and _numbers_of(known) != numbers:
        # The same pods, other numbers of them: groups of this revision that are made later have today's numbers. What a
        # revision consists of never changes, so that is told beside it.
        told = msgspec.json.encode(numbers, order="deterministic").decode()
        yield Patch(target_of(found), {"metadata": {"annotations": {NUMBERS: told}}, "revision": found.revision + 1})


def forget(
    kept: Sequence[ControllerRevision], revisions: Revisions, current: str, pods: Sequence[Pod]
) -> Iterator[Delete]:
    """Remove revisions that no pod is of and that nothing may go back to."""
    needed = {current, revisions.update, *(pod.metadata.labels.get(labels.REVISION, "") for pod in pods)}
    for one in kept:
        if _label(one) not in needed and one.metadata.deletion_timestamp is None:
            yield Delete(target_of(one), reason="no pod is of this revision")


def _update(serving: ModelServing, roles: Roles, known: Mapping[str, Roles]) -> str:
    content, status = contents(roles), serving.status
    same = [name for name, found in known.items() if contents(found) == content]
    for preferred in (status.update_revision, status.current_revision):
        if preferred in same:
            return preferred
    if same:
        return same[0]
    was_seen = status.observed_generation == serving.metadata.generation and status.observed_generation > 0
    if was_seen and status.update_revision and status.update_revision not in known:
        return status.update_revision
    return _name(content)


def _document(serving: ModelServing, revision: str, data: Document) -> Document:
    name = f"{serving.metadata.name}-{revision}"
    metadata = {
        "name": name,
        "namespace": serving.metadata.namespace,
        "labels": {labels.NAME: serving.metadata.name, labels.REVISION: revision},
        "ownerReferences": [owner_reference(serving)],
    }
    kind = ControllerRevision.kind_info
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "data": data, "revision": 1}


def _label(kept: ControllerRevision) -> str:
    return kept.metadata.labels.get(labels.REVISION, "")


def _remembered(kept: ControllerRevision) -> Roles | None:
    data = kept.data.get("data") if isinstance(kept.data, dict) else kept.data
    if not isinstance(data, list) or not all(isinstance(one, dict) and one.get("name") for one in data):
        return None
    numbers = _numbers(kept.metadata.annotations.get(NUMBERS, ""))
    return tuple(
        RoleTemplate({**one, "replicas": numbers[one["name"]]} if one["name"] in numbers else one) for one in data
    )


def _numbers_of(roles: Roles) -> dict[str, int]:
    return {role.name: role.replicas for role in roles}


def _numbers(text: str) -> Mapping[str, int]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, int])
    except msgspec.DecodeError:
        return {}  # somebody else's words: the revision itself says how many there were when it was made


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def normal(value: Any, key: str = "") -> Any:
    """A document without what means nothing, and amounts as Kubernetes would write them."""
    if isinstance(value, dict):
        if key in ("limits", "requests"):
            return {name: _amount(item) for name, item in value.items()}
        if key in _SAY_ALL:
            return value
        parts = {name: normal(item, name) for name, item in value.items()}
        return {name: item for name, item in parts.items() if not _is_absent(name, item)}
    if isinstance(value, list):
        return [_normal_port(item) if key == "ports" else normal(item) for item in value]
    return value


def _normal_port(port: Any) -> Any:
    """Without TCP: servers write a port's default into specs, and a revision that was kept before they did lacks it."""
    parts = normal(port)
    if isinstance(parts, dict) and parts.get("protocol") == "TCP":
        return {name: item for name, item in parts.items() if name != "protocol"}
    return parts


def _is_absent(name: str, value: Any) -> bool:
    if value is False:
        return name in _FALSE_IS_ABSENT
    if value == 0 and isinstance(value, int):
        return name in _ZERO_IS_ABSENT
    return value is None or value in ("", {}, [])


def _amount(value: Any) -> str:
    text = str(value)
    return quantity.canonical(text) if quantity.is_valid(text) else text


def _name(content: bytes) -> str:
    """A hash of 32 bits, written with letters that make no word, as Kubernetes writes its own."""
    number = int.from_bytes(hashlib.sha256(content).digest()[:4], "big")
    return "".join(_LETTERS[ord(digit) % len(_LETTERS)] for digit in str(number))


_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
