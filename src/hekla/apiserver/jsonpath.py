"""The JSONPath that printer columns are written in: fields, `..field` at any depth, indices, `[*]`, and filters on equality."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

_STEP = re.compile(
    r"""\.?\[\?\(\s*@\.(?P<filter>[^=!<>\s]+)\s*(?P<compare>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]
      | \.?\[(?P<quoted>'[^']*'|"[^"]*")\]
      | \.?\[(?P<index>-?\d+|\*|\d*:\d*)\]
      | \.\.(?P<deep>(?:\\.|[^.\[\\])+)
      | \.(?P<field>(?:\\.|[^.\[\\])+)
    """,
    re.VERBOSE,
)
MAX_FOUND = 1_000
"""Values that one path yields at most; a column shows them on one line."""


def find(document: Any, path: str) -> list[Any]:
    """Every value at a path; empty if there is none, or if the path cannot be read."""
    values = [document]
    for kind, argument in _steps(path):
        values = [found for value in values for found in _taken(value, kind, argument)][:MAX_FOUND]
    return values


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[tuple[str, Any], ...]:
    text = path.strip().strip("{}")
    if not text.startswith((".", "[")):
        text = f".{text}"
    steps: list[tuple[str, Any]] = []
    for found in _STEP.finditer(text):
        if found["field"] is not None:
            steps.append(("field", re.sub(r"\\(.)", r"\1", found["field"])))
        elif found["deep"] is not None:
            steps.append(("deep", re.sub(r"\\(.)", r"\1", found["deep"])))
        elif found["quoted"] is not None:
            steps.append(("field", found["quoted"][1:-1].replace("\\.", ".")))
        elif found["index"] is not None:
            steps.append(("index", found["index"]))
        else:
            wanted = found["value"].strip("\"'")
            steps.append(("filter", (tuple(found["filter"].split(".")), found["compare"] == "==", wanted)))
    return tuple(steps)


def _below(value: Any, name: str) -> Iterator[Any]:
    """The fields of a name in a value, and in everything below it."""
    if isinstance(value, dict) and name in value:
        yield value[name]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _below(inner, name)


def _taken(value: Any, kind: str, argument: Any) -> Iterable[Any]:
    if kind == "field":
        if argument == "*" and isinstance(value, dict | list):
            return list(value.values()) if isinstance(value, dict) else value
        return [value[argument]] if isinstance(value, dict) and argument in value else []
    if kind == "deep":
        return islice(_below(value, argument), MAX_FOUND)
    if kind == "filter":
        path, wants_equal, wanted = argument
        items = value if isinstance(value, list) else []
        return [item for item in items if (_text_at(item, path) == wanted) is wants_equal]
    if isinstance(value, dict) and argument == "*":
        return list(value.values())
    if not isinstance(value, list):
        return []
    if argument == "*":
        return value
    if ":" in argument:
        first, _, last = argument.partition(":")
        return value[int(first or 0) : int(last) if last else None]
    index = int(argument)
    return [value[index]] if -len(value) <= index < len(value) else []


def _text_at(item: Any, path: tuple[str, ...]) -> str:
    for part in path:
        item = item.get(part) if isinstance(item, dict) else None
    return str(item).lower() if isinstance(item, bool) else str(item)
