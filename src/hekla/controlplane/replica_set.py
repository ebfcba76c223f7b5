"""Reconciles ReplicaSet: keeps `spec.replicas` pods of one template. `deployment.py` makes and scales replica sets."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.controlplane.owning import claim, claimed, delete_surplus
from hekla.controlplane.pod_state import available_in_s, is_active, is_leaving, is_ready, surplus_order
from hekla.controlplane.statuses import conditions_of, new_condition, set_status
from hekla.controlplane.templates import pod_document
from hekla.controlplane.views import ReplicaSet
from hekla.kube.commands import Command, Create, Delete, Event, RequeueAfter, target_of
from hekla.kube.reconcile import World, reconciler

FAILURE = "ReplicaFailure"
"""The condition of a set whose pods, or their deletions, are refused, which its deployment repeats."""

MAX_BURST = 500
"""Pods made or deleted in one go; the next round continues."""


REFUSALS: Mapping[type[Command], str] = {Create: "FailedCreate", Delete: "FailedDelete"}
"""What the condition says by what was refused; of an adoption or a status it says nothing, as in Kubernetes."""


def tell_refusal(replica_set: ReplicaSet, refused: Command, why: str, world: World, now: datetime) -> Iterator[Command]:
    """Say that pods are refused, or their deletion. The first reason stays until a round goes through: each try has
    another name in it.
    """
    reason = REFUSALS.get(type(refused))
    if reason is None:
        return
    if reason == "FailedDelete":  # of a creation the executor tells
        yield Event(target_of(replica_set), reason, f"Error deleting: {why}", "Warning")
    pods = claimed(replica_set, replica_set.spec.selector, Pod, world)
    active = [pod for pod in pods if is_active(pod)]
    status = _status(replica_set, pods, active, now)
    failure = conditions_of(replica_set).get(FAILURE)
    if failure is None:
        failure = new_condition(FAILURE, "True", reason, why, now, None)
    status["conditions"] = [*(status["conditions"] or ()), failure]
    yield from set_status(replica_set, status)


@reconciler(ReplicaSet, owns=(Pod,), name="replicaset", when_refused=tell_refusal)
def reconcile_replica_set(replica_set: ReplicaSet, world: World, now: datetime) -> Iterator[Command]:
    """Make missing pods, delete surplus ones, and say how many there are."""
    spec = replica_set.spec
    yield from claim(replica_set, spec.selector, Pod, world)
    pods = claimed(replica_set, spec.selector, Pod, world)
    active = [pod for pod in pods if is_active(pod)]
    status = _status(replica_set, pods, active, now)
    if not replica_set.metadata.deletion_timestamp:
        yield from _scale(replica_set, active)
    yield from set_status(replica_set, status)
    yield from wait_for_available(active, spec.min_ready_seconds, now)


def _scale(replica_set: ReplicaSet, active: Sequence[Pod]) -> Iterator[Command]:
    missing = wanted_replicas(replica_set) - len(active)
    for _ in range(min(missing, MAX_BURST)):
        yield Create(Pod, pod_document(replica_set, replica_set.spec.template), is_announced=True)
    if missing < 0:
        surplus = sorted(active, key=surplus_order)[: min(-missing, MAX_BURST)]
        yield from delete_surplus(replica_set, surplus, "more pods than spec.replicas")


def wanted_replicas(replica_set: ReplicaSet) -> int:
    """How many pods it should have."""
    return 1 if replica_set.spec.replicas is None else replica_set.spec.replicas


def _status(replica_set: ReplicaSet, pods: Sequence[Pod], active: Sequence[Pod], now: datetime) -> Document:
    template_labels = ((replica_set.spec.template.get("metadata") or {}).get("labels") or {}).items()
    min_ready_s = replica_set.spec.min_ready_seconds
    return {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(template_labels <= pod.metadata.labels.items() for pod in active) or None,
        "readyReplicas": sum(is_ready(pod) for pod in active) or None,
        "availableReplicas": sum(available_in_s(pod, min_ready_s, now) == 0 for pod in active) or None,
        "terminatingReplicas": sum(is_leaving(pod) for pod in pods),
        "observedGeneration": replica_set.metadata.generation,
        # who gets here has made what was missing
        "conditions": [one for kind, one in conditions_of(replica_set).items() if kind != FAILURE] or None,
    }


def wait_for_available(active: Sequence[Pod], min_ready_s: int, now: datetime) -> Iterator[Command]:
    """Look again when the next ready pod will have been ready for long enough."""
    waits = [wait_s for pod in active if (wait_s := available_in_s(pod, min_ready_s, now))]
    if waits:
        yield RequeueAfter(min(waits) + 0.1)
