"""Whether a Sandbox has the pod, claims and Service that it should, and says what agent-sandbox would say."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hekla.api.agents import Sandbox, names
from hekla.api.core import Service
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolumeClaim
from hekla.sandbox.owning import name_hash
from hekla.sandbox.sandbox import GIVES_WAY_S, UNPROTECTED_S, reconcile_sandbox
from hekla.sandbox.sandbox_status import trouble_told
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge, decide
from hekla.testing.world import FakeWorld

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
RUNNING = {
    "phase": "Running",
    "podIPs": [{"ip": "10.0.0.1"}],
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
}


def sandbox(**spec: Any) -> Document:
    """A Sandbox `box` in namespace `ns`."""
    template = {
        "metadata": {"labels": {"team": "a", "agents.x-k8s.io/claim-uid": "forged"}},
        "spec": {"containers": [{"name": "main", "image": "python", "ports": [{"containerPort": 8888}]}]},
    }
    return {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": "box", "namespace": "ns", "uid": "box-uid"},
        "spec": {"podTemplate": template, **spec},
    }


def world_of(*also: Document, **spec: Any) -> FakeWorld:
    """A world with the Sandbox."""
    return FakeWorld(sandbox(**spec), *also)


def settled(world: FakeWorld, now: datetime = NOW) -> FakeWorld:
    """After everything that could be done was done."""
    converge(reconcile_sandbox, world, "ns", "box", now=now)
    return world


def condition(world: FakeWorld, kind: str = "Ready") -> tuple[str, str, str]:
    """Status, reason and message of a condition; empty if there is none."""
    for one in world.document(Sandbox, "ns", "box").get("status", {}).get("conditions", ()):
        if one["type"] == kind:
            return one["status"], one["reason"], one["message"]
    return "", "", ""


def pod(**more: Any) -> Document:
    """A pod named like the Sandbox that is nobody's."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box", "namespace": "ns", "uid": "pod-uid"}, **more}


def test_a_sandbox_has_a_pod_of_its_own_and_tells_when_it_is_ready() -> None:
    world = settled(world_of())
    made = world.get(Pod, "ns", "box")
    assert made is not None
    assert made.metadata.labels[names.SANDBOX_NAME_HASH] == name_hash("box")
    assert condition(world) == ("False", "DependenciesNotReady", "Pod exists with phase: ")
    world.change(Pod, "ns", "box", {"status": RUNNING, "spec": {"nodeName": "n1"}})
    settled(world)
    assert condition(world) == ("True", "DependenciesReady", "Pod is Ready")
    status = world.document(Sandbox, "ns", "box")["status"]
    assert (status["podIPs"], status["nodeName"]) == (["10.0.0.1"], "n1")
    assert status["selector"] == f"{names.SANDBOX_NAME_HASH}={name_hash('box')}"


def test_what_keeps_a_sandbox_is_told_to_who_waits_for_it() -> None:
    """A session for which there was no room was refused after two minutes as "timed out", and nothing more."""
    world = settled(world_of())
    (made,) = world.list(Pod, "ns")
    document = world.document(Pod, "ns", made.metadata.name)
    why = "0/2 nodes are available: 2 Insufficient cpu."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    world.put({**document, "status": {"phase": "Pending", "conditions": [scheduled]}})
    settled(world, NOW + timedelta(seconds=2))
    (box,) = world.list(Sandbox, "ns")
    assert trouble_told(box) == f"no node takes its pod: {why}"


def test_a_template_cannot_set_the_controllers_own_labels() -> None:
    made = settled(world_of()).get(Pod, "ns", "box")
    assert made is not None
    assert names.CLAIM_UID not in made.metadata.labels
    assert made.metadata.labels["team"] == "a"


def test_a_label_that_leaves_the_template_leaves_the_pod() -> None:
    world = settled(world_of())
    world.change(Sandbox, "ns", "box", {"spec": {"podTemplate": {"metadata": {"labels": {"team": None, "tier": "x"}}}}})
    made = settled(world).get(Pod, "ns", "box")
    assert made is not None
    assert "team" not in made.metadata.labels
    assert made.metadata.labels["tier"] == "x"


def test_pods_run_in_the_sandbox_runtime_where_there_is_one() -> None:
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandbox"}, "handler": "s"}
    with_it = settled(world_of(runtime)).get(Pod, "ns", "box")
    without = settled(world_of()).get(Pod, "ns", "box")
    assert with_it is not None
    assert without is not None
    assert (with_it.spec.runtime_class_name, without.spec.runtime_class_name) == ("sandbox", "")


