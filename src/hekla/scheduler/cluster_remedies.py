"""What could change in the cluster so that a waiting job starts: running jobs end, nodes come, a queue may take more.

`remedies.py` asks, and has what could change in the job itself.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hekla.placement.amounts import told
from hekla.placement.columns import NodeSpec
from hekla.placement.explain import open_rows
from hekla.placement.model import Job, JobPhase
from hekla.placement.queue import Queue
from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.explain import Why, would_start
from hekla.scheduler.sentences import job_told_to

MOST_ENDS = 16
"""Running jobs whose end is tried."""

MOST_TOGETHER = 8
"""Running jobs that are looked at as a set to be evicted."""

MOST_NODES = 16
MOST_WEIGHT = 64
"""By how much at most a weight is raised."""

HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change with which the job would start."""

    change: str
    """What sort of change, for programs: `EndOf`, `Evict`, `MoreNodes`, `MoreQuota`, `MoreWeight`, or one of `remedies.py`."""

    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """The change for programs."""


def cluster_remedies(rehearsal: Rehearsal, job: Job, found: Why, may_see: Callable[[str], bool]) -> Iterator[Remedy]:
    """What would help, the cheapest of each sort; jobs of namespaces that may not be seen are not named."""
    ends = list(_end_of(rehearsal, job, found, may_see))
    yield from ends or _evict_some(rehearsal, job, found, may_see)
    yield from _more_nodes(rehearsal, job, found)
    yield from _more_quota(rehearsal, job)


def _end_of(rehearsal: Rehearsal, job: Job, found: Why, may_see: Callable[[str], bool]) -> Iterator[Remedy]:
    """The end of the running job that holds least among those whose end is enough."""
    lacks = [lack.resource for lack in found.lacks] or list(job.spec.min_resources or ())
    for other in _holders(rehearsal, job, found):
        with rehearsal.without(other.uid):
            helps = would_start(rehearsal, job)
        if helps:
            name = job_told_to(other, may_see)
            holding = {lack: told(lack, other.holding[lack]) for lack in lacks if other.holding.get(lack)}
            held = ", ".join(f"{amount} {lack}" for lack, amount in holding.items())
            yield Remedy(
                change="EndOf", sentence=f"wait for {name} to end" + (f", which holds {held}" if held else ""),
                details={"job": name, "holds": holding},
            )  # fmt: skip
            return


def _evict_some(rehearsal: Rehearsal, job: Job, found: Why, may_see: Callable[[str], bool]) -> Iterator[Remedy]:
    """Where the end of no single job is enough: a few of lower priority, without any that is not needed."""
    lower = [other for other in rehearsal.cluster.jobs.values() if _may_give_way(other, job)]
    wanted = [lack.resource for lack in found.lacks] or list(job.spec.min_resources or ())
    useful = [other for other in lower if any(other.holding.get(name) for name in wanted)]
    useful.sort(key=lambda other: (other.spec.priority, sum(-other.holding.get(name, 0) for name in wanted), other.key))
    chosen = useful[:MOST_TOGETHER]
    if not _helps_without(rehearsal, job, chosen):
        return
    for other in list(chosen):  # those of least priority first: they stay only if it starts without their going
        rest = [one for one in chosen if one is not other]
        if _helps_without(rehearsal, job, rest):
            chosen = rest
    names = [job_told_to(other, may_see) for other in chosen]
    totals = {name: told(name, sum(other.holding.get(name, 0) for other in chosen)) for name in wanted}
    held = ", ".join(f"{amount} {name}" for name, amount in totals.items())
    yield Remedy(
        change="Evict", sentence=f"evict {_listed(names)}, which hold {held}", details={"jobs": names, "hold": totals}
    )


def _may_give_way(other: Job, job: Job) -> bool:
    return other is not job and other.ready_count > 0 and other.spec.priority < job.spec.priority


def _helps_without(rehearsal: Rehearsal, job: Job, others: list[Job]) -> bool:
    if not others:
        return False
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(rehearsal.without(other.uid))
        return would_start(rehearsal, job)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _holders(rehearsal: Rehearsal, job: Job, found: Why) -> list[Job]:
    """Jobs that hold what is lacking, those who hold little first; the few that hold most are tried at last."""
    lacks = {lack.resource: max(lack.needed - lack.free, 1) for lack in found.lacks}
    wanted = lacks or dict.fromkeys(job.spec.min_resources or {"pods": 1}, 1)
    others = (other for other in rehearsal.cluster.jobs.values() if other is not job and other.ready_count)
    enough = [
        other for other in others
        if any(other.holding.get(name, 0) >= least for name, least in wanted.items())
    ]  # fmt: skip
    first = next(iter(wanted))
    enough.sort(key=lambda other: (other.holding.get(first, 0), other.key))
    return enough if len(enough) <= MOST_ENDS else [*enough[: MOST_ENDS - 4], *enough[-4:]]


