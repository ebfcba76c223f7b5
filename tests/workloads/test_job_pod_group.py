import msgspec
import pytest

from hekla.api.volcano.batch import JobSpec
from hekla.testing.job_world import JobWorld, job, task
from hekla.workloads.job_pod_group import min_resources


def spec_of(*tasks: dict, min_available: int) -> JobSpec:  # type: ignore[type-arg]  # documents
    return msgspec.convert(job(task_list=list(tasks), minAvailable=min_available)["spec"], JobSpec)


def sized(name: str, replicas: int, cpu: object, **more: object) -> dict:  # type: ignore[type-arg]  # a document
    made = task(name, replicas, **more)
    made["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


@pytest.mark.parametrize(
    ("least", "priorities", "cpu"),
    [
        (5, [0, 0], "7"),  # both tasks' minimums: 3 x 1 and 2 x 2
        (2, [0, 0], "2"),  # fewer than the minimums: the first two pods
        (2, [0, 9], "4"),  # ... of the task that counts more
        (4, [0, 0], "5"),
        (4, [0, 9], "6"),
    ],
)
def test_the_smallest_form_of_a_job_is_what_it_asks_for(least: int, priorities: list[int], cpu: str) -> None:
    spec = spec_of(sized("a", 3, "1"), sized("b", 2, "2"), min_available=least)
    assert min_resources(spec, priorities) == {"cpu": cpu}


def test_replicas_beyond_the_minimums_fill_the_gang() -> None:
    spec = spec_of(sized("a", 4, "1", minAvailable=1), sized("b", 3, "2", minAvailable=1), min_available=4)
    assert min_resources(spec, [0, 0]) == {"cpu": "5"}
    assert min_resources(spec, [0, 1]) == {"cpu": "7"}


def test_limits_init_containers_overhead_and_bare_numbers_count_as_in_a_pod() -> None:
    made = task("a", 2)
    made["template"]["spec"] = {
        "containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "500m"}}}],
        "initContainers": [{"name": "i", "resources": {"requests": {"cpu": 2}}}],
        "overhead": {"memory": "64Mi"},
    }
    spec = spec_of(made, min_available=2)
    assert min_resources(spec, [0]) == {"cpu": "4", "memory": "128Mi", "nvidia.com/gpu": "2"}


def test_a_gang_inherits_labels_topology_and_partitions() -> None:
    parts = {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1, "networkTopology": {"highestTierAllowed": 1}}
    document = job(
        task_list=[task("w", 4, minAvailable=2, partitionPolicy=parts)], networkTopology={"highestTierName": "rack"}
    )
    document["metadata"]["labels"] = {"team": "nlp"}
    document["metadata"]["annotations"] = {"volcano.sh/sla-waiting-time": "1h"}
    group = JobWorld(document).settle().group
    assert group is not None
    assert group.metadata.labels == {"team": "nlp"}
    assert group.metadata.annotations["volcano.sh/sla-waiting-time"] == "1h"
    assert group.metadata.annotations["hekla.dev/scheduler-name"] == "volcano"
    assert group.spec.network_topology is not None
    assert (group.spec.network_topology.mode, group.spec.network_topology.highest_tier_name) == ("hard", "rack")
    (policy,) = group.spec.sub_group_policy
    assert (policy.name, policy.sub_group_size, policy.min_sub_groups) == ("w", 2, 1)
    assert policy.label_selector is not None
    assert policy.label_selector.match_labels == {"volcano.sh/task-spec": "w"}
