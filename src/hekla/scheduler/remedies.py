"""What would let a waiting job start: the smallest single change of each sort, each tried before it is offered.

to the job      fewer resources per pod, a smaller minimum, no demands on nodes, a wider topology, another queue
to the cluster  the end of running jobs, a few more nodes of a sort that is there, more quota (`cluster_remedies.py`)

A change is tried as if it were the job's turn. The number of trials is bounded, so that the answer is quick on any
cluster: what is not found within it is not offered.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace

from hekla.placement.amounts import told
from hekla.placement.cluster import ROOT_QUEUE
from hekla.placement.constraint import Constraints
from hekla.placement.model import Job
from hekla.placement.plugins.gang import NOT_ENOUGH_OF_ROLE
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.unmade_pods import with_imagined_pods
from hekla.scheduler.cluster_remedies import Remedy, cluster_remedies, largest
from hekla.scheduler.explain import Why, would_start

MOST_QUEUES = 16
"""Other queues that are tried."""

STEPS = {"cpu": 100, "memory": 64 << 20}
"""In which steps amounts are lowered; other resources one by one."""

_NO_REMEDY = frozenset({"QueueNotFound", "QueueNotOpen", "SchedulingGated", NOT_ENOUGH_OF_ROLE})
"""Refusals that say themselves what to do."""


def remedies(rehearsal: Rehearsal, uid: str, found: Why, *, may_see: Callable[[str], bool]) -> tuple[Remedy, ...]:
    """What would help; nothing for a job that fits. `may_see` says of which namespaces jobs may be named."""
    return tuple(_each(rehearsal, uid, found, may_see))


def first_remedy(rehearsal: Rehearsal, uid: str, found: Why, *, may_see: Callable[[str], bool]) -> Remedy | None:
    """The first thing that would help, without a look at the others: changes to the job go before changes to the cluster."""
    with closing(_each(rehearsal, uid, found, may_see)) as found_remedies:
        return next(found_remedies, None)


def _each(rehearsal: Rehearsal, uid: str, found: Why, may_see: Callable[[str], bool]) -> Generator[Remedy, None, None]:
    if found.fits or not found.is_waiting or (found.refusal is not None and found.refusal.code in _NO_REMEDY):
        return
    job = rehearsal.job(uid)
    with with_imagined_pods(rehearsal, job):
        yield from _fewer_per_pod(rehearsal, job, found)
        yield from _smaller_minimum(rehearsal, job)
        yield from _no_demands(rehearsal, job)
        yield from _wider_topology(rehearsal, job)
        yield from _another_queue(rehearsal, job)
        yield from cluster_remedies(rehearsal, job, found, may_see)


def _fewer_per_pod(rehearsal: Rehearsal, job: Job, found: Why) -> Iterator[Remedy]:
    for name, each in _largest_requests(job, found).items():
        step = STEPS.get(name, 1)

        def fits(count: int, name: str = name, step: int = step) -> bool:
            with rehearsal.changed(job.uid, at_most={name: count * step}) as changed:
                return would_start(rehearsal, changed)

        best = largest(fits, (each - 1) // step) * step
        if best:
            before, less = told(name, each), told(name, best)
            yield Remedy(
                change="FewerPerPod", sentence=f"ask for {less} {name} per pod instead of {before}",
                details={"resource": name, "from": before, "to": less},
            )  # fmt: skip


def _largest_requests(job: Job, found: Why) -> dict[str, int]:
    """What the largest pod asks for of each resource that is lacking; of all, where it is quota that is lacking.

    Pods of several roles that are not made yet are only guessed to be alike, so nothing is said of one of them.
    """
    if len(job.spec.role_minimums) > 1 and found.refusal is not None and not found.statuses:
        return {}
    if found.lacks or found.refusal is None:
        return {lack.resource: lack.each for lack in found.lacks}
    requests = [task.spec.request for task in job.pending()]
    names = sorted({name for request in requests for name in request})
    return {name: max(request.get(name, 0) for request in requests) for name in names}


def _smaller_minimum(rehearsal: Rehearsal, job: Job) -> Iterator[Remedy]:
    least = job.spec.min_available
    if job.ready_count >= least:
        return  # it has its minimum and would grow

    def fits(count: int) -> bool:
        with rehearsal.changed(job.uid, min_available=count) as changed:
            return would_start(rehearsal, changed)

    best = largest(fits, least - 1)
    if best:
        yield Remedy(
            change="SmallerMinimum", sentence=f"lower minAvailable from {least} to {best}",
            details={"from": least, "to": best},
        )  # fmt: skip


def _no_demands(rehearsal: Rehearsal, job: Job) -> Iterator[Remedy]:
    def relaxed(constraints: Constraints) -> Constraints:
        return replace(constraints, selector=(), node_affinity=None)

    if not any(task.spec.constraints.selector or task.spec.constraints.node_affinity for task in job.pending()):
        return
    with rehearsal.changed(job.uid, relaxed=relaxed) as changed:
        helps = would_start(rehearsal, changed)
    if helps:
        yield Remedy(change="NoNodeDemands", sentence="take nodeSelector and required node affinity off the pods")


def _wider_topology(rehearsal: Rehearsal, job: Job) -> Iterator[Remedy]:
    """The next tier that is wide enough, or a wish in place of a demand."""
    wish = job.spec.closeness
    if wish is None or not wish.is_hard:
        return
    top = max(rehearsal.cluster.topology.tree().tiers)
    for tier in range(wish.highest_tier + 1, top + 1) if wish.highest_tier is not None else ():
        with rehearsal.changed(job.uid, closeness=replace(wish, highest_tier=tier)) as changed:
            helps = would_start(rehearsal, changed)
        if helps:
            yield Remedy(
                change="WiderTopology",
                sentence=f"raise networkTopology.highestTierAllowed from {wish.highest_tier} to {tier}",
                details={"from": wish.highest_tier, "to": tier},
            )
            return
    with rehearsal.changed(job.uid, closeness=replace(wish, is_hard=False)) as changed:
        helps = would_start(rehearsal, changed)
    if helps:
        yield Remedy(change="SoftTopology", sentence="make networkTopology.mode soft: pods as close as there is room")


def _another_queue(rehearsal: Rehearsal, job: Job) -> Iterator[Remedy]:
    """The first other queue in which the job would start."""
    queues = rehearsal.cluster.queues
    others = sorted(
        name for name, queue in queues.items() if queue.is_open and name not in (job.spec.queue, ROOT_QUEUE)
    )
    for name in others[:MOST_QUEUES]:
        with rehearsal.changed(job.uid, queue=name) as changed:
            helps = would_start(rehearsal, changed)
        if helps:
            sentence = f'submit it to queue "{name}" instead of "{job.spec.queue}"'
            yield Remedy(change="AnotherQueue", sentence=sentence, details={"from": job.spec.queue, "to": name})
            return
