"""The batch scheduler: follows a cluster by watch events, decides in cycles, binds, and says why others wait.

A cycle runs when something happened that may matter, after a short window that gathers what comes together; an idle
cluster costs nothing. Cycles are cut into slices so that other tasks of the process are not held up. The deciding is
`hekla.placement`; the translating `hekla.dialects.feed`; `binder.py` and `reports.py` do the writing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog
from prometheus_client import REGISTRY

from hekla.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from hekla.api.meta import Resource
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolumeClaim
from hekla.api.volcano.scheduling import Queue
from hekla.api.volcano.shard import NodeShard
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.shards import ShardingMode
from hekla.kube.clock import Clock, SystemClock, rfc3339
from hekla.kube.collecting import freeze, without_collecting
from hekla.kube.commands import Event, Target, target_of
from hekla.kube.errors import ApiError, TransportError
from hekla.kube.events import EventRecorder
from hekla.kube.execute import Executor
from hekla.kube.informer import Informers
from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.cluster import Cluster
from hekla.placement.model import Job, JobPhase, Task
from hekla.placement.policy import Policy
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.placement.statement import Bind, Decision, Evict, Nominate
from hekla.scheduler import sentences
from hekla.scheduler.binder import Binder
from hekla.scheduler.configuration import Configuration
from hekla.scheduler.decisions import decisions_of
from hekla.scheduler.engine_state import saved
from hekla.scheduler.evictor import Evictor
from hekla.scheduler.extender_calls import ExtenderCalls
from hekla.scheduler.first_queues import FirstQueues
from hekla.scheduler.foresight import Foresight
from hekla.scheduler.gate_opening import gate_openings
from hekla.scheduler.memory import MemoryKeeper
from hekla.scheduler.metrics import SchedulerMetrics
from hekla.scheduler.outlooks import REST_PER_LOOK, Outlooks, look_into
from hekla.scheduler.pacing import Paced
from hekla.scheduler.queue_status import PAUSE_S, past_commands, queue_commands
from hekla.scheduler.reload import LiveConfiguration
from hekla.scheduler.reports import PATIENCE_S, Reports
from hekla.scheduler.retrying import hold_back
from hekla.scheduler.settings import SchedulerSettings
from hekla.scheduler.snapshot import Snapshot, snapshot_of
from hekla.scheduler.stumbling import job_at_fault
from hekla.scheduler.timed_session import TimedSession
from hekla.scheduler.unreadable import unreadable
from hekla.scheduler.usage_source import UsageSource
from hekla.scheduler.warmup import WORTH_IT_NODES, warm_up
from hekla.scheduler.writer import StatusWriter

log = structlog.get_logger()

DEVICE_KINDS: tuple[type[Resource], ...] = (DeviceClass, ResourceSlice, ResourceClaim)
APART: tuple[type[Resource], ...] = (HyperNode, NodeShard, *DEVICE_KINDS)
"""Kinds that a server may lack without keeping everybody waiting."""

COMPONENT = "volcano"
"""Who events are from: the name that people filter by."""


LOOK_S = 1.0
"""How often it is looked who has waited for long."""

RETELL_S = 1.0
"""After how long a status that could not be written is told anew."""


class BatchScheduler:
    """Schedules the pods of one API server."""

    def __init__(
        self, informers: Informers, settings: SchedulerSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        self.settings = settings or SchedulerSettings()
        self.cluster = Cluster(seed=self.settings.seed)
        self.cluster.topology.is_known = False
        self._faults_told: frozenset[str] = frozenset()
        self._has_new_network = self._rests_from_growing = False
        self.feed = ClusterFeed(
            self.cluster, scheduler_names=self.settings.scheduler_names, default_queue=self.settings.default_queue,
            waits_for_groups=self.settings.waits_for_groups, sharding=self.settings.sharding,
        )  # fmt: skip
        self._informers = informers
        self._client = informers.client
        self._clock = clock or SystemClock()
        self._events = EventRecorder(
            self._client, self._clock, component=COMPONENT, is_busy=lambda: self._binder.is_busy
        )
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._is_large = asyncio.Event()
        self._outlooks = Outlooks(after_s=self.settings.outlook_after_s, every_s=self.settings.outlook_every_s)
        self._reports = Reports(self.feed, self._outlooks)
        self.metrics = SchedulerMetrics(self)
        self._binder = Binder(
            self._client, self.feed, self._events, wake=self._wake.set, at_once=self.settings.binds_at_once,
            on_settled=self._on_settled,
        )  # fmt: skip
        self._memory = MemoryKeeper(
            self._client,
            self.settings.memory_namespace,
            cluster=self.cluster,
            times=lambda: (self.now_s(), self.wall_s()),
            key=self.settings.memory_key,
        )
        self._evictor = Evictor(
            self._client, self.feed, self._events, wake=self._wake.set, now=self._clock.now,
            on_settled=self._on_evicted, at_once=self.settings.evictions_at_once, before=self._memory.keep,
        )  # fmt: skip
        self._writer = StatusWriter(Executor(self._client, self._events), on_refused=self._retell)
        self._live = LiveConfiguration(
            self.settings.configuration, file=self.settings.configuration_file, on_change=self._reconfigure,
            record=self._events.record,
        )  # fmt: skip
        self.extenders = ExtenderCalls(on_news=self._on_extender_news)
        self._main_loop: asyncio.AbstractEventLoop | None = None
        self.usage = UsageSource(self._on_usage, now_s=self.wall_s, of_server=self._client.text)
        self._put_to_work(self._live.current)
        self._queues_told = -1
        self._queues = Paced(self._tell_queues, pause_s=PAUSE_S)
        self._alarm: asyncio.TimerHandle | None = None
        self.foresight = Foresight()
        """Who may be told of pods before they are durable."""

        self._heard: list[Decision] | None = None
        """What the cycle that runs has decided, where somebody records it."""

        self.is_following = False
        """Whether all objects have been read."""

        self.cycles = 0
        """Cycles so far."""

    async def run(self, *, on_read: Callable[[], object] = lambda: None) -> None:
        """Schedule until cancelled; `on_read` is called when all objects have been read and the first cycle is over."""
        self._main_loop = asyncio.get_running_loop()
        queues = FirstQueues(self._client, self.settings.default_queue)
        await queues.make()
        await self._memory.recall()
        async with _registered(self.metrics), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run(), name="scheduler events")
            tasks.create_task(self._warm_up(), name="kernel warm-up")
            tasks.create_task(self.usage.run(), name="scheduler usage")
            tasks.create_task(self._writer.run(), name="scheduler writer")
            tasks.create_task(self._memory.run(), name="scheduler memory")
            tasks.create_task(queues.keep(self._informers.of(Queue)), name="scheduler queues")
            tasks.create_task(self._follow_network(), name="scheduler network")
            tasks.create_task(self._follow_devices(), name="scheduler devices")
            if self.settings.sharding.mode is not ShardingMode.NONE:
                tasks.create_task(self._follow_shards(), name="scheduler shards")
            tasks.create_task(self._tell_outlooks(), name="scheduler outlooks")
            tasks.create_task(self._live.run(self._informers, self.settings.namespace), name="scheduler configuration")
            try:
                with without_collecting():
                    await self._follow()
                    freeze(len(self.cluster.tasks))  # before the first collection, which would look at it all
                while True:
                    await self._wake.wait()
                    await asyncio.sleep(self.settings.window_s)
                    self._wake.clear()
                    await self._guarded_cycle()
                    if self.cycles == 1:
                        on_read()
            finally:
                await self._binder.close()
                await self._evictor.close()
                self.extenders.close()

    async def idle(self) -> None:
        """Wait until nothing is to be decided, bound or written at this moment."""
        await self._idle.wait()
        shells = (self._binder, self._evictor, self._writer)
        while self._wake.is_set() or not self._idle.is_set() or not all(shell.is_idle for shell in shells):
            await asyncio.sleep(0.001)

    # What users may ask about (see `answers.py`)

    @property
    def configuration(self) -> Configuration:
        """The configuration in use."""
        return self._live.current

    @property
    def configuration_source(self) -> str:
        """Where it comes from."""
        return self._live.source

    @property
    def configuration_refusal(self) -> str:
        """Why a newer one is not in use; empty if there is none."""
        return self._live.refusal

    def now_s(self) -> float:
        """The time by which cycles decide."""
        return self._clock.elapsed_s()

    def wall_s(self) -> float:
        """The time in which objects say when they were created."""
        return self._clock.now().timestamp()

    def recorded_cycle(self) -> Snapshot:
        """Run one whole cycle now, in which all who wait are looked at anew, and tell what it decided and by what."""
        self.cluster.gains += 1
        objects = [obj for kind in self.feed.followed for obj in self._informers.of(kind).cache]
        inputs = snapshot_of(self, [*objects, *self.foresight.pods], saved(self.feed))
        heard: list[Decision] = []
        self._heard = heard
        try:
            session = self.cycle()
        finally:
            self._heard = None
        return replace(inputs, now=session.now, wall_s=session.wall_s, decisions=decisions_of(session, heard))

    # How it is done

    def _put_to_work(self, configuration: Configuration) -> None:
        """Decide by a configuration from the next cycle on."""
        self.extenders.connect(configuration.tiers)
        self.usage.follow(configuration.metrics)
        self.policy = Policy(self.cluster, configuration.tiers, configuration.arguments)
        self.policy.actions = configuration.actions
        # found once: finding one looks through the plug-in folders, 3 % of a busy scheduler's time
        self._actions = tuple((name, action_named(name)) for name in configuration.actions)

    def _on_usage(self, node: str, usage: NodeUsage) -> None:
        """A node was measured."""
        if node in self.cluster.nodes.row_of:
            self.cluster.put_usage(node, usage)
            self._idle.clear()
            self._wake.set()

    def _on_extender_news(self) -> None:
        """An extender has answered whom a cycle did not wait for: said by its thread."""
        if self._main_loop is not None and not self._main_loop.is_closed():
            self._main_loop.call_soon_threadsafe(self._try_all_again)

    def _try_all_again(self) -> None:
        self.cluster.gains += 1
        self._idle.clear()
        self._wake.set()

    def _reconfigure(self) -> None:
        self._put_to_work(self._live.current)
        self._try_all_again()  # what did not fit by the former rules may fit by these

    async def _follow(self) -> None:
        """Follow every kind that placement depends on. Pods last: most of what they refer to is then known."""
        kinds = [(kind, handle) for kind, handle in self.feed.followed.items() if kind not in APART]
        informers = [self._informers.of(kind) for kind, _ in kinds]
        for informer, (_, handle) in zip(informers, kinds, strict=True):
            await informer.synced()
            if handle == self.feed.on_pod:
                await informer.follow(self.foresight.in_front_of(self._waking(handle)), self._on_pods)
            else:
                await informer.follow(self._waking(handle))
        self._informers.of(PersistentVolumeClaim).add_handler(self._binder.on_claim)
        self.is_following = True
        is_sharded = self.settings.sharding.mode is not ShardingMode.NONE
        others = [kind for kind in self.feed.followed if kind is not Pod and (is_sharded or kind is not NodeShard)]
        self.foresight.begin(
            self._informers.of(Pod), {kind.kind_info.resource: self._informers.of(kind) for kind in others}
        )
        self._wake.set()

    def _on_pods(self, pods: Sequence[Any]) -> None:
        self.cluster.ledger.tell_time(self._clock.now().timestamp())
        self.feed.on_pods(pods)
        self._idle.clear()
        self._wake.set()

    async def _follow_network(self) -> None:
        """Follow HyperNodes, beside the rest: a server without the kind must not keep everybody waiting."""
        informer = self._informers.of(HyperNode)
        await informer.synced()
        informer.add_handler(self._waking(self._on_hyper_node))
        self.cluster.topology.is_known = True
        self.cluster.gains += 1
        self._wake.set()

    async def _follow_devices(self) -> None:
        """Follow claims to devices and what they are about, beside the rest: Kubernetes has them since 1.34."""
        for kind in DEVICE_KINDS:
            informer = self._informers.of(kind)
            await informer.synced()
            informer.add_handler(self._waking(self.feed.followed[kind]))

    async def _follow_shards(self) -> None:
        """Follow NodeShards, and tell which nodes we have in use when nothing decided by those before is under way."""
        informer, shards, changed = self._informers.of(NodeShard), self.feed.shards, asyncio.Event()
        await informer.synced()

        def handler(old: NodeShard | None, new: NodeShard | None) -> None:
            self.feed.on_node_shard(old, new)
            changed.set()

        informer.add_handler(self._waking(handler))
        changed.set()
        while True:
            await changed.wait()
            changed.clear()
            while not self._binder.is_idle:
                await asyncio.sleep(self.settings.slice_s)
            patch = shards.status_patch(rfc3339(self._clock.now()))
            if patch is None:
                continue
            try:
                await self._client.patch(NodeShard, self.settings.sharding.name, patch, subresource="status")
            except (ApiError, TransportError) as error:
                log.warning("shard not told", shard=self.settings.sharding.name, error=str(error))
                await asyncio.sleep(RETELL_S)
                changed.set()

    def _waking(self, handle: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def handler(old: Any, new: Any) -> None:
            self.cluster.ledger.tell_time(self._clock.now().timestamp())
            handle(old, new)
            for sentence in unreadable(old, new):
                log.warning("object not readable", kind=type(new).__name__, name=new.metadata.name, why=sentence)
                self._events.record(Event(target_of(new), "Unreadable", sentence, "Warning"))
            if new is None and old is not None:
                self._reports.forget(old.metadata.uid)
                self._reports.stumbles.forget(old.metadata.uid)
                self.metrics.forget(old.metadata.uid)
                self._evictor.forget(old.metadata.uid)
            self._idle.clear()
            self._wake.set()

        return handler

    async def _guarded_cycle(self) -> None:
        try:
            self.cycle()
        except Exception as error:  # a task boundary: one object that breaks a cycle must not stop all scheduling
            job = job_at_fault(error)
            log.exception("cycle failed", job=job.key if job is not None else "")
            self.metrics.on_failed_cycle()
            if job is None or job.is_held:
                await asyncio.sleep(1.0)
            else:
                self._set_aside(job, error)
            self._wake.set()
        self.foresight.after_cycle()
        if not self._wake.is_set():
            self._idle.set()

    def cycle(self) -> Session:
        """One cycle, or one slice of it: decide, hand over binds, tell the others why they wait."""
        self.cycles += 1
        self.extenders.begin_cycle()
        elapsed_s, metrics = self._clock.elapsed_s, self.metrics
        begun_s = elapsed_s()
        end = begun_s + self.settings.slice_s
        session = TimedSession(
            self.policy, now=begun_s, wall_s=self.wall_s(), elapsed_s=elapsed_s, on_opened=metrics.on_plugin,
            has_time=lambda: elapsed_s() < end or self._heard is not None,
        )  # fmt: skip
        self._admit_all_without_enqueue()
        metrics.on_session(session, elapsed_s() - begun_s)
        for name, action in self._actions:
            action_begun_s = elapsed_s()
            self._carry_out(action(session), session)
            metrics.on_action(name, elapsed_s() - action_begun_s)
        self.extenders.entered(session.admitted)
        self.extenders.end_session()
        touched, self.feed.dirty = self.feed.dirty, set()
        touched |= session.failures.keys() | session.refusals.keys() | {job.uid for job in session.admitted}
        metrics.on_cycle(session, elapsed_s() - begun_s)
        try:
            self._report(session, touched)
        except Exception:
            self.feed.dirty |= touched  # who was not told yet is told next time
            raise
        self._writer.tell(gate_openings(session, self.feed))
        self._tell_faults()
        if session.is_cut_short:
            self._wake.set()
        self._memory.look()
        self._set_alarm(session)
        if self._queues_told != self.cluster.ledger.changes:
            self._queues.ask()
        if session.is_cut_short or len(self.cluster.nodes) >= WORTH_IT_NODES:
            self._is_large.set()
        if self._reports.look_again:
            again, self._reports.look_again = self._reports.look_again, set()
            asyncio.get_running_loop().call_later(PATIENCE_S, self._look_at, again)
        return session

    def _carry_out(self, decisions: Iterator[Decision], session: Session) -> None:
        """Hand decisions over, also those that were made before an action stumbled."""
        placed: dict[str, Job] = {}
        others: list[Evict | Nominate] = []
        try:
            for decision in decisions:
                job = decision.task.job
                assert job is not None
                if self._heard is not None:
                    self._heard.append(decision)
                if isinstance(decision, Bind | Evict):
                    self.extenders.decided(decision)
                if isinstance(decision, Bind):
                    self._binder.submit(decision)
                    placed[job.uid] = job
                else:
                    others.append(decision)
        finally:
            self.feed.dirty |= placed.keys()
            self.metrics.on_placed(placed, session.now, session.wall_s)
            if others:
                self.feed.dirty |= self._make_room(others)

    def _set_aside(self, job: Job, error: Exception) -> None:
        """Let a job rest over which the scheduler stumbled, and tell it so."""
        rest_s = self._reports.stumbles.rest_s(job, error)
        self.feed.dirty.add(job.uid)

        def try_again() -> None:
            self._reports.stumbles.told.pop(job.uid, None)
            self._wake.set()

        hold_back(job, rest_s, try_again)

    def _make_room(self, decisions: Sequence[Evict | Nominate]) -> set[str]:
        """Have evictions and nominations carried out; the uids of the jobs that they are about."""
        evictions = [decision for decision in decisions if isinstance(decision, Evict)]
        self._evictor.submit(evictions, [decision for decision in decisions if isinstance(decision, Nominate)])
        self.metrics.on_evictions(evictions)
        jobs = [decision.task.job for decision in decisions]
        return {job.uid for job in jobs if job is not None}

    def _on_evicted(self, evict: Evict, outcome: str) -> None:
        self.metrics.on_evicted(evict, outcome, self.wall_s())

    def _on_settled(self, task: Task, is_bound: bool) -> None:
        self.metrics.on_settled(task, self.now_s(), self.wall_s(), is_bound=is_bound)

    def _set_alarm(self, session: Session) -> None:
        """Have a cycle run when time alone will change a decision."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if session.look_again_at is not None:
            wait_s = max(session.look_again_at - session.wall_s, 0.0)
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._wake.set)

    def _retell(self, target: Target, wait_s: float) -> None:
        """A word about an object did not get through: look at its job again in a while, and tell what is true then."""
        asyncio.get_running_loop().call_later(wait_s, self._look_anew, target.uid)

    def _look_anew(self, uid: str) -> None:
        self._reports.forget(uid)
        task = self.cluster.tasks.get(uid)
        job = task.job if task is not None else self.cluster.jobs.get(uid)
        if job is not None:
            job.failed_at = -1
            self._look_at({job.uid})

    def _on_hyper_node(self, old: HyperNode | None, new: HyperNode | None) -> None:
        self.feed.on_hyper_node(old, new)
        self._has_new_network = True

    def _tell_faults(self) -> None:
        """Have the log, and events on the HyperNodes that are named, say what was left out of the tree, once."""
        topology = self.cluster.topology
        if self._has_new_network and not self._rests_from_growing:
            self._has_new_network, began_s = False, self.now_s()
            topology.tree()  # grown now, for those who look after their HyperNodes before any gang asks for closeness
            # Thousands that come one by one would have it grown for each: 30 ms of 1,500, a minute in all.
            self._rests_from_growing = True
            asyncio.get_running_loop().call_later((self.now_s() - began_s) * REST_PER_LOOK, self._rested)
        for fault in set(topology.faults) - self._faults_told:
            log.warning("hypernode at fault", fault=fault)
            for name in dict.fromkeys(sentences.hypernodes_in(fault)):
                if name in self.feed.hyper_nodes:
                    target = target_of(self.feed.hyper_nodes[name])
                    self._events.record(Event(target, "LeftOut", fault, "Warning"))
        self._faults_told = frozenset(topology.faults)

    def _rested(self) -> None:
        self._rests_from_growing = False
        if self._has_new_network:
            self._wake.set()

    def _tell_queues(self) -> None:
        self._queues_told = self.cluster.ledger.changes
        self._writer.tell(queue_commands(self.cluster, self.feed.queues))
        self._writer.tell(past_commands(self.cluster, self.feed.queues))

    async def _tell_outlooks(self) -> None:
        """Tell those who wait for long what would help, one at a time and while there is nothing to decide."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.is_following or self._wake.is_set() or not self._idle.is_set():
                continue
            began_s = self.now_s()
            job = self._outlooks.next_job(self.cluster, began_s, self.wall_s())
            if job is not None:
                self._tell_outlook(job)
            await asyncio.sleep((self.now_s() - began_s) * REST_PER_LOOK)

    def _tell_outlook(self, job: Job) -> None:
        is_first = not self._outlooks.has_looked_into(job.uid)
        try:
            sentence = look_into(self.policy, job, self.now_s())
        except Exception:  # a task boundary: what is told besides must not stop all scheduling
            log.exception("outlook failed", job=job.key)
            sentence = ""
        self._outlooks.keep(job, sentence, self.now_s())
        now = rfc3339(self._clock.now())
        self._writer.tell(self._reports.outlook_commands(job, now, is_first=is_first))

    def _look_at(self, jobs: set[str]) -> None:
        self.feed.dirty |= jobs
        self._wake.set()

    def _admit_all_without_enqueue(self) -> None:
        """Where no `enqueue` is configured nobody would let jobs in, so all are."""
        if "enqueue" not in self._live.current.actions:
            for job in list(self.cluster.lines.by_phase[JobPhase.PENDING].values()):
                job.phase = JobPhase.INQUEUE

    def _report(self, session: Session, touched: set[str]) -> None:
        now = rfc3339(self._clock.now())
        self._writer.tell(self._reports.after(session, touched, session_id=f"hekla-{self.cycles}", now=now))

    async def _warm_up(self) -> None:
        """Get compiled kernels once they are worth it; failing to costs speed only."""
        await self._is_large.wait()
        with contextlib.suppress(OSError):
            await warm_up()


@contextlib.asynccontextmanager
async def _registered(metrics: SchedulerMetrics) -> AsyncIterator[None]:
    """Have /metrics tell these numbers for the length of a block."""
    REGISTRY.register(metrics)
    try:
        yield
    finally:
        REGISTRY.unregister(metrics)
