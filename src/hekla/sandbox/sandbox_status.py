"""What is said of a Sandbox: Suspended, Finished, PodScheduled and Ready, each with agent-sandbox's reasons and messages."""

from dataclasses import dataclass
from datetime import datetime

from hekla.api.agents import Sandbox, names
from hekla.api.agents.sandbox import OperatingMode
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.kube.quota_waiting import is_of_quota
from hekla.sandbox.late_environment import is_awaited
from hekla.sandbox.observing import MOST_WORDS, Observation, as_documents, conditions, find
from hekla.sandbox.owning import name_hash

MULTIPLE_PODS = "MultiplePods"
EXPIRED = "SandboxExpired"
RECONCILER_ERROR, _SEEN = "ReconcilerError", "Error seen: "
CLUSTER_DOMAIN = "cluster.local"
_ENDED = {"Succeeded": ("PodSucceeded", "Pod completed successfully"), "Failed": ("PodFailed", "Pod failed")}


@dataclass
class Found:
    """What there is of a Sandbox."""

    pod: Pod | None = None
    owns_pod: bool = False
    is_ambiguous: bool = False
    """More than one pod is its own."""

    has_service: bool = False
    trouble: str = ""
    """Why something could not be made or taken."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether nothing is wrong, and it only is not there yet."""
        return (
            not self.trouble
            and (self.pod is None or not self.pod.status.phase or self.pod.status.phase in ("Pending", "Running"))
            and not (self.pod is not None and is_ready(self.pod))
        )


def is_ready(pod: Pod) -> bool:
    """Whether a pod runs, is ready, and has an address."""
    ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
    return pod.status.phase == "Running" and ready and bool(pod.status.pod_ips)


def way_it_made(pod: Pod | None) -> str:
    """Why a pod is being sent away, as whoever does it says; empty: it stays."""
    if pod is None or pod.metadata.deletion_timestamp is None:
        return ""
    told = (one for one in pod.status.conditions if one.type == "DisruptionTarget" and one.status == "True")
    return next((one.message or one.reason for one in told), "")


def sandbox_status(sandbox: Sandbox, found: Found, now: datetime) -> Document:
    """What must change in the status; empty if nothing does."""
    meta, before = sandbox.metadata, sandbox.status
    observed = [_suspended(sandbox, found), *_finished(found), *_scheduled(found), _ready(sandbox, found)]
    has_pod = found.pod is not None and found.owns_pod
    wanted: Document = {
        "conditions": conditions(before.conditions, observed, meta.generation, now),
        "podIPs": [one.ip for one in found.pod.status.pod_ips] if has_pod and found.pod is not None else [],
        "nodeName": found.pod.spec.node_name if has_pod and found.pod is not None else "",
        "selector": f"{names.SANDBOX_NAME_HASH}={name_hash(meta.name)}" if found.pod is not None else before.selector,
        "service": meta.name if found.has_service else "",
        "serviceFQDN": f"{meta.name}.{meta.namespace}.svc.{CLUSTER_DOMAIN}" if found.has_service else "",
    }
    return _changed(sandbox, wanted)


def expired_status(sandbox: Sandbox, now: datetime) -> Document:
    """What is written before anything is taken away. That the pod had finished stays said."""
    kept = [one for one in as_documents(sandbox.status.conditions) if one["type"] not in ("Ready", "PodScheduled")]
    over = Observation("Ready", False, EXPIRED, "Sandbox has expired")
    ready = conditions(sandbox.status.conditions, [over], sandbox.metadata.generation, now)
    gone: Document = dict.fromkeys(("podIPs", "nodeName", "selector", "service", "serviceFQDN"))
    return {**gone, "conditions": [*kept, *ready]}


def refused_status(sandbox: Sandbox, why: str, now: datetime) -> Document:
    """What is written of a Sandbox whose pod the API server refuses; empty: it is said already."""
    told = refusal_told(sandbox)
    if told == why[: MOST_WORDS - len(_SEEN)] or (is_of_quota(told) and is_of_quota(why)):
        return {}
    others = [one for one in as_documents(sandbox.status.conditions) if one["type"] != "Ready"]
    seen = Observation("Ready", False, RECONCILER_ERROR, _SEEN + why)
    return {"conditions": [*others, *conditions(sandbox.status.conditions, [seen], sandbox.metadata.generation, now)]}


def refusal_told(sandbox: Sandbox) -> str:
    """What its status says of a refusal; empty if nothing."""
    ready = find(sandbox.status.conditions, "Ready")
    return ready.message.removeprefix(_SEEN) if ready is not None and ready.reason == RECONCILER_ERROR else ""


