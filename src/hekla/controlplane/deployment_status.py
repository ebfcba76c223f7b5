"""What a deployment says of itself: counts, and the conditions Available and Progressing that `rollout status` reads."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from hekla.api.meta import Document
from hekla.controlplane.replica_set import FAILURE
from hekla.controlplane.rollout import bounds
from hekla.controlplane.statuses import conditions_of, new_condition
from hekla.controlplane.views import Deployment, ReplicaSet
from hekla.kube.commands import RequeueAfter
from hekla.kube.timestamps import parse_rfc3339, rfc3339

NO_DEADLINE = 2**31 - 1
"""spec.progressDeadlineSeconds at its maximum means none."""


def status_of(
    deployment: Deployment, new: ReplicaSet | None, sets: Sequence[ReplicaSet], now: datetime, *, made: str = ""
) -> tuple[Document, list[RequeueAfter]]:
    """The status, and when to look again for the progress deadline. `made`: the replica set that this round makes."""
    counts = _counts(deployment, new, sets)
    old = conditions_of(deployment)
    available = _available(deployment, counts, old.get("Available"), now)
    progressing = _progressing(deployment, new, counts, old.get("Progressing"), now, made=made)
    failure = _failure(new, sets, old.get(FAILURE))
    others = [one for kind, one in old.items() if kind not in ("Available", "Progressing", FAILURE)]
    status: Document = {key: value or None for key, value in counts.items()}
    status |= {
        "terminatingReplicas": sum(one.status.terminating_replicas for one in sets),
        "observedGeneration": deployment.metadata.generation,
        "conditions": [*others, available, *([progressing] if progressing else []), *([failure] if failure else [])],
    }
    return status, _look_again(deployment, progressing, now)


def _counts(deployment: Deployment, new: ReplicaSet | None, sets: Sequence[ReplicaSet]) -> dict[str, int]:
    available = sum(one.status.available_replicas for one in sets)
    total = sum(1 if one.spec.replicas is None else one.spec.replicas for one in sets)
    return {
        "replicas": sum(one.status.replicas for one in sets),
        "updatedReplicas": new.status.replicas if new else 0,
        "readyReplicas": sum(one.status.ready_replicas for one in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, total - available),
    }


def _available(deployment: Deployment, counts: dict[str, int], old: Document | None, now: datetime) -> Document:
    replicas = 1 if deployment.spec.replicas is None else deployment.spec.replicas
    _, max_unavailable = bounds(deployment.spec.strategy, replicas)
    if deployment.spec.strategy.type == "Recreate":
        max_unavailable = 0
    if counts["availableReplicas"] >= replicas - max_unavailable:
        said = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        said = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return _condition("Available", *said, old, now)


def _failure(new: ReplicaSet | None, sets: Sequence[ReplicaSet], old: Document | None) -> Document | None:
    """What the new replica set, or else another, says of pods that are refused."""
    told = [found[FAILURE] for one in ([new] if new else []) + list(sets) if FAILURE in (found := conditions_of(one))]
    if not told or (old is not None and (old["status"], old["reason"]) == (told[0]["status"], told[0]["reason"])):
        return old if told else None
    return {**told[0], "lastUpdateTime": told[0].get("lastTransitionTime")}


def _progressing(
    deployment: Deployment,
    new: ReplicaSet | None,
    counts: dict[str, int],
    old: Document | None,
    now: datetime,
    *,
    made: str,
) -> Document | None:
    deadline_s = deployment.spec.progress_deadline_seconds
    if deadline_s is None or deadline_s >= NO_DEADLINE:
        return None
    if deployment.spec.paused:
        return _condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused", old, now)
    name = made or (new.metadata.name if new is not None and old is None else "")
    if name:
        message = f'Created new replica set "{name}"'
        return _condition("Progressing", "True", "NewReplicaSetCreated", message, old, now)
    if new is None or old is None:
        return old
    if old["reason"] == "DeploymentPaused":
        return _condition("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed", old, now)
    name = f'ReplicaSet "{new.metadata.name}"'
    if _is_complete(deployment, counts):
        message = f"{name} has successfully progressed."
        return _condition("Progressing", "True", "NewReplicaSetAvailable", message, old, now)
    if old["reason"] == "NewReplicaSetAvailable" and counts["replicas"] == counts["updatedReplicas"]:
        # The rollout is over; a pod that dies later is no matter of progress.
        return old
    if _has_progressed(deployment, counts, old):
        message = f"{name} is progressing."
        return _condition("Progressing", "True", "ReplicaSetUpdated", message, old, now, is_progress=True)
    if _has_timed_out(old, deadline_s, now):
        message = f"{name} has timed out progressing."
        return _condition("Progressing", "False", "ProgressDeadlineExceeded", message, old, now)
    return old


def _is_complete(deployment: Deployment, counts: dict[str, int]) -> bool:
    replicas = 1 if deployment.spec.replicas is None else deployment.spec.replicas
    return counts["updatedReplicas"] == counts["replicas"] == counts["availableReplicas"] == replicas


def _has_progressed(deployment: Deployment, counts: dict[str, int], old: Document) -> bool:
    if old["reason"] == "NewReplicaSetAvailable":
        return True
    before = deployment.status
    gone_before = before.replicas - before.updated_replicas
    return (
        counts["updatedReplicas"] > before.updated_replicas
        or counts["replicas"] - counts["updatedReplicas"] < gone_before
        or counts["readyReplicas"] > before.ready_replicas
        or counts["availableReplicas"] > before.available_replicas
    )


def _has_timed_out(old: Document, deadline_s: int, now: datetime) -> bool:
    if old["reason"] in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded"):
        return bool(old["reason"] == "ProgressDeadlineExceeded")
    updated = parse_rfc3339(old.get("lastUpdateTime"))
    return updated is not None and updated + timedelta(seconds=deadline_s) <= now


def _condition(
    kind: str,
    status: str,
    reason: str,
    message: str,
    old: Document | None,
    now: datetime,
    *,
    is_progress: bool = False,
) -> Document:
    is_same = old is not None and (old["status"], old["reason"]) == (status, reason) and not is_progress
    updated = old["lastUpdateTime"] if is_same and old and old.get("lastUpdateTime") else rfc3339(now)
    if is_same and old is not None:
        message = old.get("message", message) if kind == "Available" else message
    return new_condition(kind, status, reason, message, now, old, lastUpdateTime=updated)


def _look_again(deployment: Deployment, progressing: Document | None, now: datetime) -> list[RequeueAfter]:
    deadline_s = deployment.spec.progress_deadline_seconds
    if progressing is None or deadline_s is None or deployment.spec.paused:
        return []
    if progressing["reason"] in ("NewReplicaSetAvailable", "ProgressDeadlineExceeded"):
        return []
    updated = parse_rfc3339(progressing.get("lastUpdateTime")) or now
    return [RequeueAfter(max(1.0, (updated + timedelta(seconds=deadline_s) - now).total_seconds() + 1))]
