"""Whether a policy and a binding of Kthena 0.3 become the policy of today, follow their changes, and say why they cannot."""

from datetime import UTC, datetime
from typing import Any

from hekla.api.kthena import AutoscalingPolicy, AutoscalingPolicyBinding
from hekla.kube.commands import Create
from hekla.serving.binding_conversion import reconcile_binding
from hekla.testing.reconcilers import assert_heals
from hekla.testing.world import FakeWorld

NOW = datetime(2026, 1, 2, tzinfo=UTC)
API = "workload.serving.volcano.sh/v1alpha1"
ENDPOINT = {"uri": "/m", "port": 9000, "labelSelector": {"matchLabels": {"a": "b"}}}


def policy(name: str = "p", **spec: Any) -> dict[str, Any]:
    metrics = [{"name": "load", "metricName": "load", "targetValue": "10"}]
    metadata = {"name": name, "namespace": "ml", "uid": name}
    behavior = {"scaleDown": {"period": "1m0s"}}
    spec = {"metrics": metrics, "tolerancePercent": 5, "behavior": behavior, **spec}
    return {"apiVersion": API, "kind": "AutoscalingPolicy", "metadata": metadata, "spec": spec}


def binding(**target: Any) -> dict[str, Any]:
    metadata = {"name": "b", "namespace": "ml", "uid": "b", "generation": 1}
    spec = {"policyRef": {"name": "p"}, **target}
    return {"apiVersion": API, "kind": "AutoscalingPolicyBinding", "metadata": metadata, "spec": spec}


def one(**more: Any) -> dict[str, Any]:
    target = {"targetRef": {"name": "llama", "kind": "ModelServing"}, "metricEndpoint": ENDPOINT, **more}
    return {"target": target, "minReplicas": 1, "maxReplicas": 4}


def settled(*objects: dict[str, Any]) -> FakeWorld:
    world = FakeWorld(*objects)
    for _ in range(4):
        world.execute(decide(world))
    assert not decide(world)
    return world


def decide(world: FakeWorld) -> list[Any]:
    found = world.get(AutoscalingPolicyBinding, "ml", "b")
    assert found is not None
    return list(reconcile_binding.decide(found, world, NOW))


def made(world: FakeWorld) -> dict[str, Any]:
    return world.document(AutoscalingPolicy, "ml", "b-bound")


def condition(world: FakeWorld) -> tuple[str, str]:
    (said,) = world.document(AutoscalingPolicyBinding, "ml", "b")["status"]["conditions"]
    return said["status"], said["reason"]


def test_one_target_becomes_the_policys_homogeneous_target() -> None:
    world = settled(policy(), binding(homogeneousTarget=one()))
    source = {"pod": {"uri": "/m", "port": 9000, "labelSelector": {"matchLabels": {"a": "b"}}}}
    assert made(world)["spec"] == {
        "tolerancePercent": 5,
        "metrics": [{"name": "load", "targetValue": "10"}],
        "behavior": {
            "scaleDown": {"instances": 1, "percent": 100, "period": "1m0s", "selectPolicy": "Or"},
        },
        "homogeneousTarget": {
            "target": {"targetRef": {"kind": "ModelServing", "name": "llama"}, "metricSources": {"load": source}},
            "minReplicas": 1,
            "maxReplicas": 4,
        },
    }
    assert made(world)["metadata"]["ownerReferences"][0]["name"] == "b"
    assert condition(world) == ("True", "Converted")


def test_a_role_becomes_a_disaggregated_target_with_that_role() -> None:
    world = settled(policy(), binding(homogeneousTarget=one(subTargets={"kind": "Role", "name": "decode"})))
    target = made(world)["spec"]["disaggregatedTarget"]
    assert target["targetRef"]["name"] == "llama"
    assert target["roles"]["decode"]["maxReplicas"] == 4
    assert "homogeneousTarget" not in made(world)["spec"]


def test_several_targets_keep_their_costs() -> None:
    several = {"params": [{**one(), "cost": 30}], "costExpansionRatePercent": 150}
    target = made(settled(policy(), binding(heterogeneousTarget=several)))["spec"]["heterogeneousTarget"]
    assert (target["params"][0]["cost"], target["costExpansionRatePercent"]) == (30, 150)


def test_changes_of_policy_and_binding_are_followed() -> None:
    world = settled(policy(), binding(homogeneousTarget=one()))
    world.change(AutoscalingPolicy, "ml", "p", {"spec": {"tolerancePercent": 20}})
    world.execute(decide(world))
    assert made(world)["spec"]["tolerancePercent"] == 20
    role = {"target": {"subTargets": {"kind": "Role", "name": "prefill"}}}
    world.change(AutoscalingPolicyBinding, "ml", "b", {"spec": {"homogeneousTarget": role}})
    world.execute(decide(world))
    assert "homogeneousTarget" not in made(world)["spec"]
    assert "prefill" in made(world)["spec"]["disaggregatedTarget"]["roles"]


def test_a_policy_that_is_not_there_is_said_and_waited_for() -> None:
    world = settled(binding(homogeneousTarget=one()))
    assert condition(world) == ("False", "PolicyNotFound")
    world.put(policy())
    assert isinstance(decide(world)[0], Create)


def test_a_policy_of_somebody_else_is_left_alone() -> None:
    world = settled(policy(), policy("b-bound", tolerancePercent=77), binding(homogeneousTarget=one()))
    assert made(world)["spec"]["tolerancePercent"] == 77
    assert condition(world) == ("False", "NameTaken")


def test_the_conversion_heals_whatever_fails() -> None:
    assert_heals(reconcile_binding, lambda: FakeWorld(policy(), binding(homogeneousTarget=one())), "ml", "b", now=NOW)
