"""What would let a waiting job start: the smallest single change of each sort, each tried before it is offered.

to the job      fewer resources per pod, a smaller minimum, no demands on nodes
to the cluster  the end of one running job, a few more nodes of a sort that is there

A change is tried as if it were the job's turn. The number of trials is bounded, so that the answer is quick on any
cluster: what is not found within it is not offered.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hekla.placement.amounts import told
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints
from hekla.placement.explain import open_rows
from hekla.placement.model import Job
from hekla.placement.plugins.gang import NOT_ENOUGH_OF_ROLE
from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.explain import Why, would_start

MOST_ENDS = 16
"""Running jobs whose end is tried."""

MOST_NODES = 16
STEPS = {"cpu": 100, "memory": 64 << 20}
"""In which steps amounts are lowered; other resources one by one."""

HOSTNAME = "kubernetes.io/hostname"
_NO_REMEDY = frozenset({"QueueNotFound", "QueueNotOpen", "SchedulingGated", NOT_ENOUGH_OF_ROLE})
"""Refusals that say themselves what to do."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change with which the job would start."""

    change: str
    """`FewerPerPod`, `SmallerMinimum`, `NoNodeDemands`, `EndOf` or `MoreNodes`."""

    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """The change for programs."""


def remedies(rehearsal: Rehearsal, uid: str, found: Why, *, may_see: Callable[[str], bool]) -> tuple[Remedy, ...]:
    """What would help; nothing for a job that fits. `may_see` says of which namespaces jobs may be named."""
    if found.fits or not found.is_waiting or (found.refusal is not None and found.refusal.code in _NO_REMEDY):
        return ()
    job = rehearsal.job(uid)
    return (
        *_fewer_per_pod(rehearsal, job, found), *_smaller_minimum(rehearsal, job), *_no_demands(rehearsal, job),
        *_end_of(rehearsal, job, found, may_see), *_more_nodes(rehearsal, job, found),
    )  # fmt: skip


def _fewer_per_pod(rehearsal: Rehearsal, job: Job, found: Why) -> Iterator[Remedy]:
    for lack in found.lacks:
        step, name = STEPS.get(lack.resource, 1), lack.resource

        def fits(count: int, name: str = name, step: int = step) -> bool:
            with rehearsal.changed(job.uid, at_most={name: count * step}) as changed:
                return would_start(rehearsal, changed)

        best = _largest(fits, (lack.each - 1) // step) * step
        if best:
            each, less = told(name, lack.each), told(name, best)
            yield Remedy(
                change="FewerPerPod", sentence=f"ask for {less} {name} per pod instead of {each}",
                details={"resource": name, "from": each, "to": less},
            )  # fmt: skip


def _smaller_minimum(rehearsal: Rehearsal, job: Job) -> Iterator[Remedy]:
    least = job.spec.min_available

    def fits(count: int) -> bool:
        with rehearsal.changed(job.uid, min_available=count) as changed:
            return would_start(rehearsal, changed)

    best = _largest(fits, least - 1)
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


def _end_of(rehearsal: Rehearsal, job: Job, found: Why, may_see: Callable[[str], bool]) -> Iterator[Remedy]:
    """The end of the running job that holds least among those whose end is enough."""
    lacks = [lack.resource for lack in found.lacks] or list(job.spec.min_resources or ())
    for other in _holders(rehearsal, job, found):
        with rehearsal.without(other.uid):
            helps = would_start(rehearsal, job)
        if helps:
            name = other.key if may_see(other.spec.namespace) else "a job of another namespace"
            holding = {lack: told(lack, other.holding[lack]) for lack in lacks if other.holding.get(lack)}
            held = ", ".join(f"{amount} {lack}" for lack, amount in holding.items())
            yield Remedy(
                change="EndOf", sentence=f"wait for {name} to end" + (f", which holds {held}" if held else ""),
                details={"job": name, "holds": holding},
            )  # fmt: skip
            return


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
    task = next(job.pending(), None)
    if not found.lacks or task is None:
        return
    lack, nodes = found.lacks[0], rehearsal.cluster.nodes
    has = np.where(open_rows(rehearsal.policy, task), nodes.allocatable[nodes.resources[lack.resource]], 0)
    model = nodes.specs[int(has.argmax())] if has.any() else None
    if model is None:
        return
    for count in range(1, MOST_NODES + 1):
        if count * lack.largest < lack.needed - lack.free:
            continue
        specs = [_another(model, number) for number in range(count)]
        with rehearsal.with_nodes(specs):
            helps = would_start(rehearsal, job)
        if helps:
            noun = "one more node" if count == 1 else f"{count} more nodes"
            amount = f"{told(lack.resource, lack.largest)} {lack.resource}"
            yield Remedy(
                change="MoreNodes", sentence=f"add {noun} like {model.name} ({amount}{' each' if count > 1 else ''})",
                details={"like": model.name, "count": count},
            )  # fmt: skip
            return
        if count * lack.largest >= 2 * lack.needed:
            return


def _another(model: NodeSpec, number: int) -> NodeSpec:
    """A node like another, empty and with a name of its own."""
    name = f"{model.name}-another-{number}"
    labels = {**model.labels, HOSTNAME: name} if HOSTNAME in model.labels else model.labels
    return replace(model, name=name, labels=labels)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, taken that smaller ones fit too; 0 if not even 1 does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
