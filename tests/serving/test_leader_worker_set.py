"""LeaderWorkerSets become ModelServings of one role. Kthena: e2e LWSAPIBasic."""

import asyncio

import pytest

from hekla.api.core import Pod, Service
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.foreign import LeaderWorkerSet
from hekla.api.kthena import ModelServing
from hekla.api.meta import Document
from hekla.kube.errors import InvalidError
from hekla.serving import serving_plan
from hekla.serving.leader_worker_set import reconcile_leader_worker_set
from hekla.serving.model_serving import reconcile_model_serving
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.server import api_server, in_process_client
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
        ("LWS_LEADER_ADDRESS", "ring-1.ring.default"), ("LWS_WORKER_INDEX", "2"),
        ("ADDRESS", "$(LWS_LEADER_ADDRESS):6379"), ("LWS_GROUP_SIZE", "9"),
    ]  # fmt: skip
    assert world.services == ["ring", "ring-0-default-0-0", "ring-1-default-0-0"], "by whose names they are found"


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


def group(world: ServingWorld, label: str, of: str = "ring-0-") -> list[str]:
    """A label of a group's pods, in their order; - where they have none."""
    found = [pod for name, pod in world.pods.items() if name.startswith(of)]
    labels = [pod.metadata.labels for pod in sorted(found, key=lambda pod: int(pod.metadata.name.rpartition("-")[2]))]
    return [some.get(f"leaderworkerset.sigs.k8s.io/{label}", "-") for some in labels]


@pytest.mark.parametrize(
    ("size", "policy", "indices"),
    [
        (4, {"subGroupSize": 2}, ["0", "0", "1", "1"]),
        (5, {"subGroupSize": 2}, ["0", "0", "0", "1", "1"]),  # the leader is one more in the first
        (5, {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}, ["-", "0", "0", "1", "1"]),
        (3, {"subGroupSize": 1}, ["0", "1", "2"]),
        (3, {}, ["-", "-", "-"]),
    ],
)
def test_pods_know_their_subgroup(size: int, policy: Document, indices: list[str]) -> None:
    template = {"size": size, "workerTemplate": {"spec": pod_spec()}, "subGroupPolicy": policy}
    world = settled(lws(leaderWorkerTemplate=template))
    assert group(world, "subgroup-index") == indices
    keys = dict.fromkeys(zip(indices, group(world, "subgroup-key"), strict=True))
    assert len(keys) == len(set(indices)), "one key for each"
    others = set(group(world, "subgroup-key", "ring-1-")) - {"-"}
    assert others.isdisjoint(key for _, key in keys), "groups are told apart"
    worker = world.pods["ring-0-default-0-2"].metadata.annotations
    assert worker["leaderworkerset.sigs.k8s.io/size"] == str(size)
    assert worker["leaderworkerset.sigs.k8s.io/leader-name"] == "ring-0-default-0-0"
    assert worker.get("leaderworkerset.sigs.k8s.io/subgroup-size") == (str(policy["subGroupSize"]) if policy else None)


def test_workers_wait_until_their_leader_is_ready_if_told_so() -> None:
    world = settled(lws(startupPolicy="LeaderReady", replicas=1))
    assert list(world.pods) == ["ring-0-default-0-0", "ring-0-default-0-1", "ring-0-default-0-2"], (
        "it ran, so they came"
    )

    fresh = FakeWorld(lws(startupPolicy="LeaderReady", replicas=1))
    converge(reconcile_leader_worker_set, fresh, NAMESPACE, "ring", now=NOW)
    world = ServingWorld.__new__(ServingWorld)
    world.name, world.world, world.now = "ring", fresh, NOW
    world.settle()
    assert list(world.pods) == ["ring-0-default-0-0"]
    assert world.pod_groups["ring-0"].spec.min_member == 1, "or the gang would wait for them, and they for it"
    assert world.pod_groups["ring-0"].spec.min_resources["nvidia.com/gpu"] == "3"
    said = next(one["message"] for one in world.status["conditions"] if one["status"] == "True")
    assert "the workers of ring-0-default-0-0 are made when it is ready" in said
    world.start("ring-0-default-0-0")
    assert len(world.settle().pods) == 3


def test_a_lost_worker_is_made_anew_beside_a_leader_that_is_not_ready() -> None:
    template = {"size": 3, "restartPolicy": "None", "workerTemplate": {"spec": pod_spec()}}
    world = settled(lws(startupPolicy="LeaderReady", replicas=1, leaderWorkerTemplate=template))
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    world.world.change(Pod, NAMESPACE, "ring-0-default-0-0", unready)
    world.delete("ring-0-default-0-1")
    assert len(world.settle().pods) == 3, "the policy is for the start"


def test_the_startup_policy_may_change() -> None:
    world = settled(lws()).world
    world.change(LeaderWorkerSet, NAMESPACE, "ring", {"spec": {"startupPolicy": "LeaderReady"}})
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    notes = world.document(ModelServing, NAMESPACE, "ring")["metadata"]["annotations"]
    assert notes["serving.hekla.dev/startup"] == "LeaderReady"
    world.change(LeaderWorkerSet, NAMESPACE, "ring", {"spec": {"startupPolicy": "LeaderCreated"}})
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    assert "serving.hekla.dev/startup" not in world.document(ModelServing, NAMESPACE, "ring")["metadata"]["annotations"]


