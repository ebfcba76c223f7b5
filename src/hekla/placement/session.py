# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""One scheduling cycle: a cluster, the plug-ins in tiers, and the questions that actions ask.

The session adds up answers: orders by the first plug-in that tells two apart, readiness by all, votes tier by tier.
It keeps nothing of its own between cycles; running totals live in the cluster.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from math import isfinite
from typing import Any, TypeVar

from hekla.placement.admitted_demand import Entered, EnteredByNamespace
from hekla.placement.constraint import Refusal
from hekla.placement.eviction.eligibility import Eligibility
from hekla.placement.explain import Explanation, explain
from hekla.placement.framework import (
    Allocatable,
    Departure,
    Enqueueable,
    GoesOn,
    JobOrder,
    KeepsRoom,
    Key,
    Opens,
    Opinion,
    Overused,
    QueueOrder,
    QueueOrderAhead,
    Reader,
    Ready,
    TaskOrder,
    Valid,
    Victims,
    Vote,
)  # fmt: skip
from hekla.placement.model import Job, JobPhase, Task, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.queue import Queue
from hekla.placement.queueing.projected_use import ProjectedUse
from hekla.placement.shape import Shape
from hekla.placement.statement import Statement
from hekla.placement.topology.venue import Venue

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """A task found no node."""

    task: Task
    explanation: Explanation
    placements: Mapping[str, str] = field(default_factory=dict)
    """By uid, the nodes of the tasks that had found one when the job was given up."""

    @property
    def placed(self) -> int:
        """How many tasks had found a node."""
        return len(self.placements)


