"""Two real vLLM servers for the whole session; skipped with the reason where they cannot run."""

from collections.abc import Iterator

import pytest

from serving.engines.enginekit import Engine, running_engines, why_not


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    if reason := why_not():
        pytest.skip(reason)
    with running_engines(tmp_path_factory.mktemp("engines")) as running:
        yield running
