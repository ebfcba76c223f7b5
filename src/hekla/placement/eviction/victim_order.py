"""In which order tasks are evicted: Volcano's order, with the work that would be lost as a tie-break.

    another queue   by the plug-ins' order of victim queues, else the queue that places last goes first
    same queue      the job of the lowest priority, then its task of the lowest priority, then who loses the least work
                    (in whole minutes), then the job that comes last, then its last task

Work is lost since the last checkpoint, or since the start. It never weighs more than a priority.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hekla.placement.framework import Key
from hekla.placement.model import Job, Task

if TYPE_CHECKING:
    from hekla.placement.session import Session

MINUTE_S = 60.0

Ranked = tuple[Task, int, int]
"""A task, the class of its order (equal ones cost alike), and the minutes of work that it would lose."""


def in_order_of_eviction(session: "Session", preemptor: Job, tasks: Iterable[Task]) -> list[Ranked]:
    """Who goes first comes first."""
    tasks = list(tasks)
    queues, jobs = _ranks(session, preemptor, tasks)
    keyed = []
    for task in tasks:
        job = task.job
        assert job is not None
        lost = int(task.spec.lost_work_s(session.wall_s) // MINUTE_S)
        place = (queues[job.spec.queue], job.spec.priority, task.spec.priority)
        keyed.append(((*place, lost, -jobs[job.uid], _reversed(task.order)), place, lost, task))
    keyed.sort(key=lambda entry: entry[0])
    classes: dict[tuple[int, int, int], int] = {}
    return [(task, classes.setdefault(place, len(classes)), lost) for _, place, lost, task in keyed]


def _ranks(session: "Session", preemptor: Job, tasks: list[Task]) -> tuple[dict[str, int], dict[str, int]]:
    """The place of each queue in the order of eviction, and of each job in the order of placement."""
    jobs = {task.job.uid: task.job for task in tasks if task.job is not None}
    names = {job.spec.queue for job in jobs.values()}
    known = [queue for name in names if (queue := session.cluster.queues.get(name)) is not None]
    by_placement = sorted(known, key=session.queue_key, reverse=True)
    keys: dict[str, Key] = {
        queue.name: (*session.eligibility.victim_queue_key(queue, preemptor), place)
        for place, queue in enumerate(by_placement)
    }
    queues = {name: place + 1 for place, name in enumerate(sorted(keys, key=lambda name: keys[name]))}
    ordered = sorted(jobs.values(), key=session.job_key)
    return (
        {name: queues.get(name, 0) for name in names},  # those whose queue is gone go first
        {job.uid: place for place, job in enumerate(ordered)},
    )


def _reversed(order: tuple[int, float, str]) -> tuple[int, float, tuple[int, ...]]:
    number, created, uid = order
    return -number, -created, tuple(-ord(letter) for letter in uid)


def is_candidate(task: Task) -> bool:
    """Whether a task could be evicted at all: it runs, and neither it nor its group is against it."""
    job = task.job
    if job is None or task.row < 0 or task.is_leaving or not task.spec.is_preemptable:
        return False
    return task.status.is_evictable and job.spec.is_preemptable is not False
