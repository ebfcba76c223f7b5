"""What a template asks for is what the scheduler finds in the pods that are made of it."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.pods import PodSpec
from hekla.dialects.pod_requests import amount, pod_request
from hekla.workloads.template_request import request_of

CPUS = st.sampled_from(["100m", "1", 2, "1500m"])
MEMORIES = st.sampled_from(["64Mi", "1Gi", 1 << 20, "100M"])
ASKED = st.fixed_dictionaries({}, optional={"cpu": CPUS, "memory": MEMORIES, "nvidia.com/gpu": st.integers(1, 4)})
OF_PODS = st.fixed_dictionaries({}, optional={"cpu": CPUS, "memory": MEMORIES})


def container(requests: dict[str, Any], limits: dict[str, Any], *, is_sidecar: bool = False) -> dict[str, Any]:
    made = {"name": "c", "image": "i", "resources": {"requests": requests, "limits": limits}}
    return {**made, "restartPolicy": "Always"} if is_sidecar else made


CONTAINERS = st.lists(st.builds(container, ASKED, ASKED), min_size=1, max_size=3)
INITS = st.lists(st.builds(container, ASKED, ASKED, is_sidecar=st.booleans()), max_size=3)
TEMPLATES = st.fixed_dictionaries(
    {"containers": CONTAINERS},
    optional={"initContainers": INITS, "overhead": OF_PODS, "resources": st.fixed_dictionaries({"requests": OF_PODS})},
)


@given(TEMPLATES)
def test_a_template_asks_for_what_its_pods_will(spec: dict[str, Any]) -> None:
    of_template = {name: amount(name, str(asked)) for name, asked in request_of(spec).items()}
    assert of_template == pod_request(msgspec.convert(_as_written(spec), PodSpec))


def _as_written(found: Any) -> Any:
    """Amounts as the API server stores them: texts."""
    if isinstance(found, dict):
        return {key: _as_written(one) for key, one in found.items()}
    if isinstance(found, list):
        return [_as_written(one) for one in found]
    return str(found) if isinstance(found, int) else found


def test_a_sidecar_runs_beside_the_containers_and_the_later_init_containers() -> None:
    ask = {"cpu": "1"}
    spec = {
        "containers": [container(ask, {})],
        "initContainers": [container(ask, {}, is_sidecar=True), container({"cpu": "3"}, {})],
    }
    assert {name: str(one) for name, one in request_of(spec).items()} == {"cpu": "4"}


def test_what_a_pod_declares_itself_replaces_the_sum_and_its_limit_counts_where_no_container_asks() -> None:
    own = {"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "1Gi"}}
    spec = {"containers": [container({"cpu": "500m"}, {})], "resources": own, "overhead": {"cpu": "100m"}}
    assert {name: str(one) for name, one in request_of(spec).items()} == {"cpu": "2100m", "memory": "1Gi"}


def test_a_list_that_is_null_asks_for_nothing() -> None:
    assert request_of({"containers": None, "initContainers": None, "overhead": None}) == {}
