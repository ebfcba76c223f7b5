import asyncio
import contextlib

import pytest

from hekla.apiserver.memory_store import MemoryStore
from hekla.app import embedded, serving
from hekla.app.embedded import FirstObjectsError, create_first_objects
from hekla.app.settings import Settings
from hekla.kube.errors import ApiError
from hekla.testing.server import api_server, in_process_client
from hekla.testing.virtual_time import run


def test_a_disk_that_is_full_from_the_start_ends_the_start_with_its_own_words():
    """It was told as webhooks that do not answer, for each of a hundred objects, and then as a page that is not found."""

    async def story():
        store = MemoryStore()
        async with api_server(store) as server, in_process_client(server) as client:
            store.refuse_commits = 1000
            await create_first_objects(client)

    with pytest.raises(FirstObjectsError, match=r"could not make its first objects: .*refuse this commit"):
        run(story())


@pytest.mark.parametrize(("without", "is_there"), [((), True), (("agents",), False)])
def test_the_key_to_sandboxes_is_there_when_the_platform_is_ready(monkeypatch, tmp_path, without, is_there):
    """A script that read it right behind `hekla up --detach` found no file."""

    async def nothing(*_given):
        await asyncio.Event().wait()

    monkeypatch.setattr(embedded, "run_features", nothing)

    async def story():
        async with embedded.platform(Settings(data_dir=tmp_path, port=0, nodes=0, without=frozenset(without))):
            assert (tmp_path / "agents.key").exists() == is_there

    asyncio.run(story())


def test_what_fails_later_is_not_told_as_the_first_objects(monkeypatch, tmp_path):
    @contextlib.asynccontextmanager
    async def platform(_settings):
        raise ApiError(503, "ServiceUnavailable", "the store is away")
        yield

    monkeypatch.setattr(embedded, "platform", platform)
    with pytest.raises(ApiError, match="the store is away"):
        run(serving._serve(Settings(data_dir=tmp_path), lambda _running: None, -1, -1))
