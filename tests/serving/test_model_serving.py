"""ModelServings in a world of objects: what is made, what fails, what scales. Roll-outs: test_model_serving_rollout.py."""

import pytest

from hekla.api.core import Pod, Service
from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.api.volcano import PodGroup
from hekla.kube.commands import Create, RequeueAfter
from hekla.serving import serving_plan, serving_rollout
from hekla.serving.model_serving import reconcile_model_serving, tell_refusal
from hekla.serving.serving_pods import DEFAULT_CONTAINER
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, decide
from hekla.testing.serving_world import NAMESPACE, NOW, ServingWorld, groups_of, role, serving
from hekla.testing.world import FakeWorld

PD = [role("prefill", workers=1), role("decode", replicas=2)]


def world_of(**spec: object) -> ServingWorld:
    return ServingWorld(serving(**{"roles": PD, **spec})).settle().run_all().settle()  # type: ignore[arg-type]


# ---- what is made


def test_pods_have_kthenas_names_labels_and_environment() -> None:
    world = ServingWorld(serving(roles=PD, replicas=2)).settle()
    assert list(world.pods) == [
        f"llama-{group}-{name}" for group in (0, 1) for name in ("decode-0-0", "decode-1-0", "prefill-0-0", "prefill-0-1")
    ]  # fmt: skip
    worker = world.pods["llama-1-prefill-0-1"]
    revision = world.status["updateRevision"]
    assert worker.metadata.labels[labels.NAME] == "llama"
    assert worker.metadata.labels[labels.GROUP_NAME] == "llama-1"
    assert worker.metadata.labels[labels.ROLE] == "prefill"
    assert worker.metadata.labels[labels.ROLE_ID] == "prefill-0"
    assert worker.metadata.labels[labels.REVISION] == revision
    assert labels.ENTRY not in worker.metadata.labels
    assert world.pods["llama-1-prefill-0-0"].metadata.labels[labels.ENTRY] == "true"
    assert world.pods["llama-1-prefill-0-0"].metadata.labels["app"] == "prefill"
    assert {one.name: one.value for one in worker.spec.containers[0].env} == {
        "GROUP_SIZE": "2",
        "ENTRY_ADDRESS": "llama-1-prefill-0-0.default",
        "WORKER_INDEX": "1",
    }
    assert worker.metadata.annotations[labels.POD_GROUP_NAME] == "llama-1"
    assert worker.metadata.annotations[labels.TASK_SPEC] == "prefill-0"
    assert worker.spec.scheduler_name == "volcano"


MOST_INT32 = 2**31 - 1


@pytest.mark.parametrize(
    "document",
    [
        serving(roles=[role("server")], replicas=MOST_INT32),
        serving(roles=[role("server", replicas=MOST_INT32)]),
        serving(roles=[role("server", workers=MOST_INT32)]),
        serving(roles=[role("server", replicas=MOST_INT32, workers=MOST_INT32)], replicas=MOST_INT32),
    ],
    ids=["groups", "instances", "workers", "all"],
)
def test_numbers_beyond_all_clusters_make_no_controller_stand_still(
    document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (serving_plan, serving_rollout):
        monkeypatch.setattr(where, "MOST_PODS" if where is serving_plan else "MOST_MISSING", 7)
    world = ServingWorld(document)
    for looks in (1, 2, 3):
        world.step()
        assert len(world.pods) == 7 * looks, "it goes on, a bounded part at each look"


def test_what_is_more_than_one_look_makes_is_made_by_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_plan, "MOST_PODS", 2)
    monkeypatch.setattr(serving_rollout, "MOST_MISSING", 2)
    for recovery in ("RoleRecreate", "ServingGroupRecreate", "None"):
        document = serving(roles=[role("prefill", workers=3), role("decode", replicas=3)], replicas=3)
        document["spec"]["recoveryPolicy"] = recovery
        world = ServingWorld(document).settle().run_all().settle()
        assert (len(world.pods), len(world.pod_groups), len(world.services)) == (21, 3, 3)
        assert world.status["availableReplicas"] == 3


