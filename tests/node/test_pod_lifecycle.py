import msgspec
import pytest

from hekla.api.pods import Pod
from hekla.node.pod_lifecycle import (
    AskProbe,
    DeletePod,
    PreparePlace,
    RemovePlace,
    RunPostStart,
    RunPreStop,
    StartContainer,
    StopContainer,
    decide,
)
from hekla.node.pod_record import (
    Exit,
    Exited,
    NotPrepared,
    PlaceFailed,
    PlaceReady,
    PlaceRemoved,
    PodRecord,
    PostStartEnded,
    PreStopEnded,
    Probed,
    ProbeKind,
    Started,
    after,
)
from hekla.node.pod_status import phase_of, status_of


def pod(containers=(), *, init=(), restart="Always", deleting=None, **spec):
    containers = containers or [{"name": "main", "image": "x"}]
    meta = {"name": "p", "namespace": "default", "uid": "u1", "generation": 1}
    if deleting is not None:
        meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": deleting}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": list(containers), "initContainers": list(init), "restartPolicy": restart, **spec},
    }
    return msgspec.convert(document, Pod)


class Life:
    """A pod on its node in virtual time: what was ordered, and what happened."""

    def __init__(self, pod, now=1000.0):
        self.pod, self.now = pod, now
        self.record = PodRecord(accepted_at=now)
        self.wake_at = None

    def decide(self):
        plan = decide(self.pod, self.record, self.now)
        self.record, self.wake_at = plan.record, plan.wake_at
        return list(plan.actions)

    def happens(self, event, after_s=0.0):
        self.now += after_s
        self.record = after(self.pod, self.record, event, self.now)
        return self.decide()

    def settle(self):
        """To the point where the pod has its place."""
        assert self.decide() == [PreparePlace()]
        return self.happens(PlaceReady("127.64.0.1"))

    def ends(self, name="main", code=0, after_s=1.0):
        self.now += after_s
        known = self.record.container(name)
        end = Exit(
            code=code, reason="Completed" if code == 0 else "Error", started_at=known.started_at, finished_at=self.now
        )
        return self.happens(Exited(name, end))

    @property
    def phase(self):
        return phase_of(self.pod, self.record)

    def status(self):
        return status_of(self.pod, self.record, self.now)

    def state(self, name="main"):
        every = self.status()["containerStatuses"] + self.status().get("initContainerStatuses", [])
        return next(each for each in every if each["name"] == name)["state"]

    def condition(self, kind):
        return next(each for each in self.status()["conditions"] if each["type"] == kind)


def test_a_pod_gets_its_place_then_its_containers_then_runs():
    life = Life(pod())
    assert life.settle() == [StartContainer("main", 0)]
    assert life.phase == "Pending"
    assert life.state() == {"waiting": {"reason": "ContainerCreating"}}
    assert life.happens(Started("main", "id")) == []
    assert life.phase == "Running"
    assert life.condition("Ready")["status"] == "True"


def test_deciding_twice_orders_nothing_twice():
    life = Life(pod())
    life.settle()
    assert life.decide() == []
    life.happens(Started("main", "id"))
    assert life.decide() == []


def test_a_pod_that_completes_succeeds_and_keeps_its_exit_code():
    life = Life(pod(restart="Never"))
    life.settle()
    life.happens(Started("main", "id"))
    assert life.ends() == []
    assert life.phase == "Succeeded"
    assert life.state()["terminated"]["reason"] == "Completed"
    assert life.condition("Ready")["reason"] == "PodCompleted"


def test_a_pod_that_never_restarts_fails_with_its_container():
    life = Life(pod(restart="Never"))
    life.settle()
    life.happens(Started("main", "id"))
    life.ends(code=3)
    assert life.phase == "Failed"
    assert life.state()["terminated"]["exitCode"] == 3


def test_restarts_wait_0_10_20_40_80_160_300_300_seconds():
    life = Life(pod())
    life.settle()
    waits = []
    for attempt in range(8):
        life.happens(Started("main", "id"))
        actions = life.ends(code=1)
        ended_at = life.now
        if not actions:
            assert life.state()["waiting"]["reason"] == "CrashLoopBackOff"
            life.now = life.wake_at
            actions = life.decide()
        assert actions == [StartContainer("main", attempt + 1)]
        waits.append(life.now - ended_at)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_long_run_clears_the_debt_of_restarts():
    life = Life(pod())
    life.settle()
    for _ in range(3):
        life.happens(Started("main", "id"))
        life.ends(code=1)
        life.now = life.wake_at or life.now
        life.decide()
    life.happens(Started("main", "id"))
    assert life.ends(code=1, after_s=601) == [StartContainer("main", 4)]


