"""Writes an interpreter's variables down so that another interpreter can go on with them: pickle, and what pickle leaves out.

Functions and classes that cells defined go by value (their code, closures and defaults); modules by name. Variables are written together, so
that what they share stays shared; one that cannot be written (an open file, a socket, a generator) is left out by itself and named.
Both sides are the same Python: code is written as `marshal` has it.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import marshal
import pickle
import types
from typing import Any

MOST_LEFT_OUT = 100
OURS = frozenset((
    "display", "get_ipython", "In", "Out", "exit", "quit", "help", "__", "___", "__builtins__", "__name__", "__doc__", "__package__",
    "__loader__", "__spec__",
))  # fmt: skip
_MAIN = "__main__"
_CLASS_SECRETS = ("__dict__", "__weakref__", "__doc__")


def written(names: dict[str, Any]) -> tuple[bytes, list[str]]:
    """A namespace as bytes, and what was left out with the reason."""
    wanted = {name: value for name, value in names.items() if name not in OURS}
    left_out: list[str] = []
    while True:
        try:
            return _dumped(wanted), left_out
        except Exception:  # noqa: BLE001 - whatever an object's own code raises, it is that object that stays behind
            bad = {name: why for name, value in wanted.items() if (why := _why_not(value))}
            if not bad:  # only together they cannot be written: one less each time
                name = next(reversed(wanted))
                bad = {name: "it cannot be written together with the others"}
            for name, why in bad.items():
                del wanted[name]
                if len(left_out) < MOST_LEFT_OUT:
                    left_out.append(f"{name}: {why}")


def read(data: bytes, names: dict[str, Any]) -> None:
    """Put what was written into a namespace, which is `__main__`'s."""
    names.update(pickle.loads(data))


def _dumped(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def _why_not(value: object) -> str:
    try:
        _dumped(value)
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}"[:200]
    return ""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.FunctionType) and (value.__module__ == _MAIN or "<" in value.__qualname__):
            return _function(value)
        if isinstance(value, type) and value.__module__ == _MAIN:
            return _class(value)
        if isinstance(value, types.CellType):
            return _make_cell, (), _content(value), None, None, _fill_cell
        if isinstance(value, property):
            return property, (value.fget, value.fset, value.fdel, value.__doc__)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value), (value.__func__,)
        if isinstance(value, types.MappingProxyType):
            return types.MappingProxyType, (dict(value),)
        if type(value).__module__ == "dataclasses" and not isinstance(value, dataclasses.Field):
            return _sentinel(value)
        return NotImplemented


def _function(value: types.FunctionType) -> Any:
    made = (marshal.dumps(value.__code__), value.__name__, value.__closure__)
    state = {
        "__defaults__": value.__defaults__,
        "__kwdefaults__": value.__kwdefaults__,
        "__qualname__": value.__qualname__,
        "__module__": value.__module__,
        "__doc__": value.__doc__,
        "__annotations__": value.__annotations__,
        "__dict__": dict(value.__dict__),
    }
    return _make_function, made, state, None, None, _fill_function


def _make_function(code: bytes, name: str, closure: Any) -> types.FunctionType:
    main = importlib.import_module(_MAIN).__dict__
    return types.FunctionType(marshal.loads(code), main, name, None, closure)


def _fill_function(made: types.FunctionType, state: dict[str, Any]) -> None:
    made.__dict__.update(state.pop("__dict__"))
    for name, content in state.items():
        setattr(made, name, content)


def _class(value: type) -> Any:
    slots = value.__dict__.get("__slots__")
    hidden = {*_CLASS_SECRETS, *((slots,) if isinstance(slots, str) else slots or ())}
    state = {name: content for name, content in value.__dict__.items() if name not in hidden}
    made = (type(value), value.__name__, value.__bases__, slots, value.__doc__)
    return _make_class, made, state, None, None, _fill_class


def _make_class(kind: Any, name: str, bases: tuple[type, ...], slots: Any, doc: Any) -> type:
    body = {"__module__": _MAIN, "__doc__": doc, **({} if slots is None else {"__slots__": slots})}
    made: type = kind(name, bases, body)
    return made


def _fill_class(made: type, state: dict[str, Any]) -> None:
    for name, content in state.items():
        if name not in ("__slots__", "__module__"):
            setattr(made, name, content)


def _make_cell() -> types.CellType:
    return types.CellType()


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


def _sentinel(value: object) -> Any:
    """MISSING and its like are known by identity, so they go by name."""
    for name, found in vars(dataclasses).items():
        if found is value:
            return getattr, (dataclasses, name)
    return NotImplemented
