"""Whether a caller in the server's process may go on with what is decided, learns when the disk has it, and hears of a disk that refuses."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hekla.api.core import ConfigMap
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.store import Key
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ConflictError, NotFoundError, TransportError
from hekla.kube.in_process import InProcessTransport
from hekla.testing.server import api_server

KEY = Key("configmaps", "default", "one")


def run(scenario: Callable[[ApiClient, MemoryStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with api_server() as server:
            store = server.backend.store
            assert isinstance(store, MemoryStore)
            await scenario(ApiClient(InProcessTransport(server.handle)), store)

    asyncio.run(main())


def test_what_is_decided_is_answered_before_it_is_durable() -> None:
    async def scenario(client: ApiClient, store: MemoryStore) -> None:
        made = await client.create_soon(ConfigMap, {"metadata": {"name": "one"}, "data": {"a": "1"}}, "default")
        assert made.object.metadata.uid
        assert store.get_durable(KEY) is None
        changed = await client.patch_soon(ConfigMap, "one", {"data": {"a": "2"}}, "default")
        assert changed.object.data == {"a": "2"}
        await changed.durable()
        durable = store.get_durable(KEY)
        assert durable is not None
        assert str(durable.revision) == changed.object.metadata.resource_version

    run(scenario)


def test_of_two_who_change_one_state_the_second_is_refused_at_once() -> None:
    async def scenario(client: ApiClient, store: MemoryStore) -> None:
        made = await client.create(ConfigMap, {"metadata": {"name": "one"}}, "default")
        presumed = {"metadata": {"resourceVersion": made.metadata.resource_version}}
        first = await client.patch_soon(ConfigMap, "one", {**presumed, "data": {"mine": "yes"}}, "default")
        with pytest.raises(ConflictError):
            await client.patch_soon(ConfigMap, "one", {**presumed, "data": {"mine": "no"}}, "default")
        await first.durable()
        assert (await client.get(ConfigMap, "one", "default")).data == {"mine": "yes"}

    run(scenario)


def test_a_disk_that_refuses_is_told_to_who_waits_for_it_and_nothing_stays() -> None:
    async def scenario(client: ApiClient, store: MemoryStore) -> None:
        store.refuse_commits = 1
        made = await client.create_soon(ConfigMap, {"metadata": {"name": "one"}}, "default")
        with pytest.raises(TransportError, match="one was not written"):
            await made.durable()
        with pytest.raises(NotFoundError):
            await client.get(ConfigMap, "one", "default")

    run(scenario)
