import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hekla.api.core import ConfigMap, Event
from hekla.api.pods import Pod
from hekla.apiserver.memory_store import MemoryStore
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import NotFoundError
from hekla.kube.informer import Informers
from hekla.node.agent import NodeAgent
from hekla.node.endpoint import NodeEndpoint
from hekla.node.pod_lifecycle import Backoff
from hekla.node.registration import VirtualNode
from hekla.node.runtimes import LogOptions
from hekla.testing.server import api_server, in_process_client

PATIENCE_S = 30.0


@dataclass
class Cluster:
    """An API server in memory and an agent with one node, `n0`, that runs processes and one, `s0`, that pretends to."""

    client: ApiClient
    informers: Informers
    server: Any
    directory: Path
    agent: NodeAgent
    endpoint: NodeEndpoint
    options: dict[str, Any] = field(default_factory=dict)

    async def apply(self, name, spec, *, node="n0", namespace="default", **metadata):
        """Make a pod; `spec` may be a shell script."""
        if isinstance(spec, str):
            spec = {"containers": [{"name": "main", "image": "busybox", "command": ["sh", "-c", spec]}]}
        spec = {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 5, **spec}
        document = {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": spec}
        return await self.client.create(Pod, document, namespace)

    async def config_map(self, name, **data):
        await self.client.create(ConfigMap, {"metadata": {"name": name}, "data": data}, "default")

    async def until(self, name, holds):
        """Wait until a pod is as wished; returns it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    pod = await self.client.get(Pod, name, "default")
                    if holds(pod):
                        return pod
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"pod {name} never got there: {pod.status}")

    async def ended(self, name):
        return await self.until(name, lambda pod: pod.status.phase in ("Succeeded", "Failed"))

    async def running(self, name):
        return await self.until(name, lambda pod: pod.status.phase == "Running")

    async def gone(self, name):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.client.get(Pod, name, "default")
                except NotFoundError:
                    return
                await asyncio.sleep(0.01)

    async def log(self, name, container="main"):
        tracked = self.agent.find("default", name)
        pieces = [piece async for piece in tracked.runtime.logs(tracked.key(container), LogOptions())]
        return b"".join(pieces).decode()

    async def run(self, name, spec, **more):
        """A pod to its end: the pod and its log."""
        await self.apply(name, spec, **more)
        pod = await self.ended(name)
        return pod, await self.log(name)

    async def event(self, reason):
        """Wait for an event with a reason; its message."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for each in (await self.client.list(Event, "default")).items:
                    if each.reason == reason:
                        return each.message
                await asyncio.sleep(0.01)

    async def restart_agent(self, *, leaves_containers=False, meanwhile=None):
        """End this life of the agent and begin the next on the same data; `meanwhile` no agent is there."""
        await self.agent.close(leaves_containers=leaves_containers)
        if meanwhile is not None:
            await meanwhile()
        page = await self.client.list(Pod)
        seen = asyncio.Event()
        self.informers.of(Pod).when_seen(int(page.resource_version), seen.set)
        await seen.wait()
        self.agent = new_agent(self.client, self.informers, self.directory, **self.options)
        await self.agent.start()


def new_agent(client, informers, directory, **options):
    nodes = [
        VirtualNode(name="n0", capacity={"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "4"}, labels={"zone": "a"}),
        VirtualNode(name="s0", capacity={"cpu": "64", "memory": "64Gi"}, runtime="simulated"),
    ]
    return NodeAgent(client, informers, nodes, data_dir=directory / "node data", **options)


@asynccontextmanager
async def open_cluster(directory, **options):
    options = {"backoff": Backoff(first_s=0.05, max_s=0.2), **options}
    box: dict[str, Cluster] = {}

    def proxy(call):
        target = call.target
        return box["cluster"].endpoint.answer(
            target.subresource, target.namespace, target.name, call.request, path=target.tail
        )

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(api_server(MemoryStore(), proxy=proxy))
        client = await stack.enter_async_context(in_process_client(server))
        informers = await stack.enter_async_context(Informers(client))
        agent = new_agent(client, informers, directory, **options)
        await agent.start()
        cluster = Cluster(client, informers, server, directory, agent, NodeEndpoint(agent, token="secret"), options)
        box["cluster"] = cluster
        try:
            yield cluster
        finally:
            await cluster.endpoint.close()
            await cluster.agent.close()


@pytest.fixture
def live(tmp_path):
    """Live a story on a cluster of one agent."""

    def live(story, **options):
        async def told():
            async with open_cluster(tmp_path, **options) as cluster:
                await story(cluster)

        asyncio.run(told())

    return live
