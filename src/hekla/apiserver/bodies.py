"""How an object lies in bytes, so that reading one costs a slice and never a decode.

Every stored body begins with the same words, in this order:

    {"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"42", ...the rest of metadata...}, ...the rest...}

Therefore the revision is spliced in without encoding anything, another version of a kind swaps the head, an item of a
list drops it, and managedFields slip in behind `"metadata":{` only where somebody asks for them.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from hekla.api.meta import Document, Kind
from hekla.apiserver.store import Render, Stored

encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="sorted").encode
_METADATA = b'"metadata":{'
_REVISION = b'"metadata":{"resourceVersion":"'
_MANAGED = b'"managedFields":'


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same as JSON: to Python `true` is 1, and a change of one to the other would be none."""
    return one is other or (one == other and _sorted(one) == _sorted(other))


def head_of(kind: Kind) -> bytes:
    """The first words of every body of a kind."""
    return b'{"kind":' + encode(kind.kind) + b',"apiVersion":' + encode(kind.api_version) + b","


def tail_of(document: Document) -> bytes:
    """Everything after the resourceVersion's digits."""
    metadata = {k: v for k, v in document["metadata"].items() if k not in {"resourceVersion", "managedFields"}}
    return tail_with(metadata, rest_of(document))


def rest_of(document: Document) -> bytes:
    """Everything behind the metadata."""
    rest = {k: v for k, v in document.items() if k not in {"kind", "apiVersion", "metadata"}}
    return b"," + encode(rest)[1:] if rest else b"}"


def tail_with(metadata: Document, rest: bytes) -> bytes:
    """The tail of an object whose metadata has no resourceVersion, and whose rest is in bytes already."""
    inner = encode(metadata)[1:]
    return b'"' + (b"," if len(inner) > 1 else b"") + inner + rest


def render_of(head: bytes, tail: bytes, managed_fields: bytes = b"") -> Render:
    """What the store calls with the revision a write gets."""
    before = head + _REVISION

    def render(revision: int) -> tuple[bytes, bytes]:
        return before + b"%d" % revision + tail, managed_fields

    return render


def unstored_body(head: bytes, document: Document) -> bytes:
    """The body of an object that is only shown (dry runs): its resourceVersion as the document says, if at all."""
    revision = document["metadata"].get("resourceVersion")
    if revision:
        return head + _REVISION + str(revision).encode() + tail_of(document)
    metadata = {k: v for k, v in document["metadata"].items() if k not in {"resourceVersion", "managedFields"}}
    rest = {k: v for k, v in document.items() if k not in {"kind", "apiVersion", "metadata"}}
    return head + b'"metadata":' + encode(metadata) + (b"," + encode(rest)[1:] if rest else b"}")


def with_head(body: bytes, head: bytes) -> bytes:
    """The same object in another version of its kind that has the same fields."""
    if body.startswith(head):
        return body
    return head + body[body.index(_REVISION) :]


def with_managed_fields(body: bytes, head: bytes, managed_fields: bytes) -> bytes:
    """The body with metadata.managedFields in it."""
    if not managed_fields:
        return body
    at = len(head) + len(_METADATA)
    return body[:at] + _MANAGED + managed_fields + b"," + body[at:]


def tail_in(stored: Stored, head: bytes) -> bytes:
    """The stored body behind its resourceVersion: what a write that changes only bytes starts from."""
    return stored.body[len(head) + len(_REVISION) + len(b"%d" % stored.revision) :]


def with_revision(body: bytes, revision: int) -> bytes:
    """The body saying another resourceVersion: a deletion's."""
    start = body.index(_REVISION) + len(_REVISION)
    return body[:start] + b"%d" % revision + body[body.index(b'"', start) :]


def item_views(bodies: Iterable[bytes], head: bytes) -> Iterable[memoryview]:
    """Bodies without their heads and opening brace, as views: a list joins them without copying each."""
    skip = len(head)
    return (memoryview(body)[skip:] for body in bodies)


def metadata_only(body: bytes, kind: bytes) -> bytes:
    """A PartialObjectMetadata of the object; `kind` is its head."""
    return kind + b'"metadata":' + bytes(_metadata_decoder.decode(body).metadata) + b"}"


class _OnlyMetadata(msgspec.Struct):
    metadata: msgspec.Raw


_metadata_decoder = msgspec.json.Decoder(_OnlyMetadata)

decode_document = msgspec.json.Decoder(dict).decode
"""A stored body as a document of its own, free to change."""
