"""What is wrong with the statuses of workloads: counts below zero, and parts that are more than the whole."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, invalid

_NOT_NEGATIVE = "must be greater than or equal to 0"
_DEPLOYMENT = (
    "observedGeneration", "replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas",
    "terminatingReplicas", "collisionCount",
)  # fmt: skip
_REPLICAS = (
    "replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration", "terminatingReplicas",
)  # fmt: skip
_STATEFUL = (
    "replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas", "observedGeneration",
    "collisionCount",
)  # fmt: skip
_DAEMONS = (
    "currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady", "observedGeneration",
    "updatedNumberScheduled", "numberAvailable", "numberUnavailable", "collisionCount",
)  # fmt: skip
_JOB = ("active", "succeeded", "failed", "ready", "terminating")


def check_deployment_status(new: Document, old: Document) -> list[FieldError]:
    """Of a deployment."""
    status = new.get("status") or {}
    errors = _check_counts(status, _DEPLOYMENT)
    errors += _check_parts(status, "updatedReplicas", "readyReplicas", "availableReplicas")
    return errors + _check_available(status, "readyReplicas") + _check_collisions(status, old)


def check_replica_set_status(new: Document, old: Document) -> list[FieldError]:
    """Of a replica set or a replication controller."""
    status = new.get("status") or {}
    errors = _check_counts(status, _REPLICAS)
    errors += _check_parts(status, "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
    return errors + _check_available(status, "readyReplicas")


def check_stateful_set_status(new: Document, old: Document) -> list[FieldError]:
    """Of a stateful set."""
    status = new.get("status") or {}
    errors = _check_counts(status, _STATEFUL)
    errors += _check_parts(status, "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas")
    return errors + _check_available(status, "status.readyReplicas") + _check_collisions(status, old)


def check_daemon_set_status(new: Document, old: Document) -> list[FieldError]:
    """Of a daemon set."""
    return _check_counts(new.get("status") or {}, _DAEMONS)


def check_job_status(new: Document, old: Document) -> list[FieldError]:
    """Of a job."""
    return _check_counts(new.get("status") or {}, _JOB)


def _check_counts(status: Document, fields: tuple[str, ...]) -> list[FieldError]:
    return [invalid(f"status.{key}", status[key], _NOT_NEGATIVE) for key in fields if _count(status, key) < 0]


def _check_parts(status: Document, *fields: str) -> list[FieldError]:
    whole = _count(status, "replicas")
    return [
        invalid(f"status.{key}", _count(status, key), "cannot be greater than status.replicas")
        for key in fields
        if _count(status, key) > whole
    ]


def _check_available(status: Document, named: str) -> list[FieldError]:
    if _count(status, "availableReplicas") <= _count(status, "readyReplicas"):
        return []
    return [invalid("status.availableReplicas", _count(status, "availableReplicas"), f"cannot be greater than {named}")]


def _check_collisions(status: Document, old: Document) -> list[FieldError]:
    before, now = _count(old.get("status") or {}, "collisionCount"), _count(status, "collisionCount")
    return [invalid("status.collisionCount", now, "cannot be decremented")] if now < before else []


def _count(status: Document, key: str) -> int:
    value = status.get(key)
    return value if isinstance(value, int) else 0
