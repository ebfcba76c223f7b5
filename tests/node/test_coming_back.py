"""What a node makes of its pods when it comes back after a kill: containers that outlived it go on, untold and unstarted."""

from dataclasses import replace

import msgspec
import pytest

from hekla.api.pods import Pod
from hekla.node.pod_lifecycle import AskProbe, StartContainer, StopContainer, decide
from hekla.node.pod_record import (
    Exit,
    Exited,
    Memory,
    Outlived,
    PlaceReady,
    PodRecord,
    PostStartEnded,
    Probed,
    ProbeKind,
    Stage,
    Started,
    after,
    recover,
)
from hekla.node.pod_status import since_of, status_of

BEGAN, BACK = 1000.0, 1700.0
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 10}
SHAPES = {
    "plain": {},
    "with probes": {"startupProbe": PROBE, "readinessProbe": PROBE, "livenessProbe": PROBE},
    "with a hook": {"lifecycle": {"postStart": {"exec": {"command": ["true"]}}}},
}


def pod_of(status=None, **container):
    return msgspec.convert(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "uid": "u1", "generation": 1},
            "spec": {"containers": [{"name": "main", "image": "x", **container}], "restartPolicy": "Always"},
            **({"status": as_stored(status)} if status else {}),
        },
        Pod,
    )


def as_stored(document):
    """The API takes nulls out."""
    if isinstance(document, dict):
        return {name: as_stored(value) for name, value in document.items() if value is not None}
    return [as_stored(each) for each in document] if isinstance(document, list) else document


def running(pod, *, until_ready=True):
    """Its record once its container runs, and all that is asked was answered."""
    record = PodRecord(accepted_at=BEGAN, host_ip="10.0.0.1")
    events = [PlaceReady("127.0.0.9"), Started("main", "sandbox://u1/main/0")]
    if until_ready:
        events += [PostStartEnded("main", True), *(Probed("main", kind, True) for kind in ProbeKind)]
    for event in [None, *events]:
        if event is not None:
            record = after(pod, record, event, BEGAN)
        record = decide(pod, record, BEGAN).record
    return record


def outlived(attempt=0, exit=None):
    return {"main": Outlived(attempt, f"sandbox://u1/main/{attempt}", BEGAN, exit)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("until_ready", [True, False], ids=["ready", "on its way"])
def test_a_container_that_outlived_its_node_is_told_as_it_was(shape, until_ready):
    pod = pod_of(**SHAPES[shape])
    told = status_of(pod, running(pod, until_ready=until_ready), BEGAN)
    pod = pod_of(told, **SHAPES[shape])
    record = replace(recover(pod, BACK, outlived()), host_ip="10.0.0.1")
    assert status_of(pod, record, BACK, since_of(pod)) == told
    plan = decide(pod, record, BACK)
    assert not [action for action in plan.actions if isinstance(action, StartContainer)]
    if until_ready and shape == "with probes":
        assert {action.kind for action in plan.actions if isinstance(action, AskProbe)} == {
            ProbeKind.READINESS,
            ProbeKind.LIVENESS,
        }


def test_what_did_not_outlive_it_has_ended_and_is_started_anew():
    pod = pod_of()
    pod = pod_of(status_of(pod, running(pod), BEGAN))
    record = recover(pod, BACK)
    assert record.container("main").exit.reason == "ContainerStatusUnknown"
    record = after(pod, decide(pod, record, BACK).record, PlaceReady("127.0.0.9"), BACK)
    assert decide(pod, record, BACK).actions == (StartContainer("main", 1),)


def test_what_ended_while_nobody_looked_is_told_as_it_ended():
    pod = pod_of()
    pod = pod_of(status_of(pod, running(pod), BEGAN))
    end = Exit(code=7, reason="Error", started_at=BEGAN, finished_at=BACK)
    known = recover(pod, BACK, outlived(exit=end)).container("main")
    assert (known.stage, known.exit, known.attempts) == (Stage.EXITED, end, 1)


def test_a_start_that_was_never_told_is_told_and_not_done_twice():
    pod = pod_of({"phase": "Pending", "startTime": "1970-01-01T00:16:40Z"})
    record = recover(pod, BACK, outlived())
    assert record.container("main").stage is Stage.RUNNING
    record = after(pod, decide(pod, record, BACK).record, PlaceReady("127.0.0.9"), BACK)
    plan = decide(pod, record, BACK)
    assert plan.actions == ()
    [told] = status_of(pod, plan.record, BACK)["containerStatuses"]
    assert (told["restartCount"], list(told["state"])) == (0, ["running"])


def test_a_restart_that_was_never_told_is_counted():
    pod = pod_of()
    ended = after(
        pod, running(pod), Exited("main", Exit(code=3, reason="Error", started_at=BEGAN, finished_at=BEGAN)), BEGAN
    )
    pod = pod_of(status_of(pod, ended, BEGAN))
    record = recover(pod, BACK, outlived(attempt=1))
    [told] = status_of(pod, record, BACK)["containerStatuses"]
    assert (told["restartCount"], told["lastState"]["terminated"]["exitCode"]) == (1, 3)


DELETED = 10_000.0
LEAVING = {"deletionTimestamp": "1970-01-01T02:47:10Z", "deletionGracePeriodSeconds": 30}


def left_of_the_grace(stopped_at):
    """Seconds that a container gets which outlived its node, in a pod with one that was stopped at the moment and has ended."""
    pod = pod_of()
    healthy = msgspec.structs.replace(pod.spec.containers[0], name="healthy")
    pod = msgspec.structs.replace(
        pod,
        metadata=msgspec.convert({"name": "p", "namespace": "default", "uid": "u1", **LEAVING}, type(pod.metadata)),
        spec=msgspec.structs.replace(pod.spec, containers=[*pod.spec.containers, healthy]),
    )
    end = Exit(code=143, reason="Error", started_at=9000.0, finished_at=stopped_at + 1)
    found = {
        "main": Outlived(3, "sandbox://u1/main/3", 9000.0, end, memory=Memory(stop_began_at=stopped_at)),
        "healthy": Outlived(0, "sandbox://u1/healthy/0", 8000.0, None, memory=Memory()),
    }
    now = DELETED + 10
    [stop] = decide(pod, recover(pod, now, found, address="10.0.0.1"), now).actions
    assert isinstance(stop, StopContainer)
    return stop.grace_s


def test_what_a_probe_stopped_before_the_pod_was_deleted_takes_nothing_of_the_others_grace():
    assert left_of_the_grace(DELETED - 250) == 30


def test_what_others_left_of_the_grace_is_what_there_is_also_when_they_have_ended():
    assert left_of_the_grace(DELETED) == 20
