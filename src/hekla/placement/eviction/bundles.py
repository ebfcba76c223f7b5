"""What a gang could have evicted, cut into bundles: what each victim's gang can spare, and what goes with all of it.

    safe     tasks that a job can lose and go on, each by itself: while it and the task's role have more than they need,
             and the task's sub-gang has too, or is not whole anyway, or more sub-gangs are whole than the policy asks
             for; and if the job is no gang any more anyway
    whole    everything else of the job, wherever it runs: then the job is gone
    promise  nothing runs, a job of lower priority was only promised room

Promises are given up first, then what is safe goes, then whole jobs; among them by the queues' order, then the lowest
priority, then Volcano's order of jobs from the last one, then by what it brings for what it costs:

    return = mean over what is asked for of min(freed, asked) / asked, by the same of all that the job would lose

`evict_for_gang.py` takes as many as it needs, in this order, and spares whom it turns out not to need.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from math import inf
from typing import Any, NamedTuple

from hekla.placement.columns import BoolArray
from hekla.placement.eviction.eligibility import Right
from hekla.placement.eviction.victim_order import in_order_of_eviction, is_candidate
from hekla.placement.framework import Preemptable
from hekla.placement.model import READY_STATUSES, Job, Task
from hekla.placement.session import Session
from hekla.placement.topology.gang import group_of


class Harm(IntEnum):
    """What becomes of a job that loses a bundle; the smaller is the lesser harm."""

    PROMISE = 0
    SAFE = 1
    WHOLE = 2


class Bundle(NamedTuple):
    """Tasks of one job that go together, and promises of it that are off with them."""

    harm: Harm
    job: Job
    tasks: Sequence[Task]
    claims: Sequence[Task] = ()
    rows: Sequence[int] = ()
    """Where the tasks run, then where room was promised."""


def _unit(harm: Harm, job: Job, tasks: Sequence[Task], claims: Sequence[Task] = ()) -> Bundle:
    return Bundle(harm, job, tasks, claims, [task.row for task in (*tasks, *claims)])


def victims_of(session: Session, right: Right, preemptor: Job, jobs: Iterable[Job]) -> list[Job]:
    """The jobs that may lose tasks for a gang: of the same queue and a lower priority, or of queues that give back."""
    queues, own = session.cluster.queues, preemptor.spec
    found = []
    for job in jobs:
        spec = job.spec
        if right is Preemptable:
            is_meant = spec.queue == own.queue and spec.priority < own.priority
        else:
            queue = queues.get(spec.queue)
            is_meant = spec.queue != own.queue and queue is not None and queue.is_reclaimable
        if (
            is_meant
            and (job.may_lose or job.uid in job.lines.promised)
            and session.eligibility.may_make_way(job, preemptor)
        ):
            found.append(job)
    return found


def units_in_order(
    session: Session, right: Right, preemptor: Job, jobs: Iterable[Job], rows: BoolArray, need: Mapping[str, int],
    *, allows_whole: bool,
) -> list[Bundle]:  # fmt: skip
    """Who could go from these rows for a gang, who goes first comes first."""
    local = [task for job in jobs for task in job.tasks.values() if task.row >= 0 and rows[task.row]]
    ranked = in_order_of_eviction(session, preemptor, [task for task in local if is_candidate(task)])
    lost = {task.uid: minutes for task, _, minutes in ranked}
    by_job: dict[str, list[Task]] = {}
    queues: dict[str, int] = {}
    for task, _, _ in ranked:
        assert task.job is not None
        by_job.setdefault(task.job.uid, []).append(task)
        queues.setdefault(task.job.spec.queue, len(queues))
    last_first = _from_the_last(session, jobs) if right is Preemptable else {}
    keyed: list[tuple[Any, list[Bundle]]] = []
    for job in jobs:
        there = by_job.get(job.uid, [])
        place = (queues.get(job.spec.queue, -1), job.spec.priority, last_first.get(job.uid, 0))
        tie = session.cluster.nodes.tie(job.uid)
        for harm, units in _bundles(session, right, job, there, rows, allows_whole=allows_whole):
            gain = _gain(harm, job, there, units, need)
            cost = sum(lost.get(task.uid, 0) for unit in units for task in unit.tasks)
            keyed.append(((harm, *place, -gain, cost, tie), units))
    keyed.sort(key=lambda entry: entry[0])
    return [unit for _, units in keyed for unit in units]


def _from_the_last(session: Session, jobs: Iterable[Job]) -> dict[str, int]:
    """The place of each job in the reverse of the plug-ins' order; those that tie share one."""
    keys = {job.uid: session.job_key(job)[:-2] for job in jobs}
    places: dict[Any, int] = {}
    for key in sorted(keys.values(), reverse=True):
        places.setdefault(key, len(places))
    return {uid: places[key] for uid, key in keys.items()}


