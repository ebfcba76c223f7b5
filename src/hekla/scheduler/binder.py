"""Carries decisions to the API server: a bounded number at once, each until it is settled.

A bind that the server refuses is undone and tried anew in a later cycle; one of which nobody knows whether it
arrived is asked again, for the same node, before anything else is done with the room it was given.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolumeClaim
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.pod_volumes import SELECTED_NODE, claim_names, waits_for_consumer
from hekla.kube.client import Client
from hekla.kube.commands import Event, Target
from hekla.kube.errors import ApiError, NotFoundError, TransportError
from hekla.kube.execute import EventSink
from hekla.placement.model import Task, TaskStatus
from hekla.placement.statement import Bind
from hekla.scheduler.retrying import hold_back, may_pass

log = structlog.get_logger()

AT_ONCE = 256
"""Binds under way together."""

ASKS = 5
"""How often a bind without an answer is asked again, with waits of 0.1 s, 0.2 s, 0.4 s..."""

PAUSE_S = 0.05
"""For how long after a bind others are still expected."""

CLAIMS_PATIENCE_S = 600.0
"""How long a pod waits for its claims to be bound once its node is chosen (kube-scheduler's bindTimeoutSeconds)."""

RETRY_S = (1.0, 10.0)
"""First and longest wait of a job whose bind was refused (kube-scheduler's back-off)."""


class Binder:
    """Binds what was decided."""

    def __init__(
        self, client: Client, feed: ClusterFeed, events: EventSink, *, wake: Callable[[], None], at_once: int = AT_ONCE,
        on_settled: Callable[[Task, bool], None] = lambda task, is_bound: None,
    ) -> None:  # fmt: skip
        self._client = client
        self._feed = feed
        self._events = events
        self._wake = wake
        self._at_once = at_once
        self._on_settled = on_settled
        self._waiting: deque[Bind] = deque()
        self._claims_changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, int] = {}
        self._worked_at = -PAUSE_S
        self.bound = 0
        """Binds that succeeded."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._tasks and not self._waiting

    @property
    def is_busy(self) -> bool:
        """Whether binds are under way, or were a moment ago: between two cycles there is no time for other writes."""
        return not self.is_idle or asyncio.get_running_loop().time() - self._worked_at < PAUSE_S

    def submit(self, bind: Bind) -> None:
        """Bind soon. What waits is bounded by the pods there are."""
        self._waiting.append(bind)
        if len(self._tasks) < self._at_once:
            worker = asyncio.create_task(self._work(), name="binder")
            self._tasks.add(worker)
            worker.add_done_callback(self._tasks.discard)

    def on_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Tell those who wait for their claims."""
        self._claims_changed.set()

    async def close(self) -> None:
        """Stop; binds under way are cut off, and the pods' own events will tell what became of them."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            bind = self._waiting.popleft()
            try:
                await self._bind(bind)
            except Exception as error:  # the task boundary: a mistake with one pod must give its room back, not keep it
                log.exception("bind failed", pod=bind.task.key, node=bind.node)
                self._undo(bind, error)

    async def _bind(self, bind: Bind) -> None:
        pod = self._feed.pods.get(bind.task.uid)
        if pod is None:
            self._failures.pop(bind.task.uid, None)
            return  # deleted meanwhile; its room was freed with it
        try:
            if any(True for _ in claim_names(pod)):
                await self._bind_claims(pod, bind.node)
            await self._ask(pod, bind.node)
        except (ApiError, TransportError, TimeoutError) as error:
            self._undo(bind, error)
            return
        self.bound += 1
        self._worked_at = asyncio.get_running_loop().time()
        self._on_settled(bind.task, True)
        meta = pod.metadata
        target = Target(kind=Pod, name=meta.name, namespace=meta.namespace, uid=meta.uid)
        self._events.record(Event(target, "Scheduled", f"Successfully assigned {bind.task.key} to {bind.node}"))
        self._failures.pop(bind.task.uid, None)

    async def _ask(self, pod: Pod, node: str) -> None:
        """Ask for the binding until there is an answer."""
        meta = pod.metadata
        for attempt in range(ASKS):
            try:
                await self._client.bind(meta.namespace, meta.name, node, uid=meta.uid)
                return
            except (TransportError, ApiError) as error:
                if await self._is_bound(pod, node, error):
                    return
                is_final = attempt == ASKS - 1 or (isinstance(error, ApiError) and not may_pass(error))
                if is_final:
                    raise
            await asyncio.sleep(0.1 * 2**attempt)

    async def _is_bound(self, pod: Pod, node: str, error: Exception) -> bool:
        """Whether an earlier ask arrived although its answer did not."""
        if isinstance(error, ApiError) and error.code != 409:
            return False
        try:
            current = await self._client.get(Pod, pod.metadata.name, pod.metadata.namespace)
        except (ApiError, TransportError):
            return False
        return current.metadata.uid == pod.metadata.uid and current.spec.node_name == node

    async def _bind_claims(self, pod: Pod, node: str) -> None:
        """Tell the provisioner which node was chosen, and wait until every claim is bound."""
        namespace = pod.metadata.namespace
        for name in claim_names(pod):
            claim = self._feed.claim(namespace, name)
            if claim is not None and waits_for_consumer(claim, self._feed) and not _chosen(claim):
                patch = {"metadata": {"annotations": {SELECTED_NODE: node}}}
                await self._client.patch(PersistentVolumeClaim, name, patch, namespace)
        async with asyncio.timeout(CLAIMS_PATIENCE_S):
            while not all(self._is_claim_bound(namespace, name) for name in claim_names(pod)):
                self._claims_changed.clear()
                await self._claims_changed.wait()

    def _is_claim_bound(self, namespace: str, name: str) -> bool:
        claim = self._feed.claim(namespace, name)
        if claim is None:
            raise NotFoundError(404, "NotFound", f'persistentvolumeclaim "{name}" not found')
        return bool(claim.spec.volume_name) and claim.status.phase in {"", "Bound"}

    def _undo(self, bind: Bind, error: Exception) -> None:
        """Free the room again and let the job try later, each time a little later."""
        self._on_settled(bind.task, False)
        task = self._feed.cluster.tasks.get(bind.task.uid)
        if task is None or task.status is not TaskStatus.BINDING:
            return  # the pod is gone, or its own events have told where it is
        failures = self._failures[task.uid] = self._failures.get(task.uid, 0) + 1
        first_s, longest_s = RETRY_S
        delay_s = min(first_s * 2 ** (failures - 1), longest_s)
        log.warning("bind failed", pod=task.key, node=bind.node, error=str(error), retry_s=delay_s)
        cluster, job = self._feed.cluster, task.job
        assert job is not None
        cluster.take_back(task)
        hold_back(job, delay_s, self._wake)


def _chosen(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.metadata.annotations.get(SELECTED_NODE))
