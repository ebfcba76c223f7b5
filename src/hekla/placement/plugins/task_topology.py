"""Put roles of a job that talk to each other on the same nodes, and roles that compete on different ones.

A job's annotations name groups of roles (`a,b;c`): several roles in one want each other, a role alone wants its own
kind. Its tasks are put into *buckets*, each meant for one node, and nodes are liked for what of a bucket they hold:

    order      by the job's own order of roles, then roles of which each task wants a node of its own, roles that want
               each other, that want their own kind, that avoid each other
    buckets    tasks that run make one for each node; every other joins the bucket with the most affine tasks minus
               adverse ones, the one that asks for least among equals, or a new one if all count below 0
    score      (tasks of the bucket on the node + min(0, -adverse tasks of the job there)
               + tasks of the bucket that would fit there still) / size of the largest bucket

Where a part of the bucket has to go elsewhere, the tasks that come last in order do (the peer drops any).
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

import numpy as np

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import FloatArray, IntArray, Nodes
from hekla.placement.framework import Key, Reading, plugin
from hekla.placement.model import Job, JobSpec, Task, TaskSpec, TaskStatus
from hekla.placement.node_selection.score import NEUTRAL, Score
from hekla.placement.queue import Queue
from hekla.placement.registry import as_float
from hekla.placement.session import Session
from hekla.placement.shape import Shape

AFFINITY_KEY = "volcano.sh/task-topology-affinity"
ANTI_AFFINITY_KEY = "volcano.sh/task-topology-anti-affinity"
ORDER_KEY = "volcano.sh/task-topology-task-order"

_ALONE, _TOGETHER, _WITH_OWN_KIND, _APART = 4, 3, 2, 1
"""How urgent a role's wish is."""

_MEMORY_UNIT = 1 << 20
"""A MiB counts as much as a thousandth of a cpu when buckets are compared by what they ask for."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a job's annotations say of its roles."""

    near: frozenset[tuple[str, str]]
    """Pairs of roles that want the same node; a role with itself too."""

    apart: frozenset[tuple[str, str]]
    urgency: tuple[tuple[str, int], ...]
    order: tuple[str, ...]

    def place(self, role: str) -> tuple[int, int]:
        """How early a role is dealt with: larger is earlier."""
        named = len(self.order) - self.order.index(role) if role in self.order else 0
        return named, dict(self.urgency).get(role, 0)

    def affinity(self, role: str, there: Mapping[str, int]) -> int:
        """Affine tasks minus adverse ones among these, by role."""
        liked = sum(number for other, number in there.items() if (role, other) in self.near)
        return liked - self.adverse(role, there)

    def adverse(self, role: str, there: Mapping[str, int]) -> int:
        """Adverse tasks among these, by role."""
        return sum(number for other, number in there.items() if (role, other) in self.apart)


@dataclass(slots=True)
class Bucket:
    """Tasks that are meant for one node."""

    index: int
    waiting: list[Task] = field(default_factory=list)
    roles: Counter[str] = field(default_factory=Counter)
    size: int = 0
    """Waiting tasks, and those that run."""

    asked: float = 0.0

    def add(self, task: Task) -> None:
        """Take a task in."""
        self.roles[task.spec.role] += 1
        self.size += 1
        if task.row < 0:
            self.waiting.append(task)
            self.asked += _weight(task)


@dataclass(slots=True)
class BucketPlan:
    """A job's buckets, as they were at the beginning of the cycle."""

    wishes: Wishes
    buckets: list[Bucket] = field(default_factory=list)
    bucket_of: dict[str, Bucket] = field(default_factory=dict)
    """By uid of a task."""

    at: dict[int, Bucket] = field(default_factory=dict)
    """By row of a node, of tasks that run there."""

    ranks: dict[str, int] = field(default_factory=dict)
    """In which order tasks are placed, by uid."""

    @property
    def largest(self) -> int:
        """The size of the largest bucket."""
        return max((bucket.size for bucket in self.buckets), default=0)


