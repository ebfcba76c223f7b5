"""What sessions ask of this node's sandboxes, by pod: claim, sleep, copy, dial. `sandbox_endpoint.py` serves it; the embedded platform calls it.

Raises SandboxError, whose code is an HTTP status. Every call may be repeated.
"""

import asyncio
import fcntl
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import structlog

from hekla.api.agents.names import FORK_OF, OWNER
from hekla.api.agents.node_contract import (
    Checkpoint,
    CheckpointKind,
    CheckpointOrder,
    Child,
    Claim,
    Claimed,
    Forked,
    ForkedChild,
    SandboxState,
    Usage,
)
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.node.runtimes import ContainerKey, NodeError
from hekla.node.runtimes.sandbox import SandboxError, SandboxRuntime
from hekla.node.runtimes.sandbox.checkpoints import CheckpointStore
from hekla.node.tracked import TrackedPod

log = structlog.get_logger(__name__)

OnReady = Callable[[str, str, str], None]
"""Told the namespace and the name of a pod, and the id of its container."""

CHILD_PATIENCE_S = 15.0
"""How long a fork waits for a child's pod to run."""
LOOK_EVERY_S = 0.05
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
"""What one sandbox has packed and others are filled from, nobody changes any more, whoever still holds it."""


class SandboxPods(Protocol):
    """The agent, as far as the desk needs it."""

    sandbox_runtimes: Mapping[str, SandboxRuntime]

    def find(self, namespace: str, name: str) -> TrackedPod | None:
        """A pod of this node."""


