"""`hekla run node`: the node agent in a cluster that is not ours, beside the kubelets of its machines.

    Node, Lease         as a kubelet keeps them; a taint holds foreign pods off
    pods                processes and sandboxes of this machine, or none at all (`--runtime simulated`)
    the endpoint        the kubelet's paths for API servers (logs, exec, attach, port-forward), and the sandboxes' for gateways

What is here is a guest: it follows its own pods alone, gives Services no addresses and provides no storage, for there others do.
"""

import asyncio
import contextlib
import fcntl
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

import structlog

from hekla.app.node_serving import NodeServing, node_serving
from hekla.app.standalone.node_identity import NodeIdentity
from hekla.app.standalone.node_settings import PROCESS, NodeSettings
from hekla.app.standalone.node_surroundings import address_towards, client_authorities, host_and_port_of
from hekla.app.standalone.office import Office
from hekla.app.standalone.settings import NODE, StandaloneSettingsError, host_and_port
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError, KubeError
from hekla.kube.informer import Informers
from hekla.kube.kubeconfig import SERVICE_ACCOUNT, credential_files
from hekla.lib.quantity import from_bytes
from hekla.node.agent import NodeAgent
from hekla.node.callers import Callers
from hekla.node.endpoint import NodeEndpoint
from hekla.node.registration import VirtualNode
from hekla.node.runtimes.simulated import SimulatedRuntime

log = structlog.get_logger(__name__)

SIMULATED_CPU, SIMULATED_MEMORY, SIMULATED_DISK = "64", "512Gi", "1Ti"
ASK_AGAIN_S: Final = 2.0
BELIEVED_AGAIN_S: Final = 600.0
"""How often it is asked whom to believe: an authority is changed by adding the next to it for a while."""
GOODBYE_S: Final = 5.0
GOODBYE_EACH_S: Final = 0.1
"""What is said to an API server at the end: it may be away, and nobody waits for it for long."""


async def run_node(office: Office) -> None:
    """Be these nodes until it is time to go."""
    if office.node is None:
        raise StandaloneSettingsError("nodes need settings of their own")
    client = office.client(NODE)
    try:
        await office.until_stopped(_Being(office, office.node, client).run())
    finally:
        office.health.checks.pop(NODE, None)
        await client.close()


