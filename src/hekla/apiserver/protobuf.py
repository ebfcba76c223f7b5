"""Bodies in Kubernetes' protobuf, which Go's typed clients write: read into the JSON they stand for.

Answers are always JSON, which every such client accepts too; only what they send has to be understood. The field
numbers are data (`hekla.api.kubernetes`), the JSON names and what a zero means come from the schemas.
"""

import base64
import gzip
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from hekla.api.meta import Document
from hekla.api.schema import Schema, definitions, named
from hekla.apiserver.bodies import encode
from hekla.apiserver.negotiation import PROTOBUF
from hekla.apiserver.status import StatusError, bad_request

MAGIC = b"k8s\x00"
MAX_DEPTH = 100
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_API = "io.k8s.apimachinery.pkg"
_SCHEMAS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Field(NamedTuple):
    """One field of a message."""

    name: str
    kind: str
    many: str


class Wire(NamedTuple):
    """One field as it lies in the bytes."""

    number: int
    value: int | bytes


def is_protobuf(content_type: str) -> bool:
    """Whether a body is in protobuf."""
    return content_type.startswith(PROTOBUF)


def as_json(body: bytes) -> bytes:
    """The JSON that a protobuf body stands for; raises 400."""
    if not body.startswith(MAGIC):
        raise bad_request("the protobuf body does not begin with Kubernetes' four bytes")
    try:
        return encode(_unwrapped(body[len(MAGIC) :]))
    except (ValueError, IndexError, OverflowError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from None


def _unwrapped(envelope: bytes) -> Document:
    api_version = kind = ""
    raw = b""
    for number, value in _wires(envelope):
        if number == 1 and isinstance(value, bytes):
            type_meta = {n: v for n, v in _wires(value) if isinstance(v, bytes)}
            api_version, kind = type_meta.get(1, b"").decode(), type_meta.get(2, b"").decode()
        elif number == 2 and isinstance(value, bytes):
            raw = value
    ref = _refs().get((api_version, kind)) or _refs().get(("", kind))
    if ref is None:
        raise _unknown_kind(api_version, kind)
    document = _message(raw, ref, 0)
    return {"kind": kind, "apiVersion": api_version} | (document if isinstance(document, dict) else {})


def _unknown_kind(api_version: str, kind: str) -> StatusError:
    return bad_request(f"no protobuf is known for {kind} of {api_version}: send JSON")


def _wires(data: bytes) -> Iterator[Wire]:
    """The fields of a message in order."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                number, at = _varint(data, at)
                yield Wire(tag >> 3, number)
            case 1:
                yield Wire(tag >> 3, data[at : at + 8])
                at += 8
            case 2:
                length, at = _varint(data, at)
                if at + length > end:
                    raise ValueError("a field is longer than its message")
                yield Wire(tag >> 3, data[at : at + length])
                at += length
            case 5:
                yield Wire(tag >> 3, data[at : at + 4])
                at += 4
            case other:
                raise ValueError(f"wire type {other} is not used")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _message(data: bytes, ref: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"messages are nested more than {MAX_DEPTH} deep")
    special = _SPECIAL.get(ref)
    if special is not None:
        return special(data, depth)
    document: Document = {}
    schema = _schema(ref)
    for number, value in _wires(data):
        field = _fields(ref).get(number)
        if field is not None:
            _put(document, field, value, ref, schema, depth)
    return document


def _put(document: Document, field: Field, value: int | bytes, ref: str, schema: Schema | None, depth: int) -> None:
    if field.many == "inline":
        assert isinstance(value, bytes), "an embedded struct is a message"
        document |= _message(value, field.kind, depth + 1)
        return
    if field.many == "map":
        assert isinstance(value, bytes), "a map's entry is a message"
        key, item = _entry(value, field.kind, depth)
        document.setdefault(field.name, {})[key] = item
        return
    found = _value(value, field.kind, depth)
    if field.many == "repeated":
        document.setdefault(field.name, []).append(found)
        return
    known = schema.properties.get(field.name) if schema is not None else None
    is_kept = known is not None and (known.is_pointer or field.name in (schema.required if schema else ()))
    if found is None or (found in ("", 0) and not isinstance(found, dict) and not is_kept):
        return  # Go writes the zero of every field that is no pointer; JSON leaves it out
    document[field.name] = found


def _entry(data: bytes, kind: str, depth: int) -> tuple[str, Any]:
    key, item = "", _zero(kind)
    for number, value in _wires(data):
        if number == 1 and isinstance(value, bytes):
            key = value.decode()
        elif number == 2:
            item = _value(value, kind, depth)
    return key, item


def _zero(kind: str) -> Any:
    return {"string": "", "bytes": "", "bool": False}.get(kind, 0 if "." not in kind else {})


def _value(value: int | bytes, kind: str, depth: int) -> Any:
    if "." in kind:
        if not isinstance(value, bytes):
            raise ValueError("a message was expected")
        return _message(value, kind, depth + 1)
    match kind:
        case "string" if isinstance(value, bytes):
            return value.decode()
        case "bytes" if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        case "bool":
            return bool(value)
        case "double" if isinstance(value, bytes):
            import struct

            return struct.unpack("<d", value)[0]
    if not isinstance(value, int):
        raise ValueError(f"a number was expected for {kind}")
    return value - (1 << 64) if value >= 1 << 63 else value


# ---- types with a JSON of their own


def _quantity(data: bytes, _depth: int) -> Any:
    return next((v.decode() for n, v in _wires(data) if n == 1 and isinstance(v, bytes)), "0")


def _int_or_string(data: bytes, _depth: int) -> Any:
    said = dict(_wires(data))
    text, number = said.get(3, b""), said.get(2, 0)
    if said.get(1, 0) == 1:
        return text.decode() if isinstance(text, bytes) else ""
    assert isinstance(number, int), "an intVal is a number"
    return number - (1 << 64) if number >= 1 << 63 else number


def _time(data: bytes, _depth: int) -> Any:
    moment = _moment(data)
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(data: bytes, _depth: int) -> Any:
    moment = _moment(data)
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(data: bytes) -> datetime | None:
    said = dict(_wires(data))
    seconds, nanos = _value(said.get(1, 0), "int64", 0), _value(said.get(2, 0), "int32", 0)
    # Go's zero time, the year 1, is no time at all
    if not data or seconds < -62_000_000_000:
        return None
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)


def _raw_json(data: bytes, _depth: int) -> Any:
    raw = next((v for n, v in _wires(data) if n == 1 and isinstance(v, bytes)), b"null")
    return msgspec.json.decode(raw or b"null")


def _list_of_strings(data: bytes, _depth: int) -> Any:
    return [v.decode() for n, v in _wires(data) if n == 1 and isinstance(v, bytes)]


def _duration(data: bytes, _depth: int) -> Any:
    nanos = next((v for n, v in _wires(data) if n == 1 and isinstance(v, int)), 0)
    return f"{nanos / 1e9:g}s"


def _schema_or_bool(data: bytes, depth: int) -> Any:
    said = dict(_wires(data))
    schema = said.get(2)
    return (
        _message(schema, f"{_SCHEMAS}.JSONSchemaProps", depth + 1)
        if isinstance(schema, bytes)
        else bool(said.get(1, 0))
    )


def _schema_or_array(data: bytes, depth: int) -> Any:
    many = [
        _message(v, f"{_SCHEMAS}.JSONSchemaProps", depth + 1)
        for n, v in _wires(data)
        if n == 2 and isinstance(v, bytes)
    ]
    one = next((v for n, v in _wires(data) if n == 1 and isinstance(v, bytes)), None)
    return many if one is None else _message(one, f"{_SCHEMAS}.JSONSchemaProps", depth + 1)


_SPECIAL = {
    f"{_API}.api.resource.Quantity": _quantity,
    f"{_API}.util.intstr.IntOrString": _int_or_string,
    f"{_META}.Time": _time,
    f"{_META}.MicroTime": _micro_time,
    f"{_META}.FieldsV1": _raw_json,
    f"{_META}.Duration": _duration,
    f"{_META}.Verbs": _list_of_strings,
    "io.k8s.api.authentication.v1.ExtraValue": _list_of_strings,
    "io.k8s.api.authorization.v1.ExtraValue": _list_of_strings,
    f"{_API}.runtime.RawExtension": _raw_json,
    f"{_SCHEMAS}.JSON": _raw_json,
    f"{_SCHEMAS}.JSONSchemaPropsOrBool": _schema_or_bool,
    f"{_SCHEMAS}.JSONSchemaPropsOrArray": _schema_or_array,
}


# ---- what the messages are


@cache
def _messages() -> dict[str, dict[str, list[str]]]:
    packed = resources.files("hekla.api.kubernetes").joinpath("protobuf.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=dict[str, dict[str, list[str]]])


@cache
def _schema(ref: str) -> Schema | None:
    try:
        return named(ref)
    except KeyError:
        return None


@cache
def _fields(ref: str) -> dict[int, Field]:
    """A message's fields by number, under their JSON names; embedded structs are marked `inline`."""
    schema = _schema(ref)
    known = {name.lower(): name for name in schema.properties} if schema is not None else {}
    found: dict[int, Field] = {}
    for number, (name, kind, many) in _messages().get(ref, {}).items():
        shown = known.get(name.lower()) or known.get(_dashed(name)) or known.get(f"${name.lower()}") or name
        is_embedded = many == "optional" and "." in kind and shown not in known.values() and schema is not None
        found[int(number)] = Field(shown, kind, "inline" if is_embedded and kind in _messages() else many)
    return found


def _dashed(name: str) -> str:
    return re.sub(r"([A-Z])", r"-\1", name).lower()


@cache
def _refs() -> dict[tuple[str, str], str]:
    """The message of an apiVersion and kind; options are the same in every group."""
    found: dict[tuple[str, str], str] = {}
    for ref, schema in definitions().items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            group, version = gvk["group"], gvk["version"]
            found[f"{group}/{version}" if group else version, gvk["kind"]] = ref
    for kind in ("DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions"):
        if f"{_META}.{kind}" in _messages():
            found["", kind] = f"{_META}.{kind}"
    return found
