"""Registers virtual nodes and keeps them alive: Node objects, their conditions, and leases.

`node_document` and `status_document` decide (pure); `Registrar` writes. A lease a node, renewed in slices spread over the
period, so that thousands of nodes cost a steady trickle and no burst; the Node object itself is written only when it
changes and every five minutes, as the kubelet does.
"""

import asyncio
import contextlib
import os
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path

import structlog

from hekla import __version__
from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.api.agents.node_contract import NODE_ISOLATION_LABEL, NODE_RUNTIME_LABEL, NODE_RUNTIMES, keeps
from hekla.api.coordination import Lease
from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.kube.client import Client, PatchType
from hekla.kube.clock import Clock, rfc3339, rfc3339_micro
from hekla.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from hekla.node.runtimes.sandbox import SandboxRuntime

log = structlog.get_logger()

LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
RENEW_EVERY_S = 10.0
STATUS_EVERY_S = 300.0
REGISTER_AGAIN_S = 2.0
RUNTIME_PREFIX = "hekla-"
"""How the runtimes of our nodes are called, in their nodeInfo."""
AT_ONCE = 32
"""Requests in flight while many nodes register or renew."""


class NodeTakenError(KubeError):
    """The name is that of a node which is not ours."""


@dataclass(frozen=True, kw_only=True)
class VirtualNode:
    """A node as its owner declares it: any name, any capacity."""

    name: str
    capacity: Mapping[str, str]
    """Resources by name, as quantities: cpu, memory, pods, ephemeral-storage, nvidia.com/gpu, ..."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    runtime: str = "process"
    """The runtime of pods that name no runtimeClassName."""

    shows_os: bool = True
    """Whether it has the label `kubernetes.io/os`, by which DaemonSets choose machines."""

    address: str = "127.0.0.1"
    endpoint_port: int = 0
    """Where the node's endpoint listens, if it does."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What this host lets the node do, for its conditions and labels."""

    rung: str
    isolation: str
    limits: str
    sandboxes: Sequence[SandboxRuntime] = ()
    """What runs sandboxes here."""


def node_document(node: VirtualNode, standing: Standing) -> Document:
    """The Node object without its status."""
    labels = {
        "kubernetes.io/hostname": node.name,
        **({"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux"} if node.shows_os else {}),
        "kubernetes.io/arch": architecture(),
        "beta.kubernetes.io/arch": architecture(),
        "hekla.dev/runtime": node.runtime,
        "hekla.dev/isolation": standing.rung,
        **{label: "true" for each in standing.sandboxes for label in isolation_labels(each)},
        **node.labels,
    }
    spec: Document = {"taints": [dict(each) for each in node.taints]} if node.taints else {}
    metadata = {
        "name": node.name,
        "labels": labels,
        "annotations": {**_sandbox_annotation(standing), **node.annotations},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}


def status_document(node: VirtualNode, standing: Standing, now: datetime, since: datetime) -> Document:
    """What the node offers and how it is."""
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "100Gi", **node.capacity}
    status: Document = {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": node.address},
            # API servers ask the endpoint under the first of these that they prefer, which is a Hostname: the node has an address alone
            *([] if node.endpoint_port else [{"type": "Hostname", "address": node.name}]),
        ],
        "nodeInfo": node_info(node.runtime),
        "conditions": list(_conditions(standing, now, since)),
    }
    if node.endpoint_port:
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": node.endpoint_port}}
    return status


def _conditions(standing: Standing, now: datetime, since: datetime) -> list[Document]:
    told = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Isolation", "True", _camel(standing.rung), standing.isolation),
        ("Limits", "True", "LimitsEnforcement", standing.limits),
        *_sandbox_condition(standing),
        ("Ready", "True", "KubeletReady", "the node agent is posting ready status"),
    ]
    times = {"lastHeartbeatTime": rfc3339(now), "lastTransitionTime": rfc3339(since)}
    return [
        {"type": kind, "status": status, "reason": reason, "message": message, **times}
        for kind, status, reason, message in told
    ]


def isolation_labels(runtime: SandboxRuntime) -> list[str]:
    """Labels by which pods that demand an isolation, or a runtime, find nodes that keep it."""
    if runtime.refusal:
        return []
    kept = [strength for strength in ISOLATION_STRENGTHS if keeps(runtime.isolation, strength)]
    return [f"{NODE_ISOLATION_LABEL}{strength}" for strength in kept] + [f"{NODE_RUNTIME_LABEL}{runtime.name}"]


def _sandbox_annotation(standing: Standing) -> dict[str, str]:
    told = [
        f"{each.name}={each.isolation}:{','.join(sorted(feature.value for feature in each.sandbox_features))}"
        for each in standing.sandboxes
        if not each.refusal
    ]
    return {NODE_RUNTIMES: ";".join(told)} if told else {}


def _sandbox_condition(standing: Standing) -> list[tuple[str, str, str, str]]:
    if not standing.sandboxes:
        return []
    can = any(not each.refusal for each in standing.sandboxes)
    told = "; ".join(map(_told_of, standing.sandboxes))
    return [("Sandboxes", str(can), "Available" if can else "Refused", told)]


def _told_of(runtime: SandboxRuntime) -> str:
    pods = f"pods of runtime class {runtime.name}"
    if runtime.refusal:
        return f"{pods} are refused: {runtime.refusal}"
    unshared = f", and do not share the CPU by their requests: {runtime.unshared}" if runtime.unshared else ""
    return f"{pods} are isolated as {runtime.isolation}{unshared}"


def _camel(words: str) -> str:
    return "".join(part.capitalize() for part in words.split("-")) or "Unknown"


def architecture() -> str:
    """The machine's architecture as Go names it."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


@cache
def node_info(runtime: str) -> Document:
    """What the node is made of."""
    return {
        "architecture": architecture(),
        "bootID": _read("/proc/sys/kernel/random/boot_id"),
        "containerRuntimeVersion": f"{RUNTIME_PREFIX}{runtime}://{__version__}",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": f"v1.36.0-hekla.{__version__}",
        "machineID": _read("/etc/machine-id"),
        "operatingSystem": "linux",
        "osImage": _os_name(),
        # of the firmware, as kubelets tell it: a container has no machine ID of the machine, and sees this one
        "systemUUID": _read("/sys/class/dmi/id/product_uuid") or _read("/etc/machine-id"),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _os_name() -> str:
    for line in _read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return f"Linux {os.uname().release}"


def taken(name: str, runtime: str) -> str:
    """Why the node of that name is somebody else's whose containers `runtime` runs; empty if it is ours or nobody's."""
    if not runtime or runtime.startswith(RUNTIME_PREFIX):
        return ""
    return f'node "{name}" is another agent\'s already, whose containers {runtime} runs; choose another --node-name'


def first_of(failures: BaseException) -> BaseException:
    """What went wrong first in a group of failures."""
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]
    return failures


Write = Callable[[str], Awaitable[None]]


async def is_removed(name: str, remover: Client) -> bool:
    """Delete a Node and its lease; whether that was let be. What is gone already is fine."""
    try:
        with contextlib.suppress(NotFoundError):
            await remover.delete(Node, name)
        with contextlib.suppress(NotFoundError):
            await remover.delete(Lease, name, LEASE_NAMESPACE)
    except KubeError as refusal:
        log.warning("node not deleted", node=name, why=str(refusal))
        return False
    return True


class Registrar:
    """Writes Node objects and leases for all the nodes of one agent."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        nodes: Mapping[str, VirtualNode],
        standing_of: Callable[[VirtualNode], Standing],
    ) -> None:
        """`standing_of` is asked anew for each status: what a host refuses may show with the first container."""
        self._client, self._clock = client, clock
        self._nodes, self._standing_of = dict(nodes), standing_of
        self._since = clock.now()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._registered: set[str] = set()
        self._renewed_s: dict[str, float] = {}
        """When leases were stamped last with a time that arrived, by the clock that nobody sets."""
        self.trouble = ""
        """Why the API server does not let us register; empty if nothing is wrong."""

    async def register(self) -> None:
        """Make or update every Node and its lease; raises KubeError if the API server refuses."""
        async with asyncio.TaskGroup() as group:
            for name in self._nodes:
                group.create_task(self._register(name))

    async def register_patiently(self) -> None:
        """The same, until the API server lets us; meanwhile `trouble` says why it does not."""
        while True:
            try:
                await self.register()
                self.trouble = ""
                return
            except* KubeError as refusals:
                why = str(first_of(refusals))
                if why != self.trouble:
                    log.warning("node not registered yet", why=why)
                self.trouble = why
            await asyncio.sleep(REGISTER_AGAIN_S)

    async def correct(self, name: str, node: Node | None) -> None:
        """Somebody says of a node of ours that it is not ready, as controllers do whose leases ran out while the API server was away,
        or has deleted it: say that it lives, and not in five minutes.
        """
        if name not in self._registered:
            return
        if node is None:
            await self._register_again(name)
        elif not any(one.type == "Ready" and one.status == "True" for one in node.status.conditions):
            await self._logged(name, self._write_status)

    async def run(self) -> None:
        """Renew leases and heartbeats until cancelled."""
        next_status = asyncio.get_running_loop().time() + STATUS_EVERY_S
        while True:
            await self._spread(RENEW_EVERY_S)
            if asyncio.get_running_loop().time() >= next_status:
                next_status += STATUS_EVERY_S
                await self._all(sorted(self._registered), self._write_status)

    async def say_goodbye(self, why: str, remover: Client | None = None) -> None:
        """Have every Node say that it is not ready: nobody is to be placed here, and what is here is to be made elsewhere in time.
        A `remover`, who may, deletes them and their leases instead; where it may not, they say so.
        """

        async def say(name: str) -> None:
            now = rfc3339(self._clock.now())
            told = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": why}
            conditions = [told | {"lastHeartbeatTime": now, "lastTransitionTime": now}]
            await self._client.patch(
                Node, name, {"status": {"conditions": conditions}}, patch_type=PatchType.STRATEGIC, subresource="status",
                field_manager="hekla-node",
            )  # fmt: skip

        async def leave(name: str) -> None:
            if remover is None or not await is_removed(name, remover):
                await say(name)

        names, self._registered = sorted(self._registered), set()
        await self._all(names, leave)

    async def _spread(self, period_s: float) -> None:
        """Renew everyone's lease once within a period, in up to ten slices; of many the first may run out before the last is made."""
        names = [name for name in self._nodes if name in self._registered]
        slices = max(1, min(10, len(names)))
        for index in range(slices):
            await asyncio.sleep(period_s / slices)
            await self._all(names[index::slices], self._renew)

    async def _all(self, names: Sequence[str], write: Write) -> None:
        await asyncio.gather(*(self._logged(name, write) for name in names))

    async def _logged(self, name: str, write: Write) -> None:
        try:
            async with self._at_once:
                await write(name)
        except NotFoundError:
            if name in self._registered:  # else it has just said goodbye
                await self._register_again(name)
        except KubeError as problem:
            log.info("node heartbeat failed", node=name, error=str(problem))

    async def _register_again(self, name: str) -> None:
        """Somebody deleted the Node or its lease: we live, so it comes back."""
        try:
            await self._register(name)
        except KubeError as problem:
            log.info("node not registered", node=name, error=str(problem))

    async def _register(self, name: str) -> None:
        node = self._nodes[name]
        document = node_document(node, self._standing_of(node))
        async with self._at_once:
            try:
                await self._client.create(Node, document)
            except AlreadyExistsError:
                await self._check_ours(name)
                await self._client.patch(Node, name, {"metadata": document["metadata"]})
            await self._write_status(name)
            await self._create_lease(name)
        self._registered.add(name)

    async def _check_ours(self, name: str) -> None:
        """NodeTakenError: the Node is somebody else's. One that nobody has said anything of may be ours, of a life that was cut short."""
        info = (await self._client.get(Node, name)).status.node_info
        if why := taken(name, info.container_runtime_version if info is not None else ""):
            raise NodeTakenError(why)

    async def _write_status(self, name: str) -> None:
        node = self._nodes[name]
        status = status_document(node, self._standing_of(node), self._clock.now(), self._since)
        await self._client.patch(
            Node, name, {"status": status}, patch_type=PatchType.STRATEGIC, subresource="status",
            field_manager="hekla-node",
        )  # fmt: skip

    async def _create_lease(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_DURATION_S, "renewTime": self._stamp()}
        document = {"metadata": {"name": name, "namespace": LEASE_NAMESPACE}, "spec": spec}
        stamped_s = self._clock.elapsed_s()
        try:
            await self._client.create(Lease, document, LEASE_NAMESPACE)
        except AlreadyExistsError:
            await self._renew(name)
        else:
            self._renewed_s[name] = stamped_s

    async def _renew(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_DURATION_S, "renewTime": self._stamp()}
        stamped_s = self._clock.elapsed_s()
        await self._client.patch(Lease, name, {"spec": spec}, LEASE_NAMESPACE, field_manager="hekla-node")
        # controllers count from the stamp, and see the next when it arrives: two slow answers in a row may lie close together
        if self._clock.elapsed_s() - self._renewed_s.get(name, stamped_s) > LEASE_DURATION_S:
            # it has been taken for lost, and only its own word makes it ready again
            await self._write_status(name)
        self._renewed_s[name] = stamped_s

    def _stamp(self) -> str:
        return rfc3339_micro(self._clock.now())
