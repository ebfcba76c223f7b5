"""Waiting for the pods of sandboxes: told by the informer of each change, and sooner by the node itself where it is in this process.

What a node says of a pod reaches the informer by a write to the API server and a watch: 8 ms on a quiet machine, most of it
the disk's and a pause in which the node gathers changes. Nothing of a session has to wait for that.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hekla.api.pods import Pod
from hekla.sandbox.sessions.stock import Held, StockError


@dataclass(eq=False, slots=True)
class _Wait:
    holds: Callable[[Pod], bool]
    is_for_ready: bool
    told: "asyncio.Future[tuple[Pod | None, str]]"

    def look(self, held: Held, pod: Pod) -> None:
        if self.told.done():
            return
        if pod.status.phase in ("Failed", "Succeeded"):
            why = pod.status.message or pod.status.reason or "its pod has ended"
            self.told.set_exception(StockError(502, "start_failed", f'sandbox "{held.name}" did not start: {why}'))
        elif self.holds(pod):
            self.told.set_result((pod, container_of(pod)))


class PodWaits:
    """Who waits for which pod."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], list[tuple[Held, _Wait]]] = {}

    def changed(self, pod: Pod) -> None:
        """What an informer tells."""
        if self._waiting:
            for held, wait in tuple(self._waiting.get((pod.metadata.namespace, pod.metadata.name), ())):
                wait.look(held, pod)

    def is_ready_at_node(self, namespace: str, name: str, container: str) -> None:
        """What the node tells of a pod that it has just found ready."""
        for _, wait in tuple(self._waiting.get((namespace, name), ())):
            if wait.is_for_ready and not wait.told.done():
                wait.told.set_result((None, container))

    def refused(self, namespace: str, name: str, why: str) -> None:
        """What the reconciler tells of a pod that the API server will never take."""
        for _, wait in tuple(self._waiting.get((namespace, name), ())):
            if not wait.told.done():
                wait.told.set_exception(StockError(422, "refused", why))

    async def ready(self, held: Held, pod: Pod | None) -> str:
        """Wait until a sandbox's pod is ready, as it is now or will be; the id of its container."""
        return (await self._told(held, pod, is_ready, is_for_ready=True))[1]

    async def bound(self, held: Held, pod: Pod | None) -> Pod:
        """Wait until it has a node."""
        found, _ = await self._told(held, pod, lambda one: bool(one.spec.node_name), is_for_ready=False)
        assert found is not None, "only a pod that is ready is told of by its node"
        return found

    async def _told(
        self, held: Held, pod: Pod | None, holds: Callable[[Pod], bool], *, is_for_ready: bool
    ) -> tuple[Pod | None, str]:
        key = held.namespace, held.pod
        wait = _Wait(holds, is_for_ready, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append((held, wait))
        try:
            if pod is not None:
                wait.look(held, pod)
            return await wait.told
        finally:
            waiting = self._waiting[key]
            waiting.remove((held, wait))
            if not waiting:
                del self._waiting[key]


def container_of(pod: Pod) -> str:
    """Id of the container that runs, or ran last, in a sandbox's pod; empty: none was started yet."""
    statuses = pod.status.container_statuses
    return statuses[0].container_id if statuses else ""


def why_ended(pod: Pod) -> str:
    """What its node said of how the container before ended; empty: it said nothing but that."""
    statuses = pod.status.container_statuses
    last = statuses[0].last_state.terminated if statuses and statuses[0].last_state is not None else None
    return last.message.strip() if last is not None else ""


def is_ready(pod: Pod) -> bool:
    """Whether a sandbox's pod runs and is not on its way out."""
    return pod.metadata.deletion_timestamp is None and any(
        one.type == "Ready" and one.status == "True" for one in pod.status.conditions
    )
