"""Pods that are not made yet: a Volcano Job makes its pods once it is let in, so before that its minimum stands for them.

Without them a remedy would be found to let the job in, and be told to let it start (`scheduler/remedies.py`); and no room
could be kept for a job that is to be let in (`reservations/book.py`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hekla.placement.model import Job, JobPhase, TaskSpec
from hekla.placement.rehearsal import Rehearsal

MOST_IMAGINED = 2_000
"""A wider gang is tried without pods, as one that would be let in."""


@contextmanager
def with_imagined_pods(rehearsal: Rehearsal, job: Job) -> Iterator[None]:
    """As many equal pods as must run together, that share what the job says it needs and may run on any node.

    Exact where all tasks of the job are alike, a fair guess where not. A job with sub-groups is left as it is: which
    pod belongs to which is said by labels that nobody knows yet.
    """
    specs = imagine_pods(rehearsal, job)
    try:
        yield
    finally:
        for spec in specs:
            rehearsal.cluster.remove_task(spec.uid)


def imagine_pods(rehearsal: Rehearsal, job: Job) -> Sequence[TaskSpec]:
    """Give a job of a rehearsal the pods that it will make; none if it has made some, or says too little."""
    specs = list(_imagined(job)) if _has_none_yet(job) else []
    for spec in specs:
        rehearsal.cluster.put_task(spec, job)
    return specs


def _has_none_yet(job: Job) -> bool:
    return (
        not job.tasks
        and job.phase is JobPhase.PENDING
        and bool(job.spec.min_resources)
        and not job.spec.subgroups
        and 0 < job.spec.min_available <= MOST_IMAGINED
    )


def _imagined(job: Job) -> Iterator[TaskSpec]:
    spec, count = job.spec, job.spec.min_available
    # Rounded up, so that together they need no less than the job says.
    request = {name: -(-amount // count) for name, amount in (spec.min_resources or {}).items() if name != "pods"}
    roles = [role for role, least in spec.role_minimums.items() for _ in range(min(least, count))]
    for number in range(count):
        yield TaskSpec(
            uid=f"{job.uid}/imagined-{number}", name=f"{spec.name}-{number}", namespace=spec.namespace, request=request,
            role=roles[number] if number < len(roles) else "", priority=spec.priority,
        )  # fmt: skip