class SandboxDesk:
    """The sandboxes of one agent."""

    def __init__(self, agent: SandboxPods, checkpoints: CheckpointStore) -> None:
        self._agent, self._checkpoints = agent, checkpoints
        self.on_ready: OnReady = lambda namespace, pod, container: None
        """Told of each sandbox that is ready, before its status is written: sessions in this process go on at once."""

    def hear(self, pod: Pod, status: Document) -> None:
        """A sandbox's status, as it is about to be written."""
        if any(one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"]):
            container = status["containerStatuses"][0].get("containerID", "")
            self.on_ready(pod.metadata.namespace, pod.metadata.name, container)

    async def prepare(self) -> None:
        """Let no first session wait for what the node's runtimes make once."""
        for runtime in self._agent.sandbox_runtimes.values():
            try:
                await runtime.prepare()
            except NodeError as refusal:
                log.warning("sandboxes are not prepared", runtime=runtime.name, error=str(refusal))

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Bind a warm sandbox to a session."""
        if not claim.session:
            raise SandboxError(422, "a claim names its session")
        began = time.perf_counter()
        runtime, key, tracked = self._find(namespace, pod)
        if FORK_OF in tracked.pod.metadata.annotations and not runtime.session_of(key):  # a fork claims what it fills
            raise SandboxError(503, f'sandbox "{pod}" waits to be filled by a fork')
        is_new = await runtime.claim(key, claim)
        took_us = int((time.perf_counter() - began) * 1e6)
        if is_new:
            log.info(
                "sandbox claimed",
                namespace=namespace,
                pod=pod,
                session=claim.session[:8],
                owner=claim.owner,
                took_us=took_us,
            )
        return Claimed(
            pod_uid=tracked.uid, session=claim.session, was_claimed=not is_new, claim_us=took_us,
            takes_key=is_new and runtime.takes_key(key),
        )  # fmt: skip

    def expect_claim(self, pod_uid: str, claim: Claim) -> None:
        """A pod on its way will be claimed so; its daemon may hear of that as it starts."""
        for runtime in self._agent.sandbox_runtimes.values():
            runtime.expect_claim(pod_uid, claim)

    def let_claim_go(self, pod_uid: str) -> None:
        """It was claimed, or is not to be any more."""
        for runtime in self._agent.sandbox_runtimes.values():
            runtime.let_claim_go(pod_uid)

    async def freeze(self, namespace: str, pod: str, order: int = 0) -> SandboxState:
        """Let it stand still, unless a later order has come."""
        runtime, key, _ = self._find(namespace, pod)
        await runtime.freeze(key, order)
        return self.state(namespace, pod)

    async def thaw(self, namespace: str, pod: str, order: int = 0) -> SandboxState:
        """Let it go on, unless a later order has come."""
        runtime, key, _ = self._find(namespace, pod)
        await runtime.thaw(key, order)
        return self.state(namespace, pod)

    def state(self, namespace: str, pod: str) -> SandboxState:
        """Whose it is and how it is."""
        runtime, key, tracked = self._find(namespace, pod)
        return SandboxState(
            pod_uid=tracked.uid, session=runtime.session_of(key), is_frozen=runtime.is_frozen(key),
            isolation=runtime.isolation, features=sorted(each.value for each in runtime.sandbox_features),
        )  # fmt: skip

    async def checkpoint(self, namespace: str, pod: str, order: CheckpointOrder) -> Checkpoint:
        """Write one; the sandbox goes on, and a frozen one is thawed for it and frozen again."""
        runtime, key, tracked = self._find(namespace, pod)
        output = self._checkpoints.begin(order.checkpoint)
        was_frozen, last_order = runtime.is_frozen(key), runtime.last_order(key)
        try:
            await runtime.thaw(key)
            left_out = await runtime.pack(key, order.kind, output)
            return await asyncio.to_thread(
                self._checkpoints.finish, order.checkpoint, output, kind=order.kind,
                owner=order.owner or tracked.pod.metadata.annotations.get(OWNER, ""), pod_uid=tracked.uid, left_out=list(left_out),
            )  # fmt: skip
        except BaseException:
            self._checkpoints.drop_part(order.checkpoint)
            raise
        finally:
            os.close(output)
            if was_frozen:
                await _freeze_again(runtime, key, last_order)

    def find_checkpoint(self, checkpoint: str) -> Checkpoint:
        """What is known of it."""
        return self._checkpoints.find(checkpoint)

    def drop_checkpoint(self, checkpoint: str) -> None:
        """Forget it."""
        self._checkpoints.remove(checkpoint)

    async def fork(self, namespace: str, pod: str, children: Awaitable[Sequence[Child]]) -> Forked:
        """Copy a sandbox, files and variables, into pods that wait; each is claimed with what is its own. It packs while they are named."""
        runtime, key, _ = self._find(namespace, pod)
        named: Sequence[Child] = ()
        copy = os.memfd_create("hekla-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            began = time.perf_counter()
            left_out = await runtime.pack(key, CheckpointKind.INTERPRETER, copy)
            paused_us = int((time.perf_counter() - began) * 1e6)
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, SEALS)
            if not (named := await children):
                raise SandboxError(422, "a fork names at least one child")
            awaited = [child for child in named if not self._runs(child)]
            for child in awaited:
                _expect(runtime, key, child, copy)
            done = await asyncio.gather(
                *(self._fill(runtime, child, copy, is_awaited=child in awaited) for child in named)
            )
        finally:
            for child in named:
                runtime.let_copy_go(child.uid)
            os.close(copy)
        log.info("sandbox forked", namespace=namespace, pod=pod, children=len(named), paused_us=paused_us)
        return Forked(children=list(done), paused_us=paused_us, left_out=list(left_out))

    async def restrict(self, namespace: str, pod: str, allowed: str) -> SandboxState:
        """Other destinations from now on."""
        runtime, key, tracked = self._find(namespace, pod)
        await runtime.restrict(key, allowed)
        log.info("egress changed", namespace=namespace, pod=pod, uid=tracked.uid, allowed=allowed)
        return self.state(namespace, pod)

    async def usage(self, namespace: str, pod: str) -> Usage:
        """What it has used."""
        runtime, key, _ = self._find(namespace, pod)
        return await runtime.usage(key)

    async def dial(self, namespace: str, pod: str, port: int) -> socket.socket:
        """A connection to a server inside; port 0 is the daemon, as are its own ports."""
        runtime, key, _ = self._find(namespace, pod)
        return await runtime.dial(key, port)

    async def _fill(self, expected_in: SandboxRuntime, child: Child, copy: int, *, is_awaited: bool) -> ForkedChild:
        try:
            async with asyncio.timeout(CHILD_PATIENCE_S):
                runtime, key = await self._until_running(expected_in, child) if is_awaited else self._copy_of(child)
            await runtime.claim_as_copy(key, copy, child.claim)
        except TimeoutError:
            return ForkedChild(uid=child.uid, error=f'pod "{child.pod}" does not run here after {CHILD_PATIENCE_S:g} s')
        except (SandboxError, OSError) as refusal:  # out of descriptors, say
            return ForkedChild(uid=child.uid, error=str(refusal))
        except Exception as mistake:  # whatever it is, the others are still being filled from the copy
            log.exception("child not filled", namespace=child.namespace, pod=child.pod)
            return ForkedChild(uid=child.uid, error=_our_mistake(child, mistake))
        return ForkedChild(uid=child.uid)

    def _runs(self, child: Child) -> bool:
        """Whether it waits here already, out of a pool."""
        try:
            self._copy_of(child)
        except SandboxError:
            return False
        return True

    async def _until_running(self, expected_in: SandboxRuntime, child: Child) -> tuple[SandboxRuntime, ContainerKey]:
        """Its pod is bound and started by others: the runtime tells of it, and if it is another one's after all a look finds it."""
        while True:
            try:
                return self._copy_of(child)
            except SandboxError as absent:
                if absent.code not in (404, 503):
                    raise
                await expected_in.until_started(child.uid, LOOK_EVERY_S)

    def _copy_of(self, child: Child) -> tuple[SandboxRuntime, ContainerKey]:
        runtime, key, tracked = self._find(child.namespace, child.pod)
        if tracked.uid != child.uid:
            raise SandboxError(409, f'pod "{child.pod}" is another one than the fork means')
        return runtime, key

    def _find(self, namespace: str, name: str) -> tuple[SandboxRuntime, ContainerKey, TrackedPod]:
        tracked = self._agent.find(namespace, name)
        if tracked is None:
            raise SandboxError(404, f'pod "{name}" of namespace "{namespace}" does not run on this node')
        runtime = self._agent.sandbox_runtimes.get(tracked.runtime.name)
        if runtime is None:
            raise SandboxError(412, f'pod "{name}" runs in runtime "{tracked.runtime.name}", which makes no sandboxes')
        key = tracked.key(tracked.pod.spec.containers[0].name)
        if key is None or not runtime.has(key):
            raise SandboxError(503, f'sandbox "{name}" does not run (yet)')
        return runtime, key, tracked


def _expect(runtime: SandboxRuntime, key: ContainerKey, child: Child, copy: int) -> None:
    """Begin before its pod is here; what goes wrong now is tried again once the pod is, and told then."""
    try:
        runtime.expect_copy(key, child.uid, copy, child.claim)
    except Exception:  # one child's trouble must not keep its siblings from being filled
        log.exception("copy not begun ahead of its pod", namespace=child.namespace, pod=child.pod)


def _our_mistake(child: Child, mistake: Exception) -> str:
    return f'the node made a mistake with pod "{child.pod}" ({type(mistake).__name__}: {mistake}); its log says more'


async def _freeze_again(runtime: SandboxRuntime, key: ContainerKey, last_order: int) -> None:
    """As the order before the checkpoint said; whoever has woken it meanwhile has the last word."""
    try:
        await runtime.freeze(key, last_order)
    except SandboxError as refusal:
        if refusal.code != 409:
            raise
