"""Decides what a node does next for one pod: start, stop, probe, retry, finish.

Pure: the pod, what is known of it and `now` go in; a plan comes out. The plan's record already says what was ordered,
so that deciding twice orders nothing twice. `agent.py` carries plans out; `pod_record.py` folds in what came of it.

The rules are the kubelet's: init containers one after the other, sidecars (init containers that restart always) stay,
containers together; a container that ends is started again as the restart policy says, at once the first time and
then after 10, 20, 40 ... 300 seconds; a run of ten minutes clears that debt.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hekla.api.containers import Container, Probe
from hekla.api.pods import Pod
from hekla.node.pod_record import (
    CRASH_LOOP,
    EVICTED,
    ContainerRecord,
    Exit,
    Hook,
    Place,
    PodRecord,
    ProbeKind,
    ProbeRecord,
    Stage,
    debuggers_of,
    probe_of,
)

DEFAULT_GRACE_S = 30
EVICTED_GRACE_S = 1.0
"""What fills a disk is not given the time that its pod would like to have."""
LEAST_GRACE_S = 2.0
"""What is left to a container where others, or a hook, have used up the grace period of their pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long a container that keeps ending must wait."""

    first_s: float = 10.0
    max_s: float = 300.0


@dataclass(frozen=True, slots=True)
class PreparePlace:
    """Give the pod its directory, address and volumes."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start one attempt of a container."""

    name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RunPreStop:
    """Run the preStop hook of a container that is to end, for at most its grace; `reason` is what events say of the end."""

    name: str
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """The stop signal, then after the grace SIGKILL; `reason` is what events say, empty if they have said it."""

    name: str
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class RunPostStart:
    """Run the postStart hook of a container that has just started."""

    name: str


@dataclass(frozen=True, slots=True)
class AskProbe:
    """Ask one probe."""

    name: str
    kind: ProbeKind


@dataclass(frozen=True, slots=True)
class RemovePlace:
    """Leave nothing of the pod on the node."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Take the object out of the API: all of the pod has ended."""


Action = PreparePlace | StartContainer | RunPreStop | StopContainer | RunPostStart | AskProbe | RemovePlace | DeletePod


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, what is known once it has been ordered, and when to decide again at the latest."""

    record: PodRecord
    actions: tuple[Action, ...]
    wake_at: float | None


def decide(pod: Pod, record: PodRecord, now: float, backoff: Backoff | None = None) -> Plan:
    """What the node must do for `pod` at `now`."""
    planner = _Planner(pod, record, now, backoff or Backoff())
    planner.plan()
    wake_at = min(planner.wakes) if planner.wakes else None
    return Plan(planner.record, tuple(planner.actions), wake_at)


def is_sidecar(container: Container) -> bool:
    """Whether an init container stays for the pod's whole life."""
    return container.restart_policy == "Always"


def has_started(container: Container, record: ContainerRecord) -> bool:
    """Whether it runs, its postStart hook is through and its startup probe, if any, has passed."""
    if record.stage is not Stage.RUNNING or (_has_post_start(container) and record.post_start is not Hook.DONE):
        return False
    return container.startup_probe is None or _verdict(record, ProbeKind.STARTUP) is True


def has_begun(pod: Pod, record: PodRecord) -> bool:
    """Whether the containers proper have been started once: from then on no init container holds them back."""
    return any(record.container(each.name).attempts for each in pod.spec.containers)


def is_ready(container: Container, record: ContainerRecord) -> bool:
    """Whether it may get traffic."""
    if not has_started(container, record) or record.is_stopping:
        return False
    return container.readiness_probe is None or _verdict(record, ProbeKind.READINESS) is True


def will_restart(pod: Pod, container: Container, exit: Exit, *, is_init: bool) -> bool:
    """Whether a container that ended so is started again."""
    if is_init and is_sidecar(container):
        return True
    for rule in container.restart_policy_rules:
        if rule.exit_codes is not None and rule.action == "Restart":
            is_in = exit.code in rule.exit_codes.values
            if is_in == (rule.exit_codes.operator == "In"):
                return True
    policy = (container.restart_policy if not is_init else "") or pod.spec.restart_policy or "Always"
    if policy == "Never":
        return False
    return exit.code != 0 or (policy == "Always" and not is_init)


