"""Pods from templates, and the short hash by which a template is known in names and labels."""

import copy
import hashlib

import msgspec

from hekla.api.meta import Document, Resource
from hekla.controlplane.go_dump import NotPlainError, go_dump
from hekla.controlplane.owning import controller_reference

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels and no look-alikes, so that no hash spells a word; Kubernetes' own choice."""

HASH_LENGTH = 10
MAX_GENERATE_NAME = 58
"""What a server keeps of a generateName: five random letters must fit behind it."""


def template_hash(template: Document, collision_count: int = 0) -> str:
    """A hash of everything a template says; `collision_count` makes another one where the first is taken.

    Of plain templates it is Kubernetes' own (FNV-1a), so that replica sets have the same names on a real cluster.
    """
    try:
        text = go_dump(template).encode()
    except NotPlainError:
        return _own_hash(template, collision_count)
    number = 2166136261
    for byte in text + (collision_count.to_bytes(8, "little") if collision_count else b""):
        number = (number ^ byte) * 16777619 & 0xFFFFFFFF
    return _spelled(number)


def _own_hash(template: Document, collision_count: int) -> str:
    salt = str(collision_count).encode() if collision_count else b""
    digest = hashlib.sha256(msgspec.json.encode(template, order="deterministic") + salt).digest()
    return _spelled(int.from_bytes(digest[:16], "big"))[:HASH_LENGTH]


def _spelled(number: int) -> str:
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))


def revision_hash(data: Document, collision_count: int) -> str:
    """The hash in the name of a ControllerRevision, equal to Kubernetes' own: FNV-1 over the data as Go writes it.

    Equal hashes mean that a stateful set which moves to a real cluster finds its revisions there and restarts nothing.
    """
    text = msgspec.json.encode(data, order="deterministic")
    for plain, escaped in _GO_ESCAPES:
        text = text.replace(plain, escaped)
    number = 2166136261
    for byte in text + str(collision_count).encode():
        number = (number * 16777619) & 0xFFFFFFFF ^ byte
    return _spelled(number)


_GO_ESCAPES = (
    (b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"),
)  # fmt: skip
"""What Go's encoder writes differently."""


def with_label(template: Document, key: str, value: str) -> Document:
    """A copy of a template with one more label."""
    copied = copy.deepcopy(template)
    metadata = copied.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), key: value}
    return copied


def without_label(template: Document, key: str) -> Document:
    """A copy of a template without a label."""
    copied = copy.deepcopy(template)
    labels = (copied.get("metadata") or {}).get("labels") or {}
    labels.pop(key, None)
    return copied


def pod_document(owner: Resource, template: Document, *, name: str = "", generate_name: str = "") -> Document:
    """A pod made from a template, controlled by `owner`, with a fixed or a generated name."""
    said = template.get("metadata") or {}
    metadata: Document = {
        "namespace": owner.metadata.namespace,
        "ownerReferences": [controller_reference(owner)],
        "generateName": generate_name or f"{owner.metadata.name}-",
    }
    metadata["generateName"] = metadata["generateName"][:MAX_GENERATE_NAME]
    if name:
        metadata["name"] = name
    for key in ("labels", "annotations", "finalizers"):
        if said.get(key):
            metadata[key] = copy.deepcopy(said[key])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(template.get("spec") or {})}
