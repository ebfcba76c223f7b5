"""What a node knows of one pod it runs: a value that events change and decisions read.

`after` folds an event into the record; `pod_lifecycle.py` decides what to do next; `pod_status.py` tells the API.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import msgspec

from hekla.api.containers import Container, Probe
from hekla.api.pods import ContainerState, ContainerStatus, Pod

CRASH_LOOP = "CrashLoopBackOff"
EVICTED = "Evicted"


class Stage(StrEnum):
    """Where one attempt to run a container stands."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class Hook(StrEnum):
    """Where a hook of the running attempt stands."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class ProbeKind(StrEnum):
    """Which question about health."""

    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one attempt ended. Times are seconds since the epoch; 0 means it never started."""

    code: int
    reason: str
    message: str = ""
    signal: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0
    container_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """The answers to one probe during one attempt."""

    asked_at: float = 0.0
    is_asking: bool = False
    successes: int = 0
    failures: int = 0
    verdict: bool | None = None
    """None until a threshold has been reached."""

    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """One container of one pod, over all of its attempts."""

    stage: Stage = Stage.WAITING
    attempts: int = 0
    """How many times a start was ordered."""

    container_id: str = ""
    started_at: float = 0.0
    exit: Exit | None = None
    """How the latest attempt ended."""

    previous: Exit | None = None
    """How the attempt before it ended."""

    waiting_reason: str = ""
    waiting_message: str = ""
    retry_at: float = 0.0
    """Not before this moment is a start that could not be prepared tried again."""

    backoff_s: float = 0.0
    """How long after its end the next attempt must wait."""

    backoff_since: float = 0.0
    post_start: Hook = Hook.PENDING
    pre_stop: Hook = Hook.PENDING
    is_stopping: bool = False
    stop_grace_s: float = 0.0
    stop_began_at: float = 0.0
    """When its end was first ordered; 0: it was not."""
    is_signalled: bool = False
    """Its hook, if any, is through, and it has been told to end."""
    probes: dict[ProbeKind, ProbeRecord] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether a process exists, or may."""
        return self.stage in (Stage.STARTING, Stage.RUNNING)

    @property
    def is_backing_off(self) -> bool:
        """Whether it ended, and its next attempt waits."""
        return self.stage is Stage.EXITED and self.waiting_reason == CRASH_LOOP

    @property
    def restarts(self) -> int:
        """The restartCount that people see."""
        return max(0, self.attempts - 1)


class Place(StrEnum):
    """Where the pod's directory, address and volumes stand."""

    ABSENT = "absent"
    PREPARING = "preparing"
    READY = "ready"
    REMOVING = "removing"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """One pod, as its node knows it."""

    accepted_at: float
    host_ip: str = ""
    pod_ip: str = ""
    place: Place = Place.ABSENT
    place_failures: int = 0
    retry_place_at: float = 0.0
    containers: dict[str, ContainerRecord] = field(default_factory=dict)
    """By name: init containers and containers share one space of names."""

    refusal: tuple[str, str] | None = None
    """Reason and message, if the node would not take the pod, or ended it."""

    winding_since: float = 0.0
    """When its containers were first told to end: all of them share one grace period. 0: they were not."""

    is_over: bool = False
    """Nothing of this pod will be started again; once true it stays true."""

    is_deleted: bool = False
    """The API object's removal has been ordered."""

    def container(self, name: str) -> ContainerRecord:
        """The record of a container; a fresh one if nothing has happened to it."""
        return self.containers.get(name) or ContainerRecord()

    def with_container(self, name: str, record: ContainerRecord) -> "PodRecord":
        """The same with one container changed."""
        return replace(self, containers={**self.containers, name: record})


@dataclass(frozen=True, slots=True)
class PlaceReady:
    """The pod has a directory, an address and its volumes."""

    pod_ip: str


@dataclass(frozen=True, slots=True)
class PlaceFailed:
    """They could not be made; tried again later."""

    message: str


@dataclass(frozen=True, slots=True)
class PlaceRemoved:
    """Nothing of the pod is left on the node."""


