"""Answers whose form the request prescribes: the call of a tool, JSON, JSON by a schema, one of some texts.

There is no model, so nothing is chosen: the answer is the smallest document that the schema lets through, with words where it asks
for text. `asking.py` makes it the engine's answer, token by token; `answers.py` writes a tool's arguments where clients look for
them. A schema that asks for more than fits into an answer is cut by its length, as with a model that goes on and on.

Other requests wait meanwhile: so what a schema may cost is bounded by its steps and by the characters of its answer.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hekla.app.engine.bodies import Chat, Sampling
from hekla.app.engine.checking import parameter
from hekla.app.engine.refusals import name_of
from hekla.simulation.engine.tokens import CHUNK, tokenize

MOST_VALUES = 2_000
"""Values of a document; a schema that asks for more is refused."""
DEEPEST = 16
"""How deep a schema that refers to itself is followed: from there on only what it requires is written."""
HOPELESS = 64
"""A schema that requires itself without end is refused here."""
MOST_CHARACTERS = 10_000
"""Of one text, and of a reference."""
MOST_ANSWERED = 100_000
"""Characters of an answer."""
MOST_STEPS = 200_000
"""Values, fields and choices of a schema that are looked at, each as often as it is: half a second at most."""
FORMATS = {
    "date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01", "time": "00:00:00Z", "email": "fox@example.com",
    "uri": "https://example.com/fox", "uuid": "00000000-0000-4000-8000-000000000000", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1",
    "duration": "P1D", "hostname": "example.com",
}  # fmt: skip
_WORD = "fox"


class Call(NamedTuple):
    """The call of a tool that a request prescribes; the answer's text is its arguments."""

    tool: str
    ends_as_call: bool
    """Whether the reason of its end is `tool_calls`: vLLM says `stop` of a tool that was named."""


def script_of(text: str) -> tuple[int, ...]:
    """The tokens of an answer. None ends within a character, as each is shown by itself."""
    pieces, piece = [], ""
    for character in text:
        if len((piece + character).encode("utf-8", "surrogatepass")) > CHUNK:
            pieces.append(piece)
            piece = ""
        piece += character
    return tuple(token for one in [*pieces, piece] for token in tokenize(one))


def call_of(body: Sampling) -> Call | None:
    """The call that a request prescribes; None: there is none."""
    tool = _tool(body) if isinstance(body, Chat) else None
    return None if tool is None else Call(name_of(tool), isinstance(body, Chat) and body.tool_choice == "required")


def prescribed(body: Sampling) -> str | None:
    """The answer that a request prescribes, of a call its arguments; None: it is free. Raises BadBodyError."""
    if isinstance(body, Chat):
        if (tool := _tool(body)) is not None:
            function = tool.get("function") or {}
            schema = function.get("parameters")
            return _document(schema if isinstance(schema, dict) and schema else {"type": "object"}, "tools")
        shape = body.response_format or {}
        if shape.get("type") == "json_object":
            return _document({"type": "object"}, "response_format")
        if shape.get("type") == "json_schema":
            wanted = shape["json_schema"]
            schema = wanted.get("schema", wanted.get("json_schema")) if isinstance(wanted, dict) else None
            return _document({"type": "object"} if schema is None else schema, "response_format")
    return _structured(body.structured_outputs or {})


def _tool(body: Chat) -> Mapping[str, Any] | None:
    tools = body.tools or []
    if body.tool_choice == "required":
        return tools[0]
    if not isinstance(body.tool_choice, dict):
        return None
    return next((one for one in tools if name_of(one) == name_of(body.tool_choice)), None)


def _structured(wanted: Mapping[str, Any]) -> str | None:
    """VLLM's own field; expressions and grammars are passed over."""
    choice, schema = wanted.get("choice"), wanted.get("json")
    if isinstance(choice, list) and choice:
        text = str(choice[0])
        if len(text) > MOST_ANSWERED:
            raise parameter(f"Invalid choice: {_too_long(len(text))}", "structured_outputs")
        return text
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise parameter("structured_outputs.json is not valid JSON.", "structured_outputs") from None
    if schema is not None:
        return _document(schema, "structured_outputs")
    return _document({"type": "object"}, "structured_outputs") if wanted.get("json_object") else None


