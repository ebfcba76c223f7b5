"""The virtual nodes of the embedded platform, declared from the settings and served by one node agent."""

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from hekla.api.core import Pod
from hekla.api.nodes import Node
from hekla.apiserver.calls import Call
from hekla.apiserver.server import ApiServer
from hekla.apiserver.status import StatusError
from hekla.app.node_serving import NodeServing, node_serving
from hekla.app.own_service import publish_own_service
from hekla.app.settings import Settings
from hekla.app.standalone.node_settings import NODE_KEY
from hekla.kube.client import Client
from hekla.kube.clock import SystemClock
from hekla.kube.errors import KubeError
from hekla.kube.informer import Informers
from hekla.kube.runtime import run_reconcilers
from hekla.lib.quantity import from_bytes
from hekla.node.agent import NodeAgent
from hekla.node.callers import Callers
from hekla.node.endpoint import NodeEndpoint
from hekla.node.provisioning import local_provisioner, reconcile_ephemeral_claims, reconcile_volume
from hekla.node.registration import AT_ONCE, RUNTIME_PREFIX, VirtualNode, is_removed
from hekla.node.service_proxy import ServiceProxy
from hekla.node.volume_directories import VolumeDirectories
from hekla.wire.messages import Answer

if TYPE_CHECKING:
    from hekla.app.features import Features

log = structlog.get_logger()

DECLARED = {"hekla.dev/declared-by": "up"}
"""The annotation of the nodes that the platform declares by itself; those of `hekla run node` lack it."""
OWN_NAME = re.compile(r"node-[1-9][0-9]*|sim-[0-9]{5,}")
"""How `declared_nodes` calls them."""
API_HOST = "127.0.0.1"
PODS_PER_NODE = "110"
SIMULATED_CPU, SIMULATED_MEMORY = "64", "512Gi"


def declared_nodes(settings: Settings) -> Iterator[VirtualNode]:
    """Nodes that run real processes, then those that pretend."""
    for number in range(settings.nodes):
        yield VirtualNode(name=f"node-{number + 1}", capacity=_capacity(settings), annotations=DECLARED)
    gpus = {"nvidia.com/gpu": str(settings.gpus_per_node)} if settings.gpus_per_node else {}
    simulated = {"cpu": SIMULATED_CPU, "memory": SIMULATED_MEMORY, "pods": PODS_PER_NODE, **gpus}
    for number in range(settings.simulated_nodes):
        name = f"sim-{number + 1:05d}"
        yield VirtualNode(name=name, capacity=simulated, runtime="simulated", annotations=DECLARED)


