"""JSONPath as kubectl has it: `-o jsonpath={.items[*].metadata.name}`, and the columns of `-o custom-columns=NAME:.metadata.name`.

A template is text with expressions in braces: paths, quoted texts, and `{range PATH} ... {end}`. What is missing prints as
nothing; several values are told with blanks between them.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hekla.cli.main import EXIT_USAGE, CommandError

Step = Callable[[list[Any]], list[Any]]
"""One step of a path: from values to those they lead to."""


class JsonPathError(CommandError):
    """A template that cannot be read, or asks for what cannot be."""

    def __init__(self, template: str, why: str) -> None:
        """`why` completes the sentence that names the template."""
        super().__init__(f"jsonpath {template!r}: {why}", EXIT_USAGE)


@dataclass(frozen=True)
class _Path:
    steps: tuple[Step, ...]

    def values(self, value: Any) -> list[Any]:
        return self.after([value])

    def after(self, values: list[Any]) -> list[Any]:
        """What the values lead to."""
        for step in self.steps:
            values = step(values)
        return values

    def render(self, value: Any) -> str:
        return " ".join(shown(one) for one in self.values(value))


@dataclass(frozen=True)
class _Text:
    text: str

    def render(self, value: Any) -> str:
        return self.text


@dataclass(frozen=True)
class _Range:
    path: _Path
    body: "tuple[_Node, ...]"

    def render(self, value: Any) -> str:
        return "".join(node.render(one) for one in self.path.values(value) for node in self.body)


_Node = _Path | _Text | _Range


def rendered(template: str, document: Any) -> str:
    """The template with what it names of the document."""
    sections = iter(list(_sections(template)))
    nodes = _nodes(template, sections, is_range=False)
    return "".join(node.render(document) for node in nodes)


def column_rows(columns: str, items: Sequence[Any]) -> list[list[str]]:
    """The cells of `NAME:.metadata.name,...`, headings first."""
    names, paths = [], []
    for column in re.split(r",(?![^\[]*\])", columns):
        name, colon, path = column.partition(":")
        if not colon or not name or not path:
            why = f'"{column}" is no column; write NAME:PATH, as in NAME:.metadata.name'
            raise CommandError(f"-o custom-columns: {why}", EXIT_USAGE)
        names.append(name)
        paths.append(path_of(path))
    rows = [[",".join(_go(one) for one in path.values(item)) or "<none>" for path in paths] for item in items]
    return [names, *rows]


def path_of(text: str) -> _Path:
    """A path in braces or without, with or without its first dot."""
    plain = text.strip("{}")
    return _path(text, plain if plain[:1] in ".[$@" else f".{plain}")


def shown(value: Any) -> str:
    """One value as kubectl prints it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def _go(value: Any) -> str:
    """A value as Go prints it: `map[a:b]`, `[a b]`."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{_go(value[key])}' for key in sorted(value))}]"
    return f"[{' '.join(_go(one) for one in value)}]" if isinstance(value, list) else shown(value)


# ---- reading a template


def _sections(template: str) -> Iterator[tuple[bool, str]]:
    """Pieces of the template; whether each stood in braces."""
    position = 0
    while position < len(template):
        opening = template.find("{", position)
        if opening < 0:
            yield False, template[position:]
            return
        if opening > position:
            yield False, template[position:opening]
        closing = _end_of(template, opening, "}")
        yield True, template[opening + 1 : closing].strip()
        position = closing + 1


def _end_of(text: str, start: int, closing: str) -> int:
    """Where what opens at `start` is closed, outside of quotes and of further brackets."""
    pairs = {"{": "}", "[": "]", "(": ")"}
    awaited, quote, position = [closing], "", start + 1
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == awaited[-1]:
            awaited.pop()
            if not awaited:
                return position
        elif character in pairs:
            awaited.append(pairs[character])
        position += 1
    raise JsonPathError(text, f'"{text[start]}" is not closed')


def _nodes(template: str, sections: Iterator[tuple[bool, str]], *, is_range: bool) -> tuple[_Node, ...]:
    nodes: list[_Node] = []
    for is_expression, text in sections:
        if not is_expression:
            nodes.append(_Text(text))
        elif text == "end" and is_range:
            return tuple(nodes)
        elif text == "end":
            raise JsonPathError(template, "{end} ends nothing; write {range PATH} before it")
        elif text.startswith("range "):
            path = _path(template, text.removeprefix("range ").strip())
            nodes.append(_Range(path, _nodes(template, sections, is_range=True)))
        elif text[:1] in ("'", '"'):
            nodes.append(_Text(_unquoted(text)))
        else:
            nodes.append(_path(template, text))
    if is_range:
        raise JsonPathError(template, "{range} is not ended; write {end} after what is to be repeated")
    return tuple(nodes)


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), inner)


# ---- reading a path

_NAME = re.compile(r"(?:\\.|[^\s.\[\]\\,(){}|&=<>!'\"])+")
_COMPARISON = re.compile(r"(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+)")


def _path(template: str, text: str) -> _Path:
    steps: list[Step] = []
    position = 1 if text[:1] in ("$", "@") else 0
    while position < len(text):
        if text.startswith("..", position):
            steps.append(_each(_descendants))
            position += 2
            if not text.startswith("[", position):
                step, position = _named(template, text, position)
                steps.append(step)
        elif text[position] == ".":
            step, position = _named(template, text, position + 1)
            steps.append(step)
        elif text[position] == "[":
            closing = _end_of(text, position, "]")
            steps.append(_bracket(template, text[position + 1 : closing].strip()))
            position = closing + 1
        else:
            raise JsonPathError(template, f'"{text[position:]}" is no step of a path; write .name, [number] or [*]')
    return _Path(tuple(steps))


def _named(template: str, text: str, position: int) -> tuple[Step, int]:
    if text.startswith("*", position):
        return _each(_all), position + 1
    found = _NAME.match(text, position)
    if found is None:
        if position == len(text):
            return list, position  # `{.}`: the whole
        raise JsonPathError(template, f'a name is missing before "{text[position:]}"')
    return _field(re.sub(r"\\(.)", r"\1", found[0])), found.end()


def _bracket(template: str, inner: str) -> Step:
    if inner == "*":
        return _each(_all)
    if inner.startswith("?(") and inner.endswith(")"):
        return _filter(template, inner[2:-1].strip())
    if inner[:1] in ("'", '"'):
        return _union([_quoted_name(template, one.strip()) for one in inner.split(",")])
    if re.fullmatch(r"[-\d:,\s]+", inner):
        return _union([_slice(template, one.strip()) for one in inner.split(",")])
    told = "write [number], [from:to], [*], ['name'] or [?(...)]"
    raise JsonPathError(template, f'"[{inner}]" is no step of a path; {told}')


def _each(step: Callable[[Any], list[Any]]) -> Step:
    return lambda values: [after for before in values for after in step(before)]


def _union(steps: Sequence[Step]) -> Step:
    return lambda values: [one for step in steps for one in step(values)]


def _quoted_name(template: str, text: str) -> Step:
    """A key as it stands; where none is called so, a path, as in kubectl."""
    name = text.strip("'\"")
    literal, path = _field(name), _path(template, f".{name}")
    return _each(lambda value: literal([value]) or path.values(value))


def _field(name: str) -> Step:
    return _each(lambda value: [value[name]] if isinstance(value, dict) and name in value else [])


def _all(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []


def _descendants(value: Any) -> list[Any]:
    return [value, *(below for one in _all(value) for below in _descendants(one))]


def _slice(template: str, text: str) -> Step:
    parts = [int(one) if one else None for one in text.split(":")]

    def step(value: Any) -> list[Any]:
        if not isinstance(value, list):
            return []
        if len(parts) > 1:
            return value[slice(*parts)]
        number = parts[0] or 0
        if not -len(value) <= number < len(value):
            raise JsonPathError(template, f"array index out of bounds: index {number}, length {len(value)}")
        return [value[number]]

    return _each(step)


def _filter(template: str, condition: str) -> Step:
    found = _COMPARISON.fullmatch(condition)
    if found is None:
        path = _path(template, condition)
        return _each(lambda value: [one for one in _all(value) if path.values(one)])
    left, right = _operand(template, found[1]), _operand(template, found[3])
    compare = _COMPARE[found[2]]
    return _each(
        lambda value: [
            one for one in _all(value) if any(compare(a, b) for a in left.values(one) for b in right.values(one))
        ]
    )


def _operand(template: str, text: str) -> _Path:
    """A path, or a text or number as a path to itself."""
    text = text.strip()
    if text[:1] in ("@", "$", "."):
        return _path(template, text)
    try:
        constant = _unquoted(text) if text[:1] in ("'", '"') else json.loads(text)
    except ValueError:
        raise JsonPathError(template, f'"{text}" is neither a path nor a value; quote texts') from None
    return _Path((lambda _values: [constant],))


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def safe(a: Any, b: Any) -> bool:
        try:
            return compare(a, b)
        except TypeError:
            return False  # a text and a number have no order

    return safe


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b), "!=": lambda a, b: bool(a != b),
    "<": _ordered(lambda a, b: a < b), "<=": _ordered(lambda a, b: a <= b),
    ">": _ordered(lambda a, b: a > b), ">=": _ordered(lambda a, b: a >= b),
}  # fmt: skip
