from hekla.api.pods import Pod
from hekla.controlplane.replica_set import reconcile_replica_set, tell_refusal
from hekla.controlplane.views import ReplicaSet
from hekla.kube.commands import Create, Delete, Patch, SetStatus
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.world import FakeWorld

UID = "rs"


def replica_set(replicas=2, **spec):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web", "uid": UID},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec},
    }


def pod(name, *, owned=True, phase="Pending", ready=False, labels=None, annotations=None, since="2026-01-01T00:00:00Z"):
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": UID, "controller": True}
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": since}] if ready else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels or {"app": "web"},
            "annotations": annotations or {},
            "ownerReferences": [owner] if owned else [],
        },
        "spec": {"nodeName": "n"} if phase == "Running" else {},
        "status": {"phase": phase, "conditions": conditions},
    }


def names(world):
    return [one.metadata.name for one in world.list(Pod) if not one.metadata.deletion_timestamp]


def test_missing_pods_are_made(now):
    world = FakeWorld(replica_set(3))
    converge(reconcile_replica_set, world, "default", "web", now=now)
    assert len(names(world)) == 3
    assert world.get(ReplicaSet, "default", "web").status.replicas == 3


def test_of_surplus_pods_those_go_that_would_be_missed_least(now):
    world = FakeWorld(
        replica_set(2),
        pod("pending"),
        pod("cheap", phase="Running", ready=True, annotations={"controller.kubernetes.io/pod-deletion-cost": "-5"}),
        pod("unready", phase="Running"),
        pod("old", phase="Running", ready=True, since="2025-01-01T00:00:00Z"),
        pod("young", phase="Running", ready=True, since="2026-01-01T00:05:00Z"),
    )
    converge(reconcile_replica_set, world, "default", "web", now=now)
    assert names(world) == ["old", "young"]


def test_an_ended_pod_is_replaced_and_not_counted(now):
    world = FakeWorld(replica_set(1), pod("done", phase="Failed"))
    converge(reconcile_replica_set, world, "default", "web", now=now)
    assert len(names(world)) == 2
    assert world.get(ReplicaSet, "default", "web").status.replicas == 1


def test_a_free_pod_that_matches_is_adopted_and_one_that_no_longer_matches_let_go(now):
    world = FakeWorld(replica_set(1), pod("free", owned=False), pod("other", labels={"app": "else"}))
    converge(reconcile_replica_set, world, "default", "web", now=now)
    assert world.get(Pod, "default", "free").metadata.owner_references[0].uid == UID
    assert world.get(Pod, "default", "other").metadata.owner_references == []
    assert names(world) == ["free", "other"]


def test_a_pod_is_available_only_after_its_time(now):
    ready_at = "2026-01-01T00:09:50Z"
    world = FakeWorld(replica_set(1, minReadySeconds=30), pod("p", phase="Running", ready=True, since=ready_at))
    converge(reconcile_replica_set, world, "default", "web", now=now)
    status = world.get(ReplicaSet, "default", "web").status
    assert (status.ready_replicas, status.available_replicas) == (1, 0)
    assert 20 <= world.requeues[0] <= 21


def test_the_properties_of_all_reconcilers_hold(now):
    def world():
        return FakeWorld(replica_set(3), pod("a", phase="Running", ready=True), pod("gone", phase="Failed"))

    assert_converges(reconcile_replica_set, world(), "default", "web", now=now)
    assert_heals(reconcile_replica_set, world, "default", "web", now=now)
    assert_touches_only_its_own(reconcile_replica_set, world(), "default", "web", now=now)


def refuse(world, kind, why, now):
    """The first command of a kind that the set asks for is refused."""
    one = world.get(ReplicaSet, "default", "web")
    refused = next(command for command in reconcile_replica_set.decide(one, world, now) if isinstance(command, kind))
    world.execute(list(tell_refusal(one, refused, why, world, now)))


def test_pods_that_the_server_refuses_are_told_of_until_they_are_made(now):
    world = FakeWorld(replica_set(2))
    for why in ('pods "web-a" is forbidden: exceeded quota: q', 'pods "web-b" is forbidden: exceeded quota: q'):
        refuse(world, Create, why, now)
    (said,) = world.get(ReplicaSet, "default", "web").status.conditions
    assert (said.type, said.status, said.reason) == ("ReplicaFailure", "True", "FailedCreate")
    assert said.message == 'pods "web-a" is forbidden: exceeded quota: q'
    converge(reconcile_replica_set, world, "default", "web", now=now)
    assert world.get(ReplicaSet, "default", "web").status.conditions == []


def test_a_refused_deletion_is_told_as_one_and_a_refused_adoption_not_at_all(now):
    """Both were told as FailedCreate, and the deployment repeated it."""
    why = 'admission webhook "keep" denied the deletion of pod a'
    world = FakeWorld(replica_set(0), pod("a"))
    refuse(world, Delete, why, now)
    (said,) = world.get(ReplicaSet, "default", "web").status.conditions
    assert (said.type, said.status, said.reason, said.message) == ("ReplicaFailure", "True", "FailedDelete", why)
    assert [(one.reason, one.message) for one in world.events] == [("FailedDelete", f"Error deleting: {why}")]
    for refused in (Patch, SetStatus):
        world = FakeWorld(replica_set(1), pod("free", owned=False))
        refuse(world, refused, "no", now)
        assert world.get(ReplicaSet, "default", "web").status.conditions == []


def test_each_surplus_pod_that_is_deleted_is_told_of(now):
    world = FakeWorld(replica_set(0), pod("a"), pod("b"))
    converge(reconcile_replica_set, world, "default", "web", now=now)
    assert [(one.reason, one.message) for one in world.events] == [
        ("SuccessfulDelete", "Deleted pod: a"),
        ("SuccessfulDelete", "Deleted pod: b"),
    ]