def test_the_log_that_is_meant_is_the_engines_and_no_template_is_changed_for_it() -> None:
    own = role("server")
    own["entryTemplate"]["spec"]["containers"].insert(0, {"name": "runtime", "image": "r"})
    world = ServingWorld(serving(roles=[own])).settle()
    assert world.pods["llama-0-server-0-0"].metadata.annotations[DEFAULT_CONTAINER] == "engine"
    alone = ServingWorld(serving(roles=[role("server")])).settle()
    assert DEFAULT_CONTAINER not in alone.pods["llama-0-server-0-0"].metadata.annotations


def test_only_instances_with_workers_have_a_service() -> None:
    world = ServingWorld(serving(roles=PD)).settle()
    assert world.services == ["llama-0-prefill-0-0"]
    service = world.world.get(Service, NAMESPACE, "llama-0-prefill-0-0")
    assert service is not None
    assert service.spec.cluster_ip == "None"
    assert service.spec.publish_not_ready_addresses
    assert service.spec.selector == {
        labels.GROUP_NAME: "llama-0",
        labels.ROLE: "prefill",
        labels.ROLE_ID: "prefill-0",
        labels.ENTRY: "true",
    }


def test_a_variable_of_the_template_gives_way_to_ours() -> None:
    own = role("server")
    own["entryTemplate"]["spec"]["containers"][0]["env"] = [
        {"name": "GROUP_SIZE", "value": "9"},
        {"name": "A", "value": "b"},
    ]
    world = ServingWorld(serving(roles=[own])).settle()
    env = {one.name: one.value for one in world.pods["llama-0-server-0-0"].spec.containers[0].env}
    assert (env["A"], env["GROUP_SIZE"]) == ("b", "1")


def test_a_group_is_a_gang_of_all_its_pods() -> None:
    world = ServingWorld(serving(roles=PD, metadata={"annotations": {labels.QUEUE_NAME: "inference"}})).settle()
    spec = world.pod_groups["llama-0"].spec
    assert spec.min_member == 4
    assert spec.queue == "inference"
    assert spec.min_resources == {"cpu": "4", "nvidia.com/gpu": "4"}  # the limit alone is a request
    assert [(one.name, one.sub_group_size, one.min_sub_groups) for one in spec.sub_group_policy] == [
        ("prefill", 2, 1), ("decode", 1, 2),
    ]  # fmt: skip
    assert spec.sub_group_policy[0].match_label_keys == [labels.ROLE_ID]


def test_min_role_replicas_make_the_gang_smaller() -> None:
    """Kthena: TestCalculateRequirements."""
    template = {"gangPolicy": {"minRoleReplicas": {"decode": 1, "prefill": 5}}}
    world = ServingWorld(serving(roles=PD, template=template)).settle()
    spec = world.pod_groups["llama-0"].spec
    assert spec.min_member == 3
    assert [one.min_sub_groups for one in spec.sub_group_policy] == [1, 1]


def test_network_topology_reaches_the_gang_and_its_subgroups() -> None:
    """Kthena: TestAppendSubGroupPolicy, TestUpdatePodGroupNetworkTopologyBehavior."""
    topology = {
        "groupPolicy": {"mode": "soft", "highestTierAllowed": 2},
        "rolePolicy": {"mode": "hard", "highestTierAllowed": 1},
    }
    world = ServingWorld(serving(roles=PD, template={"networkTopology": topology})).settle()
    spec = world.pod_groups["llama-0"].spec
    assert spec.network_topology is not None
    assert (spec.network_topology.mode, spec.network_topology.highest_tier_allowed) == ("soft", 2)
    assert [one.network_topology.highest_tier_allowed for one in spec.sub_group_policy if one.network_topology] == [
        1,
        1,
    ]
    world.change(template={"networkTopology": None}).settle()
    spec = world.pod_groups["llama-0"].spec
    assert spec.network_topology is None
    assert [one.network_topology for one in spec.sub_group_policy] == [None, None]


def test_the_queue_of_the_gang_follows_the_annotation() -> None:
    """Kthena: TestUpdatePodGroupQueueBehavior."""
    world = world_of()
    world.world.change(
        type(world.serving), NAMESPACE, "llama", {"metadata": {"annotations": {labels.QUEUE_NAME: "gold"}}}
    )
    world.settle()
    assert world.pod_groups["llama-0"].spec.queue == "gold"
    world.world.change(
        type(world.serving), NAMESPACE, "llama", {"metadata": {"annotations": {labels.QUEUE_NAME: None}}}
    )
    world.settle()
    assert world.pod_groups["llama-0"].spec.queue == "default"


def test_amounts_that_mean_the_same_are_no_change_of_the_gang() -> None:
    world = world_of()
    world.world.change(
        type(world.pod_groups["llama-0"]), NAMESPACE, "llama-0", {"spec": {"minResources": {"cpu": "4000m"}}}
    )
    world.settle()
    assert world.pod_groups["llama-0"].spec.min_resources == {"cpu": "4000m", "nvidia.com/gpu": "4"}


def test_another_scheduler_gets_pods_without_gangs() -> None:
    world = ServingWorld(serving(roles=PD, schedulerName="default-scheduler")).settle()
    assert world.pod_groups == {}
    pod = world.pods["llama-0-prefill-0-0"]
    assert pod.spec.scheduler_name == "default-scheduler"
    assert labels.POD_GROUP_NAME not in pod.metadata.annotations


def test_a_role_goes_to_the_nodes_of_its_placement_class() -> None:
    annotations = {
        "placement.serving.hekla.dev/prefill": "pool=h100",
        "placement.serving.hekla.dev/decode": "pool=h20, zone=a",
        "placement.serving.hekla.dev/nobody": "pool=x",
    }
    world = ServingWorld(serving(roles=PD, metadata={"annotations": annotations})).settle()
    assert world.pods["llama-0-prefill-0-1"].spec.node_selector == {"pool": "h100"}
    assert world.pods["llama-0-decode-1-0"].spec.node_selector == {"pool": "h20", "zone": "a"}
    assert [one.message for one in world.world.events if one.reason == "AnnotationIgnored"] == [
        "annotation placement.serving.hekla.dev/nobody names no role; there are decode, prefill"
    ]


# ---- status


def test_a_serving_is_available_when_all_groups_are_ready() -> None:
    world = ServingWorld(serving(roles=PD, replicas=2)).settle()
    assert world.condition() == "Progressing"
    assert world.status["replicas"] == 2
    assert world.status["availableReplicas"] == 0
    world.run_all().settle()
    assert world.condition() == "Available"
    assert world.status["availableReplicas"] == 2
    assert world.status["updatedReplicas"] == 2
    assert world.status["currentReplicas"] == 2
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert world.status["observedGeneration"] == 1
    assert [one["message"] for one in world.status["conditions"] if one["type"] == "Available"] == [
        "All Serving groups are ready"
    ]


def test_the_label_selector_names_one_pod_a_group() -> None:
    world = world_of(replicas=2)
    wanted = dict(part.split("=") for part in world.status["labelSelector"].split(","))
    assert [pod.metadata.name for pod in world.world.list(Pod, NAMESPACE, wanted)] == [
        "llama-0-prefill-0-0", "llama-1-prefill-0-0",
    ]  # fmt: skip


def test_a_group_that_loses_a_pod_is_progressing() -> None:
    world = world_of(replicas=2)
    world.fail("llama-1-decode-0-0").settle()
    assert world.condition() == "Progressing"
    assert told(world) == {
        "Available": ("False", "GroupsNotReady", "1 of 2 serving groups are ready"),
        "Progressing": ("True", "GroupProgressing", "Some groups is progressing: [1]"),
    }
    world.run_all().settle()
    assert told(world) == {
        "Available": ("True", "AllGroupsReady", "All Serving groups are ready"),
        "Progressing": ("False", "AllGroupsReady", "All Serving groups are ready"),
    }


