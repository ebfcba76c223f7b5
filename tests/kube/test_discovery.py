import asyncio

from hekla.kube.discovery import discover
from hekla.kube.metadata_kinds import metadata_only
from hekla.testing.server import api_server, in_process_client


def test_every_kind_is_found_once_with_its_verbs():
    async def scenario():
        async with api_server() as server, in_process_client(server) as client:
            found = {one.kind.resource: one for one in await discover(client)}
            pods = found["pods"]
            assert pods.can("list", "watch", "delete")
            assert pods.kind.is_namespaced
            assert not found["nodes"].kind.is_namespaced
            assert found["deployments.apps"].kind.path("ns") == "/apis/apps/v1/namespaces/ns/deployments"
            page = await client.list(metadata_only(found["namespaces"].kind))
            assert "default" in [item.metadata.name for item in page.items]

    asyncio.run(scenario())
