"""Builders of clusters for tests of placement: only what matters has to be said.

    world = World()
    world.node("n1", cpu=4, memory=8)
    world.job("big", tasks=3, cpu=3, min_available=3)
    assert world.schedule() == {}

Amounts are in whole cpus and GiB, as people think of them; everything else is counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from hekla.placement.bookkeeping.ledger import Account
from hekla.placement.bookkeeping.tallies import Selected, Spreading, asked_by
from hekla.placement.cluster import Cluster
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import NO_CONSTRAINTS, Constraints, Taint
from hekla.placement.devices.shares import GPU_MILLI, WHOLE
from hekla.placement.model import Job, JobPhase, JobSpec, Task, TaskSpec, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.queue import Queue
from hekla.placement.registry import action_named, build_plugin
from hekla.placement.session import Session
from hekla.placement.statement import Bind, Evict
from hekla.testing.scenario_storage import ScenarioStorage

GIB = 1 << 30
DEFAULT_ACTIONS = ("enqueue", "allocate", "backfill")
DEFAULT_PLUGINS = (("priority", "gang"), ("predicates", "nodeorder", "binpack"))


def amounts(**wanted: float) -> dict[str, int]:
    """`cpu` in cpus, `memory` in GiB, `gpu` for nvidia.com/gpu, `shared_gpu` in GPUs that may be shared, others by their names and counted."""
    units = {"cpu": 1000, "memory": GIB, "shared_gpu": 1000}
    names = {"gpu": "nvidia.com/gpu", "shared_gpu": GPU_MILLI}
    return {names.get(name, name): round(value * units.get(name, 1)) for name, value in wanted.items()}


class World:
    """A cluster with a policy, and the means to fill it."""

    def __init__(
        self, *, plugins: Sequence[Sequence[str | tuple[str, Mapping[str, Any]]]] = DEFAULT_PLUGINS, seed: int = 0,
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self.cluster = Cluster(seed=seed)
        self.cluster.put_queue(Queue(name="default"))
        tiers = [[build_plugin(*((p,) if isinstance(p, str) else p)) for p in tier] for tier in plugins]
        self.policy = Policy(self.cluster, tiers, arguments)
        self.session = Session(self.policy)
        """The last session, for asking what it found."""

        self.evicted: dict[str, str] = {}
        """Why tasks were evicted in the last cycle, by name."""

        self.storage = ScenarioStorage(self.cluster)
        self._clock = 0.0

    def node(
        self, name: str, *, labels: Mapping[str, str] | None = None, taints: Sequence[Taint] = (), pods: int = 110,
        is_schedulable: bool = True, is_ready: bool = True, images: Mapping[str, int] | None = None, **has: float,
    ) -> None:  # fmt: skip
        """Add a node, or bring it up to date."""
        self.cluster.put_node(NodeSpec(
            name=name, allocatable={**amounts(**has), "pods": pods}, labels=labels or {}, taints=tuple(taints),
            is_schedulable=is_schedulable, is_ready=is_ready, images=images or {},
        ))  # fmt: skip

    def queue(self, name: str, **fields: Any) -> None:
        """Add a queue."""
        self.cluster.put_queue(Queue(name=name, **fields))

    def job(
        self, name: str, *, tasks: int = 1, min_available: int | None = None, constraints: Constraints = NO_CONSTRAINTS,
        labels: Mapping[str, str] | None = None, role: str = "", task_priority: int = 0, is_gated: bool = False,
        phase: JobPhase = JobPhase.INQUEUE, more: Mapping[str, Any] | None = None, **asks: float,
    ) -> Job:  # fmt: skip
        """Add a job of equal tasks `<name>-0`, `<name>-1`..., later than all before; `more` are further JobSpec fields."""
        job = self._new_job(name, tasks if min_available is None else min_available, phase, more or {})
        self.tasks(
            job,
            tasks,
            constraints=constraints,
            labels=labels,
            role=role,
            priority=task_priority,
            is_gated=is_gated,
            **asks,
        )
        return job

    def tasks(
        self, job: Job, count: int, *, constraints: Constraints = NO_CONSTRAINTS, labels: Mapping[str, str] | None = None,
        role: str = "", priority: int = 0, is_gated: bool = False, **asks: float,
    ) -> list[Task]:  # fmt: skip
        """Add equal tasks to a job, named after it and its role."""
        stem = f"{job.spec.name}-{role}" if role else job.spec.name
        first = sum(1 for task in job.tasks.values() if task.spec.role == role)
        return [
            self.cluster.put_task(
                TaskSpec(
                    uid=f"{stem}-{number}", name=f"{stem}-{number}", namespace="default", request=amounts(**asks),
                    constraints=constraints, labels=labels or {}, role=role, priority=priority, is_gated=is_gated,
                ),
                job,
            )
            for number in range(first, first + count)
        ]  # fmt: skip

    def running(self, name: str, node: str, **details: Any) -> Task:
        """Add a pod that runs on a node already."""
        job = self.job(name, **details)
        (task,) = job.tasks.values()
        return self.cluster.put_task(replace(task.spec, node=node, status=TaskStatus.RUNNING), job)

    def finish(self, task: str) -> None:
        """Let a task succeed: what it held is free again."""
        known = self.cluster.tasks[task]
        assert known.job is not None
        node = self.cluster.nodes.name(known.row) if known.row >= 0 else ""
        self.cluster.put_task(replace(known.spec, node=node, status=TaskStatus.SUCCEEDED), known.job)

    def start(self, name: str) -> None:
        """Let the pods that were bound run, of a job or one by name."""
        job = self.cluster.jobs.get(name)
        for task in list(job.tasks.values()) if job is not None else [self.cluster.tasks[name]]:
            if task.status is TaskStatus.BINDING and task.job is not None:
                node = self.cluster.nodes.name(task.row)
                self.cluster.put_task(replace(task.spec, node=node, status=TaskStatus.RUNNING), task.job)

    @property
    def promised(self) -> dict[str, str]:
        """The node by task, for those that were promised room, in order of names."""
        claims = [task for task in self.cluster.tasks.values() if task.is_claim]
        return {task.spec.name: self.cluster.nodes.name(task.row) for task in sorted(claims, key=lambda task: task.key)}

    def tell_time(self, now: float) -> None:
        """Let it be so late that many seconds have passed since the beginning, at least."""
        self._clock = max(self._clock, now)
        self.cluster.ledger.tell_time(self._clock)

    def schedule(self, actions: Sequence[str] = DEFAULT_ACTIONS) -> dict[str, str]:
        """Run one cycle; node by task for every bind, in the order of decision."""
        self.policy.actions = actions
        self.session = Session(self.policy, now=self._clock)
        binds, self.evicted = {}, {}
        for name in actions:
            for decision in action_named(name)(self.session):
                if isinstance(decision, Bind):
                    binds[decision.task.spec.name] = decision.node
                elif isinstance(decision, Evict):
                    self.evicted[decision.task.spec.name] = decision.reason
        check(self.cluster)
        return binds

    def why(self, job: str) -> str:
        """What the last cycle found about a job that waits; "" if nothing."""
        failure = self.session.failures.get(job)
        if failure is not None:
            return failure.explanation.sentence()
        refusal = self.session.refusals.get(job)
        return refusal.sentence if refusal is not None else ""

    def _new_job(self, name: str, min_available: int, phase: JobPhase, more: Mapping[str, Any]) -> Job:
        self._clock += 1.0
        details = {"namespace": "default", "created": self._clock, "phase": phase, **more}
        return self.cluster.put_job(JobSpec(uid=name, name=name, min_available=min_available, **details))


def check(cluster: Cluster) -> None:
    """Assert what must hold between decisions: columns agree with tasks, and nothing of ours is overfull."""
    nodes = cluster.nodes
    expected = nodes.used * 0
    for task in cluster.placed():
        if not task.is_claim:
            expected[task.shape.resources, task.row] += task.shape.amounts
    assert (expected + nodes.reserved == nodes.used).all(), "amounts in use differ from what the placed tasks ask for"
    _check_promises(cluster)
    _check_devices(cluster)
    _check_accounts(cluster)
    _check_tallies(cluster)
    assert (nodes.idle == nodes.allocatable - nodes.used).all(), "idle is not what is left"
    for job in cluster.jobs.values():
        for status in TaskStatus:
            assert job.statuses[status] == sum(1 for task in job.tasks.values() if task.status is status), (
                f"{job} miscounts {status}"
            )


def _check_devices(cluster: Cluster) -> None:
    """Every part of a GPU that is held has a task that holds it."""
    devices = cluster.nodes.devices
    expected = devices.held * 0
    for task in cluster.placed():
        for device in task.devices:
            expected[device, task.row] += task.shape.gpu_milli // len(task.devices)
    assert (expected == devices.held).all(), "parts of GPUs in use differ from what the placed tasks have"
    there = np.arange(devices.held.shape[0])[:, None] < devices.counts
    assert (devices.left == np.where(there, WHOLE, 0) - devices.held).all(), (
        "what is left of a GPU is not what is not held"
    )


def _check_promises(cluster: Cluster) -> None:
    """What is being freed, and promised, is what tasks are leaving with and wait for; nothing is promised twice."""
    nodes = cluster.nodes
    releasing, pipelined = nodes.used * 0, nodes.used * 0
    for task in cluster.placed():
        if task.is_claim or task.is_leaving:
            (pipelined if task.is_claim else releasing)[task.shape.resources, task.row] += task.shape.amounts
        assert task.is_claim == (task.status is TaskStatus.PIPELINED), f"{task} is told two things"
        assert task.is_leaving == (task.status is TaskStatus.RELEASING and not task.is_overdue), (
            f"{task} is told two things"
        )
    assert (releasing == nodes.releasing).all(), "what is being freed differs from what leaving tasks hold"
    assert (pipelined == nodes.pipelined).all(), "what is promised differs from what tasks wait for"
    assert (nodes.reserved == (pipelined - releasing).clip(0)).all(), "promises are not kept"


def _check_tallies(cluster: Cluster) -> None:
    """Pods count where they are in what others ask about them; in evenness only those who stay."""
    asked = {question for task in cluster.tasks.values() for question in asked_by(task.spec.constraints)}
    for question in (one for one in asked if isinstance(one, Selected | Spreading)):
        tally = cluster.tallies.find(question)
        assert tally is not None, f"nobody counts {question}"
        domains, counts = cluster.tallies.counts(tally)
        there = [task for task in cluster.placed() if tally in task.matched and domains[task.row] >= 0]
        stay = [task for task in there if not (task.goes and isinstance(question, Spreading))]
        expected = np.bincount([int(domains[task.row]) for task in stay], minlength=len(counts))
        assert (expected == counts).all(), f"{question} is counted wrongly"


def _check_accounts(cluster: Cluster) -> None:
    """The running totals of queues and jobs are what their tasks add up to."""
    ledger = cluster.ledger
    told = {name: _totals(ledger.of(name)) for name in ledger.accounts}
    ledger.open_anew(ledger.parents)
    for job in cluster.jobs.values():
        before = Counter(job.holding)
        job.reopen_accounts()
        assert +before == +Counter(job.holding), f"{job} miscounts what it holds"
    for name in told.keys() | ledger.accounts.keys():
        assert told.get(name, _totals(Account())) == _totals(ledger.of(name)), f"queue {name} is charged wrongly"


def _totals(account: Account) -> tuple[Counter[str], ...]:
    return +account.held, +account.asked, +account.firm
