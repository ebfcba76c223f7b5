"""Shared by every test: where the tree is."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` writes what scenarios do into their files as what they expect; read the diff before you commit it."""
    parser.addoption("--rewrite", action="store_true", help="rewrite the expectations of tests/scenarios")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent
