"""Real processes make way for others: a gang for one of higher priority, a borrower for the queue that owns what it holds."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hekla.testing.kubectl import Kubectl
from hekla.testing.platform import running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RULES = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
    enableReclaimable: false
  - name: conformance
- plugins:
  - name: predicates
  - name: capacity
"""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    rules = tmp_path_factory.mktemp("rules") / "scheduler.conf"
    rules.write_text(RULES)
    flags = ("--nodes", "2", "--gpus-per-node", "8", "--cpu-per-node", "16", "--scheduler-conf", str(rules))
    with running_platform(without=(), flags=flags) as platform:
        yield platform.kubeconfig


@pytest.fixture
def kubectl(kubeconfig: Path, tmp_path: Path) -> Kubectl:
    return Kubectl(kubeconfig, home=tmp_path)


def gang(name: str, pods: int, gpus: int, place: Path, *, queue: str = "default", priority: str = "") -> str:
    """A Job whose pods write down when they start and when they are told to go, and end no other way."""
    command = (
        "trap 'echo told-to-go >> /out/$HOSTNAME; exit 0' TERM; echo started >> /out/$HOSTNAME;"
        " while true; do sleep 0.1; done"
    )
    container = {
        "name": "c", "image": "any", "command": ["sh", "-c", command],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}, "volumeMounts": [{"name": "out", "mountPath": "/out"}],
    }  # fmt: skip
    spec: dict[str, Any] = {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container],
        "volumes": [{"name": "out", "hostPath": {"path": str(place)}}],
    }  # fmt: skip
    job: dict[str, Any] = {"minAvailable": pods, "schedulerName": "volcano", "queue": queue}
    if priority:
        job["priorityClassName"] = spec["priorityClassName"] = priority
    job["tasks"] = [{"name": "w", "replicas": pods, "template": {"spec": spec}}]
    return json.dumps(
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": job}
    )


def running(kubectl: Kubectl, job: str, pods: int) -> None:
    kubectl("wait", "vcjob", job, "--for=jsonpath={.status.running}=" + str(pods), "--timeout=90s")


def documents(kubectl: Kubectl, *what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl("get", *what, "-o", "json").out)["items"]
    return found


def said(place: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in place.iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "said"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def tidy(kubectl: Kubectl) -> Iterator[None]:
    yield
    kubectl("delete", "vcjob", "--all", "--timeout=90s")
    kubectl("wait", "pod", "--all", "--for=delete", "--timeout=90s")


@pytest.mark.usefixtures("tidy")
def test_a_gang_makes_way_whole_for_one_of_higher_priority_and_kubectl_tells_why(kubectl: Kubectl, place: Path) -> None:
    for name, value in (("low", "1"), ("high", "1000")):
        kubectl("create", "priorityclass", name, "--value", value)
    kubectl("apply", "-f", "-", stdin=gang("modest", 4, 4, place, priority="low"))
    running(kubectl, "modest", 4)
    kubectl("apply", "-f", "-", stdin=gang("urgent", 2, 8, place, priority="high"))
    running(kubectl, "urgent", 2)
    told = said(place)
    assert all("told-to-go" in told[f"modest-w-{number}"] for number in range(4)), "each was asked to end, and ended"
    assert all("told-to-go" not in told[f"urgent-w-{number}"] for number in range(2))
    story = documents(kubectl, "events")
    by_object = {(e["involvedObject"]["name"], e["reason"]): e["message"] for e in story}
    for number in range(4):
        assert by_object[f"modest-w-{number}", "Evict"] == "Pod is evicted, because of preempt"
        assert "default/urgent" in by_object[f"modest-w-{number}", "Preempted"]
    groups = {e["involvedObject"]["name"] for e in story if (e["reason"], e["message"]) == ("Evict", "preempt")}
    assert any(name.startswith("modest-") for name in groups)
    assert "waits for room on node-" in by_object["urgent-w-0", "Nominated"] + by_object["urgent-w-1", "Nominated"]
    assert "Pod is evicted, because of preempt" in kubectl("get", "events").out


@pytest.mark.usefixtures("tidy")
def test_a_queue_takes_back_what_it_deserves_and_no_more(kubectl: Kubectl, place: Path) -> None:
    for name in ("lender", "borrower"):
        queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
        deserved = {"nvidia.com/gpu": "8", "cpu": "16"}
        kubectl("apply", "-f", "-", stdin=json.dumps({**queue, "spec": {"reclaimable": True, "deserved": deserved}}))
    for number in range(4):
        kubectl("apply", "-f", "-", stdin=gang(f"guest-{number}", 1, 4, place, queue="borrower"))
    for number in range(4):
        running(kubectl, f"guest-{number}", 1)
    kubectl("apply", "-f", "-", stdin=gang("owner", 2, 4, place, queue="lender"))
    running(kubectl, "owner", 2)
    told = said(place)
    evicted = [name for name, text in told.items() if "told-to-go" in text]
    assert len(evicted) == 2, told
    assert all(name.startswith("guest-") for name in evicted)
    events = documents(kubectl, "events")
    reclaimed = {e["involvedObject"]["name"] for e in events if e["message"] == "Pod is evicted, because of reclaim"}
    assert reclaimed == set(evicted)
    text = kubectl("get", "--raw", "/metrics").out
    assert 'hekla_evictions_total{action="reclaim",outcome="done"} 2.0' in text
    assert 'volcano_queue_allocated_scalar_resources{queue_name="lender",resource="nvidia.com/gpu"} 8000.0' in text
