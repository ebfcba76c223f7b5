"""One pod on this agent: the pod, its record, and the shell's handles beside them."""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import cast

from hekla.api.pods import Pod
from hekla.node.admission import requests_of
from hekla.node.fields import Self
from hekla.node.pod_record import ContainerRecord, Memory, PodRecord
from hekla.node.pod_status import Since
from hekla.node.reaching import Dial, Place
from hekla.node.registration import VirtualNode
from hekla.node.runtimes import ContainerKey, Feature, Runtime
from hekla.node.runtimes.sandbox import SandboxError, SandboxRuntime

PROBED_DAEMONS = (8080, 8888)
"""Where probes of AgentCube's and agent-sandbox's pods look for the daemon. It answers them, unless the pod's own server listens there."""


@dataclass(slots=True, kw_only=True)
class TrackedPod:
    """Everything the agent holds for one pod."""

    pod: Pod
    record: PodRecord
    node: VirtualNode
    runtime: Runtime
    directory: Path
    since: Since
    places: dict[str, Path] = field(default_factory=dict)
    """Volumes by name, once made."""

    hosts_text: str = ""
    wake: asyncio.TimerHandle | None = None
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    told: set[tuple[str, str]] = field(default_factory=set)
    """(reason, subject) of events that are told once a pod."""

    remembered: dict[str, tuple[ContainerRecord | None, ContainerKey | None, Memory]] = field(default_factory=dict)
    """By name of the container, the record that was looked at last, and what of it the next life will be told."""

    is_orphan: bool = False
    """The API has no such pod any more."""

    requests_as_of: tuple[object, Mapping[str, int]] = (None, MappingProxyType({}))

    @property
    def requests(self) -> Mapping[str, int]:
        """What it needs of its node: worked out once for a spec, as all others of the node are asked when one comes."""
        if self.requests_as_of[0] is not self.pod.spec:
            self.requests_as_of = self.pod.spec, requests_of(self.pod)
        return self.requests_as_of[1]

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.metadata.uid

    @property
    def is_real(self) -> bool:
        """Whether its containers are processes."""
        return Feature.PROCESSES in self.runtime.features

    @property
    def is_told_ready(self) -> bool:
        """Whether it was said last that it is ready."""
        return self.since.get("Ready", ("", ""))[0] == "True"

    @property
    def is_sandbox(self) -> bool:
        """Whether a daemon inside serves it, so that it needs no command of its own."""
        return Feature.DAEMON in self.runtime.features

    def place(self, key: ContainerKey) -> Place:
        """Where the servers of a container are reached."""
        return Place(self.record.pod_ip, self.dial(key))

    def dial(self, key: ContainerKey) -> Dial | None:
        """The way to ports of a sandbox; None: the pod has an address."""
        if not self.is_sandbox:
            return None
        runtime = cast(SandboxRuntime, self.runtime)  # who has a daemon runs sandboxes

        async def connected(port: int) -> socket.socket:
            try:
                return await runtime.dial(key, port)
            except SandboxError as refusal:
                if port not in PROBED_DAEMONS:
                    raise ConnectionRefusedError(str(refusal)) from refusal
            try:
                return await runtime.dial(key, 0)
            except SandboxError as refusal:
                raise ConnectionRefusedError(str(refusal)) from refusal

        return connected

    @property
    def needs_directory(self) -> bool:
        """Whether anything of the pod lies on this machine's disk: a sandbox without volumes has nothing there, which spares its start 0.5 ms."""
        return not self.is_sandbox or bool(self.pod.spec.volumes)

    @property
    def hosts_file(self) -> Path:
        """The pod's /etc/hosts."""
        return self.directory / "hosts"

    def key(self, container: str) -> ContainerKey | None:
        """The latest attempt at a container; None if there was none."""
        attempts = self.record.container(container).attempts
        return ContainerKey(self.uid, container, attempts - 1) if attempts else None

    def myself(self) -> Self:
        """The pod as the downward API shows it."""
        return Self(
            pod=self.pod, pod_ip=self.record.pod_ip, host_ip=self.record.host_ip, allocatable=self.node.capacity
        )

    def cancel_wake(self) -> None:
        """Forget the timer."""
        if self.wake is not None:
            self.wake.cancel()
            self.wake = None
