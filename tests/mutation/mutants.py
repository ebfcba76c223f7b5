"""Break one formula at a time, in memory: the code of a function is swapped for what its source says after one edit.

The file on disk stays as it is, and so do all objects that exist: functions, methods, what decorators have wrapped. So
a mutant lives in the running process for as long as a `with` block, and nothing has to be imported anew.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import yaml

import hekla

SOURCE = Path(hekla.__file__).parent
TABLE = Path(__file__).with_name("mutations.yaml")


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One break: in which file which words become which, and where a story must end otherwise."""

    of: str
    """The plug-in or action that is broken; the folder of its stories."""

    file: str
    """Below src/hekla."""

    was: str
    now: str
    folders: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.of}: {self.now}" if self.now else f"{self.of}: without {self.was}"

    @property
    def source(self) -> str:
        """The file as it is."""
        return (SOURCE / self.file).read_text()

    @property
    def module(self) -> ModuleType:
        """The module that the file is."""
        return importlib.import_module("hekla." + self.file.removesuffix(".py").replace("/", "."))


def read_table() -> list[Mutation]:
    """All mutations of the table."""
    table: Mapping[str, Any] = yaml.safe_load(TABLE.read_text())
    return [
        Mutation(
            of=of, file=entry.get("in") or f"placement/{kind}/{of}.py", was=entry["was"], now=entry["now"],
            folders=tuple(entry.get("stories") or (of,)),
        )
        for kind in ("plugins", "actions") for of, entries in table[kind].items() for entry in entries
    ]  # fmt: skip


@contextmanager
def broken(mutation: Mutation) -> Iterator[None]:
    """Within the block the function that holds the words does what the others say."""
    source, count = mutation.source, mutation.source.count(mutation.was)
    assert count == 1, (
        f"{mutation.file} has {mutation.was!r} {count} times; bring tests/mutation/mutations.yaml up to date"
    )
    path = str(SOURCE / mutation.file)
    before = dict(_functions(compile(source, path, "exec")))
    after = dict(_functions(compile(source.replace(mutation.was, mutation.now), path, "exec")))
    changed = {name for name in after if name not in before or not _is_alike(before[name], after[name])}
    live = dict(_live(mutation.module))
    swapped = [(live[name], live[name].__code__, after[name]) for name in sorted(changed) if name in live]
    assert swapped, f"no function of {mutation.file} changes with {mutation.was!r}; name words within a function"
    for function, _, code in swapped:
        function.__code__ = code
    _forget(mutation.module)
    try:
        yield
    finally:
        for function, code, _ in swapped:
            function.__code__ = code
        _forget(mutation.module)


def _is_alike(one: CodeType, other: CodeType) -> bool:
    return one.replace(co_linetable=b"") == other.replace(co_linetable=b"")


def _functions(module: CodeType) -> Iterator[tuple[str, CodeType]]:
    """The code of top-level functions and of methods, by qualified name."""
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: a function; bodies of classes have it not
                yield constant.co_qualname, constant
            else:
                yield from _functions(constant)


def _live(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                yield from _bare(member, module)
        else:
            yield from _bare(value, module)


def _bare(member: Any, module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """The function under properties, class methods and caches."""
    for name in ("__func__", "fget", "func", "__wrapped__"):
        member = getattr(member, name, None) or member
    if isinstance(member, FunctionType) and member.__module__ == module.__name__:
        yield member.__qualname__, member


def _forget(module: ModuleType) -> None:
    """Empty the caches of a module: they hold what was answered before."""
    for value in vars(module).values():
        clear: Callable[[], None] | None = getattr(value, "cache_clear", None)
        if clear is not None:
            clear()
