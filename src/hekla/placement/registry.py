"""Finds actions and plug-ins by scanning their folders, and builds plug-ins from Volcano's arguments.

A plug-in's fields are its arguments: `binpack.weight` of the configuration file becomes the field `weight`. A plug-in
whose arguments do not map to fields one to one offers `from_arguments`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from hekla.lib.go_duration import DurationError, parse_duration
from hekla.placement import actions, plugins
from hekla.placement.action import ACTIONS, Action
from hekla.placement.framework import PLUGINS


class ArgumentError(ValueError):
    """An argument of a plug-in that cannot be used; the text is a sentence for whoever wrote it."""


@cache
def load() -> None:
    """Import every module of both folders, so that what they declare is known."""
    for folder in (actions, plugins):
        for module in pkgutil.iter_modules(folder.__path__):
            importlib.import_module(f"{folder.__name__}.{module.name}")


def action_named(name: str) -> Action:
    """An action; KeyError if there is none."""
    load()
    return ACTIONS[name]


def build_plugin(name: str, arguments: Mapping[str, Any] | None = None) -> object:
    """A plug-in with these arguments; KeyError if there is none of that name, ArgumentError for a bad value."""
    load()
    cls = PLUGINS[name]
    make = getattr(cls, "from_arguments", None)
    return make(arguments or {}) if make is not None else cls(**_by_field(cls, name, arguments or {}))


def _by_field(cls: Any, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by field name. Foreign keys are left to other readers, as Volcano does."""
    kinds = {field.name: getattr(field.type, "__name__", field.type) for field in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in arguments.items():
        field = key.removeprefix(f"{name}.").replace("-", "_")
        if field in kinds:
            values[field] = _READ[kinds[field]](key, value)
    return values


def as_float(key: str, value: Any) -> float:
    """A number, also written as text; negative numbers and others are refused."""
    number = _number(value)
    if number is None:
        raise ArgumentError(f"argument {key} is {value!r}; a number is expected")
    if not 0 <= number < float("inf"):
        raise ArgumentError(f"argument {key} is {value!r}; a number from 0 up is expected")
    return number


def as_whole(key: str, value: Any, *, low: int = 0, high: int | None = None) -> int:
    """A number without a fraction, within its bounds."""
    number = _number(value)
    if number is None or not number.is_integer() or number < low or (high is not None and number > high):
        bounds = f"from {low} up" if high is None else f"from {low} to {high}"
        raise ArgumentError(f"argument {key} is {value!r}; a whole number {bounds} is expected")
    return int(number)


def _number(value: Any) -> float | None:
    """What `float` reads, but for `true` and `false`, which Python takes for 1 and 0."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def as_bool(key: str, value: Any) -> bool:
    """A truth value, also written as text."""
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise ArgumentError(f"argument {key} is {value!r}; true or false is expected")
    return text == "true"


def as_seconds(key: str, value: Any) -> float:
    """A duration like `1h30m`; negative ones are left to the caller."""
    try:
        return parse_duration(str(value)).total_seconds()
    except DurationError as error:
        raise ArgumentError(f"argument {key} is {value!r}: {error}") from error


def as_seconds_from_0(key: str, value: Any) -> float:
    """A duration that is not negative."""
    seconds = as_seconds(key, value)
    if seconds < 0:
        raise ArgumentError(f"argument {key} is {value!r}; a duration from 0 up is expected")
    return seconds


def as_seconds_above_0(key: str, value: Any) -> float:
    """A duration that takes time."""
    seconds = as_seconds(key, value)
    if seconds <= 0:
        raise ArgumentError(f"argument {key} is {value!r}; a duration above 0 is expected")
    return seconds


_READ: Mapping[Any, Callable[[str, Any], Any]] = {"float": as_float, "int": as_whole, "bool": as_bool}
"""How fields are read, by their types; others need `from_arguments`."""


def as_mapping(key: str, value: Any) -> Mapping[str, Any]:
    """Arguments below an argument; none if nothing is said."""
    if value and not isinstance(value, Mapping):
        raise ArgumentError(f"argument {key} is {value!r}; a mapping is expected")
    return value or {}
