"""For which of the jobs that wait room is kept first: those that need most of the cluster at once.

    priority, then the largest part of any resource that the job's minimum needs, then age

What a small job needs is free before long wherever anything ends; what a large one needs never is by chance. (By age alone,
a queue that has had its share kept all room for its small jobs: on Philly 911 of 1,044 reservations were for one GPU.)
"""

from collections.abc import Iterable, Mapping, Sequence

from hekla.placement.model import Job
from hekla.placement.session import Session
from hekla.quota.amounts import bounded


def most_in_need(session: Session, jobs: Iterable[Job]) -> Sequence[Job]:
    """The jobs, those first that are most in need."""
    total = session.cluster.nodes.totals()
    keys = ((-job.spec.priority, -_part(job, total), job.spec.created, job.uid, job) for job in jobs)
    return [key[-1] for key in sorted(keys, key=lambda key: key[:-1])]


def _part(job: Job, total: Mapping[str, int]) -> float:
    """The largest part of any resource that the job must have to start."""
    wanted = job.spec.min_resources
    if wanted is None:
        first = next(job.pending(), None)
        count = max(job.spec.min_available, 1)
        wanted = {name: amount * count for name, amount in first.shape.request.items()} if first is not None else {}
    return max((amount / total[name] for name, amount in bounded(wanted) if total.get(name)), default=0.0)
