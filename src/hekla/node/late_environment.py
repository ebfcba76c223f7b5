"""Gives variables to the daemon of a sandbox that ran before it was claimed, and tells the API when that is done.

A pod's annotation `hekla.dev/late-environment` has them; the condition `hekla.dev/Environment` names the container that has been given
them, so that one that is started anew gets them anew. `sandbox/late_environment.py` says when a pod is annotated.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec
import structlog

from hekla.api.agents.names import ENVIRONMENT_CONDITION, ENVIRONMENT_OWN_COMMAND, LATE_ENVIRONMENT
from hekla.api.agents.node_contract import Claim, Claimed
from hekla.api.pods import Pod
from hekla.kube.client import Client, PatchType
from hekla.kube.errors import KubeError, NotFoundError
from hekla.node.images import ImageRegistry
from hekla.node.pod_status import timestamp
from hekla.node.runtimes.sandbox import SandboxError

log = structlog.get_logger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 10.0
"""Between two attempts at a sandbox, or an API server, that does not answer yet."""


class Claims(Protocol):
    """The desk, as far as it is needed here."""

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Bind a sandbox to whom it serves."""


class LateEnvironments:
    """Pods of this node that are to be given variables; `look` at each change of a pod."""

    def __init__(self, client: Client, claims: Claims, images: ImageRegistry, now: Callable[[], float]) -> None:
        self._client, self._claims, self._images, self._now = client, claims, images, now
        self._under_way: set[str] = set()

    def look(self, pod: Pod) -> Coroutine[Any, Any, None] | None:
        """What is to be done for a pod, if anything."""
        container = running_container(pod)
        if not container or pod.metadata.uid in self._under_way or is_told(pod, container):
            return None
        self._under_way.add(pod.metadata.uid)
        return self._give(pod, container)

    async def _give(self, pod: Pod, container: str) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    await self._tell(pod, container, await self._outcome(pod))
                    return
                except NotFoundError:
                    return  # the pod is gone, and what it waited for with it
                except (SandboxError, KubeError) as problem:
                    if isinstance(problem, SandboxError) and problem.code == 404:
                        return
                    log.info("environment not given yet", pod=pod.metadata.name, error=str(problem))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._under_way.discard(pod.metadata.uid)

    async def _outcome(self, pod: Pod) -> tuple[bool, str]:
        """Whether it was given, and the reason that is told."""
        meta = pod.metadata
        if self._has_own_command(pod):
            return False, ENVIRONMENT_OWN_COMMAND
        try:
            env = msgspec.json.decode(meta.annotations[LATE_ENVIRONMENT], type=dict[str, str])
        except msgspec.DecodeError:
            return False, "Unreadable"
        owner = next((one.uid for one in meta.owner_references if one.controller), meta.uid)
        try:
            # as the gateway's door binds it: whoever comes second finds it done
            await self._claims.claim(meta.namespace, meta.name, Claim(session=owner, audience=owner, env=env))
        except SandboxError as refusal:
            if refusal.code != 409:
                raise
            return False, "ClaimedByAnother"
        return True, "Given"

    def _has_own_command(self, pod: Pod) -> bool:
        """As `pod_actions.py` decides it: beside the daemon of a sandbox runs what the pod says, or a registered image."""
        first = pod.spec.containers[0]
        is_registered = self._images.rootfs_of(first.image) is not None
        return bool(first.command or first.args or (is_registered and self._images.default_command(first.image)))

    async def _tell(self, pod: Pod, container: str, outcome: tuple[bool, str]) -> None:
        is_given, reason = outcome
        moment = timestamp(self._now())
        condition = {
            "type": ENVIRONMENT_CONDITION, "status": "True" if is_given else "False", "reason": reason,
            "message": container, "lastTransitionTime": moment, "lastProbeTime": None,
        }  # fmt: skip
        meta = pod.metadata
        await self._client.patch(
            Pod, meta.name, {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}, meta.namespace,
            patch_type=PatchType.STRATEGIC, subresource="status", field_manager="hekla-node",
        )  # fmt: skip


def running_container(pod: Pod) -> str:
    """Id of the container that is to be given variables; empty: there are none, or it does not run."""
    if LATE_ENVIRONMENT not in pod.metadata.annotations or pod.metadata.deletion_timestamp is not None:
        return ""
    statuses = pod.status.container_statuses
    return statuses[0].container_id if pod.status.phase == "Running" and statuses else ""


def is_told(pod: Pod, container: str) -> bool:
    """Whether the API knows what came of it for this container."""
    return any(one.type == ENVIRONMENT_CONDITION and one.message == container for one in pod.status.conditions)
