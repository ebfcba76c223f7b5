"""A built-in kind's document as Go's decoder and encoder would leave it.

Kubernetes decodes into Go structs and encodes from them. What that does to a document is visible to clients: nulls
vanish, empty optional values vanish, required ones appear as zero values, quantities are rewritten, times are told in
UTC, and a wrong type is reported in the words of encoding/json. `coercion` compiles a schema into one closure a type,
once, so that a pod of 4 kB takes one walk. `decoding.py` makes the documents; `unknown_fields` names what was dropped.
"""

import binascii
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from hekla.api.meta import Document
from hekla.api.schema import Schema, named
from hekla.lib import quantity

MOST_DEPTH = 200
"""How deep a document may be nested; Kubernetes' kinds stay below 40, and closures below Python's own bound."""


class GoTypeError(Exception):
    """A value of a type that the field does not take; `path` and `struct` are filled on the way out."""

    def __init__(self, value: Any, go_type: str) -> None:
        super().__init__(go_type)
        self.value, self.go_type = value, go_type
        self.struct = ""
        self.path: list[str] = []

    def sentence(self) -> str:
        """As encoding/json says it."""
        where = f"struct field {self.struct}.{'.'.join(self.path)}" if self.struct else "value"
        return f"json: cannot unmarshal {_json_word(self.value)} into Go {where} of type {self.go_type}"


class GoValueError(Exception):
    """A value that a type's own parser refuses: a quantity, a time, base64."""


class Walk:
    """What one walk over a document notes besides the result."""

    __slots__ = ("has_unknown", "is_partial", "keys")

    def __init__(self, *, is_partial: bool = False) -> None:
        self.keys = 0
        """How many keys were seen; fewer than the text has means duplicates."""
        self.has_unknown = False
        self.is_partial = is_partial
        """Whether the document says only what somebody wants (server-side apply): nothing is added, zeros stay."""


Coerce = Callable[[Any, Walk], Any]


class _Omitted:
    """Stands for an optional value that Go would not write."""


OMITTED = _Omitted()


@cache
def coercion(ref: str) -> Coerce:
    """The closure of a named definition; what it returns shares no container with its input."""
    return _struct(named(ref))


def _struct(schema: Schema) -> Coerce:
    fields: dict[str, Coerce] = {}
    properties = schema.properties
    go_name = schema.ref.rsplit(".", 1)[-1]
    go_type = _go_type(schema)
    always = _always_written(schema)
    texts = _plain_texts(schema)

    def compile_field(key: str) -> Coerce | None:
        child = properties.get(key)
        if child is None:
            return None
        fields[key] = made = _compiled(child, is_required=key in schema.required)
        return made

    def coerce(value: Any, walk: Walk) -> Any:
        if type(value) is not dict:
            raise GoTypeError(value, go_type)
        out = {}
        walk.keys += len(value)
        key = ""
        try:
            for key, item in value.items():
                if type(item) is str and key in texts:  # half of all fields: no call for them
                    if item or texts[key] or walk.is_partial:
                        out[key] = item
                    continue
                field = fields.get(key) or compile_field(key)
                if field is None:
                    walk.has_unknown = True
                elif item is not None:
                    made = field(item, walk)
                    if made is not OMITTED:
                        out[key] = made
                    elif walk.is_partial:
                        out[key] = item
        except GoTypeError as error:
            error.struct = error.struct or go_name
            error.path.insert(0, key)
            raise
        if not walk.is_partial:
            for key, zero in always:
                if key not in out:
                    out[key] = zero()
        return out

    return coerce


def _plain_texts(schema: Schema) -> dict[str, bool]:
    """The fields that take any text as it is, and whether an empty one is kept."""
    return {
        key: key in schema.required or child.is_pointer
        for key, child in schema.properties.items()
        if _is_plain_text(child)
    }


def _is_plain_text(schema: Schema) -> bool:
    return schema.type == "string" and not (schema.ref or schema.format or schema.int_or_string or schema.is_quantity)


def _always_written(schema: Schema) -> list[tuple[str, Callable[[], Any]]]:
    """The fields that Go writes even if nothing was said, with the value it writes."""
    found: list[tuple[str, Callable[[], Any]]] = []
    for key, child in schema.properties.items():
        if child.has_default:
            found.append((key, _default_of(child)))
        elif key in schema.required and not child.is_pointer:
            zero = _required_zero(child)
            if zero is not None:
                found.append((key, zero))
    return found


def _default_of(child: Schema) -> Callable[[], Any]:
    if child.default == {}:
        return lambda: coercion(child.ref)({}, Walk())
    return lambda: child.default