@dataclass(frozen=True, slots=True)
class Started:
    """A container's process runs. `attempt`, here and below, tells late news from news; None is the latest."""

    name: str
    container_id: str
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class NotPrepared:
    """A container could not even be described (a missing config map): no attempt was made."""

    name: str
    reason: str
    message: str
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """A container's process, and all it left behind, has ended; or it could not be started (code 128)."""

    name: str
    exit: Exit
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe was answered."""

    name: str
    kind: ProbeKind
    is_healthy: bool
    message: str = ""
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class PostStartEnded:
    """The postStart hook has ended."""

    name: str
    succeeded: bool
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class PreStopEnded:
    """The preStop hook has ended, or its grace period has."""

    name: str
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The node will not run this pod."""

    reason: str
    message: str


OfContainer = Started | NotPrepared | Exited | Probed | PostStartEnded | PreStopEnded
PodEvent = PlaceReady | PlaceFailed | PlaceRemoved | Refused | OfContainer

CONFIG_RETRY_S = 5.0
"""How long a missing config map is not asked for again (a change of it wakes the pod earlier)."""

PLACE_RETRY_MAX_S = 122.0
"""The longest wait between attempts to make a pod's volumes, as the kubelet has it."""


def after(pod: Pod, record: PodRecord, event: PodEvent, now: float) -> PodRecord:
    """The record once `event` has happened."""
    match event:
        case PlaceReady(pod_ip):
            return replace(record, place=Place.READY, pod_ip=pod_ip, place_failures=0)
        case PlaceFailed():
            delay_s = min(PLACE_RETRY_MAX_S, 0.5 * 2**record.place_failures)
            failures = min(record.place_failures + 1, 16)
            return replace(record, place=Place.ABSENT, place_failures=failures, retry_place_at=now + delay_s)
        case PlaceRemoved():
            return replace(record, place=Place.REMOVED)
        case Refused(reason, message):
            return replace(record, refusal=(reason, message), is_over=True)
        case _:
            changed = _after_container(pod, record.container(event.name), event, now)
            return record.with_container(event.name, changed)


def _after_container(pod: Pod, old: ContainerRecord, event: OfContainer, now: float) -> ContainerRecord:
    if event.attempt is not None and event.attempt != old.attempts - 1:
        return old
    match event:
        case Started(_, container_id):
            # a brief container's end may be told before its start
            stage = Stage.RUNNING if old.stage is Stage.STARTING else old.stage
            return replace(old, stage=stage, started_at=now, container_id=container_id)
        case NotPrepared(_, reason, message, _):
            return replace(
                old,
                stage=Stage.WAITING,
                attempts=max(0, old.attempts - 1),
                waiting_reason=reason,
                waiting_message=message,
                retry_at=now + CONFIG_RETRY_S,
            )
        case Exited(_, end):
            return replace(old, stage=Stage.EXITED, exit=end, is_stopping=False, probes={})
        case PostStartEnded(_, succeeded, _):
            return replace(old, post_start=Hook.DONE if succeeded else Hook.FAILED)
        case PreStopEnded():
            return replace(old, pre_stop=Hook.DONE)
        case Probed(name, kind, is_healthy, message, _):
            if old.stage is not Stage.RUNNING:
                return old
            container = containers_of(pod).get(name)
            probe = _after_answer(container, old.probes.get(kind) or ProbeRecord(), kind, is_healthy, message)
            return replace(old, probes={**old.probes, kind: probe})


def _after_answer(
    container: Container | None, old: ProbeRecord, kind: ProbeKind, is_healthy: bool, message: str
) -> ProbeRecord:
    spec = probe_of(container, kind) if container else None
    if spec is None:
        return replace(old, is_asking=False)
    if is_healthy:
        successes = old.successes + 1
        verdict = True if successes >= (spec.success_threshold or 1) else old.verdict
        return replace(old, is_asking=False, successes=successes, failures=0, verdict=verdict, message=message)
    failures = old.failures + 1
    verdict = False if failures >= (spec.failure_threshold or 3) else old.verdict
    return replace(old, is_asking=False, successes=0, failures=failures, verdict=verdict, message=message)


