"""Shared by every test: where the tree is, a log that no test leaves changed, and properties that know no stop-watch."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from hekla.testing.redis import RedisServer, program, redis_server

# A busy machine is no fault of the code: no example has a deadline, no generator a speed to keep, and every run looks at
# the same examples. `--hypothesis-seed` and `@settings` of a test look further.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # as in the background of a script: so would every program be deaf that a test starts and interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` writes what scenarios do into their files as what they expect; read the diff before you commit it."""
    parser.addoption("--rewrite", action="store_true", help="rewrite the expectations of tests/scenarios")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A real Redis of the module's own."""
    if program() is None:
        pytest.skip("no redis-server here; `make test-deps` installs it")
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """Commands that run in this process set the log up for themselves; the next test gets the log as it was."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()