def _more_nodes(rehearsal: Rehearsal, job: Job, found: Why) -> Iterator[Remedy]:
    """As many more as it takes of the node that has most of what is lacking."""
    name, missing = _most_lacking(rehearsal, job, found)
    nodes, task = rehearsal.cluster.nodes, next(job.pending(), None)
    if name not in nodes.resources:
        return
    rows = np.ones(nodes.rows, np.bool_) if task is None else open_rows(rehearsal.policy, task)
    has = np.where(rows, nodes.allocatable[nodes.resources[name]], 0)
    largest_node = int(has.max(initial=0))
    model = nodes.specs[int(has.argmax())] if largest_node else None
    if model is None:
        return
    for count in range(1, MOST_NODES + 1):
        if count * largest_node < missing:
            continue
        specs = [_another(model, number) for number in range(count)]
        with rehearsal.with_nodes(specs):
            helps = would_start(rehearsal, job)
        if helps:
            noun = "one more node" if count == 1 else f"{count} more nodes"
            amount = f"{told(name, largest_node)} {name}"
            yield Remedy(
                change="MoreNodes", sentence=f"add {noun} like {model.name} ({amount}{' each' if count > 1 else ''})",
                details={"like": model.name, "count": count},
            )  # fmt: skip
            return
        if count * largest_node >= 2 * max(missing, largest_node):
            return


def _most_lacking(rehearsal: Rehearsal, job: Job, found: Why) -> tuple[str, int]:
    """The resource of which most is missing, and how much at least: of one that waits to be let in, by its minimum."""
    if found.lacks:
        lack = found.lacks[0]
        return lack.resource, lack.needed - lack.free
    minimum, nodes = job.spec.min_resources or {}, rehearsal.cluster.nodes
    if job.phase is not JobPhase.PENDING or not minimum:
        return "", 0
    total = nodes.totals()
    short = {name: (amount + nodes.total_used(name)) / max(total.get(name, 0), 1) for name, amount in minimum.items()}
    return max(sorted(short), key=short.__getitem__), 1


def _another(model: NodeSpec, number: int) -> NodeSpec:
    """A node like another, empty and with a name of its own."""
    name = f"{model.name}-another-{number}"
    labels = {**model.labels, HOSTNAME: name} if HOSTNAME in model.labels else model.labels
    return replace(model, name=name, labels=labels)


def _more_quota(rehearsal: Rehearsal, job: Job) -> Iterator[Remedy]:
    """The smallest raise of one limit of its queue, or of one above; else of the queue's weight."""
    for queue in _queues_up(rehearsal, job):
        for name in sorted(queue.capability.keys() & _asked_by(job).keys()):
            if raised := _smallest_limit(rehearsal, job, queue, name):
                before, after = told(name, queue.capability[name]), told(name, raised)
                yield Remedy(
                    change="MoreQuota", sentence=f'raise the capability of queue "{queue.name}" from {before} to {after} {name}',
                    details={"queue": queue.name, "resource": name, "from": before, "to": after},
                )  # fmt: skip
                return
    own = rehearsal.cluster.queues.get(job.spec.queue)
    if own is not None and (weight := _smallest_weight(rehearsal, job, own)):
        yield Remedy(
            change="MoreWeight", sentence=f'raise the weight of queue "{own.name}" from {own.weight} to {weight}',
            details={"queue": own.name, "from": own.weight, "to": weight},
        )  # fmt: skip


def _queues_up(rehearsal: Rehearsal, job: Job) -> Iterator[Queue]:
    queues, name, seen = rehearsal.cluster.queues, job.spec.queue, set[str]()
    while name in queues and name not in seen:
        seen.add(name)
        yield queues[name]
        name = queues[name].parent


def _asked_by(job: Job) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for task in job.pending():
        total.update(task.shape.request)
    return total or job.spec.min_resources or {}


def _smallest_limit(rehearsal: Rehearsal, job: Job, queue: Queue, name: str) -> int:
    """The smallest limit above the present one with which the job would start; 0 if none is enough."""
    limit, most = queue.capability[name], _asked_by(job)[name]

    def helps(more: int) -> bool:
        with rehearsal.with_queue(replace(queue, capability={**queue.capability, name: limit + more})):
            return would_start(rehearsal, job)

    if most <= 0 or not helps(most):
        return 0
    spared = largest(lambda less: helps(most - less), most)
    return limit + most - spared if spared < most else 0  # without any raise: it is not the limit that holds it back


def _smallest_weight(rehearsal: Rehearsal, job: Job, queue: Queue) -> int:
    def helps(weight: int) -> bool:
        with rehearsal.with_queue(replace(queue, weight=weight)):
            return would_start(rehearsal, job)

    if would_start(rehearsal, job) or not helps(queue.weight * MOST_WEIGHT):
        return 0
    spare = queue.weight * MOST_WEIGHT - queue.weight
    return queue.weight * MOST_WEIGHT - largest(lambda less: helps(queue.weight * MOST_WEIGHT - less), spare)


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, taken that smaller ones fit too; 0 if not even 1 does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
