"""Shared by every test: where the tree is, and a log that no test leaves changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` writes what scenarios do into their files as what they expect; read the diff before you commit it."""
    parser.addoption("--rewrite", action="store_true", help="rewrite the expectations of tests/scenarios")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """Commands that run in this process set the log up for themselves; the next test gets the log as it was."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()