def _required_zero(child: Schema) -> Callable[[], Any] | None:
    if child.int_or_string:
        return int
    if child.is_quantity:
        return lambda: "0"
    if child.format == "date-time":
        return lambda: None
    if child.ref and child.type == "object" and child.properties:
        return None  # a required struct is a pointer more often than not; its absence is for validation to see
    # Go writes null for a list that is missing; validation refuses most of those, and readers bear an empty one better
    zeros: dict[str, Callable[[], Any]] = {"string": str, "integer": int, "number": int, "boolean": bool, "array": list}
    if child.additional_properties is not None:
        return dict
    return zeros.get(child.type) or (lambda: None)


def _compiled(schema: Schema, *, is_required: bool) -> Coerce:
    keeps_zero = is_required or schema.is_pointer
    if schema.ref.endswith((".JSONSchemaPropsOrArray", ".JSONSchemaPropsOrBool")):
        return _schema_or_other
    if schema.ref and schema.properties:
        return coercion(schema.ref)
    if schema.int_or_string:
        return _int_or_string
    if schema.type == "string":
        return _string(schema, keeps_zero=keeps_zero)
    if schema.type == "integer":
        return _integer(32 if schema.format == "int32" else 64, keeps_zero=keeps_zero)
    if schema.type == "boolean":
        return _boolean(keeps_zero=keeps_zero)
    if schema.type == "number":
        return _number
    if schema.type == "array" and schema.items is not None:
        return _array(schema.items, keeps_zero=is_required)
    if schema.type == "object" and isinstance(schema.additional_properties, Schema):
        return _map(schema.additional_properties, keeps_zero=is_required)
    return _free


def _string(schema: Schema, *, keeps_zero: bool) -> Coerce:
    if schema.is_quantity:
        return _quantity
    if schema.format == "date-time":
        return _micro_time if schema.ref.endswith("MicroTime") else _time
    if schema.format == "byte":
        return _bytes

    def kept(value: Any, walk: Walk) -> Any:
        if type(value) is not str:
            raise GoTypeError(value, "string")
        return value

    def omitted_if_empty(value: Any, walk: Walk) -> Any:
        if type(value) is not str:
            raise GoTypeError(value, "string")
        return value or OMITTED

    return kept if keeps_zero else omitted_if_empty


def _integer(bits: int, *, keeps_zero: bool) -> Coerce:
    bound, go_type = 2 ** (bits - 1), f"int{bits}"

    def coerce(value: Any, walk: Walk) -> Any:
        if type(value) is not int:
            if type(value) is float:
                raise GoTypeError(_Number(value), go_type)
            raise GoTypeError(value, go_type)
        if not -bound <= value < bound:
            raise GoTypeError(_Number(value), go_type)
        return value if value or keeps_zero else OMITTED

    return coerce


def _boolean(*, keeps_zero: bool) -> Coerce:
    def coerce(value: Any, walk: Walk) -> Any:
        if type(value) is not bool:
            raise GoTypeError(value, "bool")
        return value if value or keeps_zero else OMITTED

    return coerce


def _number(value: Any, walk: Walk) -> Any:
    if type(value) not in (int, float):
        raise GoTypeError(value, "float64")
    return value


def _int_or_string(value: Any, walk: Walk) -> Any:
    if type(value) is str:
        return value
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise GoValueError(
        f"json: cannot unmarshal {_json_word(_Number(value) if type(value) in (int, float) else value)} into Go value of type int32"
    )


def _quantity(value: Any, walk: Walk) -> Any:
    if type(value) is not str:
        if type(value) not in (int, float):
            raise GoValueError(str(quantity.QuantityError(quantity.WRONG)))
        value = str(value)
    try:
        return quantity.canonical(value)
    except quantity.QuantityError as error:
        raise GoValueError(str(error)) from None


def _array(items: Schema, *, keeps_zero: bool) -> Coerce:
    coerce_item = _compiled(items, is_required=True)
    zero = _zero_item(items)
    go_type = f"[]{_go_type(items)}"

    def coerce(value: Any, walk: Walk) -> Any:
        if type(value) is not list:
            raise GoTypeError(value, go_type)
        if not value:
            return value if keeps_zero else OMITTED
        return [coerce_item(zero() if item is None else item, walk) for item in value]

    return coerce


def _map(values: Schema, *, keeps_zero: bool) -> Coerce:
    coerce_value = _compiled(values, is_required=True)
    zero = _zero_item(values)
    go_type = f"map[string]{_go_type(values)}"
    takes_text = _is_plain_text(values)

    def coerce(value: Any, walk: Walk) -> Any:
        if type(value) is not dict:
            raise GoTypeError(value, go_type)
        if not value:
            return {} if keeps_zero else OMITTED
        walk.keys += len(value)
        if takes_text and all(type(item) is str for item in value.values()):  # labels and annotations: no call for each
            return dict(value)
        return {key: coerce_value(zero() if item is None else item, walk) for key, item in value.items()}

    return coerce