def _document(schema: Any, field: str) -> str:
    if not isinstance(schema, dict | bool):
        raise parameter(f"Invalid JSON schema: it is {type(schema).__name__}, not an object.", field)
    try:
        text = json.dumps(_Filler(schema if isinstance(schema, dict) else {}).root(), allow_nan=False)
        if len(text) > MOST_ANSWERED:
            raise _UnfitError(_too_long(len(text)))
        return text
    except (_UnfitError, ArithmeticError, ValueError, RecursionError) as error:
        raise parameter(f"Invalid JSON schema: {error}", field) from None


def _too_long(characters: int) -> str:
    return f"it asks for an answer of {characters:,} characters or more, and {MOST_ANSWERED:,} are the most"


class _UnfitError(Exception):
    """No document can be made by a schema; the sentence says why."""


class _Filler:
    """Makes one document."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._left = MOST_VALUES
        self._steps = self._characters = 0
        self._lengths: dict[int, int] = {}
        """Characters of what stands in the schema as it is to be written, by its id."""
        self._referring: set[int] = set()
        """The ids of what refers to something, at whatever depth."""
        self._read(schema)

    def root(self) -> Any:
        """A document that the schema lets through."""
        return self._value(self._root, 0)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise _UnfitError("it is too large, or has too much looked at again and again")

    def _write(self, characters: int) -> None:
        self._characters += characters
        if self._characters > MOST_ANSWERED:
            raise _UnfitError(_too_long(self._characters))

    def _as_it_stands(self, value: Any) -> Any:
        if id(value) not in self._lengths:
            self._lengths[id(value)] = len(json.dumps(value, allow_nan=False))
        self._write(self._lengths[id(value)])
        return value

    def _read(self, schema: Any) -> bool:
        """Find what refers to something: each part is looked at once, and tells whether it does."""
        self._spend(1)
        if not isinstance(schema, dict | list):
            return False
        found = isinstance(schema, dict) and "$ref" in schema
        for one in schema.values() if isinstance(schema, dict) else schema:
            found = self._read(one) or found
        if found:
            self._referring.add(id(schema))
        return found

    def _value(self, schema: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > HOPELESS:
            raise _UnfitError("it asks for a document without end")
        self._write(1)
        if not isinstance(schema, dict):
            return _WORD
        schema = self._resolved(schema)
        if "const" in schema:
            return self._as_it_stands(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._as_it_stands(schema["enum"][0])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return self._value({**_without(schema, key), **self._shallowest(schema[key])}, depth + 1)
        kind = _kind(schema)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            number = _number(schema, is_whole=kind == "integer")
            self._write(len(json.dumps(number)))
            return number
        if kind in ("boolean", "null"):
            return True if kind == "boolean" else None
        text = _text(schema)
        self._write(len(text))
        return text

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """With what it refers to, and all of `allOf`, in it."""
        for _ in range(HOPELESS):
            self._spend(len(schema))
            if isinstance(reference := schema.get("$ref"), str):
                schema = {**self._referred(reference), **_without(schema, "$ref")}
            elif isinstance(parts := schema.get("allOf"), list):
                schema = _without(schema, "allOf")
                for one in parts:
                    schema = self._joined(schema, one) if isinstance(one, dict) else schema
            else:
                return schema
        raise _UnfitError("its references lead in a circle")

    def _referred(self, reference: str) -> dict[str, Any]:
        found: Any = self._root
        if len(reference) > MOST_CHARACTERS:
            raise _UnfitError(f"a reference has {len(reference)} characters")
        parts = reference.removeprefix("#").split("/")[1:]
        self._spend(len(parts))
        for part in parts:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not reference.startswith("#") or not isinstance(found, dict):
            raise _UnfitError(f"nothing is at {reference[:200]!r}")
        return found

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        fields, required = schema.get("properties"), schema.get("required")
        fields = fields if isinstance(fields, dict) else {}
        self._spend(len(fields) + (len(required) if isinstance(required, list) else 0))
        needed = {one for one in required if isinstance(one, str)} if isinstance(required, list) else set()
        shown = [
            name for name in fields if name in needed or (depth < DEEPEST and id(fields[name]) not in self._referring)
        ]
        for name in needed.union(shown):
            self._write(len(name))
        made = {name: self._value(fields[name], depth + 1) for name in shown}
        more = schema.get("additionalProperties", True)
        for name in sorted(needed - made.keys()):
            made[name] = self._value(more, depth + 1)
        return made

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems")
        made = [self._value(one, depth + 1) for one in first] if isinstance(first, list) else []
        least = schema.get("minItems", 0)
        wish = 0 if id(schema.get("items")) in self._referring else 1  # one shows what is in it
        most = schema.get("maxItems", wish)
        count = max(_count(least), min(wish, _count(most)))
        while len(made) < count:
            made.append(self._value(schema.get("items", True), depth + 1))
        return made

    def _joined(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        self._spend(len(one) + len(other))
        joined = {**one, **other}
        for key, kind in (("properties", dict), ("required", list)):
            if isinstance(one.get(key), kind) and isinstance(other.get(key), kind):
                self._spend(len(one[key]) + len(other[key]))
                joined[key] = {**one[key], **other[key]} if kind is dict else [*one[key], *other[key]]
        return joined

    def _shallowest(self, several: Sequence[Any]) -> dict[str, Any]:
        """The first that refers to nothing, or else the first: `null` ends what refers to itself."""
        self._spend(len(several))
        some = [one for one in several if isinstance(one, dict)] or [{}]
        return next((one for one in some if id(one) not in self._referring), some[0])


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: one for name, one in schema.items() if name != key}


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind[:HOPELESS] if isinstance(one, str)), "null")
    if isinstance(kind, str):
        if kind not in ("object", "array", "integer", "number", "boolean", "null", "string"):
            raise _UnfitError(f"there is no type {kind[:200]!r}")
        return kind
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else "string"


def _count(value: Any) -> int:
    return min(int(value), MOST_VALUES + 1) if isinstance(value, int | float) and value > 0 else 0


def _text(schema: Mapping[str, Any]) -> str:
    form = schema.get("format")
    text = FORMATS.get(form, _WORD) if isinstance(form, str) else _WORD
    least, most = _whole(schema.get("minLength")) or 0, _whole(schema.get("maxLength"))
    if least > MOST_CHARACTERS:
        raise _UnfitError(f"it asks for a text of {least} characters")
    if len(text) < least:
        text = (text + " " + _WORD * (least // len(_WORD) + 1))[:least]
    return text if most is None else text[: max(0, most)]


def _whole(value: Any) -> int | None:
    """A whole number, which may be written 5.0; None: it is none."""
    is_whole = (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and value.is_integer()
    )
    return int(value) if is_whole else None


def _number(schema: Mapping[str, Any], *, is_whole: bool) -> int | float:
    bounds = {key: one for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
              if isinstance(one := schema.get(key), int | float) and not isinstance(one, bool)}  # fmt: skip
    step: int | float = 1 if is_whole else 0.5
    if bounds.get("multipleOf", 0) > 0:
        step = bounds["multipleOf"]
    low = bounds.get("minimum", bounds.get("exclusiveMinimum"))
    high = bounds.get("maximum", bounds.get("exclusiveMaximum"))
    if low is None:
        low = min(1, high) if high is not None else 1
        if "exclusiveMaximum" in bounds and low >= bounds["exclusiveMaximum"]:
            low = bounds["exclusiveMaximum"] - step
        return (
            _on(low, step, up=False)
            if high is not None and low == high
            else _on(low, step, up=high is None or low + step <= high)
        )
    found = _on(low, step, up=True)
    if "exclusiveMinimum" in bounds and found <= bounds["exclusiveMinimum"]:
        found += step
    if high is not None and found > high and not is_whole:
        found = (low + high) / 2
    return found


def _on(value: int | float, step: int | float, *, up: bool) -> int | float:
    """The nearest multiple of a step."""
    count = value // step
    found = count * step
    if up and found < value:
        found = (count + 1) * step
    if isinstance(found, float) and not math.isfinite(found):
        raise _UnfitError(f"there is no number near {value:g} that is a multiple of {step:g}")
    return int(found) if isinstance(step, int) else found