def trouble_told(sandbox: Sandbox) -> str:
    """Why it does not run yet, if somebody has said so: the API server refused its pod, or no node takes it."""
    scheduled = find(sandbox.status.conditions, "PodScheduled")
    if (refused := refusal_told(sandbox)) or scheduled is None or scheduled.status != "False":
        return refused
    return f"no node takes its pod: {scheduled.message}"


def is_told_expired(sandbox: Sandbox) -> bool:
    """Whether the end was written already."""
    ready = find(sandbox.status.conditions, "Ready")
    return ready is not None and ready.reason == EXPIRED


def _changed(sandbox: Sandbox, wanted: Document) -> Document:
    before = sandbox.status
    there: Document = {
        "conditions": as_documents(before.conditions),
        "podIPs": before.pod_ips,
        "nodeName": before.node_name,
        "selector": before.selector,
        "service": before.service,
        "serviceFQDN": before.service_fqdn,
    }
    changed = {key: value for key, value in wanted.items() if there[key] != value}
    if changed.keys() == {"nodeName"} and wanted["conditions"][-1]["status"] != "True":
        return {}  # the node alone is not worth a write: it goes with the next one
    return {key: value if value != "" and value != [] else None for key, value in changed.items()}


def _suspended(sandbox: Sandbox, found: Found) -> Observation:
    if sandbox.spec.operating_mode != OperatingMode.SUSPENDED:
        return Observation("Suspended", False, "NotSuspended", "Sandbox is not suspended")
    if found.is_ambiguous:
        message = "Pod state is unknown. Sandbox suspension cannot be confirmed"
        return Observation("Suspended", None, "PodStateUnknown", message)
    if found.pod is None:
        message = "Pod has been terminated. Sandbox is suspended"
        return Observation("Suspended", True, "PodTerminated", message)
    if not found.owns_pod:
        message = "Refused to delete pod because it is not owned by this sandbox"
        return Observation("Suspended", False, "PodNotOwned", message)
    return Observation("Suspended", False, "PodTerminating", "Pod is terminating. Sandbox is suspending")


def _finished(found: Found) -> list[Observation]:
    if found.pod is None or not found.owns_pod or found.pod.status.phase not in _ENDED:
        return []
    return [Observation("Finished", True, *_ENDED[found.pod.status.phase])]


def _scheduled(found: Found) -> list[Observation]:
    if found.is_ambiguous:
        message = "Pod state is unknown. Pod scheduling cannot be determined"
        return [Observation("PodScheduled", None, "PodSchedulingUnknown", message)]
    if found.pod is None or not found.owns_pod:
        return []
    for one in found.pod.status.conditions:
        if one.type == "PodScheduled":
            status = {"True": True, "False": False}.get(one.status)
            reason = one.reason or ("PodScheduled" if status else "PodSchedulingUnknown")
            return [Observation("PodScheduled", status, reason, one.message)]
    message = "Pod has not reported a PodScheduled condition yet"
    return [Observation("PodScheduled", None, "PodSchedulingUnknown", message)]


def _ready(sandbox: Sandbox, found: Found) -> Observation:
    if found.is_ambiguous:
        return Observation("Ready", False, MULTIPLE_PODS, found.trouble)
    if found.trouble:
        return Observation("Ready", False, RECONCILER_ERROR, _SEEN + found.trouble)
    if sandbox.spec.operating_mode == OperatingMode.SUSPENDED:
        message = "Sandbox is suspended" if found.pod is None else "Sandbox is suspending"
        return Observation("Ready", False, "SandboxSuspended", message)
    if found.pod is not None and found.pod.status.phase in _ENDED:
        return Observation("Ready", False, *_ENDED[found.pod.status.phase])
    message, is_up = _pod_words(found.pod), found.pod is not None and is_ready(found.pod)
    if (why := way_it_made(found.pod)) and found.owns_pod:
        message, is_up = f"Pod is sent away: {why}", False
    if is_up and found.pod is not None and is_awaited(sandbox, found.pod):
        message, is_up = "Pod is Ready but is yet to be given its claim's environment", False
    if sandbox.spec.service or found.has_service:
        message += "; Service Exists" if found.has_service else "; Service does not exist"
        is_up = is_up and found.has_service
    return Observation("Ready", is_up, "DependenciesReady" if is_up else "DependenciesNotReady", message)


def _pod_words(pod: Pod | None) -> str:
    if pod is None:
        return "Pod does not exist"
    if pod.status.phase != "Running":
        return f"Pod exists with phase: {pod.status.phase}"
    if not any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions):
        return "Pod is Running but not Ready"
    return "Pod is Ready" if pod.status.pod_ips else "Pod is Ready but has no podIPs yet"
