"""From the bytes of a request to a document: JSON or YAML, bounded, with errors in Go's words.

`gotypes.py` then checks a built-in kind's types; `structural.py` those of a custom one.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from hekla.api.meta import Document
from hekla.lib.yaml_depth import is_too_deep

MOST_DEPTH = 200
"""Deeper documents are refused; no kind is half as deep, and every walk below is recursive."""

MOST_NODES = 1_000_000
"""How many values a YAML document may expand to with all of its aliases."""

_KEY = re.compile(rb'"\s*:')


class DecodeError(Exception):
    """The bytes are no document; the message is Go's."""


@dataclass(slots=True)
class Parsed:
    """A document and what was odd about its text."""

    document: Document
    duplicates: list[str] = field(default_factory=list)
    """Sentences on keys that occur twice; of two values the last one counts."""


def is_yaml(content_type: str) -> bool:
    """Whether a body of this type is YAML (which includes server-side apply)."""
    return "yaml" in content_type


def parse(body: bytes, content_type: str) -> Parsed:
    """Read a body; raises DecodeError."""
    return _parse_yaml(body) if is_yaml(content_type) else _parse_json(body)


def key_count(body: bytes) -> int:
    """At least as many as the JSON text has keys; exactly as many unless a string looks like a key."""
    return len(_KEY.findall(body))


def duplicates(body: bytes) -> list[str]:
    """Sentences on the keys that a JSON text says twice, with their paths. Slow: asked only on suspicion."""
    found: list[str] = []
    document = json.loads(body, object_pairs_hook=_Pairs)
    _find_duplicates(document, "", found)
    return found


def too_deep(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Whether a value is nested deeper than walks may go."""
    if depth < 0:
        return True
    if isinstance(value, dict):
        return any(too_deep(item, depth - 1) for item in value.values())
    return isinstance(value, list) and any(too_deep(item, depth - 1) for item in value)


def _parse_json(body: bytes) -> Parsed:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise DecodeError(go_syntax_error(body)) from None
    except RecursionError:
        raise DecodeError("exceeded max depth") from None
    return Parsed(_object(document))


def _object(document: Any) -> Document:
    if isinstance(document, dict):
        return document
    raise DecodeError(
        f'json: cannot unmarshal {_word(document)} into Go value of type struct {{ APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }}'
    )


def _word(value: Any) -> str:
    words = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}
    return words.get(type(value), "null")


def wrong_with_map(text: bytes) -> str:
    """What Go says of a JSON text that is read as a map; empty if it is one."""
    try:
        document = msgspec.json.decode(text)
    except RecursionError:
        return "exceeded max depth"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return go_syntax_error(text)
    if document is None or isinstance(document, dict):
        return ""
    return f"json: cannot unmarshal {_word(document)} into Go value of type map[string]interface {{}}"


def go_syntax_error(body: bytes) -> str:
    """What encoding/json says about the first place that is no JSON."""
    text = body.decode("utf-8", "replace")
    if _nesting(text) > MOST_DEPTH:
        return "exceeded max depth"
    try:
        json.loads(text)
    except RecursionError:
        return "exceeded max depth"
    except json.JSONDecodeError as error:
        at = error.pos
        if error.msg.startswith("Illegal trailing comma"):
            # Python 3.13 points at the comma, older ones and Go at what follows it
            at += len(text[at + 1 :]) - len(text[at + 1 :].lstrip()) + 1
            expectation = "object key string" if text[at] == "}" else "value"
            return f"invalid character {_go_quoted(text[at])} looking for beginning of {expectation}"
        if error.msg.startswith("Unterminated string") or not text[at:].strip():
            return "unexpected end of JSON input"
        return f"invalid character {_go_quoted(text[at])} {_go_expectation(error.msg, text[:at])}"
    except ValueError:
        return "a number has more digits than any field takes"
    return "invalid character in string literal"


def _nesting(text: str) -> int:
    """How deep the brackets of a text go, strings left out."""
    deepest = depth = 0
    for bracket in re.findall(r'[\[\]{}]|"(?:[^"\\]|\\.)*"', text):
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "]}":
            depth -= 1
    return deepest


def _go_quoted(char: str) -> str:
    if char == "'":
        return "'\\''"
    return f"'{char}'" if char.isprintable() else repr(char)


def _go_expectation(message: str, before: str) -> str:
    if message.startswith("Expecting property name"):
        return "looking for beginning of object key string"
    if message.startswith("Expecting ':'"):
        return "after object key"
    if message.startswith("Expecting ','"):
        return "after array element" if _is_in_array(before) else "after object key:value pair"
    if message.startswith("Extra data"):
        return "after top-level value"
    if message.startswith("Invalid control character"):
        return "in string literal"
    if message.startswith("Invalid \\"):
        return "in string escape code"
    return "looking for beginning of value"


def _is_in_array(before: str) -> bool:
    stack = [char for char in re.sub(r'"(?:[^"\\]|\\.)*"', "", before) if char in "[]{}"]
    open_: list[str] = []
    for char in stack:
        if char in "[{":
            open_.append(char)
        elif open_:
            open_.pop()
    return bool(open_) and open_[-1] == "["


class _Pairs(dict[str, Any]):
    """An object that remembers which of its keys came twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = (
            list(dict.fromkeys(key for index, (key, _) in enumerate(pairs) if any(key == k for k, _ in pairs[:index])))
            if len(self) != len(pairs)
            else []
        )


def _find_duplicates(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        found.extend(f'duplicate field "{_join(path, key)}"' for key in value.twice)
        for key, item in value.items():
            _find_duplicates(item, _join(path, key), found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _find_duplicates(item, f"{path}[{index}]", found)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class _Loader(yaml.CSafeLoader):
    """YAML as JSON would have it: keys are text, times stay text, keys that come twice are noted."""

    twice: list[str]


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    loader.flatten_mapping(node)
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _as_json_key(loader.construct_object(key_node, deep=True))
        if key in out:
            loader.twice.append(f'line {key_node.start_mark.line + 1}: key "{key}" already set in map')
        out[key] = loader.construct_object(value_node, deep=True)
    return out


def _as_json_key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return key if isinstance(key, str) else str(key)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _parse_yaml(body: bytes) -> Parsed:
    if body[:1] == b"{":  # JSON is YAML, and a hundred times faster read as JSON
        try:
            return _parse_json(body)
        except DecodeError:
            pass  # flow style with unquoted keys, perhaps
    if is_too_deep(body):
        raise DecodeError("exceeded max depth")
    try:
        loader = _Loader(body)
        loader.twice = []
        document = loader.get_single_data()
    except (yaml.YAMLError, ValueError) as error:
        raise DecodeError(f"error converting YAML to JSON: yaml: {_first_line(error)}") from None
    except RecursionError:
        raise DecodeError("exceeded max depth") from None
    _refuse_bombs(document)
    lines = [f"  {line}" for line in loader.twice]
    return Parsed(_object(document), ["yaml: unmarshal errors:\n" + "\n".join(lines)] if lines else [])


def _first_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).splitlines()[0] if str(error) else "invalid document"


def _refuse_bombs(document: Any) -> None:
    """Aliases can make a small text expand to billions of values, or contain itself."""
    if _expanded(document, {}, MOST_DEPTH) > MOST_NODES:
        raise DecodeError("error converting YAML to JSON: yaml: document contains excessive aliasing")


def _expanded(value: Any, known: dict[int, int], depth: int) -> int:
    if depth < 0:
        raise DecodeError("exceeded max depth")
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        children = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_expanded(child, known, depth - 1) for child in children)
    return known[id(value)]