def test_suspended_means_no_pod_and_everything_else_stays() -> None:
    claim = {"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    world = settled(world_of(service=True, volumeClaimTemplates=[claim]))
    world.change(Sandbox, "ns", "box", {"spec": {"operatingMode": "Suspended"}})
    settled(world)
    assert world.get(Pod, "ns", "box") is None
    assert world.get(Service, "ns", "box") is not None
    assert world.get(PersistentVolumeClaim, "ns", "work-box") is not None
    assert condition(world, "Suspended")[:2] == ("True", "PodTerminated")
    assert condition(world)[:2] == ("False", "SandboxSuspended")
    world.change(Sandbox, "ns", "box", {"spec": {"operatingMode": "Running"}})
    settled(world)
    assert world.get(Pod, "ns", "box") is not None
    assert condition(world, "Suspended")[:2] == ("False", "NotSuspended")


@pytest.mark.parametrize(
    ("wanted", "is_there"), [(True, True), (False, False), (None, False)], ids=["true", "false", "absent"]
)
def test_a_service_is_made_when_asked_for(wanted: bool | None, is_there: bool) -> None:
    spec = {} if wanted is None else {"service": wanted}
    world = settled(world_of(**spec))
    assert (world.get(Service, "ns", "box") is not None) is is_there
    if wanted:
        assert world.document(Service, "ns", "box")["spec"]["ports"] == [
            {"name": "p-8888-tcp", "protocol": "TCP", "port": 8888, "targetPort": 8888}
        ]
        assert world.document(Sandbox, "ns", "box")["status"]["serviceFQDN"] == "box.ns.svc.cluster.local"


def test_a_service_that_is_there_stays_while_nothing_is_said_of_it() -> None:
    world = settled(world_of(service=True))
    world.change(Sandbox, "ns", "box", {"spec": {"service": None}})
    assert settled(world).get(Service, "ns", "box") is not None
    world.change(Sandbox, "ns", "box", {"spec": {"service": False}})
    assert settled(world).get(Service, "ns", "box") is None


def test_more_than_one_pod_is_nobodys_choice() -> None:
    owner = [{"apiVersion": "x", "kind": "Sandbox", "name": "box", "uid": "box-uid", "controller": True}]
    pods = [pod(), pod()]
    for number, one in enumerate(pods):
        one["metadata"] = {**one["metadata"], "name": f"p{number}", "uid": f"u{number}", "ownerReferences": owner}
    world = settled(world_of(*pods))
    assert condition(world)[:2] == ("False", "MultiplePods")
    assert "p0, p1" in condition(world)[2]
    assert [one.metadata.name for one in world.list(Pod)] == ["p0", "p1"]
    assert [event.reason for event in world.events] == ["MultiplePods"]


def test_somebody_elses_pod_is_neither_taken_nor_deleted_nor_told_of() -> None:
    foreign = pod(status={**RUNNING, "phase": "Pending"})
    foreign["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "rs", "controller": True}
    ]
    owner = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "ns", "uid": "rs"}}
    world = settled(world_of(owner, foreign))
    assert condition(world)[1] == "ReconcilerError"
    assert 'Pod "box" is owned by Service/web (UID: rs), not by sandbox "box"' in condition(world)[2]
    assert "podIPs" not in world.document(Sandbox, "ns", "box")["status"]
    world.change(Sandbox, "ns", "box", {"spec": {"operatingMode": "Suspended"}})
    settled(world)
    assert world.get(Pod, "ns", "box") is not None
    assert condition(world, "Suspended")[:2] == ("False", "PodNotOwned")


def test_a_pod_of_nobody_is_adopted_only_when_it_says_so() -> None:
    world = settled(world_of(pod()))
    assert "cannot adopt unowned Pod" in condition(world)[2]
    allowed = pod()
    allowed["metadata"]["labels"] = {names.ADOPTABLE: "true"}
    world = settled(world_of(allowed))
    owners = world.document(Pod, "ns", "box")["metadata"]["ownerReferences"]
    assert [one["uid"] for one in owners] == ["box-uid"]


def test_a_pod_that_ended_is_told_and_not_replaced() -> None:
    world = settled(world_of())
    world.change(Pod, "ns", "box", {"status": {"phase": "Failed"}})
    settled(world)
    assert condition(world, "Finished") == ("True", "PodFailed", "Pod failed")
    assert condition(world) == ("False", "PodFailed", "Pod failed")
    assert len(world.list(Pod)) == 1


