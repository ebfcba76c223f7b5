import asyncio
from dataclasses import replace

from hekla.api.coordination import Lease
from hekla.api.nodes import Node
from hekla.app.nodes import declared_nodes, forget_nodes
from hekla.app.settings import Settings
from hekla.app.standalone.node_settings import NODE_KEY
from hekla.kube.clock import SystemClock
from hekla.kube.errors import ApiError
from hekla.node.registration import Registrar, Standing, VirtualNode
from hekla.testing.server import api_server, in_process_client

STANDING = Standing(rung="user-namespaces", isolation="", limits="")


BEFORE, NOW = {"nodes": 3, "simulated_nodes": 2}, {"nodes": 1, "simulated_nodes": 1}


async def registered(client, *nodes):
    await Registrar(client, SystemClock(), {node.name: node for node in nodes}, lambda _: STANDING).register()


async def names(client, kind):
    return {one.metadata.name for one in (await client.list(kind)).items}


def test_a_start_with_fewer_nodes_deletes_those_that_nobody_serves_now(tmp_path):
    """Their pods would be Terminating for ever, and a `hekla delete` would wait for them."""

    async def story():
        async with api_server() as server, in_process_client(server) as client:
            joined = VirtualNode(name="node-9", capacity={}, labels={NODE_KEY: "true"})  # by `hekla run node`
            await registered(client, *declared_nodes(Settings(data_dir=tmp_path, **BEFORE)), joined)
            await forget_nodes(client, list(declared_nodes(Settings(data_dir=tmp_path, **NOW))))
            return await names(client, Node), await names(client, Lease)

    left = {"node-1", "sim-00001", "node-9"}
    assert asyncio.run(story()) == (left, left)


def test_those_of_before_an_upgrade_lack_the_annotation_and_are_known_by_their_names(tmp_path):
    async def story():
        async with api_server() as server, in_process_client(server) as client:
            before = [replace(node, annotations={}) for node in declared_nodes(Settings(data_dir=tmp_path, **BEFORE))]
            joined = VirtualNode(name="node-9", capacity={}, labels={NODE_KEY: "true"})
            named = VirtualNode(name="node-x", capacity={})
            await registered(client, *before, joined, named)
            await client.create(Node, {"metadata": {"name": "node-5"}})  # of nobody whom we know
            await forget_nodes(client, list(declared_nodes(Settings(data_dir=tmp_path, **NOW))))
            return await names(client, Node)

    assert asyncio.run(story()) == {"node-1", "sim-00001", "node-9", "node-x", "node-5"}


def test_a_node_that_may_not_be_deleted_does_not_end_the_start(tmp_path):
    async def story():
        async with api_server() as server, in_process_client(server) as client:
            await registered(client, *declared_nodes(Settings(data_dir=tmp_path, **BEFORE)))
            delete = client.delete

            async def refusing(kind, name, *rest):
                if name == "node-2":
                    raise ApiError(500, "InternalError", "failed calling webhook")
                return await delete(kind, name, *rest)

            client.delete = refusing
            await forget_nodes(client, list(declared_nodes(Settings(data_dir=tmp_path, **NOW))))
            return await names(client, Node)

    assert asyncio.run(story()) == {"node-1", "node-2", "sim-00001"}
