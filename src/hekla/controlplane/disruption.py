"""Reconciles PodDisruptionBudget: how many of its pods may go at this moment. The eviction call asks its status.

allowed = max(0, healthy - desired)      desired from minAvailable, or expected - maxUnavailable
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.policy import PodDisruptionBudget
from hekla.controlplane.pod_state import has_ended, is_leaving, is_ready
from hekla.controlplane.selecting import resolve, selects
from hekla.controlplane.statuses import conditions_of, new_condition, set_status
from hekla.controlplane.views import Deployment, Job, ReplicaSet, StatefulSet
from hekla.kube.commands import Command, RequeueAfter
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339

DISRUPTION_PATIENCE = timedelta(minutes=2)
"""An evicted pod that is still there after this will not go; it counts as healthy again."""


def _budgets_of(pod: Pod, world: World) -> Iterator[tuple[str, str]]:
    """The budgets that select a pod."""
    for budget in world.list(PodDisruptionBudget, pod.metadata.namespace):
        if selects(budget.spec.selector, pod.metadata.labels):
            yield budget.metadata.namespace, budget.metadata.name


@reconciler(
    PodDisruptionBudget,
    reads=(ReplicaSet, Deployment, StatefulSet, Job),
    finds={Pod: _budgets_of},
    name="disruption",
)
def reconcile_disruption_budget(budget: PodDisruptionBudget, world: World, now: datetime) -> Iterator[Command]:
    """Count healthy pods and say how many may be evicted."""
    pods = [
        pod for pod in world.list(Pod, budget.metadata.namespace)
        if selects(budget.spec.selector, pod.metadata.labels) and not has_ended(pod)
    ]  # fmt: skip
    disrupted = _still_disrupted(budget, pods, now)
    healthy = sum(is_ready(pod) and not is_leaving(pod) and pod.metadata.name not in disrupted for pod in pods)
    expected = _expected(budget, pods, world)
    desired = _desired(budget, expected)
    allowed = max(0, healthy - desired) if expected else 0
    yield from set_status(budget, _status(budget, healthy, expected, desired, allowed, disrupted, now))
    if disrupted:
        yield RequeueAfter(DISRUPTION_PATIENCE.total_seconds())


def _still_disrupted(budget: PodDisruptionBudget, pods: Sequence[Pod], now: datetime) -> dict[str, str]:
    present = {pod.metadata.name for pod in pods if not is_leaving(pod)}
    return {
        name: at for name, at in budget.status.disrupted_pods.items()
        if name in present and (parse_rfc3339(at) or now) + DISRUPTION_PATIENCE > now
    }  # fmt: skip


def _desired(budget: PodDisruptionBudget, expected: int) -> int:
    if budget.spec.max_unavailable is not None:
        return max(0, expected - resolve(budget.spec.max_unavailable, expected, round_up=True))
    return resolve(budget.spec.min_available, expected, round_up=True)


def _expected(budget: PodDisruptionBudget, pods: Sequence[Pod], world: World) -> int:
    """How many pods there should be: of a plain number all that match, else what their controllers want."""
    if budget.spec.max_unavailable is None and isinstance(budget.spec.min_available, int):
        return len(pods)
    scales: dict[str, int] = {}
    free = 0
    for pod in pods:
        owner = next((one for one in pod.metadata.owner_references if one.controller), None)
        if owner is None:
            free += 1
            continue
        scales.setdefault(owner.uid, _scale(owner.kind, pod.metadata.namespace, owner.name, world))
    return sum(scales.values()) + free


def _scale(kind: str, namespace: str, name: str, world: World) -> int:
    if kind == "ReplicaSet":
        replica_set = world.get(ReplicaSet, namespace, name)
        if replica_set is None:
            return 0
        owner = next((one for one in replica_set.metadata.owner_references if one.controller), None)
        deployment = world.get(Deployment, namespace, owner.name) if owner and owner.kind == "Deployment" else None
        return _replicas((deployment or replica_set).spec.replicas)
    if kind == "StatefulSet":
        stateful_set = world.get(StatefulSet, namespace, name)
        return _replicas(stateful_set.spec.replicas) if stateful_set else 0
    if kind == "Job":
        job = world.get(Job, namespace, name)
        return _replicas(job.spec.parallelism) if job else 0
    return 1


def _replicas(value: int | None) -> int:
    return 1 if value is None else value


def _status(
    budget: PodDisruptionBudget,
    healthy: int,
    expected: int,
    desired: int,
    allowed: int,
    disrupted: dict[str, str],
    now: datetime,
) -> Document:
    said = ("True", "SufficientPods") if allowed > 0 else ("False", "InsufficientPods")
    generation = budget.metadata.generation
    old = conditions_of(budget).get("DisruptionAllowed")
    condition = new_condition("DisruptionAllowed", *said, "", now, old, observedGeneration=generation)
    # A merge patch keeps keys that it does not name, so those that are gone must be said to be.
    gone: dict[str, str | None] = dict.fromkeys(budget.status.disrupted_pods)
    return {
        "observedGeneration": generation,
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptedPods": (gone | disrupted) or None,
        "conditions": [condition],
    }