def containers_of(pod: Pod) -> dict[str, Container]:
    """Init containers, containers and those of `kubectl debug` by name, in the order of the spec."""
    return {each.name: each for each in (*pod.spec.init_containers, *pod.spec.containers, *debuggers_of(pod))}


def debuggers_of(pod: Pod) -> list[Container]:
    """The containers that `kubectl debug` added: nothing waits for them, and they run once."""
    return [
        Container(**{name: getattr(each, name) for name in _SHARED}, restart_policy="Never")
        for each in pod.spec.ephemeral_containers
    ]


def field_path(pod: Pod, container: str) -> str:
    """Where a container stands in its pod, as events name it; empty if it has none of that name."""
    parts = (
        ("containers", pod.spec.containers), ("initContainers", pod.spec.init_containers),
        ("ephemeralContainers", pod.spec.ephemeral_containers),
    )  # fmt: skip
    found = (f"spec.{part}{{{container}}}" for part, every in parts for each in every if each.name == container)
    return next(found, "")


_SHARED = [name for name in Container.__struct_fields__ if name != "restart_policy"]


def probe_of(container: Container, kind: ProbeKind) -> Probe | None:
    """The container's probe of one kind."""
    return {
        ProbeKind.STARTUP: container.startup_probe,
        ProbeKind.LIVENESS: container.liveness_probe,
        ProbeKind.READINESS: container.readiness_probe,
    }[kind]


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node remembers of one attempt for its own next life, beside what the runtime does: empty of one that runs, healthy and
    for the first time.
    """

    backoff_s: float = 0.0
    backoff_since: float = 0.0
    post_start: Hook = Hook.PENDING
    pre_stop: Hook = Hook.PENDING
    stop_began_at: float = 0.0
    probes: dict[ProbeKind, tuple[int, int, bool | None]] = {}
    """Successes and failures in a row, as far as they are on the way to another verdict, and the verdict."""


def memory_of(known: ContainerRecord) -> Memory:
    """What is worth remembering. A probe that says the same again changes nothing of it."""
    probes = {
        kind: (
            0 if each.verdict is True else each.successes,
            0 if each.verdict is False else each.failures,
            each.verdict,
        )
        for kind, each in known.probes.items()
        if each.verdict is not None or each.failures or each.successes
    }
    return Memory(
        backoff_s=known.backoff_s, backoff_since=known.backoff_since, post_start=known.post_start,
        pre_stop=known.pre_stop, stop_began_at=known.stop_began_at, probes=probes,
    )  # fmt: skip


def recalled(known: ContainerRecord, memory: Memory) -> ContainerRecord:
    """The same with what was remembered. A hook that ran when its node went was cut off, and runs again."""
    cut_off = {Hook.RUNNING: Hook.PENDING}
    probes = {
        kind: ProbeRecord(successes=successes, failures=failures, verdict=verdict)
        for kind, (successes, failures, verdict) in memory.probes.items()
        if known.stage is Stage.RUNNING
    }
    return replace(
        known, backoff_s=memory.backoff_s, backoff_since=memory.backoff_since,
        post_start=cut_off.get(memory.post_start, memory.post_start),
        pre_stop=cut_off.get(memory.pre_stop, memory.pre_stop), stop_began_at=memory.stop_began_at,
        probes=known.probes | probes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outlived:
    """A container's attempt that outlived the node's process: it runs, or ended meanwhile."""

    attempt: int
    container_id: str
    started_at: float
    exit: Exit | None
    previous: Exit | None = None
    """How the attempt before it ended, where that is still known."""
    devices: tuple[int, ...] = ()
    """The numbers of the GPUs it was given."""
    memory: Memory | None = None
    """What that life remembered of it; None where its runtime keeps no such thing."""


def recover(pod: Pod, now: float, outlived: Mapping[str, Outlived] | None = None, *, address: str = "") -> PodRecord:
    """The record of a pod that an earlier life of this node ran: what its status says, and of all that ran only what is found to
    have `outlived` that life still does, with the pod's `address`; its status may tell another, or none yet.
    """
    address = address or pod.status.pod_ip
    status, found = pod.status, outlived or {}
    every = (*status.init_container_statuses, *status.container_statuses, *status.ephemeral_container_statuses)
    statuses = {each.name: each for each in every}
    containers = {name: _recovered(each, now, found.get(name)) for name, each in statuses.items()}
    containers |= {name: _going_on(each, None) for name, each in found.items() if name not in statuses}
    runs_on = any(each.is_live for each in containers.values())
    leaves_at = _leaves_at(pod)
    # what was stopped before, because of a probe, says nothing of the pod's end
    ends_began = [each.stop_began_at for each in containers.values() if each.stop_began_at >= leaves_at]
    refusal = (status.reason, status.message) if status.phase == "Failed" and status.reason else None
    return PodRecord(
        accepted_at=seconds(status.start_time) or now,
        containers={name: each for name, each in containers.items() if each.attempts},
        is_over=status.phase in ("Succeeded", "Failed"),
        refusal=refusal,
        # what runs has its place; it is only made again for those that start later
        place=Place.READY if runs_on and address else Place.ABSENT,
        pod_ip=address if found else "",
        winding_since=min(ends_began, default=0.0),
    )


def _leaves_at(pod: Pod) -> float:
    """Since when the pod has been leaving, in seconds since the epoch; never, if it stays."""
    meta = pod.metadata
    if meta.deletion_timestamp is None:
        return math.inf
    return seconds(meta.deletion_timestamp) - (meta.deletion_grace_period_seconds or 0)


def _recovered(status: ContainerStatus, now: float, outlived: Outlived | None) -> ContainerRecord:
    if outlived is not None and outlived.attempt >= status.restart_count:
        return _going_on(outlived, status)
    previous = _ended(status.last_state)
    ended = _ended(status.state)
    if ended is None and status.state is not None and status.state.running is not None:
        ended = Exit(
            code=137,
            reason="ContainerStatusUnknown",
            message="The container could not be located when its node was started again",
            started_at=seconds(status.state.running.started_at),
            finished_at=now,
            container_id=status.container_id,
        )
    if ended is None and previous is not None:
        ended, previous = previous, None
    if ended is None:
        return ContainerRecord()
    return ContainerRecord(
        stage=Stage.EXITED, attempts=status.restart_count + 1, container_id=status.container_id, exit=ended,
        previous=previous,
    )  # fmt: skip


def _going_on(outlived: Outlived, status: ContainerStatus | None) -> ContainerRecord:
    """As if the node had never been away; what it had begun and not told yet is told now."""
    previous, started_at, is_told = None, outlived.started_at, False
    if status is not None:
        is_told = status.restart_count == outlived.attempt
        previous = _ended(status.last_state) if is_told else _ended(status.state)
        if is_told and status.state is not None and status.state.running is not None:
            started_at = seconds(status.state.running.started_at)
    probes = {}
    if is_told and status is not None:
        probes = {
            ProbeKind.STARTUP: ProbeRecord(verdict=True if status.started else None),
            ProbeKind.READINESS: ProbeRecord(verdict=True if status.ready else None),
        }
    previous = outlived.previous or previous
    known = ContainerRecord(
        stage=Stage.RUNNING if outlived.exit is None else Stage.EXITED, attempts=outlived.attempt + 1,
        container_id=outlived.container_id, started_at=started_at, exit=outlived.exit, previous=previous,
        post_start=Hook.DONE if is_told and status is not None and status.started else Hook.PENDING, probes=probes,
    )  # fmt: skip
    return known if outlived.memory is None else recalled(known, outlived.memory)


def _ended(state: ContainerState | None) -> Exit | None:
    if state is None or state.terminated is None:
        return None
    told = state.terminated
    return Exit(
        code=told.exit_code, reason=told.reason, message=told.message, signal=told.signal or 0,
        started_at=seconds(told.started_at), finished_at=seconds(told.finished_at), container_id=told.container_id,
    )  # fmt: skip


def seconds(timestamp: str | None) -> float:
    """Seconds since the epoch of a moment as the API writes it; 0 if there is none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def hurried(record: PodRecord) -> PodRecord:
    """The same without waiting for another try: something that was missing may be there now."""
    containers = {name: replace(each, retry_at=0.0) for name, each in record.containers.items()}
    return replace(record, containers=containers, retry_place_at=0.0)