@plugin
@dataclass(frozen=True, kw_only=True)
class TaskTopology:
    """Keeps roles of a job together, or apart."""

    weight: float = 1.0
    """How much this plug-in counts beside others."""

    def read(self, task: TaskSpec, job: JobSpec, queues: Mapping[str, Queue]) -> Reading | None:
        """Tasks of a job with wishes are decided one by one: where the others are makes a difference."""
        wishes = tuple(job.traits.get(key, "") for key in (AFFINITY_KEY, ANTI_AFFINITY_KEY, ORDER_KEY))
        return Reading(is_single=True) if any(wishes) else None

    def task_key(self, session: Session, task: Task) -> Key:
        """Bucket by bucket, the largest first; within one, urgent roles first."""
        assert task.job is not None
        plan = _plan(session.cluster.nodes, task.job)
        return (plan.ranks.get(task.uid, len(plan.ranks)),) if plan is not None else (0,)

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """What facts of nodes decide: nothing. It is here so that the weight counts in the mean."""
        return NEUTRAL

    def score_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> FloatArray | None:
        """What a node holds of the task's bucket and may hold yet, less what is adverse to it there."""
        assert task.job is not None
        plan = _plan(nodes, task.job)
        bucket = plan.bucket_of.get(task.uid) if plan is not None else None
        if plan is None or bucket is None:
            return None
        liked = np.zeros(nodes.rows, np.int64)
        adverse = np.zeros(nodes.rows, np.int64)
        role, there = task.spec.role, Counter[tuple[int, str]]()
        for other in task.job.tasks.values():
            if other.row >= 0:
                liked[other.row] += plan.bucket_of.get(other.uid) is bucket
                there[other.row, other.spec.role] += 1
        for (row, other_role), number in there.items():
            adverse[row] += number if (role, other_role) in plan.wishes.apart else 0
        # Scores begin at 0: what is adverse lifts everybody else, by as much everywhere.
        total = liked - adverse + int(adverse.max(initial=0)) + _would_fit(nodes, bucket, task)
        scores: FloatArray = (total * (self.weight / plan.largest)).astype(np.float32)
        return scores

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `task-topology.weight`."""
        return cls(weight=as_float("task-topology.weight", arguments.get("task-topology.weight", 1)))


def _plan(nodes: Nodes, job: Job) -> BucketPlan | None:
    """The plan that a job has in this cycle."""
    if not job.spec.traits:
        return None
    key = ("task-topology", job.uid)
    if key not in nodes.notes:
        nodes.notes[key] = plan_of(job)
    plan: BucketPlan | None = nodes.notes[key]
    return plan


def plan_of(job: Job) -> BucketPlan | None:
    """The buckets of a job; None if its annotations name no roles, or cannot be followed."""
    wishes = wishes_of(job)
    if wishes is None:
        return None
    named = {role for role, _ in wishes.urgency}
    tasks = [task for task in job.tasks.values() if task.spec.role in named and _counts(task)]
    plan = BucketPlan(wishes)
    for task in sorted(tasks, key=lambda task: _precedence(wishes, task)):
        bucket = _bucket_for(plan, task)
        bucket.add(task)
        plan.bucket_of[task.uid] = bucket
    waiting = sorted(
        (task for bucket in plan.buckets for task in bucket.waiting),
        key=lambda task: _turn(wishes, plan.bucket_of[task.uid], task),
    )
    plan.ranks = {task.uid: rank for rank, task in enumerate(waiting)}
    return plan


def wishes_of(job: Job) -> Wishes | None:
    """What a job's annotations say; None if they say nothing, or name a role that the job has not, or one twice."""
    traits = job.spec.traits
    groups = {key: _groups(traits[key]) for key in (AFFINITY_KEY, ANTI_AFFINITY_KEY) if traits.get(key)}
    order = _groups(traits[ORDER_KEY])[0] if traits.get(ORDER_KEY) else ()
    if not groups and not order:
        return None
    lists = [*(group for named in groups.values() for group in named), order]
    if any(len(set(group)) < len(group) or any(role not in job.roles for role in group) for group in lists):
        return None
    near, near_urgency = _pairs(groups.get(AFFINITY_KEY, ()), _WITH_OWN_KIND, _TOGETHER)
    apart, apart_urgency = _pairs(groups.get(ANTI_AFFINITY_KEY, ()), _ALONE, _APART)
    roles = near_urgency.keys() | apart_urgency.keys()
    urgency = {role: max(near_urgency.get(role, 0), apart_urgency.get(role, 0)) for role in roles}
    return Wishes(near, apart, tuple(sorted(urgency.items())), order)


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    parts = [tuple(role.strip() for role in group.split(",") if role.strip()) for group in text.split(";")]
    return tuple(part for part in parts if part) or ((),)


