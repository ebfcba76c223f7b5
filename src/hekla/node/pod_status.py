"""Writes a pod's status as the kubelet would: phase, conditions, the state of each container.

Pure: the pod and its record in, a document out. `status_writer.py` sends what changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from hekla.api.containers import Container
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.node.pod_lifecycle import has_begun, has_started, is_ready, is_sidecar, will_restart
from hekla.node.pod_record import CRASH_LOOP, EVICTED, ContainerRecord, Exit, Place, PodRecord, Stage, debuggers_of

Since = dict[str, tuple[str, str]]
"""What each condition said last, and since when: `status_of` reads it and keeps it up to date."""


def since_of(pod: Pod) -> Since:
    """The same, from what the API has."""
    return {each.type: (each.status, each.last_transition_time or "") for each in pod.status.conditions}


def status_of(pod: Pod, record: PodRecord, now: float, since: Since | None = None, *, told_ip: str = "") -> Document:
    """The status document, whole except for what others write into it (conditions of other owners stay). `told_ip` is told of a
    pod that has an address, instead of it.
    """
    phase = phase_of(pod, record)
    status: Document = {
        "phase": phase,
        "observedGeneration": pod.metadata.generation or 1,
        "startTime": timestamp(record.accepted_at),
        "conditions": list(
            _conditions(pod, record, phase, _Writer(pod, now, since_of(pod) if since is None else since))
        ),
        "hostIP": record.host_ip,
        "hostIPs": [{"ip": record.host_ip}],
    }
    if record.refusal and phase == "Failed":
        status["reason"], status["message"] = record.refusal
    if record.pod_ip:
        ip = told_ip or record.pod_ip
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    if not _was_never_admitted(record):
        if pod.spec.init_containers:
            status["initContainerStatuses"] = [
                _container_status(pod, record, each, is_init=True) for each in pod.spec.init_containers
            ]
        status["containerStatuses"] = [_container_status(pod, record, each) for each in pod.spec.containers]
        if pod.spec.ephemeral_containers:
            status["ephemeralContainerStatuses"] = [
                _container_status(pod, record, each) | {"ready": False} for each in debuggers_of(pod)
            ]
    return status


def phase_of(pod: Pod, record: PodRecord) -> str:
    """Pending, Running, Succeeded or Failed; the last two once nothing runs any more, for they free what the pod held."""
    if not any(each.is_live for each in record.containers.values()):
        if record.refusal:
            return "Failed"
        if record.is_over:
            return _final_phase(pod, record)
    if not is_initialized(pod, record):
        return "Pending"
    known = [record.container(each.name) for each in pod.spec.containers]
    has_run = all(each.previous is not None or each.stage in (Stage.RUNNING, Stage.EXITED) for each in known)
    return "Running" if has_run else "Pending"


def _final_phase(pod: Pod, record: PodRecord) -> str:
    exits = [record.container(each.name).exit for each in pod.spec.containers]
    return "Succeeded" if exits and all(each is not None and each.code == 0 for each in exits) else "Failed"


def is_initialized(pod: Pod, record: PodRecord) -> bool:
    """Whether every init container has done its part."""
    return not _uninitialized(pod, record)


def _uninitialized(pod: Pod, record: PodRecord) -> list[str]:
    begun = has_begun(pod, record)
    return [
        each.name
        for each in pod.spec.init_containers
        if not (_is_initialized(each, record.container(each.name)) or (begun and is_sidecar(each)))
    ]


def _is_initialized(container: Container, known: ContainerRecord) -> bool:
    if is_sidecar(container):
        return has_started(container, known)
    return known.stage is Stage.EXITED and known.exit is not None and known.exit.code == 0


def _was_never_admitted(record: PodRecord) -> bool:
    return record.refusal is not None and not record.containers


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes conditions; the time of the last change is kept while a condition says what it said before."""

    pod: Pod
    now: float
    since: Since

    def write(self, kind: str, holds: bool, reason: str = "", message: str = "") -> Document:
        status = "True" if holds else "False"
        said, moment = self.since.get(kind, ("", ""))
        if said != status or not moment:
            moment = timestamp(self.now)
            self.since[kind] = status, moment
        condition: Document = {
            "type": kind,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": moment,
            "observedGeneration": self.pod.metadata.generation or 1,
        }
        # an empty text takes away what stood there before: conditions are merged by type
        return condition | {"reason": reason or None, "message": message or None}


