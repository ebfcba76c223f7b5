"""Releases of Volcano differ in which kinds have /status; a status must arrive whichever a cluster has."""

import asyncio

import pytest

from hekla.api.crd import crd_document
from hekla.api.volcano import PodGroup, Queue
from hekla.kube.commands import SetStatus, target_of
from hekla.kube.events import SilentRecorder
from hekla.kube.execute import Executor
from hekla.testing.server import api_server, in_process_client

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(kind, *, has_subresource):
    document = crd_document(kind)
    [version] = document["spec"]["versions"]
    version.pop("subresources", None)
    if has_subresource:
        version["subresources"] = {"status": {}}
    return document


@pytest.mark.parametrize("has_subresource", [True, False])
@pytest.mark.parametrize(("kind", "namespace"), [(PodGroup, "default"), (Queue, "")])
def test_a_status_is_written_where_the_server_keeps_it(kind, namespace, has_subresource):
    async def main():
        async with api_server() as server, in_process_client(server) as client:
            await client.request("POST", CRDS, definition(kind, has_subresource=has_subresource))
            executor = Executor(client, SilentRecorder())
            for name in ("first", "second"):  # the second is written by what was learned from the first
                made = await client.create(kind, {"metadata": {"name": name}}, namespace)
                for count in (3, 4):
                    [done] = await executor.run([SetStatus(target_of(made), {"running": count})])
                    assert done.revision > 0
                    found = await client.get_document(kind.kind_info, name, namespace)
                    assert found["status"]["running"] == count

    asyncio.run(main())


@pytest.mark.parametrize("has_subresource", [True, False])
def test_a_status_of_an_object_that_is_gone_is_nobodys(has_subresource):
    async def main():
        async with api_server() as server, in_process_client(server) as client:
            await client.request("POST", CRDS, definition(PodGroup, has_subresource=has_subresource))
            made = await client.create(PodGroup, {"metadata": {"name": "brief"}}, "default")
            await client.delete(PodGroup, "brief", "default")
            assert await Executor(client, SilentRecorder()).run([SetStatus(target_of(made), {"running": 1})]) == []

    asyncio.run(main())