def test_while_it_backs_off_the_status_says_how_long_and_what_went_before():
    life = Life(pod())
    life.settle()
    for _ in range(2):
        life.happens(Started("main", "id"))
        life.ends(code=1)
    status = life.status()["containerStatuses"][0]
    assert status["state"]["waiting"]["message"] == "back-off 10s restarting failed container=main pod=p_default(u1)"
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert status["restartCount"] == 1
    assert life.phase == "Running"


def test_on_failure_a_success_is_left_alone():
    life = Life(pod(restart="OnFailure"))
    life.settle()
    life.happens(Started("main", "id"))
    assert life.ends(code=1) == [StartContainer("main", 1)]
    life.happens(Started("main", "id"))
    assert life.ends(code=0) == []
    assert life.phase == "Succeeded"


def test_init_containers_run_one_after_the_other_before_the_others():
    life = Life(pod(init=[{"name": "a"}, {"name": "b"}]))
    assert life.settle() == [StartContainer("a", 0)]
    life.happens(Started("a", "id"))
    assert life.condition("Initialized")["message"] == "containers with incomplete status: [a b]"
    assert life.state() == {"waiting": {"reason": "PodInitializing"}}
    assert life.ends("a") == [StartContainer("b", 0)]
    life.happens(Started("b", "id"))
    assert life.phase == "Pending"
    assert life.ends("b") == [StartContainer("main", 0)]
    assert life.condition("Initialized")["status"] == "True"


def test_a_failed_init_container_fails_a_pod_that_never_restarts():
    life = Life(pod(init=[{"name": "a"}], restart="Never"))
    life.settle()
    life.happens(Started("a", "id"))
    assert life.ends("a", code=1) == []
    assert life.phase == "Failed"


def test_a_failed_init_container_is_tried_again():
    life = Life(pod(init=[{"name": "a"}]))
    life.settle()
    life.happens(Started("a", "id"))
    assert life.ends("a", code=1) == [StartContainer("a", 1)]
    assert life.phase == "Pending"


def test_a_sidecar_starts_first_stays_and_is_stopped_last():
    sidecar = {"name": "side", "restartPolicy": "Always"}
    life = Life(pod(init=[sidecar], restart="Never"))
    assert life.settle() == [StartContainer("side", 0)]
    assert life.happens(Started("side", "id")) == [StartContainer("main", 0)]
    life.happens(Started("main", "id"))
    assert life.ends("main") == [StopContainer("side", 30, "Killing")]
    life.ends("side", code=143)
    assert life.phase == "Succeeded"


def test_a_sidecar_has_what_others_left_of_the_grace_period_and_two_seconds_at_least():
    sidecars = [{"name": name, "restartPolicy": "Always"} for name in ("last", "side")]
    life = Life(pod(init=sidecars))
    life.settle()
    for name in ("last", "side", "main"):
        life.happens(Started(name, "id"))
    life.pod = pod(init=sidecars, deleting=30)
    assert life.decide() == [StopContainer("main", 30, "Killing")]
    assert life.ends("main", code=143, after_s=18) == [StopContainer("side", 12, "Killing")]
    assert life.decide() == []
    assert life.ends("side", code=137, after_s=12) == [StopContainer("last", 2, "Killing")]


def test_a_sidecar_that_ends_is_started_again_while_the_pod_lives():
    life = Life(pod(init=[{"name": "side", "restartPolicy": "Always"}], restart="Never"))
    life.settle()
    life.happens(Started("side", "id"))
    life.happens(Started("main", "id"))
    assert life.ends("side", code=0) == [StartContainer("side", 1)]
    assert life.phase == "Running"


def test_a_missing_config_map_is_a_waiting_reason_and_no_attempt():
    life = Life(pod())
    life.settle()
    message = 'configmap "cm" not found'
    assert life.happens(NotPrepared("main", "CreateContainerConfigError", message)) == []
    assert life.state() == {"waiting": {"reason": "CreateContainerConfigError", "message": message}}
    life.now = life.wake_at
    assert life.decide() == [StartContainer("main", 0)]
    assert life.status()["containerStatuses"][0]["restartCount"] == 0


def test_a_place_that_cannot_be_made_is_tried_again_ever_less_often():
    life = Life(pod())
    assert life.decide() == [PreparePlace()]
    waits = []
    for _ in range(10):
        assert life.happens(PlaceFailed("no claim")) == []
        waits.append(life.wake_at - life.now)
        life.now = life.wake_at
        assert life.decide() == [PreparePlace()]
    assert waits == sorted(waits)
    assert waits[0] == 0.5
    assert waits[-1] == 122.0