def told(world: ServingWorld) -> dict[str, tuple[str, str, str]]:
    return {one["type"]: (one["status"], one["reason"], one["message"]) for one in world.status["conditions"]}


def test_a_group_without_room_says_what_the_scheduler_says() -> None:
    world = ServingWorld(serving(roles=PD, replicas=2)).settle()
    why = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable"
    refused = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": why}
    world.world.change(PodGroup, NAMESPACE, "llama-1", {"status": {"conditions": [refused]}})
    world.settle()
    assert told(world)["Progressing"] == (
        "True", "GroupsWaiting", f"Some groups is progressing: [0 1]; group llama-1 waits: NotEnoughResources: {why}",
    )  # fmt: skip
    over = {"status": {"conditions": [refused | {"status": "False"}]}}
    world.world.change(PodGroup, NAMESPACE, "llama-1", over)
    world.settle()
    assert told(world)["Progressing"][1] == "GroupProgressing"


def refuse(world: ServingWorld, why: str) -> bool:
    """A round whose first pod the API server refuses; whether the status was written."""
    before = world.status.get("conditions")
    commands = decide(reconcile_model_serving, world.world, NAMESPACE, world.name, now=world.now)
    at = next(at for at, one in enumerate(commands) if isinstance(one, Create) and one.kind is Pod)
    world.world.execute(commands[:at])
    world.world.execute(list(tell_refusal(world.serving, commands[at], why, world.world, world.now)))
    return world.status["conditions"] != before


def test_what_the_api_server_refuses_is_said_once_and_until_nothing_is_missing() -> None:
    world = ServingWorld(serving(roles=[role("server")], replicas=2))
    full = 'pods "llama-0-server-0-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=NUMBER, limited: pods=2'
    assert refuse(world, full.replace("NUMBER", "2"))
    told_of = "Some groups is progressing: [0 1]; the API server refuses what is missing: " + full.replace(
        "NUMBER", "2"
    )
    assert told(world)["Progressing"] == ("True", "GroupsRefused", told_of)
    assert not refuse(world, full.replace("NUMBER", "1"))
    assert refuse(world, 'admission webhook "w" denied the request: no')
    assert told(world)["Progressing"][2].endswith(
        'refuses what is missing: admission webhook "w" denied the request: no'
    )
    world.settle()
    assert told(world)["Progressing"][1] == "GroupProgressing"
    assert world.run_all().settle().condition() == "Available"
    before = world.status
    world.world.execute(list(tell_refusal(world.serving, Create(Pod, {}), "something else", world.world, world.now)))
    assert world.status == before


def test_what_was_refused_of_another_spec_is_not_said_any_more() -> None:
    world = ServingWorld(serving(roles=[role("server")]))
    refuse(world, "no")
    world.change(replicas=0).settle()
    assert world.condition() == "Available"
    world.change(replicas=1).step()
    assert told(world)["Progressing"][1] == "GroupProgressing"


def test_how_an_engine_ended_is_said_where_it_is_asked_why_the_model_is_not_up() -> None:
    world = world_of(replicas=1, template={"restartGracePeriodSeconds": 60})
    world.restart("llama-0-decode-1-0").settle()
    why = (
        "container engine ended with exit code 1 (Error): hekla logs --previous -c engine -n default llama-0-decode-1-0"
    )
    assert told(world)["Progressing"] == (
        "True", "GroupProgressing", f"Some groups is progressing: [0]; pod llama-0-decode-1-0: {why}",
    )  # fmt: skip
    world.restart("llama-0-decode-0-0").settle()
    assert told(world)["Progressing"][2].endswith("(and 1 more)")
    for name in ("llama-0-decode-0-0", "llama-0-decode-1-0"):
        world.restart(name, is_ready=True)
    assert world.settle().condition() == "Available"


def test_how_a_pod_ended_that_is_made_anew_stands_in_an_event_as_its_status_goes_with_it() -> None:
    world = world_of(replicas=1)
    world.restart("llama-0-decode-1-0").settle()
    assert [(one.type, one.message) for one in world.world.events if one.reason == "PodFailed"] == [
        ("Warning", "pod llama-0-decode-1-0: container engine ended with exit code 1 (Error)")
    ]


