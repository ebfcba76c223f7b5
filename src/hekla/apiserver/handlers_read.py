"""GET of objects and lists: plain functions that join bytes; nothing is decoded unless a Table was asked for."""

from collections.abc import AsyncIterator, Iterable

from hekla.apiserver import compression
from hekla.apiserver.backend import Backend
from hekla.apiserver.bodies import encode, item_views, metadata_only, with_managed_fields
from hekla.apiserver.calls import Call
from hekla.apiserver.compression import compressed
from hekla.apiserver.listing import Page, check_not_ahead, page_of, parsed_revision
from hekla.apiserver.managed_fields import ManagedFieldsView, explicit
from hekla.apiserver.negotiation import JSON
from hekla.apiserver.presentation import PARTIAL_HEAD, PARTIAL_LIST_HEAD, answer, table_answer
from hekla.apiserver.registry import Served
from hekla.apiserver.status import not_found
from hekla.apiserver.store import Key, Stored
from hekla.wire.heads import accepts_gzip
from hekla.wire.messages import Response

Buffer = bytes | memoryview
STREAMED_BYTES, CHUNK_BYTES = 8 << 20, 1 << 20
"""A list longer than the first is sent in chunks of the second."""


def get_object(backend: Backend, call: Call, managed: ManagedFieldsView) -> Response:
    """One object as its bytes."""
    target, served = call.target, call.served
    stored = backend.store.get_durable(Key(served.resource, target.namespace, target.name))
    if stored is None:
        raise not_found(target.resource, target.group, target.name)
    if "?" in call.request.target:
        check_not_ahead(backend, parsed_revision(call.option("resourceVersion")))
    return show(backend, call, stored, managed=managed.of(served, stored))


def show(
    backend: Backend,
    call: Call,
    stored: Stored,
    *,
    status: int = 200,
    managed: bytes | None = None,
    warnings: Iterable[str] = (),
) -> Response:
    """One stored object in the shape that the caller wants."""
    served, shape = call.served, call.wanted.shape
    if shape == "Table":
        return table_answer(backend, call, Page([stored], stored.revision), is_list=False, status=status)
    body = object_bytes(served, stored, managed)
    if shape == "PartialObjectMetadata":
        body = metadata_only(body, PARTIAL_HEAD)
    return answer(call, body, status=status, warnings=warnings)


def object_bytes(served: Served, stored: Stored, managed_fields: bytes | None = None) -> bytes:
    """The object in the version it is served in, with its managedFields."""
    body = served.shown(stored.body)
    fields = explicit(stored.managed_fields) if managed_fields is None else managed_fields
    return with_managed_fields(body, served.head, fields) if fields else body


def list_objects(backend: Backend, call: Call) -> Response:
    """A list, or one page of it, joined from bytes."""
    page = page_of(backend, call)
    if call.wanted.shape == "Table":
        return table_answer(backend, call, page, is_list=True)
    if call.wanted.shape:
        return answer(call, partial_list(call.served, page))
    parts = list_parts(call.served, page)
    if call.wanted.media_type == JSON and sum(map(len, parts)) > STREAMED_BYTES:
        return _streamed(call, _in_chunks(parts))
    return answer(call, b"".join(parts))


def _streamed(call: Call, pieces: AsyncIterator[bytes]) -> Response:
    if accepts_gzip(call.request.headers.get("accept-encoding", "")):
        return Response(200, compressed(pieces), JSON, compression.HEADERS)
    return Response(200, pieces, JSON)


async def _in_chunks(parts: list[Buffer]) -> AsyncIterator[bytes]:
    """A long list piece by piece, so that it is never whole in memory a second time."""
    waiting: list[Buffer] = []
    length = 0
    for part in parts:
        waiting.append(part)
        length += len(part)
        if length >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, length = [], 0
    yield b"".join(waiting)


def list_bytes(served: Served, page: Page) -> bytes:
    """The list document of a page."""
    return b"".join(list_parts(served, page))


def list_parts(served: Served, page: Page) -> list[Buffer]:
    """The list document of a page in pieces, most of them views of stored bytes."""
    bodies = [object_bytes(served, stored) for stored in page.items]
    head = list_head(served)
    parts: list[Buffer] = [head + _list_metadata(page, is_custom=served.is_custom) + b',"items":[']
    # items of built-in kinds carry neither kind nor apiVersion
    items: Iterable[Buffer] = bodies if served.is_custom else item_views(bodies, served.head)
    opening, between = (b"", b",") if served.is_custom else (b"{", b",{")
    for item in items:
        parts += (between if len(parts) > 1 else opening, item)
    parts.append(b"]}")
    return parts


def list_head(served: Served) -> bytes:
    """How a list of this kind begins."""
    return (
        b'{"kind":' + encode(served.list_kind) + b',"apiVersion":' + encode(served.kind.api_version) + b',"metadata":'
    )


def _list_metadata(page: Page, *, is_custom: bool = False) -> bytes:
    metadata: dict[str, object] = {"resourceVersion": str(page.revision)}
    if page.continue_token or is_custom:
        metadata["continue"] = page.continue_token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    return encode(metadata)


def partial_list(served: Served, page: Page) -> bytes:
    """A PartialObjectMetadataList of a page."""
    bodies = (metadata_only(object_bytes(served, stored), PARTIAL_HEAD) for stored in page.items)
    return PARTIAL_LIST_HEAD + b'"metadata":' + _list_metadata(page) + b',"items":[' + b",".join(bodies) + b"]}"
