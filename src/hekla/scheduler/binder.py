"""Carries decisions to the API server: a bounded number at once, each until it is settled.

A bind that the server refuses is undone and tried anew in a later cycle; one of which nobody knows whether it
arrived is asked again, for the same node, before anything else is done with the room it was given.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

import structlog

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.pod_volumes import SELECTED_NODE, claim_names, handed_out, is_bound_by_us, waits_for_consumer
from hekla.kube.client import Client
from hekla.kube.commands import Event, Target
from hekla.kube.errors import ApiError, NotFoundError, TransportError
from hekla.kube.execute import EventSink
from hekla.placement.model import Task, TaskStatus
from hekla.placement.statement import Bind
from hekla.scheduler.device_claims import DeviceClaims
from hekla.scheduler.retrying import hold_back, may_pass

log = structlog.get_logger()

AT_ONCE = 256
"""Binds under way together."""

BULKS_AT_ONCE, MOST_IN_BULK = 2, 128
"""Calls under way together where one call binds many: one is decided while the other is committed; and how many pods a
call binds, so that the event loop is held up for 5 ms at most."""

ASKS = 5
"""How often a bind without an answer is asked again, with waits of 0.1 s, 0.2 s, 0.4 s..."""

PAUSE_S = 0.05
"""For how long after a bind others are still expected."""

BOUND_BY = "pv.kubernetes.io/bound-by-controller"
"""Tells the volume controller that it may free the volume again when the claim is gone."""

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
        self._in_bulk = client.binds_in_bulk
        self._on_settled = on_settled
        self._waiting: deque[Bind] = deque()
        self._for_bulk: deque[Bind] = deque()
        self._bulks: set[asyncio.Task[None]] = set()
        self._claims_changed = asyncio.Event()
        self._devices = DeviceClaims(client, feed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: dict[str, int] = {}
        self._worked_at = -PAUSE_S
        self.bound = 0
        """Binds that succeeded."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._tasks and not self._waiting and not self._bulks and not self._for_bulk

    @property
    def is_busy(self) -> bool:
        """Whether binds are under way, or were a moment ago: between two cycles there is no time for other writes."""
        return not self.is_idle or asyncio.get_running_loop().time() - self._worked_at < PAUSE_S

    def submit(self, bind: Bind) -> None:
        """Bind soon. What waits is bounded by the pods there are."""
        if not self._in_bulk:
            self._submit_alone(bind)
            return
        self._for_bulk.append(bind)
        if len(self._bulks) < BULKS_AT_ONCE:
            _start(self._work_in_bulk(), self._bulks)

    def _submit_alone(self, bind: Bind) -> None:
        self._waiting.append(bind)
        if len(self._tasks) < self._at_once:
            _start(self._work(), self._tasks)

    def on_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Tell those who wait for their claims."""
        self._claims_changed.set()

    async def close(self) -> None:
        """Stop; binds under way are cut off, and the pods' own events will tell what became of them."""
        tasks = [*self._tasks, *self._bulks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            bind = self._waiting.popleft()
            try:
                await self._bind(bind)
            except Exception as error:  # the task boundary: a mistake with one pod must give its room back, not keep it
                log.exception("bind failed", pod=bind.task.key, node=bind.node)
                self._undo(bind, error)

    # Where the server is in this process

    async def _work_in_bulk(self) -> None:
        """Bind what waits, many in one call; who needs more than the call is bound by itself."""
        waiting = self._for_bulk
        while waiting:
            together = list[tuple[Bind, Pod]]()
            for bind in [waiting.popleft() for _ in range(min(len(waiting), MOST_IN_BULK))]:
                pod = self._feed.pods.get(bind.task.uid)
                if pod is None or _needs_more(pod):
                    self._submit_alone(bind)
                else:
                    together.append((bind, pod))
            for bind in await self._bound_together(together):
                self._submit_alone(bind)

    async def _bound_together(self, binds: Sequence[tuple[Bind, Pod]]) -> list[Bind]:
        """Bind pods in one call; those that the server refused, or of which nobody knows."""
        wanted = [(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, bind.node) for bind, pod in binds]
        if not wanted:
            return []
        try:
            refusals = await self._client.bind_many(wanted)
        except Exception:  # the task boundary: each is asked about by itself, which tells what became of it
            log.exception("bulk bind failed", count=len(wanted))
            return [bind for bind, _ in binds]
        refused = list[Bind]()
        for (bind, pod), refusal in zip(binds, refusals, strict=True):
            if refusal is None:
                self._on_bound(bind, pod)
            else:
                refused.append(bind)
        return refused

    # One by one

    async def _bind(self, bind: Bind) -> None:
        pod = self._feed.pods.get(bind.task.uid)
        if pod is None:
            self._failures.pop(bind.task.uid, None)
            return  # deleted meanwhile; its room was freed with it
        try:
            if any(True for _ in claim_names(pod)):
                await self._bind_claims(pod, bind)
            await self._devices.allocate(pod, bind.task)
            await self._ask(pod, bind.node)
        except (ApiError, TransportError, TimeoutError) as error:
            await self._devices.take_back(pod)  # before another attempt may begin
            self._undo(bind, error)
            return
        self._on_bound(bind, pod)

    def _on_bound(self, bind: Bind, pod: Pod) -> None:
        self.bound += 1
        self._worked_at = asyncio.get_running_loop().time()
        self._on_settled(bind.task, True)
        self._tell(pod, "Scheduled", f"Successfully assigned {bind.task.key} to {bind.node}")
        self._failures.pop(bind.task.uid, None)

    def _tell(self, pod: Pod, reason: str, message: str, kind: str = "Normal") -> None:
        meta = pod.metadata
        target = Target(kind=Pod, name=meta.name, namespace=meta.namespace, uid=meta.uid)
        self._events.record(Event(target, reason, message, kind))

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

    async def _bind_claims(self, pod: Pod, bind: Bind) -> None:
        """Hand out free volumes, tell provisioners which node was chosen, and wait until every claim is bound."""
        namespace = pod.metadata.namespace
        waiting = [
            claim
            for name in claim_names(pod)
            if (claim := self._feed.claim(namespace, name)) is not None and waits_for_consumer(claim, self._feed)
        ]
        await self._hand_out([claim for claim in waiting if is_bound_by_us(claim, self._feed)], bind)
        for claim in waiting:
            if not is_bound_by_us(claim, self._feed) and not _chosen(claim):
                patch = {"metadata": {"annotations": {SELECTED_NODE: bind.node}}}
                await self._client.patch(PersistentVolumeClaim, claim.metadata.name, patch, namespace)
        async with asyncio.timeout(CLAIMS_PATIENCE_S):
            while not all(self._is_claim_bound(namespace, name) for name in claim_names(pod)):
                self._claims_changed.clear()
                await self._claims_changed.wait()

    async def _hand_out(self, claims: Sequence[PersistentVolumeClaim], bind: Bind) -> None:
        """Write into free volumes whose they are, which is what the volume controller waits for where no provisioner works."""
        # Volumes that others were given may have had the task read anew, after which it is another.
        task = self._feed.cluster.tasks.get(bind.task.uid, bind.task)
        volumes = [volume for name in task.taken if (volume := self._feed.volume(name)) is not None]
        found = handed_out(claims, volumes)
        for claim in claims:
            name, volume = claim.metadata.name, found.get(claim.metadata.name)
            if volume is None:
                raise NotFoundError(404, "NotFound", f'no free volume is left for persistentvolumeclaim "{name}"')
            if volume.spec.claim_ref is not None:
                continue  # somebody has kept it for this claim: the volume controller binds it by itself
            meta = {"resourceVersion": volume.metadata.resource_version, "annotations": {BOUND_BY: "yes"}}
            patch = {"metadata": meta, "spec": {"claimRef": _reference(claim)}}
            await self._client.patch(PersistentVolume, volume.metadata.name, patch)

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
        if (pod := self._feed.pods.get(task.uid)) is not None:
            self._tell(pod, "FailedScheduling", f"Binding rejected: {error}", "Warning")
        cluster, job = self._feed.cluster, task.job
        assert job is not None
        cluster.take_back(task)
        hold_back(job, delay_s, self._wake)


def _needs_more(pod: Pod) -> bool:
    """Whether something has to be written besides the binding."""
    return bool(pod.spec.resource_claims) or any(True for _ in claim_names(pod))


def _start(work: Coroutine[None, None, None], among: set[asyncio.Task[None]]) -> None:
    async def until_done() -> None:
        try:
            await work
        finally:
            # In the same turn of the loop in which it saw that nothing waits: a callback comes a turn later, and who submitted in
            # between started nobody. Two calls that one commit ended left the last five of 2,000 pods unbound for ever.
            among.discard(worker)

    worker = asyncio.create_task(until_done(), name="binder")
    among.add(worker)
    worker.add_done_callback(lambda _: work.close())  # who is cancelled before the first step never came to await it
    worker.add_done_callback(among.discard)


def _reference(claim: PersistentVolumeClaim) -> Document:
    meta = claim.metadata
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
    }  # fmt: skip


def _chosen(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.metadata.annotations.get(SELECTED_NODE))