@dataclass
class _Being:
    """One process's nodes, from the first question to the last word."""

    office: Office
    told: NodeSettings
    account: ApiClient
    complaint: str = "the node starts"

    async def run(self) -> None:
        office, told = self.office, self.told
        office.health.checks[NODE] = lambda: self.complaint
        if told.runtime != PROCESS:
            await self._be(office, told)
            return
        told.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (told.directory / "lock").open("w") as lock:
            await self._be_alone(lock)
            await self._be(office, told)

    async def _be_alone(self, lock: IO[str]) -> None:
        """Hold the directory: an agent before, which is leaving, still speaks to those whom it leaves to us."""
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                held = self.told.directory
                self._cannot_begin(f"another process is the node of {held}; end it, or give another --node-directory")
            await asyncio.sleep(ASK_AGAIN_S)

    async def _be(self, office: Office, told: NodeSettings) -> None:
        address = told.address or await self._address()
        host, port = host_and_port("--node-listen", told.listen)
        believed = await self._client_authorities()
        async with AsyncExitStack() as stack:
            door = node_serving(
                host=host, port=port, address=address, clock=office.clock, believed=believed,
                given=(Path(told.tls_cert), Path(told.tls_key)) if told.tls_cert else None,
            )  # fmt: skip
            serving = await stack.enter_async_context(door)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            client = await self._identified(group)
            stack.push_async_callback(client.close)
            informers = await stack.enter_async_context(Informers(client))
            nodes = [
                replace(one, endpoint_port=serving.port, annotations=serving.annotations)
                for one in declared(told, address)
            ]
            await self._serve(informers, nodes, serving)

    async def _identified(self, group: asyncio.TaskGroup) -> ApiClient:
        if not self.told.speaks_as_node:
            return self.office.client(NODE)
        identity = NodeIdentity(self.account, self.told.node_name, self.told.directory, self.office.clock)
        self.office.health.checks["identity"] = lambda: identity.trouble
        connection = await identity.connection(self.office.connection)
        group.create_task(identity.keep_fresh(), name="identity of the node")
        return replace(self.office, connection=connection).client(NODE)

    async def _serve(self, informers: Informers, nodes: list[VirtualNode], serving: NodeServing) -> None:
        told, office = self.told, self.office
        agent = NodeAgent(
            informers.client, informers, nodes, data_dir=told.directory, clock=office.clock, is_guest=True,
            api_address=host_and_port_of(office.connection.server), sandbox_grace_s=told.sandbox_grace_s,
            pod_grace_s=told.pod_grace_s,
            takes_processes=told.allows_processes, hidden=secret_places(office.settings.kubeconfig, told),
            runtimes=() if told.runtime == PROCESS else (SimulatedRuntime(office.clock),),
        )  # fmt: skip
        callers = Callers(informers.client, asyncio.get_running_loop().time)
        endpoint = NodeEndpoint(agent, callers=callers)
        watching = asyncio.create_task(self._tell_trouble(agent, informers), name="trouble of the node")
        try:
            await agent.start()
            serving.handler = endpoint.handle
            log.info("node is ready", nodes=len(nodes), name=nodes[0].name, runtime=told.runtime)
            async with asyncio.TaskGroup() as group:
                group.create_task(agent.ended(), name="node agent")
                group.create_task(serving.keep_fresh(informers.client, [one.name for one in nodes]), name="certificate")
                group.create_task(self._keep_believing(serving), name="whom to let in")
                if told.runtime == PROCESS:
                    group.create_task(agent.sandboxes.prepare(), name="warm sandboxes")
        finally:
            watching.cancel()
            await self._say_goodbye(agent)
            await agent.close(leaves_containers=not told.deletes_itself)
            await endpoint.close()

    async def _say_goodbye(self, agent: NodeAgent) -> None:
        # no node may delete itself: its account does, if it has the right
        remover = self.account if self.told.deletes_itself else None
        with contextlib.suppress(TimeoutError, KubeError):
            async with asyncio.timeout(GOODBYE_S + GOODBYE_EACH_S * self.told.count):
                await agent.say_goodbye("the node agent has ended", remover)

    async def _address(self) -> str:
        while True:
            try:
                return await address_towards(self.office.connection.server)
            except OSError as error:
                self._cannot_begin(
                    f"the address that faces the API server is not known ({error.strerror or error}); --node-address tells it"
                )
            await asyncio.sleep(ASK_AGAIN_S)

    async def _client_authorities(self) -> str:
        while True:
            try:
                return await client_authorities(self.account)
            except KubeError as error:
                if isinstance(error, ApiError) and error.code == 403:  # nodes themselves may not ask
                    log.warning("API servers are let in by tokens alone, not by their certificates", why=str(error))
                    return ""
                self._cannot_begin(f"whom to let in is not known: {error}")
            await asyncio.sleep(ASK_AGAIN_S)

    def _cannot_begin(self, why: str) -> None:
        if self.complaint != why:
            log.warning("the node cannot begin yet", why=why)
        self.complaint = why

    async def _keep_believing(self, serving: NodeServing) -> None:
        while True:
            await asyncio.sleep(BELIEVED_AGAIN_S)
            try:
                serving.believe(await client_authorities(self.account))
            except (KubeError, OSError, ValueError) as error:
                log.info("whom to let in was not learnt anew", why=str(error))

    async def _tell_trouble(self, agent: NodeAgent, informers: Informers) -> None:
        """What stands in the way, for /readyz."""
        while True:
            missing = [
                f"{kind.kind_info.resource}: {why or 'being read'}" for kind, why in informers.troubles().items()
            ]
            own = "the node starts" if agent.registrar is None else agent.registrar.trouble
            self.complaint = "; ".join([*([own] if own else []), *missing])
            await asyncio.sleep(ASK_AGAIN_S)


def secret_places(kubeconfig: str, told: NodeSettings) -> tuple[Path, ...]:
    """What pods of the machine must not see beside the node's directory: as whom the account speaks, and the endpoint's key."""
    keys = [Path(each) for each in (told.tls_cert, told.tls_key) if each]
    return (SERVICE_ACCOUNT.parent.parent, *credential_files(*([kubeconfig] if kubeconfig else [])), *keys)


def declared(told: NodeSettings, address: str) -> list[VirtualNode]:
    """The nodes that were asked for."""
    capacity = _of_machine(told) if told.runtime == PROCESS else _of_simulated(told)
    if told.gpus:
        capacity["nvidia.com/gpu"] = str(told.gpus)
    taints = list(told.taints_of_nodes())
    return [
        VirtualNode(
            name=name, capacity=capacity, labels=told.labels_of_nodes(), taints=taints, runtime=told.runtime, address=address,
            shows_os=told.runtime != PROCESS,  # DaemonSets choose machines by it that tolerate everything: kube-proxy of kubeadm
        )
        for name in told.names()
    ]  # fmt: skip


def _of_machine(told: NodeSettings) -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk = os.statvfs(told.directory)
    return {
        "cpu": told.cpu or str(os.cpu_count() or 1),
        "memory": told.memory or from_bytes(memory // 2**20 * 2**20),
        "ephemeral-storage": from_bytes(disk.f_blocks * disk.f_frsize // 2**20 * 2**20),
        "pods": str(told.pods),
    }


def _of_simulated(told: NodeSettings) -> dict[str, str]:
    return {
        "cpu": told.cpu or SIMULATED_CPU, "memory": told.memory or SIMULATED_MEMORY, "ephemeral-storage": SIMULATED_DISK,
        "pods": str(told.pods),
    }  # fmt: skip
