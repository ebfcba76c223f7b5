"""A job starts whole or not at all: enough tasks, enough of every role, enough sub-gangs."""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from hekla.placement.constraint import Refusal
from hekla.placement.framework import Key, Opinion, Vote, plugin
from hekla.placement.model import READY_STATUSES, VALID_STATUSES, Job, Task, TaskStatus
from hekla.placement.session import Session

NOT_ENOUGH_TASKS = "NotEnoughTasks"
NOT_ENOUGH_OF_ROLE = "NotEnoughPodsOfTask"

_TOO_FEW_TASKS = "Not enough valid tasks for gang-scheduling"
_TOO_FEW_OF_ROLE = "Not enough valid pods of each task for gang-scheduling"
_TOO_FEW_GROUPS = "Not enough valid subGroups of each task for gang-scheduling"
"""Volcano's sentences, which name neither the role nor the policy of groups; ours go on to do so."""

_AHEAD = frozenset({*READY_STATUSES, TaskStatus.PIPELINED})
"""What counts once promises are kept."""


@plugin
@dataclass(frozen=True, kw_only=True)
class Gang:
    """Holds jobs together."""

    starts_whole_jobs = True
    """Asked by `queueing/lookahead.py`: a job that may be tried, and has a node for each of its tasks, is ready."""

    orders_waiting_by = ("min_available",)
    """Asked by `queueing/kept_lines.py`: this field decides the key of a lone job that waits."""

    def job_key(self, session: Session, job: Job) -> Key:
        """Jobs that are not ready yet go before those that only grow."""
        return (self.is_ready(session, job),)

    def why_invalid(self, session: Session, job: Job) -> Refusal | None:
        """A job with fewer pods than it must start with is not tried."""
        there = job.valid_count
        if there >= job.spec.min_available and not job.spec.role_minimums and not job.spec.subgroups:
            return None
        for role, least in _role_minimums(job):
            there = _in_role(job, role, VALID_STATUSES)
            if there < least:
                return Refusal(NOT_ENOUGH_OF_ROLE, f"{_TOO_FEW_OF_ROLE}: task {role} has {there}, {least} are needed")
        for policy in job.spec.subgroups:
            there = len(_groups(job, policy.name, job.tasks.values()))
            if there < policy.min_groups:
                told = f"{_TOO_FEW_GROUPS}: {policy.name} has {there}, {policy.min_groups} are needed"
                return Refusal(NOT_ENOUGH_OF_ROLE, told)
        there = job.valid_count
        if there < job.spec.min_available:
            return Refusal(NOT_ENOUGH_TASKS, f"{_TOO_FEW_TASKS}, valid: {there}, min: {job.spec.min_available}")
        return None

    def is_ready(self, session: Session, job: Job) -> bool:
        """Enough tasks have a node: in all, of each role, and in enough sub-gangs."""
        spec = job.spec
        if job.ready_count + job.pending_best_effort < spec.min_available:
            return False
        if not spec.role_minimums and not spec.subgroups:
            return True
        if any(_role_count(job, role) < least for role, least in _role_minimums(job)):
            return False
        return all(_ready_groups(job, policy.name) >= policy.min_groups for policy in job.spec.subgroups)

    def shortfall(self, session: Session, job: Job) -> int:
        """At least so many more tasks must be placed before the job can be ready."""
        return job.spec.min_available - job.ready_count - job.pending_best_effort

    def is_pipelined(self, session: Session, job: Job) -> Opinion:
        """Enough tasks have a node, or a promise of one: in all, of each role, and in enough sub-gangs."""
        spec, waiting = job.spec, job.statuses[TaskStatus.PIPELINED]
        is_enough = (
            waiting + job.ready_count + job.pending_best_effort >= spec.min_available
            and all(_role_count(job, role, TaskStatus.PIPELINED) >= least for role, least in _role_minimums(job))
            and all(_ready_groups(job, policy.name, _AHEAD) >= policy.min_groups for policy in spec.subgroups)
        )
        return Opinion(Vote.PERMIT) if is_enough else Opinion(Vote.REJECT, "the gang would not be whole")

    def is_starving(self, session: Session, job: Job) -> bool:
        """Fewer tasks than it must have hold a node or a promise; roles and sub-gangs do not count, as in Volcano."""
        return job.statuses[TaskStatus.PIPELINED] + job.ready_count < job.spec.min_available

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Tasks that their gangs can spare."""
        ready: dict[str, int] = {}
        chosen = []
        for victim in victims:
            job = victim.job
            assert job is not None
            left = ready.setdefault(job.uid, job.ready_count)
            if left > job.spec.min_available:
                ready[job.uid] = left - 1
                chosen.append(victim)
        return chosen

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """The same for those who take back."""
        return self.preemptable(session, task, victims)

    def evictable_together(
        self, session: Session, task: Task, victims: Sequence[Task], *, takes_back: bool
    ) -> Sequence[Task]:
        """Tasks that their gangs can spare, and those that go with all of their gang."""
        numbers = Counter(victim.job.uid for victim in victims if victim.job is not None)
        chosen = []
        for victim in victims:
            job = victim.job
            assert job is not None
            if numbers[job.uid] >= job.ready_count or job.ready_count < job.spec.min_available:
                chosen.append(victim)  # all of it, or it is no gang any more
        rest = [victim for victim in victims if not any(victim is one for one in chosen)]
        spared = {victim.uid for victim in (*chosen, *self.preemptable(session, task, rest))}
        return [victim for victim in victims if victim.uid in spared]

    def goes_on(self, session: Session, job: Job, failed: frozenset[str]) -> bool:
        """Whether the roles that did not fail can still make the gang (Volcano's NeedContinueAllocating)."""
        if job.spec.min_available >= len(job.tasks):
            return False
        if job.spec.subgroups:
            return True
        if job.enforces_roles:
            minimums = job.spec.role_minimums
            return all(_role_count(job, role) >= minimums.get(role, 0) for role in failed if minimums.get(role, 0))
        left = sum(1 for task in job.pending() if not task.is_best_effort and task.spec.role not in failed)
        return job.ready_count + job.pending_best_effort + left >= job.spec.min_available


def _role_minimums(job: Job) -> Iterable[tuple[str, int]]:
    return ((role, least) for role, least in job.spec.role_minimums.items() if least > 0) if job.enforces_roles else ()


def _in_role(job: Job, role: str, statuses: Iterable[TaskStatus]) -> int:
    counts = job.roles.get(role)
    return sum(counts[status] for status in statuses) if counts else 0


def _role_count(job: Job, role: str, *further: TaskStatus) -> int:
    """Tasks of a role that have a node or need none, or are in one of these statuses."""
    placed = _in_role(job, role, (*READY_STATUSES, *further))
    if not job.pending_best_effort:
        return placed
    idle = (t for t in job.tasks.values() if t.spec.role == role and t.status is TaskStatus.PENDING)
    return placed + sum(1 for task in idle if task.is_best_effort)


def _groups(job: Job, policy_name: str, tasks: Iterable[Task]) -> Counter[str]:
    """How many of these tasks are in each sub-gang of a policy; a task belongs to the first policy that takes it."""
    groups: Counter[str] = Counter()
    for task in tasks:
        for policy in job.spec.subgroups:
            group = policy.group_of(task.spec)
            if group is not None:
                if policy.name == policy_name:
                    groups[group] += 1
                break
    return groups


def _ready_groups(job: Job, policy_name: str, statuses: Container[TaskStatus] = READY_STATUSES) -> int:
    policy = next(policy for policy in job.spec.subgroups if policy.name == policy_name)
    placed = (t for t in job.tasks.values() if t.status in statuses)
    return sum(1 for count in _groups(job, policy_name, placed).values() if count >= policy.size)
