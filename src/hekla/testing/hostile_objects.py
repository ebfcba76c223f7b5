"""Objects with one field gone wild: what a server without our checks, or a client's own hand, can bring.

    for path, leaf in fields_of(Pod):
        for value in wild_values(leaf):
            document = with_field(pod, path, value)

Paths are the names on the wire; 0 stands for the first item of a list and ANY for a key of a map.
"""

import copy
import typing
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from hekla.api.meta import Document

ANY = "*"
Path = tuple[str | int, ...]

_DEEPEST = 10
_NUMBERS = (0, -1, 1, 10**6, 2**31 - 1, 2**63 - 1, -(2**63))
_QUANTITIES = ("0", "-1", "1n", "0.1", "1e308", "1e-400", "9223372036854775808", "9" * 200, "50%", "-5%", "%")
_DURATIONS = ("-1s", "0", "87600h", "1e9s", "9" * 400 + "h", "9999999999999999999s", "\xb2s", "NaNs")
_TIMES = (
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z",
    f"2026-01-01T00:00:00.{'1' * 30}Z", "2026-01-01T00:00:60Z",
)  # fmt: skip
_TEXTS = (
    "", "a\nb", "a\0b", "\u202eabc", "%s%n", "{0}{x!r}{", "9" * 5000, "./../..", "x" * 253, "\xb2", "\u0663", "1e309",
    "NaN", "[1", '{"a":', "null", "true", "$(A)$$(B)", "it", "default", "root",
)  # fmt: skip
_WILD: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: _NUMBERS,
    float: (*_NUMBERS, 0.1, 1e308, 5e-324),
    str: (*_TEXTS, *_DURATIONS, *_TIMES, *_QUANTITIES),
    list: ([],),
    dict: ({}, {"": ""}, {"cpu": "9" * 200, "nvidia.com/gpu": "0.1"}),
    object: ("x", 0, [], {}, None, "9" * 300, {"a": {"b": [1]}}),
}


def wild_values(leaf: type) -> Sequence[Any]:
    """What a field of this type may be made to hold; `object` is one of which nothing is known."""
    return _WILD[leaf]


def fields_of(kind: type[msgspec.Struct]) -> list[tuple[Path, type]]:
    """Every field with the type of what stands there, those within lists, maps and themselves included (once)."""
    return list(dict.fromkeys(_fields(kind, (), ())))


def with_field(document: Document, path: Path, value: Any) -> Document:
    """A copy in which one field holds the value; what is missing on the way is made."""
    changed = copy.deepcopy(document)
    place: Any = changed
    for step, after in zip(path, (*path[1:], None), strict=True):
        key: Any = next(iter(place), "cpu") if step == ANY else step
        if step == 0 and not place:
            place.append(None)
        if after is None:
            place[key] = value
            continue
        held = place[key] if step == 0 else place.get(key)
        if not isinstance(held, list if after == 0 else dict):
            place[key] = [] if after == 0 else {}
        place = place[key]
    return changed


def _fields(kind: Any, path: Path, within: tuple[Any, ...]) -> Iterator[tuple[Path, type]]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (typing.Union, UnionType):
        for part in parts:
            if part is not type(None):
                yield from _fields(part, path, within)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if len(within) < _DEEPEST and kind not in within:
            for one in msgspec.structs.fields(kind):
                yield from _fields(one.type, (*path, one.encode_name), (*within, kind))
    elif origin is not None and issubclass(origin, typing.Mapping):
        yield path, dict
        yield from _fields(parts[1], (*path, ANY), within)
    elif origin is not None and issubclass(origin, typing.Sequence):
        yield path, list
        yield from _fields(parts[0], (*path, 0), within)
    else:
        yield path, kind if kind in _WILD else object