def _capacity(settings: Settings) -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    disk = os.statvfs(settings.data_dir)
    capacity = {
        "cpu": settings.cpu_per_node or str(os.cpu_count() or 1),
        "memory": settings.memory_per_node or from_bytes(memory // 2**20 * 2**20),
        "ephemeral-storage": from_bytes(disk.f_blocks * disk.f_frsize // 2**20 * 2**20),
        "pods": PODS_PER_NODE,
    }
    if settings.gpus_per_node:
        capacity["nvidia.com/gpu"] = str(settings.gpus_per_node)
    return capacity


async def run_nodes(features: "Features", informers: Informers, api: ApiServer) -> None:
    """Serve the nodes until cancelled; their containers end with us. Without a gateway here, one elsewhere is served over the network."""
    async with AsyncExitStack() as stack:
        serving = None
        if "agents" in features.settings.without and features.settings.nodes:
            door = node_serving(host=API_HOST, port=0, address=API_HOST, clock=SystemClock())
            serving = await stack.enter_async_context(door)
        await _run_nodes(features, informers, api, serving)


async def _run_nodes(features: "Features", informers: Informers, api: ApiServer, serving: NodeServing | None) -> None:
    nodes = list(declared_nodes(features.settings))
    if serving is not None:
        nodes = [_reached_by(serving, node) for node in nodes]
    await forget_nodes(informers.client, nodes)
    if not nodes:
        return
    agent = _agent_of(nodes, features, informers)
    callers = Callers(informers.client, asyncio.get_running_loop().time)
    endpoint, services = NodeEndpoint(agent, callers=callers), ServiceProxy(informers, agent.record)
    volumes = features.directory.node / "volumes"
    directories = VolumeDirectories(informers, volumes)
    features.node_proxy = NodeDoor(endpoint, services).answer
    try:
        await publish_own_service(informers.client, API_HOST, features.api_port)
        await agent.start()
        features.sandboxes = agent.sandboxes
        agent.sandboxes.on_ready = features.tell_sandbox_ready
        if serving is not None:
            serving.handler = endpoint.handle
        await services.start()
        await directories.start()
        storage = [local_provisioner(str(volumes)), reconcile_volume, reconcile_ephemeral_claims]
        async with asyncio.TaskGroup() as group:
            group.create_task(agent.ended(), name="node agent")
            group.create_task(run_reconcilers(informers, storage, component="hekla-node"), name="node storage")
            if serving is not None:
                named = [one.name for one in nodes if one.endpoint_port]
                group.create_task(serving.keep_fresh(informers.client, named), name="node certificate")
            if "agents" not in features.settings.without:
                group.create_task(agent.sandboxes.prepare(), name="warm sandboxes")
    finally:
        features.node_proxy = features.sandboxes = None
        await directories.close()
        await services.close()
        await agent.close()
        await endpoint.close()


def _reached_by(serving: NodeServing, node: VirtualNode) -> VirtualNode:
    """The node as it says where it is reached; one that is simulated is not."""
    if node.runtime == "simulated":
        return node
    return replace(node, endpoint_port=serving.port, annotations={**node.annotations, **serving.annotations})


def _agent_of(nodes: Sequence[VirtualNode], features: "Features", informers: Informers) -> NodeAgent:
    async def token_for(pod: Pod, audience: str, life_s: int) -> str:
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/serviceaccounts/{pod.spec.service_account_name}/token"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        spec = {"expirationSeconds": life_s, "boundObjectRef": bound, **({"audiences": [audience]} if audience else {})}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str((await informers.client.request("POST", path, request))["status"]["token"])

    return NodeAgent(
        informers.client,
        informers,
        nodes,
        data_dir=features.directory.node,
        token_source=token_for,
        api_address=(API_HOST, features.api_port),
        hidden=(features.directory.root,),
        sandbox_grace_s=features.settings.sandbox_grace_s,
        pod_grace_s=features.settings.sandbox_grace_s,
        is_hurried=features.is_hurried,
        engine_python=features.settings.engine_python,
    )


async def forget_nodes(client: Client, declared: Sequence[VirtualNode]) -> None:
    """Delete the nodes of an earlier start with more of them: nobody serves these, so their pods would never end.

    One that may not be deleted stays, and the log says so: the platform starts all the same.
    """
    names, at_once = {node.name for node in declared}, asyncio.Semaphore(AT_ONCE)

    async def forget(name: str) -> None:
        async with at_once:
            if await is_removed(name, client):
                log.info("node forgotten", node=name, why="it is not among the nodes of this start")

    try:
        nodes = (await client.list(Node)).items
    except KubeError as trouble:
        log.warning("nodes of earlier starts not looked for", why=str(trouble))
        return
    surplus = [one.metadata.name for one in nodes if one.metadata.name not in names and _is_declared_by_up(one)]
    await asyncio.gather(*map(forget, surplus))


def _is_declared_by_up(node: Node) -> bool:
    """Whether the platform declared it by itself: before 2026-11-28 no annotation said so, but `hekla run node` has always set a label."""
    if DECLARED.items() <= node.metadata.annotations.items():
        return True
    info, is_joined = node.status.node_info, NODE_KEY in node.metadata.labels
    is_ours = info is not None and info.container_runtime_version.startswith(RUNTIME_PREFIX) and not is_joined
    return is_ours and OWN_NAME.fullmatch(node.metadata.name) is not None


class NodeDoor:
    """Takes the requests that the API server passes on to the node that can answer them."""

    def __init__(self, endpoint: NodeEndpoint, services: ServiceProxy) -> None:
        self._endpoint, self._services = endpoint, services

    async def answer(self, call: Call) -> Answer:
        """Logs, exec, attach, port-forward and proxy of a pod, proxy of a service; the caller has been authorized."""
        target = call.target
        if target.resource == "services" and target.subresource == "proxy":
            return await self._ask_service(call)
        if target.resource != "pods":
            raise StatusError(501, "NotImplemented", f"{target.resource}/{target.subresource} is not available here")
        return await self._endpoint.answer(
            target.subresource, target.namespace, target.name, call.request, path=target.tail
        )

    async def _ask_service(self, call: Call) -> Answer:
        scheme, name, port = service_name_and_port(call.target.name)
        backends = self._services.backends(call.target.namespace, name, port)
        if backends is None:
            raise StatusError(404, "NotFound", f'services "{name}" not found')
        if not backends:
            raise StatusError(503, "ServiceUnavailable", f'no endpoints available for service "{call.target.name}"')
        if scheme == "https":
            raise StatusError(501, "NotImplemented", f'service "{name}" is asked over http only; leave "https:" out')
        host, number = backends[0]
        return await self._endpoint.pass_on(host, number, call.target.tail, call.request)


def service_name_and_port(text: str) -> tuple[str, str, str]:
    """Scheme, name and port of `web`, `web:80`, `web:http` or `https:web:443`."""
    parts = text.split(":")
    if len(parts) == 3:
        return parts[0] or "http", parts[1], parts[2]
    return "http", parts[0], parts[1] if len(parts) == 2 else ""