class Session:
    """One cycle's view. `now` is the only time it knows."""

    def __init__(
        self,
        policy: Policy,
        *,
        now: float = 0.0,
        wall_s: float | None = None,
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        self.policy = policy
        self.cluster = policy.cluster
        self.now = now
        self.wall_s = now if wall_s is None else wall_s
        """The time in which objects say when they were created."""

        self.cluster.ledger.tell_time(self.wall_s)
        self.look_again_at: float | None = None
        """When, by `wall_s`, a decision will change though nothing happens; None if none will."""

        self.has_time = has_time
        """Asked before every turn, or once before turns that are decided together; when it says no, the cycle ends early
        and the rest goes to the next one.
        """

        self.is_cut_short = False
        self.refusals: dict[str, Refusal] = {}
        """Why jobs were turned away in this cycle, by uid, where a plug-in gave a reason of its own."""

        self.failures: dict[str, Failure] = {}
        """By uid, jobs of which a task found no node in this cycle."""

        self.let_through: list[Task] = []
        """Tasks whose gates open, since their queue has room for them."""

        self.admitted: list[Job] = []
        """Jobs that were let in during this cycle."""

        self.strict_queues = frozenset(queue.name for queue in self.cluster.queues.values() if queue.is_strict)
        """Queues that start their jobs strictly in order."""

        self._hopeless: set[Shape] = set()
        self._explained: dict[Shape, Explanation] = {}
        self.failed_beside: dict[Hashable, Any] = {}
        """What was found of kinds of jobs that reservations keep back (`reservations/place_beside.py`)."""

        self._entered: Entered | None = None
        self._entered_by_namespace: EnteredByNamespace | None = None
        self._opened: dict[int, Any] = {}
        self._queue_orders = policy.asked(QueueOrder)
        self._queue_orders_ahead = policy.asked(QueueOrderAhead)
        self._job_orders = policy.asked(JobOrder)
        self._task_orders = policy.asked(TaskOrder)
        self._valid = policy.asked(Valid)
        self._ready = policy.asked(Ready)
        self._goes_on = policy.asked(GoesOn)
        self._overused = policy.asked(Overused)
        self._allocatable = policy.asked(Allocatable)
        self._keeps_room = policy.asked(KeepsRoom)
        self._reads = bool(policy.asked(Reader))
        policy.look_around(self)

    def statement(self) -> Statement:
        """A new attempt."""
        return Statement(self.cluster, self.policy.placer, now=self.now)

    @cached_property
    def eligibility(self) -> Eligibility:
        """Who may be evicted for whom."""
        return Eligibility(self)

    def is_whole(self, job: Job) -> bool:
        """Whether a job has what it must have to go on."""
        return self.is_ready(job) if self._ready else _has_minimum(job)

    def stays_whole(self, job: Job, victim: Task) -> bool:
        """Whether a job that is whole would still be without one of its tasks."""
        spec, status = job.spec, victim.status
        if not spec.role_minimums and not spec.subgroups:
            return job.ready_count + job.pending_best_effort > spec.min_available
        job.move(victim, TaskStatus.RELEASING)
        is_whole = self.is_whole(job)
        job.move(victim, status)
        return is_whole

    def opened(self, plugin: Opens[T]) -> T:
        """What a plug-in computes once per session, computed when it is first asked for: idle cycles cost nothing."""
        state: T | None = self._opened.get(id(plugin))
        if state is None:
            state = self._opened[id(plugin)] = plugin.open(self)
        return state

    def look_again(self, wall_s: float) -> None:
        """Ask for another cycle at this time."""
        if isfinite(wall_s):
            self.look_again_at = wall_s if self.look_again_at is None else min(wall_s, self.look_again_at)

    def is_due(self, name: str, period_s: float) -> bool:
        """Whether so long has passed since this plug-in was last told that it is due; asks for a cycle when it will be."""
        last = self.cluster.last_due.get(name)
        if last is not None and self.wall_s < last + period_s:
            self.look_again(last + period_s)
            return False
        self.cluster.last_due[name] = self.wall_s
        return True

    def running(self) -> Iterator[Task]:
        """Tasks that run."""
        return (task for task in self.cluster.placed() if task.status is TaskStatus.RUNNING)

    def departures(self) -> Sequence[Departure]:
        """Who should leave for nobody's sake: what the first tier says in which anybody names somebody."""
        for tier in self.policy.tiers:
            named = {d.task.uid: d for p in tier if isinstance(p, Victims) for d in p.victims(self)}
            if named:
                return list(named.values())
        return ()

    # Orders

    def queue_key(self, queue: Queue) -> Key:
        """Smaller places first; ties by age, then name."""
        tie = self.cluster.nodes.tie(queue.name)
        key: Key = ()
        for plugin in self._queue_orders:
            key += plugin.queue_key(self, queue)
        return (*key, queue.created, tie)

    def queue_keys(self, queue: Queue, growth: ProjectedUse) -> Iterable[Key] | None:
        """`queue_key` in each of some states to come (`QueueOrderAhead`); None: not to be told."""
        if len(self._queue_orders_ahead) < len(self._queue_orders):
            return None
        columns: list[Iterable[Any]] = []
        for plugin in self._queue_orders_ahead:
            told = plugin.queue_keys(self, queue, growth)
            if told is None:
                return None
            columns += told
        tie = self.cluster.nodes.tie(queue.name)
        return zip(*columns, repeat(queue.created, growth.count), repeat(tie), strict=False)

    def job_key(self, job: Job) -> Key:
        """Smaller goes first; ties by age, then uid, or as the seed says. In a strict queue by priority and age alone."""
        key: Key = ()
        if job.spec.queue in self.strict_queues:
            return (-job.spec.priority, job.spec.created, self.cluster.nodes.tie(job.uid))
        for plugin in self._job_orders:
            key += plugin.job_key(self, job)
        return (*key, job.spec.created, self.cluster.nodes.tie(job.uid))

    def in_task_order(self, tasks: Iterable[Task]) -> list[Task]:
        """Tasks of a job in the order in which they are placed; ties by number, age, uid."""
        ordered = sorted(tasks, key=lambda task: task.order)
        for plugin in reversed(self._task_orders):
            # Sorting is stable, so the last key first; and equal keys, the usual case, cost one pass.
            ordered.sort(key=lambda task: plugin.task_key(self, task))
        return ordered

    # Answers

    def why_invalid(self, job: Job) -> Refusal | None:
        """Why a job is not worth a try; None if it is."""
        return next((refusal for p in self._valid if (refusal := p.why_invalid(self, job))), None)

    def is_ready(self, job: Job) -> bool:
        """Whether what was placed for a job may be bound."""
        for plugin in self._ready:  # noqa: SIM110 - asked several times per pod, and a generator costs as much as the answer
            if not plugin.is_ready(self, job):
                return False
        return True

    def goes_on(self, job: Job, failed: frozenset[str]) -> bool:
        """Whether a job can still become ready without the roles that failed; no, if nobody has an opinion."""
        return bool(self._goes_on) and all(p.goes_on(self, job, failed) for p in self._goes_on)

    def is_overused(self, queue: Queue) -> bool:
        """Whether a queue had its share."""
        for plugin in self._overused:  # noqa: SIM110 - asked before every turn, and a generator costs as much as the answer
            if plugin.is_overused(self, queue):
                return True
        return False

    def shortfall(self, job: Job) -> int:
        """At least how many more tasks a job needs to be ready; at least 1, which is what an elastic job gets a turn."""
        return max(1, *(p.shortfall(self, job) for p in self._ready)) if self._ready else 1

    def try_run(self, statement: Statement, job: Job, tasks: Sequence[Task], venue: Venue | None = None) -> int:
        """Place equal tasks as far as their queue and the nodes allow, noting what stopped it; how many were placed.

        In a venue the nodes' reasons are not noted: it is one of several, and who tries them tells what came of it.
        """
        allowed = tasks[: self.allowance(job, tasks[0], len(tasks))] if self._allocatable else tasks
        is_first = not statement
        placed = 0 if not allowed or tasks[0].shape in self._hopeless else statement.allocate_run(allowed, venue)
        if placed < len(allowed) and venue is not None:
            return placed
        if placed < len(allowed):
            self.explain_failure(job, tasks[placed])
            if is_first and not placed and tasks[0].shape.constraints.is_local and not tasks[0].carriers:
                # Room only shrinks during a cycle, so equal pods need not ask again. (Who evicts must forget this.)
                self._hopeless.add(tasks[0].shape)
        elif placed < len(tasks):
            self.note_queue_full(job, tasks[placed])
        return placed

    def is_hopeless(self, shape: Shape) -> bool:
        """Whether a pod of this shape found no room in this cycle."""
        return shape in self._hopeless

    def allowance(self, job: Job, task: Task, wanted: int) -> int:
        """How many of `wanted` tasks like this one the job's queue may take."""
        queue = self.cluster.queues[job.spec.queue]
        for plugin in self._allocatable:
            wanted = plugin.allowance(self, queue, task, wanted)
        return wanted

    def note_queue_full(self, job: Job, task: Task) -> None:
        """Note why a job's queue may not take a task."""
        self._note_refusal(job, self.why_not_allocatable(job, task))

    def _note_refusal(self, job: Job, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.refusals[job.uid] = refusal

    def is_worth_a_try(self, job: Job) -> bool:
        """Whether a job may fit: it has enough tasks, and something has changed since it last did not."""
        if self.rests(job):
            return False
        for plugin in self._valid:
            refusal = plugin.why_invalid(self, job)
            if refusal is not None:
                self._note_refusal(job, refusal)
                return False
        return True

    def rests(self, job: Job) -> bool:
        """Whether a job did not fit, and nothing has changed since."""
        return job.failed_at >= 0 and job.failed_at == self._news_for(job)

    def why_not_allocatable(self, job: Job, task: Task) -> Refusal | None:
        """Why a job's queue may not take what a task asks for; None if it may."""
        queue = self.cluster.queues[job.spec.queue]
        return next((r for p in self._allocatable if (r := p.why_not_allocatable(self, queue, task))), None)

    @property
    def judges_entry_alike(self) -> bool:
        """Whether jobs of one queue and priority that ask for the same minimum hear the same of whether they may enter."""
        voters = self.policy.asked(Enqueueable)
        return not self._keeps_room and all(getattr(plugin, "judges_entry_alike", False) for plugin in voters)

    def opinion_on_entry(self, job: Job) -> Opinion:
        """Whether a job is let in: want of room does not keep out one for which others would make room once it is in, or for
        which room is kept from now on.
        """  # fmt: skip
        opinion = self.may_enqueue(job)
        if opinion.vote is not Vote.REJECT:
            return opinion
        if self.eligibility.would_make_room(job):
            return self.may_enqueue(job, minds_room=False)
        if self._keeps_room and (beside := self.may_enqueue(job, minds_room=False)).vote is not Vote.REJECT:
            return beside if any(plugin.keeps_room(self, job) for plugin in self._keeps_room) else opinion
        return opinion

    def may_enqueue(self, job: Job, *, minds_room: bool = True) -> Opinion:
        """The votes on letting a job in: a reject decides, else the first tier with a permit; nobody: yes.

        Who rejects for want of room is left out where room would be made for the job.
        """
        for tier in self.policy.asked_by_tier(Enqueueable):
            asked = [p for p in tier if minds_room or not getattr(p, "minds_room", False)]
            opinions = [p.may_enqueue(self, job) for p in asked]
            for opinion in opinions:
                if opinion.vote is Vote.REJECT:
                    return opinion
            if any(opinion.vote is Vote.PERMIT for opinion in opinions):
                break
        return Opinion(Vote.PERMIT)

    def admit(self, job: Job) -> None:
        """Let a job in."""
        job.phase = JobPhase.INQUEUE
        self.admitted.append(job)
        if self._entered is not None:
            self._entered.note(job)
        if self._entered_by_namespace is not None:
            self._entered_by_namespace.note(job)

    @property
    def entered_by_namespace(self) -> EnteredByNamespace:
        """What jobs that are in will still ask of the quotas of their namespaces."""
        if self._entered_by_namespace is None:
            self._entered_by_namespace = EnteredByNamespace(self.cluster)
        return self._entered_by_namespace

    @property
    def entered(self) -> Entered:
        """What jobs that are in, and not running yet, will still ask for."""
        if self._entered is None:
            self._entered = Entered(self.cluster)
        return self._entered

    def recount_entered(self) -> None:
        """Room is kept for others than before: who is in is counted anew when it is next asked for."""
        self._entered = None

    def kept_from(self, job: Job) -> Mapping[str, int]:
        """How much of what is idle is kept for others than this job, by resource."""
        return next((kept for plugin in self._keeps_room if (kept := plugin.kept_from(self, job))), {})

    # What is remembered for those who ask why

    def explain_failure(self, job: Job, task: Task) -> None:
        """Note that a task found no node, and why, as seen from where the attempt stands: siblings placed included."""
        if job.uid not in self.failures:
            # Once per shape and cycle: ten thousand equal pods that do not fit have one reason.
            explanation = self._explained.get(task.shape) or explain(self.policy, task)
            self._explained[task.shape] = explanation
            self.failures[job.uid] = Failure(task, explanation)

    def remember_failure(self, job: Job, placed: Iterable[Task]) -> None:
        """Note that a job did not become ready, with the tasks that had found nodes on the way."""
        failure = self.failures.get(job.uid)
        if failure is not None:
            placements = {task.uid: self.cluster.nodes.name(task.row) for task in placed}
            self.failures[job.uid] = replace(failure, placements=placements)
        job.minds_queue = job.uid in self.refusals
        tallies = self.cluster.tallies
        job.minds_others = any(
            not task.shape.constraints.is_local or (task.carriers and tallies.repelling(task)) for task in job.pending()
        )

    def let_rest(self, job: Job) -> None:
        """Do not try a job again until there is news for it; what it tried itself must have been taken back."""
        job.failed_at = self._news_for(job)

    def turn_away(self, queue: Queue, jobs: Iterable[Job]) -> None:
        """Note that jobs are not tried because their queue has had its share; they are asked again when that may change."""
        refusal = Refusal("overShare", f'queue "{queue.name}" holds all that it deserves at present')
        for job in jobs:
            job.step_out()
            self.refusals[job.uid] = refusal
            job.minds_queue = True
            job.failed_at = self._news_for(job)

    def jobs_waiting(self) -> Iterator[Job]:
        """Jobs that are in, in an open queue, and have tasks that wait for nodes."""
        is_open = {name for name, queue in self.cluster.queues.items() if queue.is_open}
        outside = JobPhase.PENDING
        for job in list(self.cluster.lines.for_nodes.values()):
            if job.spec.queue in is_open and job.phase is not outside and not job.is_held:
                yield job

    def is_admitted_to_queue(self, job: Job) -> bool:
        """Whether the job's queue exists and is open."""
        queue = self.cluster.queues.get(job.spec.queue)
        return queue is not None and queue.is_open

    def may_hope(self, job: Job, *, minds_share: bool = True) -> bool:
        """Whether nothing but room keeps a job from starting: its queue is open and has not had its share."""
        queue = self.cluster.queues.get(job.spec.queue)
        if queue is None or not queue.is_open or (minds_share and self.is_overused(queue)):
            return False
        if job.phase is not JobPhase.PENDING or job.spec.min_resources is None:
            return True
        return self.may_enqueue(job, minds_room=False).vote is not Vote.REJECT

    def forget_hopeless(self) -> None:
        """Room was freed within the cycle: shapes that found none are asked again."""
        self._hopeless.clear()
        self._explained.clear()

    def is_barred(self, job: Job, action: str) -> bool:
        """Whether an action could evict nobody for a job, and nothing has changed since."""
        return job.barred_at.get(action, -1) == self._eviction_news

    def bar(self, job: Job, action: str) -> None:
        """Note that an action can evict nobody for a job as things are; another may."""
        job.barred_at = {**job.barred_at, action: self._eviction_news}

    def note_no_room(self, job: Job, refusal: Refusal) -> None:
        """Note why no room could be made for a job, unless allocate rests it: then what it found before still says more."""
        if job.uid in self.failures or job.failed_at < 0:
            self.refusals.setdefault(job.uid, refusal)

    @property
    def _eviction_news(self) -> int:
        ledger = self.cluster.ledger
        return self.cluster.gains + ledger.changes + ledger.eases

    def _news_for(self, job: Job) -> int:
        """A number that grows when a job that did not fit may fit now: room was gained, or what it minds has changed."""
        news = self.cluster.gains
        if job.minds_others:
            # What a plug-in minds of others need not be in tallies: then every placement may be news.
            news += self.cluster.tallies.changes + (self.cluster.ledger.changes if self._reads else 0)
        if job.minds_queue:
            news += self.cluster.ledger.eases
        return news


def _has_minimum(job: Job) -> bool:
    return job.ready_count + job.pending_best_effort >= job.spec.min_available
