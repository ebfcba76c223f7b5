"""What a real Kubernetes 1.36.2 said of these statuses."""

from typing import Any

import pytest

from hekla.apiserver.kind_rules import KIND_RULES

BELOW = "must be greater than or equal to 0"
MORE = "cannot be greater than status.replicas"


def said(resource: str, status: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    errors = KIND_RULES[resource].check_status({"status": status}, {"status": old or {}})
    return [f"{one.field.removeprefix('status.')}: {one.message.partition(': ')[2]}" for one in errors]


@pytest.mark.parametrize("resource", ["deployments.apps", "replicasets.apps", "statefulsets.apps"])
def test_no_count_is_below_zero_and_no_part_more_than_the_whole(resource: str) -> None:
    parts = said(resource, {"replicas": 1, "readyReplicas": 3, "availableReplicas": 4})
    named = "status.readyReplicas" if resource == "statefulsets.apps" else "readyReplicas"
    assert parts == [
        f"readyReplicas: 3: {MORE}",
        f"availableReplicas: 4: {MORE}",
        f"availableReplicas: 4: cannot be greater than {named}",
    ]
    assert said(resource, {"replicas": 4, "readyReplicas": 3, "availableReplicas": 3}) == []


def test_the_counts_of_a_deployment() -> None:
    below = {"replicas": -1, "observedGeneration": -1, "unavailableReplicas": -4, "terminatingReplicas": -1}
    assert said("deployments.apps", below) == [
        f"observedGeneration: -1: {BELOW}",
        f"replicas: -1: {BELOW}",
        f"unavailableReplicas: -4: {BELOW}",
        f"terminatingReplicas: -1: {BELOW}",
        f"updatedReplicas: 0: {MORE}",
        f"readyReplicas: 0: {MORE}",
        f"availableReplicas: 0: {MORE}",
    ]
    assert said("deployments.apps", {"collisionCount": 2}, {"collisionCount": 3}) == [
        "collisionCount: 2: cannot be decremented"
    ]


def test_the_counts_of_daemon_sets_and_jobs() -> None:
    assert said("daemonsets.apps", {"numberReady": -1, "numberUnavailable": -2}) == [
        f"numberReady: -1: {BELOW}",
        f"numberUnavailable: -2: {BELOW}",
    ]
    assert said("jobs.batch", {"active": -1, "failed": -2}) == [f"active: -1: {BELOW}", f"failed: -2: {BELOW}"]
    assert said("replicationcontrollers", {"replicas": 1, "fullyLabeledReplicas": 9}) == [
        f"fullyLabeledReplicas: 9: {MORE}"
    ]