def test_the_end_is_told_before_anything_goes() -> None:
    world = settled(world_of(service=True))
    ends = "2026-01-01T01:00:00Z"
    world.change(Sandbox, "ns", "box", {"spec": {"shutdownTime": ends}})
    settled(world)
    assert world.requeues[-1] == pytest.approx(59 * 60)
    then = datetime(2026, 1, 1, 1, tzinfo=UTC)
    world.execute(decide(reconcile_sandbox, world, "ns", "box", now=then))
    assert condition(world)[:2] == ("False", "SandboxExpired")
    assert world.get(Pod, "ns", "box") is not None
    settled(world, then)
    assert world.get(Pod, "ns", "box") is None
    assert world.get(Service, "ns", "box") is None
    assert world.get(Sandbox, "ns", "box") is not None


def test_delete_means_the_object_too() -> None:
    world = settled(world_of(shutdownTime="2026-01-01T00:00:30Z", shutdownPolicy="Delete"))
    assert world.get(Sandbox, "ns", "box") is None


def test_the_first_second_is_not_told_step_by_step() -> None:
    world = world_of()
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=300)
    world.execute(decide(reconcile_sandbox, world, "ns", "box", now=at))
    world.execute(decide(reconcile_sandbox, world, "ns", "box", now=at))
    assert condition(world) == ("", "", "")
    world.change(Pod, "ns", "box", {"status": RUNNING})
    world.execute(decide(reconcile_sandbox, world, "ns", "box", now=at))
    assert condition(world)[:2] == ("True", "DependenciesReady")


def waits_s(world: FakeWorld) -> float:
    """How long a look at the Sandbox gives way to sessions that are being made."""
    asked = reconcile_sandbox.gives_way_s
    assert callable(asked)
    return asked(world.get(Sandbox, "ns", "box"), world)


def of_session(*changes: Document) -> FakeWorld:
    """A session's Sandbox and its pod, which runs unless the changes say otherwise."""
    world = world_of()
    world.change(Sandbox, "ns", "box", {"metadata": {"labels": {names.SESSION_ID: "s"}}})
    world.execute(decide(reconcile_sandbox, world, "ns", "box", now=NOW))
    for change in ({"status": RUNNING}, *changes):
        world.change(Pod, "ns", "box", change)
    return world


def test_a_sandbox_whose_session_has_its_pod_may_be_looked_at_later() -> None:
    assert waits_s(of_session()) == GIVES_WAY_S
    assert waits_s(of_session({"status": {"phase": "Pending"}})) == GIVES_WAY_S
    assert not waits_s(settled(world_of())), "it is nobody's"


def test_a_pod_that_ended_is_seen_to_at_once() -> None:
    assert not waits_s(of_session({"status": {"phase": "Failed"}}))


def test_a_pod_from_a_pool_that_may_still_be_preempted_waits_less() -> None:
    claimed = {"spec": {"priorityClassName": names.IDLE_PRIORITY_CLASS}}
    assert waits_s(of_session(claimed)) == UNPROTECTED_S
    assert waits_s(of_session(claimed, {"metadata": {"annotations": {names.PREEMPTABLE: "false"}}})) == GIVES_WAY_S


@pytest.mark.parametrize("spec", [{"shutdownTime": "2026-01-01T00:00:30Z"}, {"operatingMode": "Suspended"}])
def test_an_end_that_is_asked_for_and_a_pod_that_is_missing_are_seen_to_at_once(spec: Document) -> None:
    world = of_session()
    world.change(Sandbox, "ns", "box", {"spec": spec})
    assert not waits_s(world)
    without = world_of()
    without.change(Sandbox, "ns", "box", {"metadata": {"labels": {names.SESSION_ID: "s"}}})
    assert not waits_s(without)


@pytest.mark.parametrize(
    "spec", [{}, {"service": True}, {"operatingMode": "Suspended"}], ids=["plain", "service", "suspended"]
)
def test_it_keeps_the_rules_of_reconcilers(spec: Document) -> None:
    assert_converges(reconcile_sandbox, world_of(**spec), "ns", "box", now=NOW)
    assert_heals(reconcile_sandbox, lambda: world_of(**spec), "ns", "box", now=NOW)
    assert_touches_only_its_own(reconcile_sandbox, world_of(**spec), "ns", "box", now=NOW)