def _zero_item(schema: Schema) -> Callable[[], Any]:
    if schema.is_quantity:
        return lambda: "0"
    return {"string": str, "integer": int, "boolean": bool, "array": list}.get(schema.type, dict)


def _free(value: Any, walk: Walk) -> Any:
    """A part without a type of its own (RawExtension, FieldsV1, JSON): kept as it is."""
    return _copied(value, walk, MOST_DEPTH)


def _copied(value: Any, walk: Walk, depth: int) -> Any:
    if depth < 0:
        raise GoValueError("exceeded max depth")
    if type(value) is dict:
        walk.keys += len(value)
        return {key: _copied(item, walk, depth - 1) for key, item in value.items()}
    if type(value) is list:
        return [_copied(item, walk, depth - 1) for item in value]
    return value


def _schema_or_other(value: Any, walk: Walk) -> Any:
    if type(value) is dict:
        return coercion("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")(value, walk)
    return _copied(value, walk, MOST_DEPTH)


def _bytes(value: Any, walk: Walk) -> Any:
    if type(value) is not str:
        raise GoTypeError(value, "[]uint8")
    if len(value) % 4 == 0 and _BASE64(value):
        return value
    return _reencoded(value)


def _reencoded(value: str) -> str:
    stripped = value.replace("\n", "").replace("\r", "")
    bad = next((at for at, char in enumerate(stripped) if char not in _BASE64_ALPHABET), len(stripped))
    if bad < len(stripped) or len(stripped) % 4:
        raise GoValueError(
            f"illegal base64 data at input byte {bad if bad < len(stripped) else len(stripped) // 4 * 4}"
        )
    try:
        return binascii.b2a_base64(binascii.a2b_base64(stripped), newline=False).decode()
    except binascii.Error:
        raise GoValueError(f"illegal base64 data at input byte {stripped.find('=')}") from None


_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z").match
_BASE64_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
_UTC_SECONDS = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\dZ\Z", re.ASCII
).match
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)\Z", re.ASCII).match


def _time(value: Any, walk: Walk) -> Any:
    if type(value) is str and _UTC_SECONDS(value):
        return value
    return _parsed_time(value, "2006-01-02T15:04:05Z07:00").strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(value: Any, walk: Walk) -> Any:
    return _parsed_time(value, "2006-01-02T15:04:05.000000Z07:00").strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parsed_time(value: Any, layout: str) -> datetime:
    if type(value) is not str:
        raise GoValueError(f"json: cannot unmarshal {_json_word(value)} into Go value of type string")
    match = _RFC3339(value)
    try:
        if match is None:
            raise ValueError(value)
        zone = "+00:00" if match[3] == "Z" else match[3]
        fraction = ((match[2] or "") + "000000")[:6]
        return datetime.fromisoformat(f"{match[1]}.{fraction}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise GoValueError(f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"') from None


class _Number:
    """A number that Go names with its value, because it does not fit."""

    def __init__(self, value: float) -> None:
        self.value = value


def _json_word(value: Any) -> str:
    if isinstance(value, _Number):
        return f"number {value.value!r}"
    words = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    return words.get(type(value), "null")


def _go_type(schema: Schema) -> str:
    if schema.ref and schema.properties:
        *_, package, name = schema.ref.split(".")
        return f"{package}.{name}"
    if schema.is_quantity:
        return "resource.Quantity"
    if schema.type == "integer":
        return "int32" if schema.format == "int32" else "int64"
    if schema.type == "array" and schema.items is not None:
        return f"[]{_go_type(schema.items)}"
    if isinstance(schema.additional_properties, Schema):
        return f"map[string]{_go_type(schema.additional_properties)}"
    return {"string": "[]uint8" if schema.format == "byte" else "string", "boolean": "bool", "number": "float64"}.get(
        schema.type, "interface {}"
    )


def unknown_fields(document: Document, schema: Schema) -> list[str]:
    """Sentences on the fields that the schema does not have, in the document's order."""
    found: list[str] = []
    _find_unknown(document, schema, "", found)
    return found


def _find_unknown(value: Any, schema: Schema, path: str, found: list[str]) -> None:
    if isinstance(value, dict) and schema.properties:
        for key, item in value.items():
            child = schema.properties.get(key)
            where = f"{path}.{key}" if path else key
            if child is None:
                found.append(f'unknown field "{where}"')
            else:
                _find_unknown(item, child, where, found)
    elif isinstance(value, dict) and isinstance(schema.additional_properties, Schema):
        for key, item in value.items():
            _find_unknown(item, schema.additional_properties, f"{path}.{key}", found)
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            _find_unknown(item, schema.items, f"{path}[{index}]", found)
