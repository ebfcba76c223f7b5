import asyncio

import pytest

from hekla.api.core import ConfigMap
from hekla.api.meta import Kind, Scope
from hekla.kube.clock import LoopClock
from hekla.kube.commands import Delete
from hekla.kube.errors import ApiError, NotFoundError
from hekla.kube.execute import Executor
from hekla.testing import virtual_time
from hekla.testing.embedded import embedded_cluster

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
WIDGET = Kind(
    group="example.com", version="v1", kind="Widget", plural="widgets", singular="widget", scope=Scope.NAMESPACED
)


def config_map(name, *owners, blocking=False):
    references = [
        {
            "apiVersion": owner.get("apiVersion", "v1"),
            "kind": owner.get("kind", "ConfigMap"),
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": blocking,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "namespace": "default", "ownerReferences": references}}


async def exists(client, name, kind=ConfigMap.kind_info):
    try:
        await client.get_document(kind, name, "default")
    except NotFoundError:
        return False
    return True


def run(scenario):
    async def main():
        async with embedded_cluster(clock=LoopClock()) as cluster:
            await asyncio.sleep(2)
            await scenario(cluster, cluster.client)

    virtual_time.run(main())


async def create(client, name, *owners, **settings):
    return await client.create_document(ConfigMap.kind_info, config_map(name, *owners, **settings))


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_a_whole_tree_goes_with_its_root(policy):
    async def scenario(_, client):
        root = await create(client, "root")
        middle = await create(client, "middle", root, blocking=True)
        await create(client, "leaf", middle, blocking=True)
        await client.delete(ConfigMap, "root", "default", propagation=policy)
        await asyncio.sleep(10)
        assert [await exists(client, name) for name in ("root", "middle", "leaf")] == [False, False, False]

    run(scenario)


def test_orphans_stay():
    async def scenario(_, client):
        root = await create(client, "root")
        await create(client, "leaf", root)
        await client.delete(ConfigMap, "root", "default", propagation="Orphan")
        await asyncio.sleep(10)
        assert [await exists(client, name) for name in ("root", "leaf")] == [False, True]
        assert not (await client.get(ConfigMap, "leaf", "default")).metadata.owner_references

    run(scenario)


def test_an_object_that_is_let_go_while_its_owner_goes_stays(monkeypatch):
    """A session takes a sandbox out of a pool that is deleted: the collector saw it in the pool still, and the session ended."""
    run_commands = Executor.run

    async def scenario(_, client):
        async def taken_first(executor, commands):
            if any(isinstance(one, Delete) and one.target.name == "child" for one in commands):
                taken = {"metadata": {"ownerReferences": None}}
                await client.patch_document(ConfigMap.kind_info, "child", taken, "default")
            return await run_commands(executor, commands)

        monkeypatch.setattr(Executor, "run", taken_first)
        await create(client, "child", await create(client, "root"))
        await client.delete(ConfigMap, "root", "default", propagation="Background")
        await asyncio.sleep(30)
        assert [await exists(client, name) for name in ("root", "child")] == [False, True]

    run(scenario)


def test_an_object_made_for_an_owner_that_never_was_goes():
    async def scenario(_, client):
        await create(client, "leaf", {"metadata": {"name": "never", "uid": "11111111-1111-1111-1111-111111111111"}})
        await asyncio.sleep(10)
        assert not await exists(client, "leaf")

    run(scenario)


def test_custom_resources_are_collected_from_the_moment_they_are_defined():
    async def scenario(_, client):
        await client.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
        await asyncio.sleep(5)
        document = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
        widget = await client.create_document(WIDGET, document, "default")
        await create(client, "leaf", widget)
        await asyncio.sleep(5)
        assert await exists(client, "leaf")
        await client.delete_document(WIDGET, "w", "default")
        await asyncio.sleep(10)
        assert not await exists(client, "leaf")

    run(scenario)


def test_nothing_is_deleted_while_the_server_cannot_say_whether_an_owner_lives():
    async def scenario(cluster, client):
        def unsure(request):
            if request.method == "GET" and request.path.endswith("/configmaps/root"):
                raise ApiError(500, "InternalError", "the disk is on fire")

        cluster.controllers.before = unsure
        cluster.controllers.is_away = True
        cluster.controllers.cut()
        root = await create(client, "root")
        await create(client, "leaf", root)
        cluster.controllers.is_away = False
        await asyncio.sleep(60)
        assert await exists(client, "leaf")

    run(scenario)
