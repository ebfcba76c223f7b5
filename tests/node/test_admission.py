import msgspec
import pytest

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.node.admission import DeviceLedger, gpu_environment, refusal_of, requests_of


def pod(*requests, init=(), **spec):
    def container(name, wanted, **more):
        return {"name": name, "resources": {"requests": wanted}, **more}

    inits = [container(f"i{n}", {k: v for k, v in each.items() if k != "sidecar"},
                       **({"restartPolicy": "Always"} if each.get("sidecar") else {})) for n, each in enumerate(init)]  # fmt: skip
    mains = [container(f"c{n}", each) for n, each in enumerate(requests)]
    return msgspec.convert({"spec": {"containers": mains, "initContainers": inits, **spec}}, Pod)


NODE = msgspec.convert(
    {"metadata": {"name": "n", "labels": {"zone": "a"}},
     "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "3", "nvidia.com/gpu": "2"}}}, Node,
)  # fmt: skip


def test_a_pod_needs_its_containers_together_or_its_hungriest_init_container():
    assert requests_of(pod({"cpu": "1"}, {"cpu": "500m"}))["cpu"] == 1500
    assert requests_of(pod({"cpu": "1"}, init=[{"cpu": "3"}, {"cpu": "2"}]))["cpu"] == 3000
    assert requests_of(pod({"cpu": "1"}, init=[{"cpu": "1", "sidecar": True}, {"cpu": "2"}]))["cpu"] == 3000
    assert requests_of(pod({"cpu": "3"}, init=[{"cpu": "1", "sidecar": True}, {"cpu": "2"}]))["cpu"] == 4000


@pytest.mark.parametrize(
    ("wanted", "others", "reason"),
    [
        ({"cpu": "4"}, [], None),
        ({"cpu": "4001m"}, [], "OutOfcpu"),
        ({"cpu": "2"}, [{"cpu": "3"}], "OutOfcpu"),
        ({"memory": "9Gi"}, [], "OutOfmemory"),
        ({}, [{}, {}, {}], "OutOfpods"),
        ({"nvidia.com/gpu": "2"}, [{"nvidia.com/gpu": "1"}], "UnexpectedAdmissionError"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_refused_for_the_right_reason(wanted, others, reason):
    refusal = refusal_of(pod(wanted), NODE, [requests_of(pod(other)) for other in others])
    assert (refusal.reason if refusal else None) == reason


def test_a_selector_that_the_node_does_not_match_is_refused():
    assert refusal_of(pod({}, nodeSelector={"zone": "a"}), NODE, []) is None
    assert refusal_of(pod({}, nodeSelector={"zone": "b"}), NODE, []).reason == "NodeAffinity"


def test_devices_are_given_once_and_come_back():
    ledger = DeviceLedger()
    assert ledger.take("nvidia.com/gpu", 4, "u1", "main", 3) == (0, 1, 2)
    assert ledger.take("nvidia.com/gpu", 4, "u1", "main", 3) == (0, 1, 2)
    assert ledger.take("nvidia.com/gpu", 4, "u2", "main", 2) is None
    ledger.release("u1")
    assert ledger.take("nvidia.com/gpu", 4, "u2", "main", 2) == (0, 1)


def test_a_container_is_told_which_devices_are_its_own():
    assert gpu_environment("nvidia.com/gpu", (1, 3)) == {"NVIDIA_VISIBLE_DEVICES": "1,3", "CUDA_VISIBLE_DEVICES": "1,3"}