def test_pods_have_the_names_that_they_have_in_the_project() -> None:
    world = settled(lws())
    worker = world.pods["ring-1-default-0-2"].spec
    assert (worker.hostname, worker.subdomain) == ("ring-1-2", "ring")
    leader = world.pods["ring-1-default-0-0"].spec
    assert (leader.hostname, leader.subdomain) == ("ring-1", "ring")
    shared = world.world.document(Service, NAMESPACE, "ring")["spec"]
    assert shared["selector"] == {"leaderworkerset.sigs.k8s.io/name": "ring"}
    assert shared["clusterIP"] == "None"
    assert shared["publishNotReadyAddresses"]


def test_a_worker_made_anew_beside_a_leader_of_before_is_told_a_name_that_this_has() -> None:
    """After an upgrade it was told of a host name in the headless service, which only leaders made since then have."""
    template = {"size": 2, "restartPolicy": "None", "workerTemplate": {"spec": pod_spec()}}
    world = settled(lws(replicas=1, leaderWorkerTemplate=template))
    world.world.change(Pod, NAMESPACE, "ring-0-default-0-0", {"spec": {"hostname": None, "subdomain": None}})
    world.delete("ring-0-default-0-1").settle()
    worker = world.pods["ring-0-default-0-1"].spec
    assert worker.containers[0].env[0].value == "ring-0-default-0-0.default"
    assert (worker.hostname, worker.subdomain) == ("ring-0-1", "ring")

    world.delete("ring-0-default-0-0").settle()
    world.delete("ring-0-default-0-1").settle()
    assert world.pods["ring-0-default-0-1"].spec.containers[0].env[0].value == "ring-0.ring.default"


def test_each_group_has_a_service_of_its_own_if_told_so() -> None:
    world = settled(lws(networkConfig={"subdomainPolicy": "UniquePerReplica"}))
    converge(reconcile_leader_worker_set, world.world, NAMESPACE, "ring", now=NOW)
    worker = world.pods["ring-1-default-0-2"].spec
    assert (worker.hostname, worker.subdomain) == ("ring-1-2", "ring-1")
    assert worker.containers[0].env[0].value == "ring-1.ring-1.default"
    assert world.services == ["ring-0", "ring-0-default-0-0", "ring-1", "ring-1-default-0-0"]
    about = world.world.document(Service, NAMESPACE, "ring-1")["spec"]["selector"]
    assert about["leaderworkerset.sigs.k8s.io/group-index"] == "1"

    world.world.change(LeaderWorkerSet, NAMESPACE, "ring", {"spec": {"replicas": 1}})
    converge(reconcile_leader_worker_set, world.world, NAMESPACE, "ring", now=NOW)
    world.settle()
    converge(reconcile_leader_worker_set, world.world, NAMESPACE, "ring", now=NOW)
    assert world.services == ["ring-0", "ring-0-default-0-0"]


def test_a_service_that_somebody_else_has_is_left_alone() -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ring", "namespace": NAMESPACE},
              "spec": {"clusterIP": "10.0.0.1"}}  # fmt: skip
    world = FakeWorld(lws(), theirs)
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    assert world.document(Service, NAMESPACE, "ring")["spec"] == {"clusterIP": "10.0.0.1"}


def test_a_set_without_a_size_of_subgroups_may_be_scaled() -> None:
    """The rule about what is immutable read a field that was not there, and refused every change of such a set."""

    async def story() -> None:
        async with api_server(kinds=(*CUSTOM_KINDS, LeaderWorkerSet)) as server, in_process_client(server) as client:
            template = {"size": 3, "workerTemplate": {"spec": pod_spec()}, "subGroupPolicy": {}}
            made = lws(leaderWorkerTemplate=template)
            await client.create(LeaderWorkerSet, made, NAMESPACE)
            await client.patch(LeaderWorkerSet, "ring", {"spec": {"replicas": 3}}, NAMESPACE)
            sized = {"spec": {"leaderWorkerTemplate": {"subGroupPolicy": {"subGroupSize": 3}}}}
            with pytest.raises(InvalidError, match=r"subGroupSize is immutable$"):
                await client.patch(LeaderWorkerSet, "ring", sized, NAMESPACE)

    asyncio.run(story())


@pytest.mark.parametrize("startup", ["LeaderCreated", "LeaderReady"])
def test_numbers_without_end_do_not_hold_anybody_up(startup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written on a cluster whose own definition lets them through."""
    monkeypatch.setattr(serving_plan, "MOST_PODS", 50)
    most = 2**31 - 1
    template = {"size": most, "workerTemplate": {"spec": pod_spec()}, "subGroupPolicy": {"subGroupSize": most}}
    world = FakeWorld(lws(replicas=most, leaderWorkerTemplate=template, startupPolicy=startup))
    converge(reconcile_leader_worker_set, world, NAMESPACE, "ring", now=NOW)
    serving = ServingWorld.__new__(ServingWorld)
    serving.name, serving.world, serving.now = "ring", world, NOW
    serving.step()
    assert 0 < len(serving.pods) <= 50


def test_what_every_reconciler_keeps() -> None:
    assert_converges(reconcile_leader_worker_set, FakeWorld(lws()), NAMESPACE, "ring", now=NOW)
    assert_heals(reconcile_leader_worker_set, lambda: FakeWorld(lws()), NAMESPACE, "ring", now=NOW)
    assert_touches_only_its_own(reconcile_leader_worker_set, FakeWorld(lws()), NAMESPACE, "ring", now=NOW)
    assert reconcile_model_serving.kind is ModelServing
