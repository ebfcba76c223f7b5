"""What is wrong with a custom resource by its schema, in the words of Kubernetes' validator.

`structural.py` compiles the nodes that are walked here. Three passes, in Kubernetes' order: values against keywords,
keys of lists that are sets or maps, CEL rules.
"""

import base64
import binascii
import ipaddress
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from hekla.apiserver import cel_rules
from hekla.apiserver.bodies import is_same
from hekla.apiserver.fielderrors import (
    Cause,
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
    shown,
    too_long,
    too_many,
    type_invalid,
)
from hekla.apiserver.structural import Node

BLOCKING = frozenset({Cause.NOT_SUPPORTED, Cause.REQUIRED, Cause.TOO_LONG, Cause.TOO_MANY, Cause.TYPE_INVALID})
"""With one of these in an object its rules are not run."""

NOT_CHECKED = invalid(
    "<nil>",
    None,
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
)

Errors = list[FieldError]


def check_values(value: Any, node: Node, path: str, errors: Errors) -> None:
    """Types, bounds, patterns, required fields."""
    if value is None and node.is_nullable:
        return
    said = _json_type(value)
    if not _is_of_type(said, value, node):
        expected = "integer,string" if node.schema.int_or_string else node.type
        errors.append(type_invalid(path, said, f'{path} in body must be of type {expected}: "{said}"'))
        if expected == "integer" and said == "number" and "format" not in node.schema.raw:
            errors.append(invalid("<nil>", "", f"Checked value must be of type integer (default format) in {path}"))
        return
    _check_keywords(value, node.schema.raw, path, errors)
    if said == "object":
        _check_object(value, node, path, errors)
    elif said == "array" and node.items is not None:
        for index, item in enumerate(value):
            check_values(item, node.items, f"{path}[{index}]", errors)


def check_changes(value: Any, old: Any, node: Node, path: str, errors: Errors) -> None:
    """The same of a value that was `old` before: what is as it was is let pass, at every depth, and whatever else has changed.

    An item of a list that is a map is found again by its key; one of any other list is new if anything in the list is.
    """
    if is_same(value, old):
        return
    said = _json_type(value)
    if said == "object" and isinstance(old, dict) and _is_of_type(said, value, node):
        _check_keywords(value, node.schema.raw, path, errors)
        _check_object(value, node, path, errors, old)
    elif said == "array" and node.list_type == "map" and node.items is not None and _is_of_type(said, value, node):
        _check_keywords(value, node.schema.raw, path, errors)
        earlier = _by_key(old, node)
        for index, item in enumerate(value):
            before = earlier.get(_map_key(item, node), _NOTHING)
            check_changes(item, before, node.items, f"{path}[{index}]", errors)
    else:
        check_values(value, node, path, errors)


_NOTHING = object()
"""There was none; nothing is the same as this."""


def _check_object(
    value: dict[str, Any], node: Node, path: str, errors: Errors, old: dict[str, Any] | None = None
) -> None:
    for key, item in value.items():
        child = node.properties.get(key) or node.values
        if child is not None:
            where = f"{path}.{key}" if path else key
            if old is not None and key in old:
                check_changes(item, old[key], child, where, errors)
            else:
                check_values(item, child, where, errors)
    for name in node.required:
        if name not in value:
            errors.append(required(f"{path}.{name}" if path else name))


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "number", str: "string", list: "array", dict: "object"}.get(type(value), "null")


def _is_of_type(said: str, value: Any, node: Node) -> bool:
    if node.schema.int_or_string:
        return said in ("integer", "string")
    return not node.type or said == node.type or (node.type == "number" and said == "integer")