@dataclass(slots=True)
class _Planner:
    pod: Pod
    record: PodRecord
    now: float
    backoff: Backoff
    actions: list[Action] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)

    def plan(self) -> None:
        self._check_deadline()
        if not self.record.is_over and (self._is_deleting() or self._has_finished()):
            self.record = replace(self.record, is_over=True)
        if self.record.is_over:
            self._wind_down()
        elif self._has_place():
            self._run()

    def _is_deleting(self) -> bool:
        return self.pod.metadata.deletion_timestamp is not None

    def _check_deadline(self) -> None:
        limit_s = self.pod.spec.active_deadline_seconds
        if limit_s is None or self.record.is_over:
            return
        ends_at = self.record.accepted_at + limit_s
        if self.now < ends_at:
            self.wakes.append(ends_at)
            return
        message = "Pod was active on the node longer than the specified deadline"
        self.record = replace(self.record, refusal=("DeadlineExceeded", message), is_over=True)

    def _has_place(self) -> bool:
        if self.record.place is Place.ABSENT:
            if self.now < self.record.retry_place_at:
                self.wakes.append(self.record.retry_place_at)
            else:
                self.record = replace(self.record, place=Place.PREPARING)
                self.actions.append(PreparePlace())
        return self.record.place is Place.READY

    def _run(self) -> None:
        for debugger in debuggers_of(self.pod):
            self._keep_running(debugger, is_init=False)
        if self._run_init():
            for container in self.pod.spec.containers:
                self._keep_running(container, is_init=False)

    def _run_init(self) -> bool:
        """Bring the init containers on their way; True once the containers may start."""
        for container in self.pod.spec.init_containers:
            known = self.record.container(container.name)
            if is_sidecar(container):
                self._keep_running(container, is_init=True)
                if not (has_started(container, known) or has_begun(self.pod, self.record)):
                    return False
            elif not self._is_done(known):
                self._keep_running(container, is_init=True)
                return False
        return True

    def _keep_running(self, container: Container, *, is_init: bool) -> None:
        known = self.record.container(container.name)
        match known.stage:
            case Stage.WAITING:
                self._start_when_due(container.name, known, known.retry_at)
            case Stage.EXITED if known.exit is not None:
                if will_restart(self.pod, container, known.exit, is_init=is_init):
                    self._restart(container.name, known, known.exit)
            case Stage.RUNNING:
                self._look_after(container, known)
            case _:
                pass

    def _restart(self, name: str, known: ContainerRecord, exit: Exit) -> None:
        if exit.finished_at - known.backoff_since > 2 * self.backoff.max_s:
            known = replace(known, backoff_s=0.0)
        due = exit.finished_at + known.backoff_s
        if self.now < due:
            self._put(name, replace(known, waiting_reason=CRASH_LOOP))
            self.wakes.append(due)
            return
        delay_s = min(self.backoff.max_s, max(self.backoff.first_s, 2 * known.backoff_s))
        known = replace(known, backoff_s=delay_s, backoff_since=self.now, previous=exit)
        self._start_when_due(name, known, self.now)

    def _start_when_due(self, name: str, known: ContainerRecord, due: float) -> None:
        if self.now < due:
            self.wakes.append(due)
            return
        self.actions.append(StartContainer(name, known.attempts))
        fresh = replace(
            known, stage=Stage.STARTING, attempts=known.attempts + 1, exit=None, post_start=Hook.PENDING, probes={},
            pre_stop=Hook.PENDING, is_stopping=False, is_signalled=False, stop_began_at=0.0, waiting_reason="", waiting_message="",
        )  # fmt: skip
        self._put(name, fresh)

    def _look_after(self, container: Container, known: ContainerRecord) -> None:
        if known.is_stopping:
            self._signal_after_hook(container.name, known)
            return
        if _has_post_start(container):
            if known.post_start is Hook.PENDING:
                self.actions.append(RunPostStart(container.name))
                self._put(container.name, replace(known, post_start=Hook.RUNNING))
            elif known.post_start is Hook.FAILED:
                self._stop(container.name, known, self._grace_s(), "FailedPostStartHook")
            if known.post_start is not Hook.DONE:
                return
        self._probe(container, known)

    def _probe(self, container: Container, known: ContainerRecord) -> None:
        for kind in _probes_to_ask(container, known):
            spec = probe_of(container, kind)
            if spec is None:
                continue
            if kind is not ProbeKind.READINESS and _verdict(known, kind) is False:
                grace_s = spec.termination_grace_period_seconds
                reason = "StartupProbeFailed" if kind is ProbeKind.STARTUP else "LivenessProbeFailed"
                self._stop(container.name, known, self._grace_s() if grace_s is None else grace_s, reason)
                return
            self._ask_when_due(container.name, kind, spec)

    def _ask_when_due(self, name: str, kind: ProbeKind, spec: Probe) -> None:
        known = self.record.container(name)
        probe = known.probes.get(kind) or ProbeRecord()
        if probe.is_asking:
            return
        due = max(known.started_at + spec.initial_delay_seconds, probe.asked_at + (spec.period_seconds or 10))
        if self.now < due:
            self.wakes.append(due)
            return
        self.actions.append(AskProbe(name, kind))
        asking = replace(probe, is_asking=True, asked_at=self.now)
        self._put(name, replace(known, probes={**known.probes, kind: asking}))

    def _wind_down(self) -> None:
        if self.record.place is Place.PREPARING or self._stop_what_runs():
            return
        if not self._is_deleting():
            return
        if self.record.place is Place.READY or (self.record.place is Place.ABSENT and self.record.containers):
            self.record = replace(self.record, place=Place.REMOVING)
            self.actions.append(RemovePlace())
        elif self.record.place in (Place.ABSENT, Place.REMOVED) and not self.record.is_deleted:
            self.record = replace(self.record, is_deleted=True)
            self.actions.append(DeletePod())

    def _stop_what_runs(self) -> bool:
        """Containers together, then sidecars in reverse order; True while anything is left."""
        for group in self._stop_order():
            live = [name for name in group if self.record.container(name).is_live]
            for name in live:
                known = self.record.container(name)
                if known.stage is Stage.RUNNING:
                    grace_s = self._grace_s() if known.is_stopping else self._grace_left_s(known)
                    self._stop(name, known, grace_s, "Killing")
            if live:
                return True
        return False

    def _grace_left_s(self, known: ContainerRecord) -> float:
        """The grace period is the pod's: who is stopped after others has what they left of it."""
        if not self.record.winding_since:
            self.record = replace(self.record, winding_since=self.now)
        began = known.stop_began_at or self.now
        return _less(self._grace_s(), began - self.record.winding_since)

    def _stop_order(self) -> Iterator[list[str]]:
        yield [each.name for each in (*self.pod.spec.containers, *debuggers_of(self.pod))]
        for container in reversed(self.pod.spec.init_containers):
            yield [container.name]

    def _stop(self, name: str, known: ContainerRecord, grace_s: float, reason: str) -> None:
        """The preStop hook first. A shorter grace overtakes a longer one, and its hook."""
        if known.is_stopping and known.stop_grace_s <= grace_s:
            self._signal_after_hook(name, known)
            return
        began = known.stop_began_at or self.now
        known = replace(known, is_stopping=True, stop_grace_s=grace_s, stop_began_at=began)
        if known.pre_stop is Hook.PENDING and grace_s > 0 and self._has_pre_stop(name):
            self.actions.append(RunPreStop(name, _left_of(known, self.now), reason))
            self._put(name, replace(known, pre_stop=Hook.RUNNING))
            return
        self.actions.append(StopContainer(name, _left_of(known, self.now), reason))
        self._put(name, replace(known, is_signalled=True))

    def _signal_after_hook(self, name: str, known: ContainerRecord) -> None:
        if known.pre_stop is Hook.DONE and not known.is_signalled:
            self.actions.append(StopContainer(name, _left_of(known, self.now), ""))
            self._put(name, replace(known, is_signalled=True))

    def _has_pre_stop(self, name: str) -> bool:
        every = (*self.pod.spec.init_containers, *self.pod.spec.containers)
        return any(each.name == name and each.lifecycle and each.lifecycle.pre_stop for each in every)

    def _grace_s(self) -> float:
        wanted_s = self._wanted_grace_s()
        is_evicted = self.record.refusal is not None and self.record.refusal[0] == EVICTED
        return min(wanted_s, EVICTED_GRACE_S) if is_evicted else wanted_s

    def _wanted_grace_s(self) -> float:
        wanted = self.pod.metadata.deletion_grace_period_seconds if self._is_deleting() else None
        if wanted is None:
            wanted = self.pod.spec.termination_grace_period_seconds
        return DEFAULT_GRACE_S if wanted is None else wanted

    def _is_done(self, known: ContainerRecord) -> bool:
        return known.stage is Stage.EXITED and known.exit is not None and known.exit.code == 0

    def _has_finished(self) -> bool:
        """Whether an init container has failed for good, or every container has ended for good."""
        for container in self.pod.spec.init_containers:
            known = self.record.container(container.name)
            if self._has_failed_for_good(container, known):
                return True
        return all(self._has_ended_for_good(each) for each in self.pod.spec.containers)

    def _has_failed_for_good(self, container: Container, known: ContainerRecord) -> bool:
        if known.stage is not Stage.EXITED or known.exit is None or known.exit.code == 0:
            return False
        return not will_restart(self.pod, container, known.exit, is_init=True)

    def _has_ended_for_good(self, container: Container) -> bool:
        known = self.record.container(container.name)
        if known.stage is not Stage.EXITED or known.exit is None:
            return False
        return not will_restart(self.pod, container, known.exit, is_init=False)

    def _put(self, name: str, known: ContainerRecord) -> None:
        self.record = self.record.with_container(name, known)


def _left_of(known: ContainerRecord, now: float) -> float:
    return _less(known.stop_grace_s, now - known.stop_began_at)


def _less(grace_s: float, gone_s: float) -> float:
    """Never more than the whole, though the clock was set back meanwhile."""
    return min(grace_s, max(grace_s - gone_s, LEAST_GRACE_S))


def _has_post_start(container: Container) -> bool:
    return container.lifecycle is not None and container.lifecycle.post_start is not None


def _verdict(record: ContainerRecord, kind: ProbeKind) -> bool | None:
    probe = record.probes.get(kind)
    return probe.verdict if probe else None


def _probes_to_ask(container: Container, known: ContainerRecord) -> tuple[ProbeKind, ...]:
    """The startup probe alone until it has passed, then the other two."""
    if container.startup_probe is not None and _verdict(known, ProbeKind.STARTUP) is not True:
        return (ProbeKind.STARTUP,)
    return (ProbeKind.LIVENESS, ProbeKind.READINESS)
