"""What /metrics says about the cluster as it stands: queues, waiting jobs, and how broken up the free room is.

Read when somebody asks, so it costs the cycles nothing. `metrics.py` has what is counted as it happens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import Metric

from hekla.kube.measured import Family, Labels, metric
from hekla.placement.cluster import Cluster
from hekla.placement.model import Job, JobPhase, TaskStatus
from hekla.placement.plugins.capacity import Capacity
from hekla.placement.plugins.proportion import Proportion
from hekla.placement.plugins.usage import VALID_S
from hekla.placement.queue import Queue
from hekla.placement.session import Session
from hekla.quota.amounts import added
from hekla.quota.fairness import dominant_share, use_of

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

Amounts = Mapping[str, int]

QUEUE = ("queue_name",)
AMOUNTS = {
    "allocated": "holds", "request": "asks for, what it holds included", "deserved": "deserves",
    "capacity": "may hold at most, as written", "real_capacity": "may hold at most, as queues above and guarantees leave it",
    "inqueue": "has promised to jobs that are in and do not run yet",
}  # fmt: skip
_UNITS = {"milli_cpu": "CPU, in thousandths", "memory_bytes": "Memory, in bytes", "scalar_resources": "Any other resource, in thousandths, pods, hugepages and ephemeral storage in ones,"}  # fmt: skip
QUEUE_AMOUNTS = {
    (what, unit): Family(
        f"volcano_queue_{what}_{unit}", "gauge", f"{told} that a queue {says}.",
        ("queue_name", "resource") if unit == "scalar_resources" else QUEUE,
    )
    for what, says in AMOUNTS.items()
    for unit, told in _UNITS.items()
}  # fmt: skip
QUEUE_SHARE = Family(
    "volcano_queue_share",
    "gauge",
    "The part of what it deserves that a queue holds, in the resource of which it holds most.",
    QUEUE,
)
QUEUE_WEIGHT = Family("volcano_queue_weight", "gauge", "A queue's weight.", QUEUE)
QUEUE_OVERUSED = Family(
    "volcano_queue_overused", "gauge", "1 where a queue holds all that it deserves and asks for more.", QUEUE
)
PHASES = {
    phase: Family(f"volcano_queue_pod_group_{phase.lower()}_count", "gauge", f"PodGroups of a queue in the phase {phase}.", QUEUE)
    for phase in JobPhase
}  # fmt: skip
JOB_SHARE = Family(
    "volcano_job_share",
    "gauge",
    "A job's dominant share: the largest part of any resource that it holds.",
    ("job_ns", "job_id"),
)
UNPLACED_PODS = Family(
    "volcano_unschedule_task_count",
    "gauge",
    "Pods of a job that wait for nodes and did not fit when last tried.",
    ("job_id",),
)
UNPLACED_JOBS = Family("volcano_unschedule_job_count", "gauge", "Jobs that did not fit when last tried.")

WAITING = Family(
    "hekla_waiting_jobs",
    "gauge",
    "Jobs that wait, by the main reason of the last attempt (`untried` before the first).",
    ("queue", "reason"),
)
WAITING_PODS = Family("hekla_waiting_pods", "gauge", "Pods that wait for nodes.", ("queue",))
STARVATION = Family(
    "hekla_starvation_age_seconds",
    "gauge",
    "How long the job that has waited longest has done so without a single node.",
    ("queue",),
)
IDLE = Family(
    "hekla_idle_amount",
    "gauge",
    "What is idle on nodes that may be used, in base units (cpu in thousandths, memory in bytes).",
    ("resource",),
)
WHOLE = Family("hekla_idle_nodes", "gauge", "Usable nodes of which the whole resource is idle.", ("resource",))
FRAGMENTATION = Family(
    "hekla_fragmentation_ratio",
    "gauge",
    "The part of what is idle that lies on nodes partly in use: 0 where every idle node is whole, 1 where none is.",
    ("resource",),
)
EVICTING = Family("hekla_releasing_pods", "gauge", "Pods that are ending and still hold their nodes.")
NOMINATED = Family("hekla_nominated_pods", "gauge", "Pods that wait for room that others are giving up.")
NODES = Family("hekla_nodes", "gauge", "Nodes that the scheduler knows, by whether they may be used.", ("state",))
MEASURED = Family(
    "hekla_node_usage_nodes",
    "gauge",
    "Nodes by what is known of their use: fresh, old (more than 5 min, not believed), or missing.",
    ("state",),
)

GAUGES = (
    *QUEUE_AMOUNTS.values(), QUEUE_SHARE, QUEUE_WEIGHT, QUEUE_OVERUSED, *PHASES.values(), JOB_SHARE, UNPLACED_PODS,
    UNPLACED_JOBS, WAITING, WAITING_PODS, STARVATION, IDLE, WHOLE, FRAGMENTATION, EVICTING, NOMINATED, NODES,
    MEASURED,
)  # fmt: skip


def read_gauges(scheduler: "BatchScheduler", reasons: Mapping[str, str], *, most_jobs: int) -> Iterator[Metric]:
    """All gauges, as the cluster stands now."""
    wall_s = scheduler.wall_s()
    session = Session(scheduler.policy, now=scheduler.now_s(), wall_s=wall_s)
    yield from _queues(session)
    yield from _phases(session.cluster)
    yield from _jobs(session.cluster, reasons, wall_s, most_jobs)
    yield from _room(session.cluster)
    yield metric(MEASURED, _measured(session.cluster, wall_s))


def _queues(session: Session) -> Iterator[Metric]:
    values: dict[Family, dict[Labels, float]] = {family: {} for family in QUEUE_AMOUNTS.values()}
    shares: dict[Labels, float] = {}
    queues = session.cluster.queues
    for name, queue in queues.items():
        account = session.cluster.ledger.of(name)
        deserved, ceiling = _owned(session, queue)
        shares[(name,)] = use_of(account.held, deserved)
        told: dict[str, Amounts] = {
            "allocated": account.held, "request": account.asked, "deserved": deserved, "capacity": queue.capability,
            "real_capacity": ceiling,
            "inqueue": added((session.entered.in_queue(name), session.entered.kept_in(name))),
        }  # fmt: skip
        for what, amounts in told.items():
            _spread_out(values, what, name, amounts)
    yield from (metric(family, told) for family, told in values.items())
    yield metric(QUEUE_SHARE, shares)
    yield metric(QUEUE_WEIGHT, {(name,): queue.weight for name, queue in queues.items()})
    yield metric(QUEUE_OVERUSED, {(name,): session.is_overused(queue) for name, queue in queues.items()})


def _owned(session: Session, queue: Queue) -> tuple[Amounts, Amounts]:
    """(deserved, ceiling) of a queue, by whichever quota plug-in is at work; as written, without one."""
    for plugin in session.policy.plugins:
        if isinstance(plugin, Proportion):
            shares = session.opened(plugin)
            return shares.deserved.get(queue.name, {}), shares.tree.shares[queue.name].ceiling
        if isinstance(plugin, Capacity):
            share = session.opened(plugin).shares.get(queue.name)
            return (share.deserved, share.ceiling) if share is not None else ({}, {})
    return queue.deserved, queue.capability


def _spread_out(values: dict[Family, dict[Labels, float]], what: str, queue: str, amounts: Amounts) -> None:
    """Amounts over the three families that Volcano has for them, in its units."""
    for resource, amount in amounts.items():
        if resource == "cpu":
            values[QUEUE_AMOUNTS[what, "milli_cpu"]][(queue,)] = amount
        elif resource == "memory":
            values[QUEUE_AMOUNTS[what, "memory_bytes"]][(queue,)] = amount
        else:
            is_whole = resource in {"pods", "ephemeral-storage"} or resource.startswith("hugepages-")
            scale = 1 if is_whole else 1000
            values[QUEUE_AMOUNTS[what, "scalar_resources"]][(queue, resource)] = amount * scale


def _phases(cluster: Cluster) -> Iterator[Metric]:
    for phase, family in PHASES.items():
        counts: Counter[Labels] = Counter({(name,): 0 for name in cluster.queues})
        counts.update((job.spec.queue,) for job in cluster.lines.by_phase[phase].values())
        yield metric(family, counts)


def _jobs(cluster: Cluster, reasons: Mapping[str, str], wall_s: float, most: int) -> Iterator[Metric]:
    """About the jobs that wait. Series of single jobs are for those that have waited longest."""
    waiting = sorted(_waiting(cluster), key=lambda job: (job.spec.created, job.uid))
    unplaced = [job for job in waiting if job.failed_at >= 0 and job.wants_more]
    yield metric(UNPLACED_JOBS, {(): len(unplaced)})
    yield metric(UNPLACED_PODS, {(job.key,): job.statuses[TaskStatus.PENDING] for job in unplaced[:most]})
    totals = cluster.nodes.totals()
    holding = islice((job for job in cluster.jobs.values() if job.spec.has_group and job.held), most)
    yield metric(JOB_SHARE, {(job.spec.namespace, job.key): dominant_share(job.held, totals) for job in holding})
    why: Counter[Labels] = Counter()
    pods: Counter[Labels] = Counter({(name,): 0 for name in cluster.queues})
    ages: dict[Labels, float] = {(name,): 0.0 for name in cluster.queues}
    for job in waiting:
        queue = (job.spec.queue,)
        why[(*queue, reasons.get(job.uid, "untried"))] += 1
        pods[queue] += job.statuses[TaskStatus.PENDING]
        if not job.ready_count:
            ages[queue] = max(ages.get(queue, 0.0), wall_s - job.spec.created)
    yield metric(WAITING, why)
    yield metric(WAITING_PODS, pods)
    yield metric(STARVATION, ages)


def _waiting(cluster: Cluster) -> list[Job]:
    jobs = dict(cluster.lines.for_nodes)
    jobs.update(cluster.lines.by_phase[JobPhase.PENDING])
    return list(jobs.values())


def _room(cluster: Cluster) -> Iterator[Metric]:
    """How much is idle where, and in how large pieces."""
    nodes = cluster.nodes
    usable = nodes.is_live & nodes.is_ready & nodes.is_schedulable
    idle: dict[Labels, float] = {}
    whole: dict[Labels, float] = {}
    broken: dict[Labels, float] = {}
    for name, index in nodes.asked_resources():
        allocatable = nodes.allocatable[index]
        has = usable & (allocatable > 0)
        if not has.any():
            continue
        free = np.maximum(nodes.idle[index], 0).astype(np.float64)
        is_whole = has & (nodes.used[index] == 0)
        total = float(free[has].sum())
        idle[(name,)], whole[(name,)] = total, int(is_whole.sum())
        broken[(name,)] = 1.0 - float(free[is_whole].sum()) / total if total else 0.0
    yield metric(IDLE, idle)
    yield metric(WHOLE, whole)
    yield metric(FRAGMENTATION, broken)
    count = int(usable.sum())
    yield metric(NODES, {("usable",): count, ("other",): len(nodes) - count})
    statuses: Counter[TaskStatus] = Counter()
    for job in cluster.jobs.values():
        statuses[TaskStatus.RELEASING] += job.statuses[TaskStatus.RELEASING]
        statuses[TaskStatus.PIPELINED] += job.statuses[TaskStatus.PIPELINED]
    yield metric(EVICTING, {(): statuses[TaskStatus.RELEASING]})
    yield metric(NOMINATED, {(): statuses[TaskStatus.PIPELINED]})


def _measured(cluster: Cluster, wall_s: float) -> dict[Labels, float]:
    """Nodes by the age of what is known of their use; nothing where nobody measures."""
    known, names = cluster.nodes.usages.known, cluster.nodes.row_of
    if not known:
        return {}
    ages = [wall_s - known[name].at_s if name in known else None for name in names]
    states = Counter("missing" if age is None else "fresh" if age <= VALID_S else "old" for age in ages)
    return {(state,): float(states[state]) for state in ("fresh", "old", "missing")}
