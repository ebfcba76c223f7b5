from datetime import timedelta

import pytest

from hekla.api.policy import PodDisruptionBudget
from hekla.controlplane.disruption import reconcile_disruption_budget
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.world import FakeWorld

OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "sts", "controller": True}
SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "db", "uid": "sts"},
    "spec": {"replicas": 4},
}


def pod(name, *, ready=True):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "db"}, "ownerReferences": [OWNER]},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def budget(**spec):
    selector = {"matchLabels": {"app": "db"}}
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"selector": selector, **spec},
    }  # fmt: skip


def status_of(now, *pods, **spec):
    world = FakeWorld(SET, budget(**spec), *pods)
    converge(reconcile_disruption_budget, world, "default", "b", now=now)
    return world.get(PodDisruptionBudget, "default", "b").status


PODS = [pod("a"), pod("b"), pod("c"), pod("d", ready=False)]


@pytest.mark.parametrize(
    ("spec", "expected", "desired", "allowed"),
    [
        ({"minAvailable": 1}, 4, 1, 2),
        ({"minAvailable": 3}, 4, 3, 0),
        ({"minAvailable": "50%"}, 4, 2, 1),
        ({"maxUnavailable": 1}, 4, 3, 0),
        ({"maxUnavailable": 2}, 4, 2, 1),
        ({"maxUnavailable": "75%"}, 4, 1, 2),
    ],
)
def test_as_many_may_go_as_are_healthy_beyond_the_desired(now, spec, expected, desired, allowed):
    status = status_of(now, *PODS, **spec)
    assert (status.expected_pods, status.desired_healthy, status.disruptions_allowed) == (expected, desired, allowed)
    assert status.current_healthy == 3
    condition = status.conditions[0]
    assert condition.reason == ("SufficientPods" if allowed else "InsufficientPods")


def test_an_evicted_pod_counts_no_more_until_its_patience_is_over(now):
    world = FakeWorld(SET, budget(minAvailable=1), *PODS)
    at = (now - timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    world.change(PodDisruptionBudget, "default", "b", {"status": {"disruptedPods": {"a": at, "gone": at}}})
    converge(reconcile_disruption_budget, world, "default", "b", now=now)
    status = world.get(PodDisruptionBudget, "default", "b").status
    assert status.disrupted_pods == {"a": at}
    assert status.disruptions_allowed == 1
    converge(reconcile_disruption_budget, world, "default", "b", now=now + timedelta(minutes=3))
    assert world.get(PodDisruptionBudget, "default", "b").status.disruptions_allowed == 2


def test_without_pods_nothing_may_go(now):
    assert status_of(now, minAvailable=0).disruptions_allowed == 0


def test_the_properties_of_all_reconcilers_hold(now):
    def world():
        return FakeWorld(SET, budget(minAvailable=1), *PODS)

    assert_converges(reconcile_disruption_budget, world(), "default", "b", now=now)
    assert_heals(reconcile_disruption_budget, world, "default", "b", now=now)
    assert_touches_only_its_own(reconcile_disruption_budget, world(), "default", "b", now=now)
