import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hekla.api.explanation import EXPLANATION
from hekla.cli.commands.why import without_group
from hekla.cli.main import main
from hekla.testing.platform import PlatformProcess, running_platform

PODS, GROUPS = "/api/v1/namespaces/default/pods", "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    """Two nodes with 4 GPUs; `old` holds one of them, and `train`, four pods of 2 GPUs, waits for both."""
    flags = ("--nodes", "2", "--gpus-per-node", "4")
    with running_platform(without=("workloads", "controlplane"), flags=flags) as running:
        make(running, "old", pods=1, gpus=4)
        until(lambda: explained(running, "podgroup.old")["verdict"] == "Placed")
        make(running, "train", pods=4, gpus=2)
        until(lambda: explained(running, "podgroup.train").get("lacks"))
        yield running


def until(is_true: Any, within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < end, "it did not come true"  # each question is a connection: pause enough


def make(platform: PlatformProcess, name: str, *, pods: int, gpus: int) -> None:
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": name},
        "spec": {"minMember": pods},
    }  # fmt: skip
    assert platform.ask("POST", GROUPS, group).status == 201
    amounts = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "trainer", "resources": {"requests": amounts, "limits": amounts}}
    for number in range(pods):
        metadata = {"name": f"{name}-{number}", "annotations": {"scheduling.k8s.io/group-name": name}}
        spec = {"runtimeClassName": "simulated", "schedulerName": "volcano", "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        answer = platform.ask("POST", PODS, body)
        assert answer.status == 201, answer.body


def explained(platform: PlatformProcess, name: str) -> dict[str, Any]:
    document: dict[str, Any] = platform.ask("GET", EXPLANATION.path("default", name)).document
    return {"verdict": "", **document}


def said(platform: PlatformProcess, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["why", *words, "--kubeconfig", str(platform.kubeconfig)]) == 0
    return capsys.readouterr().out


def test_one_screen_says_what_is_missing_where_and_what_would_help(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(platform, capsys, "podgroup/train")
    for line in (
        "podgroup/train in namespace default waits",
        "  queue   default, place 1 of 1 that wait",
        "  pods    4 (4 Pending); 4 must run together",
        "  gang    2 of the 4 pods that are missing fit",
        "  needs 8 nvidia.com/gpu (4 pods of 2), 4 are free: 4 on node-2",
        "    2   Insufficient nvidia.com/gpu   node-1, node-2",
        "  - ask for 1 nvidia.com/gpu per pod instead of 2",
        "  - lower minAvailable from 4 to 2",
        "  - wait for default/old to end, which holds 4 nvidia.com/gpu",
        "  - add one more node like node-1 (4 nvidia.com/gpu)",
    ):
        assert line in text.splitlines(), text


def test_a_pod_hears_of_its_gang_and_a_program_reads_fields(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(said(platform, capsys, "pod", "train-0", "-o", "json"))
    assert (found["verdict"], found["gang"]["placeable"], found["gang"]["missing"]) == ("Waits", 2, 4)
    assert found["lacks"][0]["freeOn"] == [{"node": "node-2", "free": "4"}]
    assert [one["change"] for one in found["remedies"]] == ["FewerPerPod", "SmallerMinimum", "EndOf", "MoreNodes"]


def test_what_runs_does_not_wait(platform: PlatformProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert "pod/old-0 in namespace default does not wait" in said(platform, capsys, "pod/old-0")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["pod/none"], 1, 'pod "none" does not exist in namespace "default"'),
        (["vcjob/none"], 1, 'vcjob "none" does not exist in namespace "default"'),
        (["node/node-1"], 2, 'a "node" cannot be explained; ask about a pod, a podgroup, a vcjob or a queue'),
        (["job.batch/x"], 1, 'jobs.batch "x" not found'),
        (["job.example.org/x"], 2, 'a "job.example.org" cannot be explained'),
        (["train"], 2, '"train" is not TYPE/NAME'),
    ],
    ids=str,
)
def test_other_questions_are_refused_with_a_sentence(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str], words: list[str], code: int, sentence: str
) -> None:
    assert main(["why", *words, "--kubeconfig", str(platform.kubeconfig)]) == code
    assert sentence in capsys.readouterr().err


def test_a_job_that_is_over_is_told_from_one_that_has_no_gang_yet(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    job: dict[str, Any] = {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "short"},
        "spec": {"tasks": [{"name": "main", "replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}]},
    }  # fmt: skip
    assert platform.ask("POST", JOBS, job).status == 201
    words = ["why", "vcjob/short", "--kubeconfig", str(platform.kubeconfig)]
    assert main(words) == 1
    assert 'vcjob "short" in namespace "default" has no PodGroup yet (its phase is ' in capsys.readouterr().err
    made = platform.ask("GET", f"{JOBS}/short").document
    made["status"] = {"state": {"phase": "Completed", "lastTransitionTime": "2026-11-24T02:00:00Z"}}
    answer = platform.ask("PUT", f"{JOBS}/short/status", made)
    assert answer.status == 200, answer.body
    assert main(words) == 1
    sentence = (
        'vcjob "short" in namespace "default" is over (Completed since 2026-11-24T02:00:00Z), so it waits for nothing'
    )
    assert sentence in capsys.readouterr().err


def test_explanations_are_for_those_who_may_get_them(platform: PlatformProcess) -> None:
    path = EXPLANATION.path("default", "podgroup.train")
    assert platform.ask("GET", path, token="").status == 403
    assert platform.ask("GET", path, token="nobody's").status == 401
    assert platform.ask("GET", EXPLANATION.path("default")).status == 405
    assert platform.ask("DELETE", path).status == 405
    assert platform.ask("GET", path + "/status").status == 404


def test_jobs_of_namespaces_that_one_may_not_see_are_not_named(platform: PlatformProcess) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}}
    assert platform.ask("POST", "/api/v1/namespaces", namespace).status == 201
    accounts = "/api/v1/namespaces/mine/serviceaccounts"
    assert platform.ask("POST", accounts, {"metadata": {"name": "default"}}).status == 201
    amounts = {"nvidia.com/gpu": "4"}
    containers = [{"name": "main", "image": "x", "resources": {"requests": amounts, "limits": amounts}}]
    gang = {"name": "pair", "annotations": {"scheduling.k8s.io/group-name": "pair"}}
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "pair"}}
    platform.ask("POST", GROUPS.replace("default", "mine"), {**group, "spec": {"minMember": 2}})
    for number in range(2):
        metadata = {**gang, "name": f"pair-{number}"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
        assert platform.ask("POST", PODS.replace("default", "mine"), pod).status == 201
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "reads"},
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"},
    }  # fmt: skip
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/mine/rolebindings"
    assert platform.ask("POST", bindings, binding).status == 201
    path = EXPLANATION.path("mine", "podgroup.pair")
    until(lambda: platform.ask("GET", path).document.get("lacks"))
    until(lambda: platform.ask("GET", path, impersonate_user="ann").status == 200)
    answer = platform.ask("GET", path, impersonate_user="ann")
    assert "default/old" not in answer.body.decode()
    assert "a job of another namespace" in answer.body.decode()


def test_the_configuration_in_use_is_shown(platform: PlatformProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "config", "--kubeconfig", str(platform.kubeconfig)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# from the built-in default"
    assert 'actions: "enqueue, allocate, backfill"' in lines


def test_the_resources_are_announced_and_described(platform: PlatformProcess) -> None:
    listed = platform.ask("GET", "/apis/scheduling.hekla.dev/v1").document["resources"]
    assert [(one["name"], one["verbs"]) for one in listed] == [
        ("explanations", ["get"]),
        ("schedulers", ["get"]),
        ("snapshots", ["get"]),
    ]
    assert platform.ask("GET", "/openapi/v3/apis/scheduling.hekla.dev/v1").status == 200


def test_a_queue_is_told_with_who_waits_in_it(platform: PlatformProcess, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(platform, capsys, "queue/default")
    assert text.startswith("queue/default is open: 1 job runs, ")
    assert "default/train: " in text
    assert main(["why", "queue/absent", "--kubeconfig", str(platform.kubeconfig)]) == 1
    assert 'queue "absent" does not exist' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        ("Aborted", "is Aborted since 2026-11-24T02:00:00Z, so it has no PodGroup and asks for no node; it waits until somebody resumes it"),
        ("Terminating", "is Terminating since 2026-11-24T02:00:00Z, so it has no PodGroup and asks for no node"),
        ("Pending", "has no PodGroup yet (its phase is Pending); ask again in a moment"),
        ("Failed", "is over (Failed since 2026-11-24T02:00:00Z), so it waits for nothing; what its pods wrote: hekla logs vcjob/short -n default"),
    ],
)  # fmt: skip
def test_a_job_without_a_group_hears_why_it_has_none(phase, says):
    job = {
        "metadata": {"name": "short", "namespace": "default"},
        "status": {"state": {"phase": phase, "lastTransitionTime": "2026-11-24T02:00:00Z"}},
    }
    assert f'vcjob "short" in namespace "default" {says}' in without_group(job)