# ---- recovery


def survivors(world: ServingWorld, before: dict[str, Pod]) -> list[str]:
    """Pods that were not made anew: they still run."""
    return [name for name, pod in world.pods.items() if pod.status.phase == "Running" and name in before]


def test_role_recreate_makes_the_instance_anew() -> None:
    """Kthena: PodRecovery."""
    world = world_of()
    before = world.pods
    world.fail("llama-0-prefill-0-1").settle()
    assert survivors(world, before) == ["llama-0-decode-0-0", "llama-0-decode-1-0"]
    assert set(world.pods) == set(before)
    assert world.services == ["llama-0-prefill-0-0"]


def test_serving_group_recreate_makes_the_group_anew() -> None:
    """Kthena: ServingGroupRecreate."""
    world = world_of(recoveryPolicy="ServingGroupRecreate", replicas=2)
    before = world.pods
    world.delete("llama-0-decode-0-0").settle()
    assert groups_of(survivors(world, before)) == [1]
    assert set(world.pods) == set(before)
    assert set(world.pod_groups) == {"llama-0", "llama-1"}


def test_none_makes_only_the_pod_anew() -> None:
    world = world_of(recoveryPolicy="None")
    before = world.pods
    world.fail("llama-0-prefill-0-1").settle()
    assert len(survivors(world, before)) == 3
    assert set(world.pods) == set(before)


def test_nothing_is_made_while_a_pod_of_the_instance_is_leaving() -> None:
    world = world_of()
    world.delete("llama-0-prefill-0-0")
    world.step()
    assert world.pods["llama-0-prefill-0-1"].metadata.deletion_timestamp
    world.vanish("llama-0-prefill-0-1")
    world.step()
    assert "llama-0-prefill-0-1" not in world.pods


def test_a_pod_may_recover_within_its_grace_period() -> None:
    world = world_of(template={"restartGracePeriodSeconds": 60})
    world.restart("llama-0-decode-0-0").later(59).settle()
    assert world.world.requeues[-1] == pytest.approx(1)
    world.restart("llama-0-decode-0-0", is_ready=True).later(600).settle()
    assert world.pods["llama-0-decode-0-0"].status.phase == "Running"


@pytest.mark.parametrize("grace_s", [0, 60])
def test_a_pod_that_has_recovered_is_not_made_anew_because_its_probe_is_slow_later(grace_s: int) -> None:
    """An engine restarted in place; a minute later a busy machine let a probe time out, and it was deleted with 1,700 streams."""
    world = world_of(template={"restartGracePeriodSeconds": grace_s})
    name = "llama-0-decode-0-0"
    uid = world.pods[name].metadata.uid
    world.restart(name, is_ready=True).later(3600).slow_probe(name).settle()
    world.later(3600).settle()
    assert world.pods[name].metadata.uid == uid


def test_a_pod_that_does_not_recover_is_made_anew_after_its_grace_period() -> None:
    world = world_of(template={"restartGracePeriodSeconds": 60})
    world.restart("llama-0-decode-0-0").later(61).settle()
    assert world.pods["llama-0-decode-0-0"].status.phase != "Running"


def test_a_restart_without_grace_period_counts_at_once_but_not_of_a_pod_that_is_ready() -> None:
    world = world_of()
    world.restart("llama-0-decode-0-0", is_ready=True).settle()
    assert world.pods["llama-0-decode-0-0"].status.phase == "Running"
    world.restart("llama-0-decode-0-0").settle()
    assert world.pods["llama-0-decode-0-0"].status.phase != "Running"


