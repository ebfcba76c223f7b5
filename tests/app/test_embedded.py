import pytest

from hekla.apiserver.memory_store import MemoryStore
from hekla.app.embedded import create_first_objects
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

    with pytest.raises(ApiError, match="refuse this commit"):
        run(story())
