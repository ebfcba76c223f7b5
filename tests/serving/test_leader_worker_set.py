"""LeaderWorkerSets become ModelServings of one role. Kthena: e2e LWSAPIBasic."""

from hekla.api.foreign import LeaderWorkerSet
from hekla.api.kthena import ModelServing
from hekla.api.meta import Document
from hekla.serving.leader_worker_set import reconcile_leader_worker_set
from hekla.serving.model_serving import reconcile_model_serving
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.serving_world import NAMESPACE, NOW, ServingWorld, pod_spec
from hekla.testing.world import FakeWorld


def lws(**spec: object) -> Document:
    template = {"size": 3, "workerTemplate": {"metadata": {"labels": {"app": "w"}}, "spec": pod_spec()}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "ring", "namespace": NAMESPACE, "uid": "uid-ring"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": template, **spec},
    }


def settled(document: Document) -> ServingWorld:
    world = FakeWorld(document)
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    serving = ServingWorld.__new__(ServingWorld)
    serving.name, serving.world, serving.now = "ring", world, NOW
    return serving.settle().run_all().settle()


def test_a_set_is_a_serving_of_one_role_with_the_labels_of_the_project() -> None:
    world = settled(lws())
    assert list(world.pods) == [f"ring-{group}-default-0-{index}" for group in (0, 1) for index in (0, 1, 2)]
    worker = world.pods["ring-1-default-0-2"].metadata.labels
    assert worker["leaderworkerset.sigs.k8s.io/name"] == "ring"
    assert worker["leaderworkerset.sigs.k8s.io/group-index"] == "1"
    assert worker["leaderworkerset.sigs.k8s.io/worker-index"] == "2"
    assert worker["leaderworkerset.sigs.k8s.io/group-key"] == "3daca9af08617f4d98fb230d1c1b73ac92b219e5"
    assert worker["app"] == "w"


def test_workers_find_their_leader_by_the_variables_of_the_project() -> None:
    own = [{"name": "ADDRESS", "value": "$(LWS_LEADER_ADDRESS):6379"}, {"name": "LWS_GROUP_SIZE", "value": "9"}]
    template = pod_spec()
    template["containers"][0]["env"] = own
    world = settled(lws(leaderWorkerTemplate={"size": 3, "workerTemplate": {"spec": template}}))
    env = world.pods["ring-1-default-0-2"].spec.containers[0].env
    assert [(one.name, one.value) for one in env[:4]] == [
        ("LWS_LEADER_ADDRESS", "ring-1-default-0-0.default"), ("LWS_WORKER_INDEX", "2"),
        ("ADDRESS", "$(LWS_LEADER_ADDRESS):6379"), ("LWS_GROUP_SIZE", "9"),
    ]  # fmt: skip
    assert world.services == ["ring-0-default-0-0", "ring-1-default-0-0"], "by whose names they are found"


def test_the_status_tells_how_the_groups_fare() -> None:
    world = settled(lws()).world
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    status = world.document(LeaderWorkerSet, NAMESPACE, "ring")["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (2, 2, 2)
    assert status["conditions"][-1]["type"] == "Available"


def test_changes_reach_the_serving() -> None:
    world = settled(lws()).world
    rolling = {"maxUnavailable": 2, "maxSurge": 1, "partition": 1}
    strategy = {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    world.change(LeaderWorkerSet, NAMESPACE, "ring", {"spec": {"replicas": 5, "rolloutStrategy": strategy}})
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    spec = world.document(ModelServing, NAMESPACE, "ring")["spec"]
    assert spec["replicas"] == 5
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == rolling
    world.change(ModelServing, NAMESPACE, "ring", {"spec": {"replicas": 9}})
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    assert world.document(ModelServing, NAMESPACE, "ring")["spec"]["replicas"] == 5


def test_a_leader_may_have_a_template_of_its_own() -> None:
    template = {
        "size": 2,
        "restartPolicy": "None",
        "leaderTemplate": {"spec": pod_spec("leader:1")},
        "workerTemplate": {"spec": pod_spec("worker:1")},
    }
    world = settled(lws(replicas=1, leaderWorkerTemplate=template))
    assert world.images() == {"ring-0-default-0-0": "leader:1", "ring-0-default-0-1": "worker:1"}
    assert world.serving.spec.recovery_policy == "None"


def test_what_every_reconciler_keeps() -> None:
    assert_converges(reconcile_leader_worker_set, FakeWorld(lws()), NAMESPACE, "ring", now=NOW)
    assert_heals(reconcile_leader_worker_set, lambda: FakeWorld(lws()), NAMESPACE, "ring", now=NOW)
    assert_touches_only_its_own(reconcile_leader_worker_set, FakeWorld(lws()), NAMESPACE, "ring", now=NOW)
    assert reconcile_model_serving.kind is ModelServing