def _conditions(pod: Pod, record: PodRecord, phase: str, writer: _Writer) -> Iterator[Document]:
    yield writer.write("PodReadyToStartContainers", record.place is Place.READY and not _is_final(phase))
    if phase == "Failed" and record.refusal is not None and record.refusal[0] == EVICTED:
        yield writer.write("DisruptionTarget", True, "TerminationByKubelet", record.refusal[1])
    waiting = _uninitialized(pod, record)
    if phase == "Succeeded" or not waiting:
        yield writer.write("Initialized", True, "PodCompleted" if phase == "Succeeded" else "")
    else:
        message = f"containers with incomplete status: [{' '.join(waiting)}]"
        yield writer.write("Initialized", False, "ContainersNotInitialized", message)
    reason, message = _why_unready(pod, record, phase)
    yield writer.write("ContainersReady", not reason, reason, message)
    if not reason:
        reason, message = _closed_gates(pod)
    yield writer.write("Ready", not reason, reason, message)


def _is_final(phase: str) -> bool:
    return phase in ("Succeeded", "Failed")


def _why_unready(pod: Pod, record: PodRecord, phase: str) -> tuple[str, str]:
    if phase == "Succeeded":
        return "PodCompleted", ""
    if phase == "Failed":
        return "PodFailed", ""
    candidates = [each for each in pod.spec.init_containers if is_sidecar(each)] + pod.spec.containers
    unready = [each.name for each in candidates if not is_ready(each, record.container(each.name))]
    if not unready:
        return "", ""
    return "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"


def _closed_gates(pod: Pod) -> tuple[str, str]:
    open_gates = {each.type for each in pod.status.conditions if each.status == "True"}
    for gate in pod.spec.readiness_gates:
        if gate.condition_type not in open_gates:
            return (
                "ReadinessGatesNotReady",
                f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist or is not True.',
            )
    return "", ""


def _container_status(pod: Pod, record: PodRecord, container: Container, *, is_init: bool = False) -> Document:
    known = record.container(container.name)
    status: Document = {
        "name": container.name,
        "image": container.image,
        "imageID": container.image if known.attempts else "",
        "restartCount": known.restarts,
        "ready": _is_reported_ready(container, known, is_init=is_init),
        "started": has_started(container, known),
        "state": _state(pod, record, container, known, is_init=is_init),
        "lastState": _last_state(known),
    }
    container_id = known.container_id or (known.exit.container_id if known.exit else "")
    if container_id:
        status["containerID"] = container_id
    return status


def _is_reported_ready(container: Container, known: ContainerRecord, *, is_init: bool) -> bool:
    if is_init and not is_sidecar(container):
        return known.stage is Stage.EXITED and known.exit is not None and known.exit.code == 0
    return is_ready(container, known)


def _state(pod: Pod, record: PodRecord, container: Container, known: ContainerRecord, *, is_init: bool) -> Document:
    if known.stage is Stage.RUNNING:
        return {"running": {"startedAt": timestamp(known.started_at)}}
    if known.stage is Stage.EXITED and known.exit is not None:
        if known.is_backing_off and not record.is_over and will_restart(pod, container, known.exit, is_init=is_init):
            return {"waiting": {"reason": CRASH_LOOP, "message": _backoff_message(pod, container, known)}}
        return {"terminated": terminated(known.exit)}
    if known.stage is Stage.WAITING and known.waiting_reason:
        return {"waiting": {"reason": known.waiting_reason, "message": known.waiting_message}}
    return {"waiting": {"reason": waiting_reason(pod, record, container.name)}}


def waiting_reason(pod: Pod, record: PodRecord, name: str) -> str:
    """What a container that has not been started waits for, in a word."""
    is_init = any(each.name == name for each in pod.spec.init_containers)
    is_held_by_init = pod.spec.init_containers and not is_initialized(pod, record)
    usual = "PodInitializing" if is_held_by_init or is_init else "ContainerCreating"
    return record.container(name).waiting_reason or usual


def _last_state(known: ContainerRecord) -> Document:
    ended = known.exit if known.is_backing_off else known.previous
    return {"terminated": terminated(ended)} if ended else {}


def _backoff_message(pod: Pod, container: Container, known: ContainerRecord) -> str:
    meta = pod.metadata
    delay = go_duration(known.backoff_s)
    name = f"{meta.name}_{meta.namespace}({meta.uid})"
    return f"back-off {delay} restarting failed container={container.name} pod={name}"


def terminated(exit: Exit) -> Document:
    """A terminated state as the API spells it."""
    state: Document = {
        "exitCode": exit.code,
        "reason": exit.reason,
        "startedAt": timestamp(exit.started_at),
        "finishedAt": timestamp(exit.finished_at),
    }
    for key, value in (("message", exit.message), ("signal", exit.signal), ("containerID", exit.container_id)):
        if value:
            state[key] = value
    return state


def timestamp(seconds: float) -> str:
    """A moment as the API writes it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def go_duration(seconds: float) -> str:
    """A duration as Go prints it: 10s, 1m20s, 5m0s."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
