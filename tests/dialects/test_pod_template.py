"""Pods of one template are read once, and each is still what it says itself."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hekla.api.pods import Pod
from hekla.dialects.kubernetes import task_spec
from hekla.dialects.surroundings import EmptySurroundings
from hekla.dialects.traits import pod_traits
from hekla.kube.sharing import decode_pod

maps = st.fixed_dictionaries(
    {},
    optional={
        "volcano.sh/task-spec": st.sampled_from(["worker", "ps"]),
        "volcano.sh/task-priority": st.sampled_from(["7", "seven"]),
        "volcano.sh/preemptable": st.sampled_from(["true", "false"]),
        "volcano.sh/cooldown-time": st.sampled_from(["30s", "1m"]),
        "hekla.dev/minimum-run-time": st.just("1h"),
        "app": st.sampled_from(["a", "b"]),
    },
)
specs = st.fixed_dictionaries(
    {"nodeName": st.sampled_from(["", "n1", "n2"])},
    optional={
        "priority": st.integers(0, 2),
        "preemptionPolicy": st.sampled_from(["Never", "PreemptLowerPriority"]),
        "schedulingGates": st.just([{"name": "wait"}]),
        "terminationGracePeriodSeconds": st.integers(0, 2),
        "nodeSelector": st.fixed_dictionaries({"zone": st.sampled_from(["a", "b"])}),
        "hostNetwork": st.booleans(),
    },
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("main"), "image": st.sampled_from(["one", "two"])},
        optional={
            "resources": st.fixed_dictionaries(
                {"requests": st.fixed_dictionaries({"cpu": st.sampled_from(["1", "nonsense"])})}
            ),
            "ports": st.just([{"containerPort": 80}]),
        },
    ),
    max_size=2,
)
pods = st.builds(
    lambda spec, inner, labels, notes, phase: {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": labels, "annotations": notes},
        "spec": {**spec, "containers": inner},
        "status": {"phase": phase},
    },
    specs, containers, maps, maps, st.sampled_from(["Pending", "Running", "Failed"]),
)  # fmt: skip


@given(st.lists(pods, min_size=1, max_size=8))
def test_a_pod_of_a_known_template_is_read_as_if_it_were_alone(documents: list[dict[str, Any]]) -> None:
    around = EmptySurroundings()
    for document in documents:
        raw = msgspec.json.encode(document)
        shared, alone = decode_pod(raw), msgspec.json.decode(raw, type=Pod)
        assert task_spec(shared, around) == task_spec(alone, around)


def test_pods_that_share_containers_alone_are_of_different_templates() -> None:
    one = decode_pod(b'{"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}')
    other = structs.replace(one, spec=structs.replace(one.spec, priority=7, node_selector={"pool": "gpu"}))
    around = EmptySurroundings()
    first, second, again = (task_spec(pod, around) for pod in (one, other, one))
    assert (first.priority, second.priority) == (0, 7)
    assert first.constraints != second.constraints
    assert first == again


@pytest.mark.parametrize(
    ("own", "annotation", "priority"),
    [
        (5, "7", 7),
        (5, "seven", 5),
        (5, "99999999999999999999", 5),
        (5, "2000000000", 1_999_999_999),
        (2_000_000_000, "7", 2_000_000_000),
        (2_000_001_000, "2000000500", 2_000_000_500),
    ],
)
def test_an_annotation_sets_the_priority_and_makes_no_system_pod(own: int, annotation: str, priority: int) -> None:
    """A user's pods could be kept from every eviction by an annotation, which anybody may write."""
    document = {"metadata": {"annotations": {"volcano.sh/task-priority": annotation}}, "spec": {"priority": own}}
    pod = msgspec.convert(document, Pod)
    assert task_spec(pod, EmptySurroundings()).priority == priority


@pytest.mark.parametrize(
    ("annotations", "may"),
    [
        ({"volcano.sh/revocable-zone": "*"}, True),
        ({"volcano.sh/revocable-zone": "rz1", "volcano.sh/preemptable": "true"}, False),
        ({"volcano.sh/preemptable": "T"}, True),
        ({"volcano.sh/preemptable": "yes"}, False),
    ],
)
def test_who_may_be_evicted_may_use_revocable_nodes(annotations: dict[str, str], may: bool) -> None:
    pod = msgspec.convert({"metadata": {"annotations": annotations}}, Pod)
    assert (("volcano.sh/revocable-zone", "*") in pod_traits(pod)) is may
