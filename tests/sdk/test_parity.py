"""The two shells are twins, the core waits for nothing, and the package needs nothing of hekla."""

import ast
import inspect
import tomllib
from pathlib import Path

import pytest

import hekla_sdk

PACKAGE = Path(hekla_sdk.__file__).parent
TWINS = [
    (hekla_sdk.Session, hekla_sdk.AsyncSession),
    (hekla_sdk.Process, hekla_sdk.AsyncProcess),
    (hekla_sdk.Files, hekla_sdk.AsyncFiles),
]
CORE = ("answers", "documents", "errors", "exchange", "operations", "streams")


def methods(cls):
    """Public ones, with the names and defaults of their arguments."""
    return {
        name: [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize(("plain", "awaited"), TWINS)
def test_twins_have_the_same_methods_and_arguments(plain, awaited):
    ours, theirs = methods(plain), methods(awaited)
    theirs.pop("begun", None)  # a constructor cannot await
    assert ours == theirs


@pytest.mark.parametrize(("plain", "awaited"), TWINS)
def test_twins_say_the_same(plain, awaited):
    for name in methods(plain):
        ours, theirs = inspect.getdoc(getattr(plain, name)), inspect.getdoc(getattr(awaited, name))
        assert ours, f"{plain.__name__}.{name} says nothing"
        if name not in ("create", "connect"):  # the one is entered with `async with`
            assert ours == theirs


def test_the_package_needs_httpx_and_nothing_of_hekla():
    tops = {name.partition(".")[0] for path in PACKAGE.glob("*.py") for name in imported(path)}
    assert "hekla" not in tops
    declared = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [one.partition(">")[0] for one in declared] == ["httpx"]
    assert (PACKAGE / "py.typed").exists()


def test_the_core_does_no_exchange():
    for name in CORE:
        touched = set(imported(PACKAGE / f"{name}.py")) & {
            "httpx",
            "asyncio",
            "time",
            "threading",
            "socket",
            "os",
            "secrets",
        }
        assert not touched, f"{name}.py imports {touched}"
