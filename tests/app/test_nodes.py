import asyncio

from hekla.api.nodes import Node
from hekla.app.nodes import declared_nodes, forget_nodes
from hekla.app.settings import Settings
from hekla.kube.clock import SystemClock
from hekla.node.registration import Registrar, Standing, VirtualNode
from hekla.testing.server import api_server, in_process_client

STANDING = Standing(rung="user-namespaces", isolation="", limits="")


def test_a_start_with_fewer_nodes_deletes_those_that_nobody_serves_now(tmp_path):
    """Their pods would be Terminating for ever, and a `hekla delete` would wait for them."""

    async def story():
        async with api_server() as server, in_process_client(server) as client:
            before = declared_nodes(Settings(data_dir=tmp_path, nodes=3, simulated_nodes=2))
            joined = VirtualNode(name="node-9", capacity={})  # by `hekla run node`
            await Registrar(
                client, SystemClock(), {node.name: (node, STANDING) for node in [*before, joined]}
            ).register()
            await forget_nodes(client, list(declared_nodes(Settings(data_dir=tmp_path, nodes=1, simulated_nodes=1))))
            return {node.metadata.name for node in (await client.list(Node)).items}

    assert asyncio.run(story()) == {"node-1", "sim-00001", "node-9"}