def _bundles(
    session: Session, right: Right, job: Job, there: Sequence[Task], rows: BoolArray, *, allows_whole: bool
) -> list[tuple[Harm, list[Bundle]]]:
    """The bundles of one job; `there` are its tasks on these rows that could be evicted, in order."""
    found: list[tuple[Harm, list[Bundle]]] = []
    claims = [task for task in job.tasks.values() if task.is_claim]
    if claims and right is Preemptable and not job.ready_count:
        if any(rows[task.row] for task in claims):
            found.append((Harm.PROMISE, [_unit(Harm.PROMISE, job, (), claims)]))
        return found
    safe, kept = spared(job, there)
    if safe:
        found.append((Harm.SAFE, [_unit(Harm.SAFE, job, (task,)) for task in safe]))
    if kept and allows_whole and (whole := _whole(session, job, safe, claims)) is not None:
        found.append((Harm.WHOLE, [whole]))
    return found


def spared(job: Job, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Which of a job's tasks it can lose, one after the other, and which it cannot."""
    spec = job.spec
    surplus = job.ready_count + job.pending_best_effort - spec.min_available
    if surplus < 0:
        return list(tasks), []  # it is no gang any more
    running = [task for task in job.tasks.values() if task.status in READY_STATUSES]
    roles = Counter(task.spec.role for task in running)
    minimums = spec.role_minimums if job.enforces_roles else {}
    groups = Counter(group_of(job, task) for task in running) if spec.subgroups else Counter[tuple[int, str]]()
    sizes = [policy.size for policy in spec.subgroups]
    extra = [  # so many sub-gangs of each policy need not stay whole
        sum(1 for (at, _), count in groups.items() if at == number and count >= policy.size) - policy.min_groups
        for number, policy in enumerate(spec.subgroups)
    ]
    safe, kept = list[Task](), list[Task]()
    for task in tasks:
        role, least = task.spec.role, minimums.get(task.spec.role, 0)
        at, name = group_of(job, task) if spec.subgroups else (0, "")
        breaks = at < len(sizes) and groups[at, name] == sizes[at] > 0
        if surplus > 0 and (not least or roles[role] > least) and (not breaks or extra[at] > 0):
            if breaks:
                extra[at] -= 1
            surplus -= 1
            roles[role] -= 1
            groups[at, name] -= 1
            safe.append(task)
        else:
            kept.append(task)
    return safe, kept


def _whole(session: Session, job: Job, safe: Sequence[Task], claims: Sequence[Task]) -> Bundle | None:
    """What goes of a job beyond what it can spare; None if a part of it may not go."""
    apart = {task.uid for task in safe}
    others = [task for task in job.tasks.values() if task.row >= 0 and not task.is_leaving and not task.is_claim]
    if not all(is_candidate(task) for task in others):
        return None
    if claims and session.eligibility.would_do(job, others):
        claims = ()  # what it was promised is enough to start again with
    rest = [task for task in others if task.uid not in apart]
    rest.sort(key=lambda task: (task.spec.priority, task.order))
    return _unit(Harm.WHOLE, job, rest, claims)


def _gain(harm: Harm, job: Job, there: Sequence[Task], units: Sequence[Bundle], need: Mapping[str, int]) -> float:
    """What a bundle brings for what it costs; without end where it costs nothing."""
    if harm is not Harm.WHOLE:
        return inf
    going = {task.uid for unit in units for task in unit.tasks}
    freed = _total(task for task in there if task.uid in going)
    lost = _total(task for task in job.tasks.values() if task.row >= 0)
    brings = sum(min(freed[name], asked) / asked for name, asked in need.items())
    costs = sum(lost[name] / asked for name, asked in need.items())
    return brings / costs if costs else inf


def _total(tasks: Iterable[Task]) -> Counter[str]:
    total: Counter[str] = Counter()
    for task in tasks:
        total.update(task.shape.request)
    return total
