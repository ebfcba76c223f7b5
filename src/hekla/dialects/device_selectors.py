"""Selectors of devices: CEL expressions over `device`, as classes and claims have them.

`apiserver/cel_library.py` has Kubernetes' functions; what devices need besides is here: `cel.bind`, versions that compare,
and domains of attributes that a device lacks, which are empty and no mistake.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from hekla.apiserver import cel_library
from hekla.apiserver.cel_engine import cel
from hekla.placement.devices.claims import Device, SelectorError

MOST_CHARS = 10 * 1024
"""Kubernetes' bound on an expression."""

_FAILURES = (
    ValueError, RuntimeError, TypeError, KeyError, IndexError, OverflowError, ZeroDivisionError, AttributeError,
)  # fmt: skip
_LITERAL = re.compile(r"""r?"((?:[^"\\]|\\.)*)"|r?'((?:[^'\\]|\\.)*)'""")
_VERSION = "version "


@dataclass(frozen=True, slots=True)
class CelSelector:
    """Devices for which all of these are true; each with who says it, for the sentence when it cannot be evaluated."""

    expressions: tuple[tuple[str, str], ...]

    def picks(self, device: Device) -> bool:
        """Whether a device is meant; raises SelectorError."""
        for said_by, text in self.expressions:
            try:
                program, names = _compiled(text)
                _VALUES["device"] = _as_value(device, names)
                answer = program.execute(_context())
            except _FAILURES as error:
                raise SelectorError(f"{said_by}: CEL runtime error on {device.id.name}: {_in_words(error)}") from None
            if answer is not True:
                if answer is False:
                    return False
                raise SelectorError(f"{said_by}: CEL expression is no condition: {text}")
        return True


_VALUES: dict[str, Any] = {}


@cache
def _context() -> "cel.Context":
    # One for all selectors: decisions are taken by one thread. See `cel_rules.py` for why values come by a resolver.
    context = cel_library.new_context()
    plain = cel_library.FUNCTIONS
    context.add_function("semver", _semver)
    context.add_function("isSemver", _is_semver)
    for name in ("compareTo", "isGreaterThan", "isLessThan"):
        context.add_function(name, _comparing(name, plain[name]))
    context.add_variable("device", None)
    context.set_variable_resolver(_VALUES.get)
    return context


@lru_cache(maxsize=1024)
def _compiled(text: str) -> "tuple[cel.Program, tuple[str, ...]]":
    """A program, and the texts in it, some of which are domains of attributes."""
    if len(text) > MOST_CHARS:
        raise ValueError(f"the expression has {len(text)} characters, at most {MOST_CHARS} are compiled")
    names = tuple({one or other for one, other in _LITERAL.findall(text)})
    return cel.compile(cel_library.in_plain_syntax(without_binds(text))), names


def _as_value(device: Device, names: tuple[str, ...]) -> dict[str, Any]:
    attributes: dict[str, dict[str, Any]] = {name: {} for name in names}
    for whole, value in device.attributes.items():
        domain, _, name = whole.partition("/")
        attributes.setdefault(domain, {})[name] = value
    capacity: dict[str, dict[str, Any]] = {name: {} for name in names}
    for whole, amount in device.capacity.items():
        domain, _, name = whole.partition("/")
        capacity.setdefault(domain, {})[name] = str(Fraction(amount, 1000))
    return {
        "driver": device.id.driver, "attributes": attributes, "capacity": capacity,
        "allowMultipleAllocations": False,
    }  # fmt: skip


def _in_words(error: Exception) -> str:
    return f"no such key: {error.args[0]}" if isinstance(error, KeyError) and error.args else str(error).splitlines()[0]


# cel.bind(name, value, expression), which the package lacks, is [value].map(name, expression)[0]


def without_binds(text: str) -> str:
    """An expression without `cel.bind`."""
    start = _outside_literals(text, "cel.bind(", 0)
    if start < 0:
        return text
    first = start + len("cel.bind(")
    parts, end = _arguments(text, first)
    if len(parts) != 3:
        raise ValueError(f"cel.bind takes a name, a value and an expression, not {len(parts)} arguments")
    name, value, body = parts[0].strip(), without_binds(parts[1]), without_binds(parts[2])
    return f"{text[:start]}[{value}].map({name}, {body})[0]{without_binds(text[end:])}"


def _arguments(text: str, at: int) -> tuple[list[str], int]:
    """The arguments of a call whose bracket was opened before `at`, and where it ends."""
    parts, begin, depth = list[str](), at, 0
    while at < len(text):
        literal = _LITERAL.match(text, at)
        if literal is not None:
            at = literal.end()
            continue
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            if not depth:
                return [*parts, text[begin:at]], at + 1
            depth -= 1
        elif text[at] == "," and not depth:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    raise ValueError("a bracket is not closed")


def _outside_literals(text: str, what: str, at: int) -> int:
    while at < len(text):
        literal = _LITERAL.match(text, at)
        if literal is not None:
            at = literal.end()
        elif text.startswith(what, at):
            return at
        else:
            at += 1
    return -1


# Versions: text that begins so that it is no quantity, with numbers that compare


def version_value(text: str) -> str:
    """A version attribute as expressions see it."""
    return f"{_VERSION}{text.lstrip('v')}"


def _semver(text: str, *_normalise: bool) -> str:
    if not _is_semver(text):
        raise ValueError(f"{text!r} is no semantic version")
    return version_value(text)


def _is_semver(text: str, *_normalise: bool) -> bool:
    return re.fullmatch(r"v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", text) is not None


def _comparing(name: str, plain: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def call(one: Any, other: Any) -> Any:
        if not (str(one).startswith(_VERSION) and str(other).startswith(_VERSION)):
            return plain(one, other)
        first, second = _version_key(one), _version_key(other)
        sign = int(first > second) - int(first < second)
        return {"compareTo": sign, "isGreaterThan": sign > 0, "isLessThan": sign < 0}[name]

    return call


def _version_key(text: str) -> tuple[Any, ...]:
    """What versions are compared by: a release comes after what leads to it."""
    core, _, before = text.removeprefix(_VERSION).partition("+")[0].partition("-")
    numbers = tuple(int(part) for part in core.split("."))
    parts = (
        tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in before.split(".")) if before else ()
    )
    return (*numbers, *(0,) * (3 - len(numbers))), not before, parts
