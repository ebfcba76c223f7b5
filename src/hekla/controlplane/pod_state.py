"""What a pod's status means to those who count it: active, ready, available, and which one to give up first."""

from datetime import datetime, timedelta

from hekla.api.pods import Pod, PodCondition
from hekla.kube.timestamps import parse_rfc3339

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def has_ended(pod: Pod) -> bool:
    """Whether it has run to its end."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_leaving(pod: Pod) -> bool:
    """Whether its deletion has begun."""
    return pod.metadata.deletion_timestamp is not None


def is_active(pod: Pod) -> bool:
    """Whether it counts towards replicas."""
    return not has_ended(pod) and not is_leaving(pod)


def condition(pod: Pod, kind: str) -> PodCondition | None:
    """One of its conditions."""
    return next((one for one in pod.status.conditions if one.type == kind), None)


def is_ready(pod: Pod) -> bool:
    """Whether it says that it is ready."""
    ready = condition(pod, "Ready")
    return ready is not None and ready.status == "True"


def ready_since(pod: Pod) -> datetime | None:
    """When it became ready, if it is."""
    ready = condition(pod, "Ready")
    return parse_rfc3339(ready.last_transition_time) if ready is not None and ready.status == "True" else None


def available_in_s(pod: Pod, min_ready_s: int, now: datetime) -> float | None:
    """Seconds until it has been ready for long enough: 0 if it has, None if it is not ready."""
    if not is_ready(pod):
        return None
    since = ready_since(pod)
    if not min_ready_s or since is None:
        return 0.0
    return max(0.0, (since + timedelta(seconds=min_ready_s) - now).total_seconds())


def restarts(pod: Pod) -> int:
    """How often its containers have been started again."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return sum(status.restart_count for status in statuses)


def is_running_and_ready(pod: Pod) -> bool:
    """Whether it runs and says that it is ready."""
    return pod.status.phase == "Running" and is_ready(pod)


def surplus_order(pod: Pod) -> tuple[object, ...]:
    """The order in which surplus pods go: those that would be missed least come first."""
    since, created = ready_since(pod), pod.metadata.creation_timestamp or ""
    return (
        bool(pod.spec.node_name),
        {"Pending": 0, "Unknown": 1, "Running": 2}.get(pod.status.phase, 0),
        is_ready(pod),
        _deletion_cost(pod),
        -since.timestamp() if since is not None else 0.0,
        -restarts(pod),
        _newest_first(created),
        pod.metadata.name,
    )


def _deletion_cost(pod: Pod) -> int:
    try:
        return int(pod.metadata.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0


def _newest_first(created: str) -> float:
    moment = parse_rfc3339(created)
    return -moment.timestamp() if moment is not None else 0.0
