"""Carries out evictions and the nominations that go with them: a bounded number at once, each until it is settled.

First the pods that wait are nominated, so that a scheduler that dies in between finds the promise again; then each
victim is told why (a condition) and deleted. What the server refuses is undone: the victim stays, and who wanted its
room tries again later, each time a little later. `binder.py` is the same for binds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import structlog

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.feed import ClusterFeed
from hekla.kube.client import Client, PatchType
from hekla.kube.clock import rfc3339
from hekla.kube.commands import Event, Target
from hekla.kube.errors import ApiError, ConflictError, KubeError, NotFoundError, TransportError
from hekla.kube.execute import EventSink
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.statement import Evict, Nominate
from hekla.scheduler import sentences
from hekla.scheduler.retrying import hold_back, may_pass

log = structlog.get_logger()

AT_ONCE = 32
"""Evictions and nominations under way together."""

ASKS = 5
"""How often one without an answer is asked again, with waits of 0.1 s, 0.2 s, 0.4 s..."""

RETRY_S = (1.0, 60.0)
"""First and longest wait of a job for which an eviction was refused."""

DONE, GONE, REFUSED = "done", "gone", "refused"
"""What may become of an eviction: the pod was deleted, it was on its way already, the server said no."""

Settled = Callable[[Evict, str], None]


async def _nothing() -> None:
    pass


class Evictor:
    """Evicts and nominates what was decided."""

    def __init__(
        self,
        client: Client,
        feed: ClusterFeed,
        events: EventSink,
        *,
        wake: Callable[[], None],
        now: Callable[[], datetime],
        on_settled: Settled = lambda evict, outcome: None,
        at_once: int = AT_ONCE,
        before: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`before` is awaited before pods are deleted: it writes down what a restart must know of it."""
        self._client = client
        self._feed = feed
        self._events = events
        self._wake = wake
        self._now = now
        self._on_settled = on_settled
        self._before = before
        self._room = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._evicting: set[str] = set()
        """Uids of the pods whose eviction is under way: it is not begun twice."""

        self._wanted: dict[str, str] = {}
        """By uid, the nominations that are not written yet; the newest wish counts."""

        self._refusals: dict[str, int] = {}
        """By uid of a pod, how often in a row its eviction was refused."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._tasks

    def submit(self, evictions: Sequence[Evict], nominations: Sequence[Nominate]) -> None:
        """Carry these out soon. What waits is bounded by the pods there are."""
        fresh = [evict for evict in evictions if evict.task.uid not in self._evicting]
        self._evicting |= {evict.task.uid for evict in fresh}
        self._wanted |= {nominate.task.uid: nominate.node for nominate in nominations}
        if fresh or nominations:
            task = asyncio.create_task(self._carry_out(fresh, nominations), name="evictor")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._wanted.pop(uid, None)
        self._refusals.pop(uid, None)

    async def close(self) -> None:
        """Stop; what is under way is cut off, and the pods' own events will tell what became of it."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_out(self, evictions: Sequence[Evict], nominations: Sequence[Nominate]) -> None:
        await asyncio.gather(*(self._nominate(nominate.task) for nominate in nominations), self._before())
        await asyncio.gather(*(self._evict(evict) for evict in evictions))

    # Nominations

    async def _nominate(self, task: Task) -> None:
        async with self._room:
            node, pod = self._wanted.pop(task.uid, None), self._feed.pods.get(task.uid)
            if node is None or pod is None or pod.spec.node_name or pod.status.nominated_node_name == node:
                return
            try:
                await self._patch_status(pod, {"nominatedNodeName": node or None})
            except KubeError as error:
                # The promise holds all the same while this process lives.
                log.warning("nomination not written", pod=task.key, node=node, error=str(error))
                return
            if node:
                self._events.record(Event(_target(pod), "Nominated", sentences.nominated(node)))

    # Evictions

    async def _evict(self, evict: Evict) -> None:
        async with self._room:
            try:
                outcome = await self._end(evict)
            except Exception as error:  # the task boundary: a mistake with one pod must not leave it half evicted
                if not isinstance(error, KubeError):
                    log.exception("eviction failed", pod=evict.task.key)
                self._undo(evict, error)
                outcome = REFUSED
            finally:
                self._evicting.discard(evict.task.uid)
        self._on_settled(evict, outcome)

    async def _end(self, evict: Evict) -> str:
        """Tell the pod and delete it, until there is an answer."""
        pod = self._feed.pods.get(evict.task.uid)
        if pod is None or pod.metadata.deletion_timestamp:
            return GONE
        try:
            await self._patch_status(pod, {"conditions": [self._condition(evict)]})
            await self._again_and_again(lambda: self._delete(pod))
        except (NotFoundError, ConflictError):
            return GONE  # another pod may have the name by now
        except TransportError:
            if not await self._is_leaving(pod):
                raise
        self._refusals.pop(evict.task.uid, None)
        self._tell(evict, pod)
        return DONE

    def _condition(self, evict: Evict) -> Document:
        return {
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": sentences.evicted(evict), "lastTransitionTime": rfc3339(self._now()),
        }  # fmt: skip

    async def _delete(self, pod: Pod) -> None:
        meta = pod.metadata
        await self._client.delete(Pod, meta.name, meta.namespace, uid=meta.uid)

    async def _patch_status(self, pod: Pod, status: Document) -> None:
        """A strategic patch: conditions of other types, and of other writers, stay as they are."""
        meta = pod.metadata
        patch: Document = {"metadata": {"uid": meta.uid}, "status": status}

        async def once() -> None:
            await self._client.patch(
                Pod, meta.name, patch, meta.namespace, patch_type=PatchType.STRATEGIC, subresource="status"
            )

        await self._again_and_again(once)

    async def _again_and_again(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask until there is an answer that asking again would not change."""
        for attempt in range(ASKS):
            try:
                await ask()
                return
            except (ApiError, TransportError) as error:
                if attempt == ASKS - 1 or (isinstance(error, ApiError) and not may_pass(error)):
                    raise
            await asyncio.sleep(0.1 * 2**attempt)

    async def _is_leaving(self, pod: Pod) -> bool:
        """Whether a deletion without an answer has arrived."""
        try:
            current = await self._client.get(Pod, pod.metadata.name, pod.metadata.namespace)
        except NotFoundError:
            return True
        except KubeError:
            return False
        return current.metadata.uid != pod.metadata.uid or bool(current.metadata.deletion_timestamp)

    def _tell(self, evict: Evict, pod: Pod) -> None:
        target, action = _target(pod), evict.action or "eviction"
        log.info("evicted", pod=evict.task.key, node=evict.node, action=action, reason=evict.reason)
        self._events.record(Event(target, "Evict", sentences.evict_event(action), "Warning"))
        self._events.record(Event(target, "Preempted", sentences.evicted(evict)))
        job = evict.task.job
        group = self._feed.group_of(job) if job is not None else None
        if group is not None:
            meta = group.metadata
            about = Target(kind=PodGroup, name=meta.name, namespace=meta.namespace, uid=meta.uid)
            self._events.record(Event(about, "Evict", action))

    def _undo(self, evict: Evict, error: Exception) -> None:
        """The victim stays. Who was promised its room waits again, and asks no sooner than after a while."""
        cluster, task = self._feed.cluster, evict.task
        refusals = self._refusals[task.uid] = self._refusals.get(task.uid, 0) + 1
        first_s, longest_s = RETRY_S
        delay_s = min(first_s * 2 ** min(refusals - 1, 16), longest_s)
        log.warning("eviction refused", pod=task.key, node=evict.node, error=str(error), retry_s=delay_s)
        pod = self._feed.pods.get(task.uid)
        if pod is not None:
            self._events.record(Event(_target(pod), "EvictionFailed", sentences.not_evicted(evict, error), "Warning"))
        if cluster.tasks.get(task.uid) is task:
            row = task.row
            cluster.spare(task)
            if evict.preemptor is not None:
                _forsake(self._feed, evict.preemptor, row)
        if evict.preemptor is not None:
            hold_back(evict.preemptor, delay_s, self._wake)
        self._wake()


def _forsake(feed: ClusterFeed, job: Job, row: int) -> None:
    """Take back what a job was promised on a node whose pod stays."""
    for task in list(job.tasks.values()):
        if task.status is TaskStatus.PIPELINED and task.is_claim and task.row == row:
            feed.cluster.forsake(task)


def _target(pod: Pod) -> Target:
    return Target(kind=Pod, name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
