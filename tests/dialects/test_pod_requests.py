import msgspec
import pytest

from hekla.api.pods import PodSpec
from hekla.dialects.pod_requests import pod_request, pod_unasked


def request_of(**spec: object) -> dict[str, int]:
    return pod_request(msgspec.convert(spec, PodSpec))


def container(cpu: str = "", memory: str = "", **fields: object) -> dict[str, object]:
    requests = {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text}
    return {"resources": {"requests": requests}, **fields}


def test_containers_add_up() -> None:
    assert request_of(containers=[container("500m", "1Gi"), container("1")]) == {"cpu": 1500, "memory": 1 << 30}


def test_init_containers_count_by_the_largest() -> None:
    spec = {"containers": [container("1")], "initContainers": [container("3"), container("2")]}
    assert request_of(**spec) == {"cpu": 3000}


def test_a_sidecar_runs_beside_what_follows_it() -> None:
    sidecar = container("1", restartPolicy="Always")
    assert request_of(containers=[container("1")], initContainers=[container("3"), sidecar]) == {"cpu": 3000}
    assert request_of(containers=[container("1")], initContainers=[sidecar, container("3")]) == {"cpu": 4000}
    assert request_of(containers=[container("5")], initContainers=[sidecar, container("3")]) == {"cpu": 6000}


def test_overhead_is_added_and_what_the_pod_declares_replaces_the_sum() -> None:
    assert request_of(containers=[container("1")], overhead={"cpu": "250m"}) == {"cpu": 1250}
    declared = {"requests": {"cpu": "4"}}
    assert request_of(containers=[container("1", "1Gi")], resources=declared) == {"cpu": 4000, "memory": 1 << 30}


@pytest.mark.parametrize(
    ("spec", "counted"),
    [
        ({"containers": [container("1", "1Gi")]}, {}),
        ({"containers": [container(), container()]}, {"cpu": 200, "memory": 400 << 20}),
        ({"containers": [container("1")]}, {"memory": 200 << 20}),
        ({"containers": [container("0", "0")]}, {}),
        ({"containers": [container("1", "1Gi")], "initContainers": [container()]}, {}),
        ({"containers": [container()], "initContainers": [container("2", "4Gi")]}, {}),
        ({"containers": [container()], "initContainers": [container(restartPolicy="Always")]}, {"cpu": 200, "memory": 400 << 20}),
        ({"containers": [container()], "resources": {"requests": {"cpu": "1"}}}, {"memory": 200 << 20}),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}}]}, {"memory": 200 << 20}),
    ],
)  # fmt: skip
def test_containers_that_say_nothing_are_counted_as_usual_ones(spec: object, counted: dict[str, int]) -> None:
    assert dict(pod_unasked(msgspec.convert(spec, PodSpec))) == counted


def test_a_limit_stands_for_a_missing_request() -> None:
    limited = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert request_of(containers=[limited]) == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("0.1", 100), ("1500m", 1500), ("1n", 1)])
def test_processors_are_counted_in_milli_rounded_up(text: str, milli: int) -> None:
    assert request_of(containers=[container(text)]) == {"cpu": milli}