def _check_keywords(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    """The keywords of one schema, other than those that lead to other values."""
    for key in raw:
        check = _KEYWORDS.get(key)
        if check is not None:
            check(value, raw, path, errors)


def has_keywords(raw: Mapping[str, Any]) -> bool:
    """Whether a schema itself says anything about its value, beside its type and what lies below."""
    return any(key in _KEYWORDS for key in raw)


def _enum(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if raw["enum"] and not any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in raw["enum"]
    ):
        errors.append(not_supported(path, value, raw["enum"]))


def _minimum(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if _is_number(value):
        if raw.get("exclusiveMinimum") and value <= raw["minimum"]:
            errors.append(invalid(path, value, f"{path} in body should be greater than {_number(raw['minimum'])}"))
        elif value < raw["minimum"]:
            errors.append(
                invalid(path, value, f"{path} in body should be greater than or equal to {_number(raw['minimum'])}")
            )


def _maximum(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if _is_number(value):
        if raw.get("exclusiveMaximum") and value >= raw["maximum"]:
            errors.append(invalid(path, value, f"{path} in body should be less than {_number(raw['maximum'])}"))
        elif value > raw["maximum"]:
            errors.append(
                invalid(path, value, f"{path} in body should be less than or equal to {_number(raw['maximum'])}")
            )


def _multiple_of(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    factor = raw["multipleOf"]
    if _is_number(value) and factor > 0 and not _is_whole(value, factor):
        errors.append(invalid(path, value, f"{path} in body should be a multiple of {_number(factor)}"))


def _is_whole(value: float, factor: float) -> bool:
    """Whether a value is a multiple of a factor; one that is out of range beside it is none."""
    try:
        count = value / factor
        return math.isclose(count, round(count), rel_tol=0, abs_tol=1e-9)
    except OverflowError:
        return False


def _min_length(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if isinstance(value, str) and len(value) < raw["minLength"] and not _is_longer(value, raw):
        errors.append(invalid(path, value, f"{path} in body should be at least {raw['minLength']} chars long"))


def _max_length(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if isinstance(value, str) and _is_longer(value, raw):
        errors.append(too_long(path, raw["maxLength"]))


def _is_longer(value: str, raw: Mapping[str, Any]) -> bool:
    return "maxLength" in raw and len(value) > raw["maxLength"]


def _pattern(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    # of a text's length and pattern the first that is wrong is told
    if not isinstance(value, str) or _is_longer(value, raw) or len(value) < raw.get("minLength", 0):
        return
    if not cel_rules.matches(raw["pattern"], value):
        errors.append(invalid(path, value, f"{path} in body should match '{raw['pattern']}'"))


_BITS = {"int32": 31, "int64": 63}


def _format(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    bits = _BITS.get(raw["format"])
    if bits and isinstance(value, int) and not isinstance(value, bool) and not -(1 << bits) <= value < 1 << bits:
        said = f"Checked value must be of type integer with format {raw['format']} in {path}"
        errors.append(invalid("<nil>", "", said))
    check = _FORMATS.get(raw["format"])
    if isinstance(value, str) and check is not None and not check(value):
        errors.append(
            type_invalid(
                path, value, f"{path} in body must be of type {raw['format']}: {json.dumps(value, ensure_ascii=False)}"
            )
        )


def _min_items(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if isinstance(value, list) and len(value) < raw["minItems"]:
        errors.append(invalid(path, len(value), f"{path} in body should have at least {raw['minItems']} items"))


def _max_items(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if isinstance(value, list) and len(value) > raw["maxItems"]:
        errors.append(too_many(path, len(value), raw["maxItems"]))


def _min_properties(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if isinstance(value, dict) and len(value) < raw["minProperties"]:
        errors.append(
            invalid(path, len(value), f"{path} in body should have at least {raw['minProperties']} properties")
        )


def _max_properties(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if isinstance(value, dict) and len(value) > raw["maxProperties"]:
        errors.append(too_many(path, len(value), raw["maxProperties"]))


def _all_of(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    failures = [_fails(value, one, path) for one in raw["allOf"]]
    errors += [error for one in failures for error in one]
    if any(failures):
        errors.append(invalid("<nil>", "", f"{_quoted(path)} must validate all the schemas (allOf)"))


def _any_of(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    failures = [_fails(value, one, path) for one in raw["anyOf"]]
    if failures and all(failures):
        errors.append(invalid("<nil>", "", f"{_quoted(path)} must validate at least one schema (anyOf)"))
        errors += _shortest(failures)


def _one_of(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    failures = [_fails(value, one, path) for one in raw["oneOf"]]
    valid = sum(not one for one in failures)
    if valid != 1:
        found = "Found none valid" if not valid else f"Found {valid} valid alternatives"
        errors.append(invalid("<nil>", "", f"{_quoted(path)} must validate one and only one schema (oneOf). {found}"))
        errors += _shortest(failures) if not valid and failures else []


def _not(value: Any, raw: Mapping[str, Any], path: str, errors: Errors) -> None:
    if not _fails(value, raw["not"], path):
        errors.append(invalid("<nil>", "", f"{_quoted(path)} must not validate the schema (not)"))


def _shortest(failures: list[Errors]) -> Errors:
    return min(failures, key=len)


def _fails(value: Any, raw: Mapping[str, Any], path: str) -> Errors:
    """What a schema inside a combination says; such schemas only check, they have no defaults and no rules."""
    errors: Errors = []
    type_, said = raw.get("type"), _json_type(value)
    if type_ and said != type_ and not (type_ == "number" and said == "integer"):
        return [type_invalid(path, said, f'{path} in body must be of type {type_}: "{said}"')]
    _check_keywords(value, raw, path, errors)
    if isinstance(value, dict):
        for name, child in (raw.get("properties") or {}).items():
            if name in value:
                errors += _fails(value[name], child, f"{path}.{name}" if path else name)
        errors += [
            required(f"{path}.{name}" if path else name) for name in raw.get("required") or () if name not in value
        ]
    if isinstance(value, list) and isinstance(raw.get("items"), dict):
        for index, item in enumerate(value):
            errors += _fails(item, raw["items"], f"{path}[{index}]")
    return errors


_KEYWORDS: dict[str, Callable[[Any, Mapping[str, Any], str, Errors], None]] = {
    "enum": _enum, "minimum": _minimum, "maximum": _maximum, "multipleOf": _multiple_of, "minLength": _min_length,
    "maxLength": _max_length, "pattern": _pattern, "format": _format, "minItems": _min_items, "maxItems": _max_items,
    "minProperties": _min_properties, "maxProperties": _max_properties, "allOf": _all_of, "anyOf": _any_of,
    "oneOf": _one_of, "not": _not,
}  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e21 else repr(value)


def _quoted(path: str) -> str:
    return f'"{path}"'


def _tried(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)
_DURATION = re.compile(r"[+-]?(0|(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+\Z|\d+ ?(\w+)\Z", re.ASCII)
_HOSTNAME = re.compile(
    r"([a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)*\.?\Z"
)
_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": lambda text: (
        _RFC3339.match(text) is not None and _tried(lambda t: datetime.fromisoformat(t[:19]))(text)
    ),
    "datetime": lambda text: _RFC3339.match(text) is not None,
    "date": _tried(lambda text: datetime.strptime(text, "%Y-%m-%d")),  # noqa: DTZ007 - a date has no zone
    "duration": lambda text: _DURATION.match(text) is not None,
    "byte": _tried(lambda text: base64.b64decode(text, validate=True)),
    "ipv4": _tried(ipaddress.IPv4Address),
    "ipv6": _tried(ipaddress.IPv6Address),
    "cidr": _tried(lambda text: ipaddress.ip_interface(text) if "/" in text else ipaddress.ip_network("")),
    "uuid": _tried(UUID),
    "uri": lambda text: bool(urlsplit(text).scheme) or text.startswith("/"),
    "email": lambda text: re.fullmatch(r"[^@\s]+@[^@\s]+", text) is not None,
    "hostname": lambda text: len(text) <= 255 and _HOSTNAME.match(text) is not None,
    "mac": lambda text: re.fullmatch(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", text) is not None,
}


# ---- lists that are sets or maps


def check_keys(value: Any, node: Node, path: str, errors: Errors) -> None:
    """No value of a set and no key of a map twice."""
    if not node.has_keyed_lists:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            child = node.properties.get(key)
            if child is not None:
                check_keys(item, child, f"{path}.{key}" if path else key, errors)
            elif node.values is not None:
                check_keys(item, node.values, f"{path}[{key}]", errors)
    elif isinstance(value, list) and node.items is not None:
        if node.list_type in ("set", "map"):
            _check_unique(value, node, path, errors)
        for index, item in enumerate(value):
            check_keys(item, node.items, f"{path}[{index}]", errors)


def _check_unique(value: list[Any], node: Node, path: str, errors: Errors) -> None:
    seen: set[str] = set()
    for index, item in enumerate(value):
        key: Any = item
        if node.list_type == "map":
            key = {name: item[name] for name in node.list_map_keys if name in item} if isinstance(item, dict) else item
        text = json.dumps(key, sort_keys=True)
        if text in seen:
            errors.append(duplicate(f"{path}[{index}]", key))
        seen.add(text)


# ---- rules


class Around:
    """A value that was found again, now and before."""

    def __init__(self, now: Any, before: Any) -> None:
        self._now, self._before = now, before

    @cached_property
    def is_same(self) -> bool:
        """Whether nothing in it has changed. Compared for each item of a list that a rule finds wrong, it took their number squared."""
        return is_same(self._now, self._before)


def check_rules(
    value: Any, old: Any, has_old: bool, node: Node, path: str, errors: Errors, around: Around | None = None
) -> None:
    """Run the rules of every node, outermost first; `old` is the value before a change, where there is one.

    What a rule says of a value that is as it was is let pass, unless the rule speaks of the change itself. `around` is the nearest value
    outside that was found again, now and before.
    """
    if not node.has_rules or value is None:
        return
    if has_old:
        around = Around(value, old)
    if node.rules:
        view = cel_view(value, node)
        before = cel_view(old, node) if has_old else None
        size = _largest(value) if any(rule.loops for rule in node.rules) else 0
        for rule in node.rules:
            error = cel_rules.run_rule(rule, view, before, has_old, path, size)
            if error is not None and (rule.is_transition or around is None or not around.is_same):
                errors.append(_with_value(error, rule, value))
    if isinstance(value, dict):
        _check_rules_of_fields(value, old if has_old and isinstance(old, dict) else None, node, path, errors, around)
    elif isinstance(value, list) and node.items is not None:
        earlier = _by_key(old, node) if has_old else {}
        for index, item in enumerate(value):
            known = _map_key(item, node)
            check_rules(item, earlier.get(known), known in earlier, node.items, f"{path}[{index}]", errors, around)


def _with_value(error: FieldError, rule: cel_rules.CompiledRule, value: Any) -> FieldError:
    """What a rule says of a scalar shows it, where the rule speaks of the value itself."""
    if isinstance(value, (dict, list)) or error.cause not in (Cause.INVALID, Cause.DUPLICATE):
        return error
    word, _, rest = error.message.partition(": ")
    return replace(error, message=": ".join(filter(None, (word, shown(value), rest))))


def _check_rules_of_fields(
    value: dict[str, Any],
    old: dict[str, Any] | None,
    node: Node,
    path: str,
    errors: Errors,
    around: Around | None,
) -> None:
    for key, item in value.items():
        child = node.properties.get(key)
        if child is not None:
            where = f"{path}.{key}" if path else key
        elif node.values is not None:
            child, where = node.values, f"{path}[{key}]"
        else:
            continue
        has_old = old is not None and key in old
        check_rules(item, old[key] if has_old and old is not None else None, has_old, child, where, errors, around)


def _map_key(item: Any, node: Node) -> str | None:
    """By what an item of a list that is a map is found in the old list."""
    if node.list_type != "map" or not isinstance(item, dict):
        return None
    return json.dumps([item.get(name) for name in node.list_map_keys])


def _by_key(old: Any, node: Node) -> dict[str | None, Any]:
    if node.list_type != "map" or not isinstance(old, list):
        return {}
    return {_map_key(item, node): item for item in old}


def _largest(value: Any) -> int:
    """The length of the longest list or map in a value."""
    if isinstance(value, dict):
        return max(len(value), max(map(_largest, value.values()), default=0))
    if isinstance(value, list):
        return max(len(value), max(map(_largest, value), default=0))
    return len(value) // 16 if isinstance(value, str) else 0


def cel_view(value: Any, node: Node) -> Any:
    """A value as rules see it: numbers are doubles, times are times, names are escaped."""
    if isinstance(value, dict):
        view = {}
        for key, item in value.items():
            child = node.properties.get(key)
            if child is not None:
                view[node.escaped.get(key, key)] = cel_view(item, child)
            elif node.is_embedded and key == "metadata" and isinstance(item, dict):
                view[key] = {name: item[name] for name in ("name", "generateName") if name in item}
            else:
                view[key] = cel_view(item, node.values) if node.values is not None else item
        return view
    if isinstance(value, list):
        return [cel_view(item, node.items) for item in value] if node.items is not None else value
    return _cel_scalar(value, node)


def _cel_scalar(value: Any, node: Node) -> Any:
    if node.type == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if node.type == "integer" and isinstance(value, float):
        return int(value)
    if isinstance(value, str) and node.schema.format == "date-time":
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return value
    return value