def test_an_engine_that_fails_as_soon_as_it_is_made_is_not_made_anew_without_end() -> None:
    """It was, four times a second: its log went with each of them, and a thousand events a minute came of it."""
    world = world_of(replicas=1)
    name = "llama-0-decode-0-0"
    world.fail(name)
    world.world.change(Pod, "default", name, {"metadata": {"creationTimestamp": f"{world.now:%Y-%m-%dT%H:%M:%SZ}"}})
    assert [one.seconds for one in world.step() if isinstance(one, RequeueAfter)] == [10.0]
    assert world.settle().pods[name].status.phase == "Failed"
    world.later(10).settle()
    assert world.pods[name].status.phase != "Failed"


@pytest.mark.parametrize("lost", ["llama-0-prefill-0-0", "llama-0-prefill-0-1"])
def test_a_pod_that_vanished_without_a_trace_is_missed(lost: str) -> None:
    world = world_of()
    other = {"llama-0-prefill-0-0", "llama-0-prefill-0-1"} - {lost}
    world.vanish(lost).settle()
    assert world.pods[other.pop()].status.phase != "Running"


def test_an_instance_that_vanished_from_a_group_takes_the_group_along_where_groups_are_made_anew() -> None:
    world = world_of(recoveryPolicy="ServingGroupRecreate")
    world.vanish("llama-0-decode-1-0").settle()
    assert not survivors(world, world.pods)


def test_pods_that_were_never_made_are_made_without_ado() -> None:
    world = ServingWorld(serving(roles=PD))
    world.step(upto=8)  # dies before the last pods are made
    there = set(world.pods)
    world.start(*there)
    world.settle()
    assert set(survivors(world, world.pods)) >= there - {"llama-0-prefill-0-0"}
    assert len(world.pods) == 4


def test_deleted_services_and_gangs_are_restored() -> None:
    """Kthena: ServiceRecovery, HeadlessServiceDelete."""
    world = world_of()
    before = world.pods
    world.world.remove(Service, NAMESPACE, "llama-0-prefill-0-0")
    world.world.remove(type(world.pod_groups["llama-0"]), NAMESPACE, "llama-0")
    world.settle()
    assert world.services == ["llama-0-prefill-0-0"]
    assert set(world.pod_groups) == {"llama-0"}
    assert survivors(world, before) == list(before)


# ---- scale


def test_missing_groups_are_filled_lowest_first() -> None:
    world = world_of(roles=[role("server")], replicas=3)
    world.change(replicas=5).settle()
    assert groups_of(world.pods) == [0, 1, 2, 3, 4]
    assert set(world.pod_groups) == {f"llama-{number}" for number in range(5)}


def test_scaling_down_takes_the_highest_ordinal_and_everything_of_it() -> None:
    world = world_of(replicas=3)
    world.change(replicas=1).settle()
    assert groups_of(world.pods) == [0]
    assert world.services == ["llama-0-prefill-0-0"]
    assert set(world.pod_groups) == {"llama-0"}


def test_scaling_down_takes_groups_that_are_not_ready_first() -> None:
    """Kthena: StatusAwarePriorityScaleDown."""
    world = ServingWorld(serving(roles=[role("server")], replicas=3)).settle()
    world.start("llama-1-server-0-0", "llama-2-server-0-0")
    world.settle().change(replicas=2).settle()
    assert groups_of(world.pods) == [1, 2]


def test_scaling_down_takes_the_cheapest_group_first() -> None:
    """Kthena: BinPackScaleDownServingGroup."""
    world = world_of(roles=[role("server", replicas=2)], replicas=3)
    for name, cost in (("llama-0-server-0-0", "100"), ("llama-2-server-0-0", "60"), ("llama-2-server-1-0", "50")):
        world.world.change(Pod, NAMESPACE, name, {"metadata": {"annotations": {labels.DELETION_COST: cost}}})
    world.change(replicas=2).settle()
    assert groups_of(world.pods) == [0, 2]
    world.change(replicas=1).settle()
    assert groups_of(world.pods) == [2]
    world.change(replicas=3).settle()
    assert groups_of(world.pods) == [0, 1, 2]