def _pairs(
    groups: Sequence[tuple[str, ...]], alone: int, together: int
) -> tuple[frozenset[tuple[str, str]], dict[str, int]]:
    """The pairs of roles in groups, both ways, and how urgent each role's wish is."""
    pairs, urgency = set[tuple[str, str]](), dict[str, int]()
    for group in groups:
        is_own_kind = len(group) == 1
        pairs |= {(a, b) for a in group for b in group if is_own_kind or a != b}
        for role in group:
            urgency[role] = max(urgency.get(role, 0), alone if is_own_kind else together)
    return frozenset(pairs), urgency


def _counts(task: Task) -> bool:
    return task.row >= 0 or task.status is TaskStatus.PENDING


def _precedence(wishes: Wishes, task: Task) -> tuple[Hashable, ...]:
    """Who joins a bucket first: those that run, node by node, then by role, then by number."""
    named, urgency = wishes.place(task.spec.role)
    return (task.row < 0, task.row if task.row >= 0 else 0, -named, -urgency, task.spec.role, task.order)


def _turn(wishes: Wishes, bucket: Bucket, task: Task) -> tuple[Hashable, ...]:
    """Who is placed first: the largest bucket's tasks, by role, then by number."""
    named, urgency = wishes.place(task.spec.role)
    return (-len(bucket.waiting), bucket.index, -named, -urgency, task.order)


def _bucket_for(plan: BucketPlan, task: Task) -> Bucket:
    if task.row >= 0:
        if task.row not in plan.at:
            plan.at[task.row] = _new_bucket(plan)
        return plan.at[task.row]
    best = max(
        plan.buckets,
        key=lambda bucket: (plan.wishes.affinity(task.spec.role, bucket.roles), -bucket.asked, -bucket.index),
        default=None,
    )
    return best if best is not None and plan.wishes.affinity(task.spec.role, best.roles) >= 0 else _new_bucket(plan)


def _new_bucket(plan: BucketPlan) -> Bucket:
    plan.buckets.append(Bucket(len(plan.buckets)))
    return plan.buckets[-1]


def _weight(task: Task) -> float:
    """What a task asks for as one number, by which buckets are kept even."""
    return sum(
        amount / _MEMORY_UNIT if name == "memory" else amount if name == "cpu" else amount * 1000
        for name, amount in task.shape.request.items()
        if name != "pods"
    )


def _would_fit(nodes: Nodes, bucket: Bucket, task: Task) -> IntArray:
    """How many of the bucket's waiting tasks each node has room for: this one, and the others in order.  # [node]"""
    waiting = [task, *(other for other in bucket.waiting if other is not task and other.row < 0)]
    room, fits, goes_on = nodes.idle + nodes.releasing, np.zeros(nodes.rows, np.int64), np.ones(nodes.rows, np.bool_)
    for shape, run in groupby(waiting, key=lambda other: other.shape):
        number = len(list(run))
        amounts = shape.amounts[:, None]
        found = (room[shape.resources] // amounts).min(axis=0).clip(0, number)
        fits += np.where(goes_on, found, 0)
        goes_on &= found == number
        room[shape.resources] -= amounts * number
    return fits