def test_a_deleted_pod_is_stopped_then_removed_then_forgotten_by_the_api():
    life = Life(pod())
    life.settle()
    life.happens(Started("main", "id"))
    life.pod = pod(deleting=7)
    assert life.decide() == [StopContainer("main", 7, "Killing")]
    assert life.decide() == []
    assert life.ends(code=143) == [RemovePlace()]
    assert life.phase == "Failed"
    assert life.happens(PlaceRemoved()) == [DeletePod()]
    assert life.decide() == []


def test_a_shorter_grace_overtakes_a_longer_one():
    life = Life(pod())
    life.settle()
    life.happens(Started("main", "id"))
    life.pod = pod(deleting=30)
    life.decide()
    life.pod = pod(deleting=0)
    assert life.decide() == [StopContainer("main", 0, "Killing")]


def test_what_kubectl_debug_adds_runs_once_and_keeps_nobody_waiting():
    life = Life(pod(restart="Always"))
    life.settle()
    life.happens(Started("main", "id"))
    life.pod = pod(restart="Always", ephemeralContainers=[{"name": "look", "image": "x"}])
    assert life.decide() == [StartContainer("look", 0)]
    life.happens(Started("look", "id"))
    assert life.condition("Ready")["status"] == "True"
    assert life.ends("look", code=1) == []
    assert life.status()["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 1
    life.pod = pod(restart="Never", ephemeralContainers=[{"name": "look", "image": "x"}, {"name": "again"}])
    assert life.decide() == [StartContainer("again", 0)]
    life.happens(Started("again", "id"))
    assert life.ends("main") == [StopContainer("again", 30, "Killing")]
    life.ends("again", code=143)
    assert life.phase == "Succeeded"


@pytest.mark.parametrize(("code", "operator", "restarts"), [(42, "In", True), (1, "In", False), (1, "NotIn", True)])
def test_a_rule_for_an_exit_code_restarts_what_would_not_be(code, operator, restarts):
    rules = [{"action": "Restart", "exitCodes": {"operator": operator, "values": [42]}}]
    life = Life(pod([{"name": "main", "restartPolicy": "Never", "restartPolicyRules": rules}], restart="Never"))
    life.settle()
    life.happens(Started("main", "id"))
    assert life.ends(code=code) == ([StartContainer("main", 1)] if restarts else [])
    assert life.phase == ("Running" if restarts else "Failed")


def hooked(name="main", **more):
    return {"name": name, "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}, **more}


def test_the_signal_comes_after_the_hook_with_what_is_left_of_the_grace_period():
    life = Life(pod([hooked()]))
    life.settle()
    life.happens(Started("main", "id"))
    life.pod = pod([hooked()], deleting=30)
    assert life.decide() == [RunPreStop("main", 30, "Killing")]
    assert life.decide() == []
    assert life.happens(PreStopEnded("main"), after_s=21) == [StopContainer("main", 9, "")]
    assert life.decide() == []


@pytest.mark.parametrize(("took_s", "left_s"), [(0, 5), (4, 2), (60, 2)])
def test_a_hook_leaves_two_seconds_at_least(took_s, left_s):
    life = Life(pod([hooked()], deleting=None))
    life.settle()
    life.happens(Started("main", "id"))
    life.pod = pod([hooked()], deleting=5)
    life.decide()
    assert life.happens(PreStopEnded("main"), after_s=took_s) == [StopContainer("main", left_s, "")]


def test_a_clock_that_is_set_back_makes_no_grace_period_longer():
    life = Life(pod([hooked()]))
    life.settle()
    life.happens(Started("main", "id"))
    life.pod = pod([hooked()], deleting=30)
    life.decide()
    assert life.happens(PreStopEnded("main"), after_s=-3600) == [StopContainer("main", 30, "")]


def test_a_shorter_grace_does_not_wait_for_the_hook():
    life = Life(pod([hooked()]))
    life.settle()
    life.happens(Started("main", "id"))
    life.pod = pod([hooked()], deleting=30)
    life.decide()
    life.pod = pod([hooked()], deleting=0)
    assert life.decide() == [StopContainer("main", 0, "Killing")]
    assert life.happens(PreStopEnded("main")) == []


def test_a_container_that_is_just_being_started_is_stopped_once_it_runs():
    life = Life(pod())
    life.settle()
    life.pod = pod(deleting=5)
    assert life.decide() == []
    assert life.happens(Started("main", "id")) == [StopContainer("main", 5, "Killing")]


def test_a_pod_deleted_before_it_had_a_place_is_simply_forgotten():
    life = Life(pod(deleting=30))
    assert life.decide() == [DeletePod()]


def test_a_pod_over_its_deadline_fails_and_is_stopped():
    life = Life(pod(activeDeadlineSeconds=60))
    life.settle()
    life.happens(Started("main", "id"))
    assert life.wake_at == 1060
    life.now = 1060
    assert life.decide() == [StopContainer("main", 30, "Killing")]
    assert (life.phase, life.status().get("reason")) == ("Running", None)  # its successor waits for what it still holds
    life.ends(code=143, after_s=20)
    assert life.status()["reason"] == "DeadlineExceeded"
    assert life.phase == "Failed"


def probing(kind, **probe):
    key = {"liveness": "livenessProbe", "readiness": "readinessProbe", "startup": "startupProbe"}[kind]
    return {"name": "main", key: {"exec": {"command": ["ok"]}, "periodSeconds": 5, "failureThreshold": 2, **probe}}


def test_readiness_follows_its_probe():
    life = Life(pod([probing("readiness", initialDelaySeconds=3)]))
    life.settle()
    assert life.happens(Started("main", "id")) == []
    assert life.wake_at == life.now + 3
    life.now += 3
    assert life.decide() == [AskProbe("main", ProbeKind.READINESS)]
    assert life.condition("Ready")["message"] == "containers with unready status: [main]"
    life.happens(Probed("main", ProbeKind.READINESS, True))
    assert life.condition("Ready")["status"] == "True"
    for expected in ("True", "False"):
        life.now = life.wake_at
        life.decide()
        life.happens(Probed("main", ProbeKind.READINESS, False))
        assert life.condition("Ready")["status"] == expected


def test_a_failed_liveness_probe_restarts_the_container():
    life = Life(pod([probing("liveness", terminationGracePeriodSeconds=4)]))
    life.settle()
    assert life.happens(Started("main", "id")) == [AskProbe("main", ProbeKind.LIVENESS)]
    life.happens(Probed("main", ProbeKind.LIVENESS, False))
    life.now = life.wake_at
    life.decide()
    stop = life.happens(Probed("main", ProbeKind.LIVENESS, False))
    assert stop == [StopContainer("main", 4, "LivenessProbeFailed")]
    assert life.ends(code=143) == [StartContainer("main", 1)]
    assert life.happens(Started("main", "id")) == [AskProbe("main", ProbeKind.LIVENESS)]


def test_until_the_startup_probe_has_passed_nothing_else_is_asked():
    container = {**probing("startup"), "livenessProbe": {"exec": {"command": ["ok"]}}}
    life = Life(pod([container]))
    life.settle()
    assert life.happens(Started("main", "id")) == [AskProbe("main", ProbeKind.STARTUP)]
    assert life.status()["containerStatuses"][0]["started"] is False
    assert life.happens(Probed("main", ProbeKind.STARTUP, True)) == [AskProbe("main", ProbeKind.LIVENESS)]
    assert life.status()["containerStatuses"][0]["started"] is True


def test_an_answer_that_comes_after_the_container_ended_changes_nothing():
    life = Life(pod([probing("liveness")], restart="Never"))
    life.settle()
    life.happens(Started("main", "id"))
    life.ends(code=1)
    before = life.record
    life.happens(Probed("main", ProbeKind.LIVENESS, False))
    assert life.record == before


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_container_is_ready_after_its_post_start_hook_and_stopped_if_that_fails(succeeded):
    container = {"name": "main", "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}
    life = Life(pod([container]))
    life.settle()
    assert life.happens(Started("main", "id")) == [RunPostStart("main")]
    assert life.condition("Ready")["status"] == "False"
    actions = life.happens(PostStartEnded("main", succeeded))
    assert actions == ([] if succeeded else [StopContainer("main", 30, "FailedPostStartHook")])
    assert life.condition("Ready")["status"] == ("True" if succeeded else "False")


def test_a_start_that_is_told_after_the_end_changes_nothing():
    life = Life(pod(restart="Never"))
    life.settle()
    life.happens(Exited("main", Exit(code=0, reason="Completed", finished_at=life.now), attempt=0))
    life.happens(Started("main", "id", attempt=0))
    assert life.phase == "Succeeded"


def test_news_of_an_earlier_attempt_is_no_news():
    life = Life(pod())
    life.settle()
    end = Exit(code=1, reason="Error", finished_at=life.now)
    assert life.happens(Exited("main", end, attempt=0)) == [StartContainer("main", 1)]
    before = life.record
    life.happens(Started("main", "old", attempt=0))
    life.happens(Exited("main", end, attempt=0))
    assert life.record == before