def test_scaling_a_role_down_takes_the_cheapest_instance_first() -> None:
    """Kthena: BinPackScaleDownRole."""
    world = world_of(roles=[role("server", replicas=3)])
    world.world.change(
        Pod, NAMESPACE, "llama-0-server-2-0", {"metadata": {"annotations": {labels.DELETION_COST: "10"}}}
    )
    before = world.pods
    world.change_roles(role("server", replicas=2)).settle()
    assert survivors(world, before) == ["llama-0-server-0-0", "llama-0-server-2-0"]
    assert world.pod_groups["llama-0"].spec.min_member == 2


def test_scaling_a_role_rolls_nothing() -> None:
    """Kthena: RoleScaleUp."""
    world = world_of()
    before, revision = world.pods, world.status["updateRevision"]
    world.change_roles(PD[0], {**PD[1], "replicas": 3}).settle().run_all().settle()
    assert set(survivors(world, before)) == set(before)
    assert "llama-0-decode-2-0" in world.pods
    assert world.status["updateRevision"] == revision
    assert world.condition() == "Available"
    assert len(world.revisions) == 1


def test_scaling_a_role_down_is_no_failure_of_its_group() -> None:
    world = world_of(recoveryPolicy="ServingGroupRecreate", roles=[role("server", replicas=3)])
    before = world.pods
    world.change_roles(role("server", replicas=2)).settle()
    assert survivors(world, before) == ["llama-0-server-0-0", "llama-0-server-1-0"]


def test_scaling_to_zero_and_back() -> None:
    world = world_of()
    world.change(replicas=0).settle()
    assert (world.pods, world.pod_groups, world.services) == ({}, {}, [])
    assert world.condition() == "Available"
    world.change(replicas=1).settle()
    assert len(world.pods) == 4


# ---- plug-ins


def test_plugins_change_the_pods_that_they_are_for() -> None:
    tweak = {
        "name": "demo-pod-tweaks",
        "type": "BuiltIn",
        "config": {"runtimeClassName": "kata", "annotations": {"a": "b"}, "env": [{"name": "X", "value": "1"}]},
        "scope": {"roles": ["prefill"], "target": "Worker"},
    }
    world = ServingWorld(serving(roles=PD, plugins=[tweak])).settle()
    worker, entry = world.pods["llama-0-prefill-0-1"], world.pods["llama-0-prefill-0-0"]
    assert worker.spec.runtime_class_name == "kata"
    assert worker.metadata.annotations["a"] == "b"
    assert "X" in {one.name for one in worker.spec.containers[0].env}
    assert entry.spec.runtime_class_name != "kata"


def test_a_plugin_that_is_not_there_keeps_pods_from_being_made() -> None:
    world = ServingWorld(serving(plugins=[{"name": "ghost", "type": "BuiltIn"}])).settle()
    assert world.pods == {}
    said = "plugin ghost not registered; there are demo-pod-tweaks, lws-standard-labels; no pod is made"
    assert {one.message for one in world.world.events} == {said}


# ---- what every reconciler keeps


def make_world() -> FakeWorld:
    document = serving(roles=PD, replicas=2)
    document["metadata"]["uid"] = "uid-llama"
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "stranger",
            "namespace": NAMESPACE,
            "labels": {labels.NAME: "llama", labels.GROUP_NAME: "llama-0"},
        },
        "spec": {"containers": []},
    }
    return FakeWorld(document, stranger)


def test_it_converges() -> None:
    assert_converges(reconcile_model_serving, make_world(), NAMESPACE, "llama", now=NOW)


def test_it_heals_after_any_failed_command() -> None:
    assert_heals(reconcile_model_serving, make_world, NAMESPACE, "llama", now=NOW)


def test_it_touches_only_its_own() -> None:
    assert_touches_only_its_own(reconcile_model_serving, make_world(), NAMESPACE, "llama", now=NOW)


def test_it_heals_in_the_middle_of_a_scale_down() -> None:
    def middle() -> FakeWorld:
        world = world_of(replicas=3)
        world.change(replicas=1)
        return world.world

    assert_heals(reconcile_model_serving, middle, NAMESPACE, "llama", now=NOW)
