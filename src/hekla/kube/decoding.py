"""Turns bytes into typed objects, pages and events, with one decoder per kind. `api_client.py` gets the bytes."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import structlog

from hekla.api.meta import KINDS, Document, Kind, Resource
from hekla.kube.answers import Frame, ListMeta, decode_frame, decode_raw_list
from hekla.kube.client import EventType, Page, WatchEvent
from hekla.kube.errors import TransportError
from hekla.kube.sharing import DECODERS

T = TypeVar("T", bound=Resource)
log = structlog.get_logger()

decode_document = msgspec.json.Decoder(dict[str, Any]).decode


@lru_cache(maxsize=1024)
def declared_kind(api_version: str, kind: str) -> Kind:
    """What a document's type means, from the declared kinds; KeyError if nobody declares it."""
    group, _, version = api_version.rpartition("/")
    for cls in KINDS.values():
        info = cls.kind_info
        if (info.group, info.version, info.kind) == (group, version, kind):
            return info
    raise KeyError(f"no kind {kind!r} of {api_version!r} is declared in hekla.api")


@lru_cache(maxsize=1024)
def _cached_decoder(kind: type[Resource]) -> Callable[[bytes | msgspec.Raw], Any]:
    decode: Callable[[bytes | msgspec.Raw], Any] = DECODERS.get(kind) or msgspec.json.Decoder(kind).decode

    def decode_object(body: bytes | msgspec.Raw) -> Resource:
        try:
            obj: Resource = decode(body)
        except msgspec.DecodeError as error:
            raise TransportError(f"the server's {kind.kind_info.kind} cannot be read: {error}") from error
        return obj

    return decode_object


def decoder(kind: type[T]) -> Callable[[bytes | msgspec.Raw], T]:
    """Turns the bytes of one object into a typed one; TransportError if they are none."""
    return _cached_decoder(kind)


@lru_cache(maxsize=1024)
def _page_decoder(kind: type[Resource]) -> Any:
    fields = [
        ("metadata", ListMeta, msgspec.field(default_factory=ListMeta)),
        ("items", list[kind] | None, None),  # type: ignore[valid-type]  # a type made at run time
    ]
    return msgspec.json.Decoder(msgspec.defstruct(f"{kind.__name__}List", fields)).decode


def decode_page(kind: type[T], body: bytes) -> Page[T]:
    """A page of typed objects; one that does not decode is left out and logged."""
    if kind in DECODERS:
        return _one_by_one(kind, body)
    try:
        page = _page_decoder(kind)(body)
        return Page(page.items or [], page.metadata.resource_version, page.metadata.continue_token)
    except msgspec.ValidationError:
        return _one_by_one(kind, body)


def _one_by_one(kind: type[T], body: bytes) -> Page[T]:
    raw = decode_raw_list(body)
    decode = decoder(kind)
    decoded = (_decode_or_log(kind, item, decode) for item in raw.items or ())
    items = [item for item in decoded if item is not None]
    return Page(items, raw.metadata.resource_version, raw.metadata.continue_token)


def _decode_or_log(kind: type[T], raw: msgspec.Raw, decode: Callable[[bytes | msgspec.Raw], T]) -> T | None:
    try:
        obj: T = decode(raw)
    except TransportError as error:
        name = decode_document(raw).get("metadata", {}).get("name", "")
        log.error("object left out", kind=kind.kind_info.kind, name=name, why=str(error))
        return None
    return obj


def typed_event(frame: Frame, kind: type[T], decode: Any) -> WatchEvent[T] | None:
    """A watch's frame as an event; None if its object does not decode."""
    if frame.type == EventType.BOOKMARK:
        # A bookmark has no spec; fields that a kind requires would refuse it.
        meta = msgspec.json.decode(frame.object, type=Resource)
        bookmark = msgspec.convert({"metadata": msgspec.to_builtins(meta.metadata)}, kind)
        return WatchEvent(EventType.BOOKMARK, bookmark, meta.metadata.resource_version)
    obj: T | None
    try:
        obj = decode(frame.object)
    except TransportError:
        obj = _decode_or_log(kind, frame.object, decoder(kind))
    return None if obj is None else WatchEvent(EventType(frame.type), obj, obj.metadata.resource_version)


def frame_of(line: bytes) -> Frame:
    """One line of a watch."""
    try:
        return decode_frame(line)
    except msgspec.DecodeError as error:
        raise TransportError(f"a watch sent a line that is no event: {error}") from error


def page_of_documents(kind: Kind, body: bytes) -> Page[Document]:
    """A page of documents, each with its apiVersion and kind."""
    page = document_of(body)
    said = page.get("metadata") or {}
    items = [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in page["items"] or ()]
    return Page(items, said.get("resourceVersion", ""), said.get("continue", ""))


def document_of(body: bytes) -> Document:
    """An answer as a document."""
    try:
        return decode_document(body) if body else {}
    except msgspec.DecodeError as error:
        raise TransportError(f"the server's answer is no JSON object: {error}") from error
