"""`hekla why` of a model whose engines end: how they ended, their last words, how often, and what to do."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.cli.main import main
from hekla.cli.why_below import below, summary
from hekla.cli.why_broken import broken, failures, lines_of, remedies
from hekla.kube.timestamps import rfc3339
from hekla.testing.platform import PlatformProcess, running_platform

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
LAST_WORDS = "torch.OutOfMemoryError: CUDA out of memory"
ENGINE = f"""
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
metadata: {{name: NAME}}
spec:
  schedulerName: volcano
  replicas: 1
  template:
    restartGracePeriodSeconds: GRACE
    roles:
    - name: server
      replicas: 1
      workerReplicas: 0
      entryTemplate:
        spec:
          containers:
          - {{name: engine, image: any, command: [sh, -c, "echo loads; echo '{LAST_WORDS}' >&2; exit 3"]}}
"""
JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  schedulerName: volcano
  minAvailable: 1
  tasks:
  - name: worker
    replicas: 1
    template: {spec: {restartPolicy: OnFailure, containers: [{name: main, image: any, command: [sh, -c, "echo no data; exit 3"]}]}}
"""
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
PATH = "/apis/workload.serving.volcano.sh/v1alpha1/namespaces/default/modelservings"


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    """A model whose engine is restarted in place, and one whose pods are made anew."""
    with running_platform(without=("router", "agents"), flags=("--nodes", "1")) as running:
        for name, grace in (("patient", "600"), ("hasty", "0")):
            document = yaml.safe_load(ENGINE.replace("NAME", name).replace("GRACE", grace))
            answer = running.ask("POST", PATH, document)
            assert answer.status == 201, answer.body
        assert running.ask("POST", JOBS, yaml.safe_load(JOB)).status == 201
        yield running


def said_of(platform: PlatformProcess, capsys: pytest.CaptureFixture[str], name: str, sentence: str, *more: str) -> str:
    end = time.monotonic() + 60
    while True:
        assert main(["why", name, *more, "--kubeconfig", str(platform.kubeconfig)]) == 0
        text = capsys.readouterr().out
        if sentence in text:
            return text
        assert time.monotonic() < end, text


def test_an_engine_that_ends_again_and_again_is_told_with_its_last_words_and_what_to_do(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said_of(
        platform, capsys, "modelserving/patient", ", restarted "
    )  # once: the second time comes ten seconds later
    assert "modelserving/patient has its nodes and fails: its pod does not serve" in text
    assert "ended   with exit code 3 (Error) at 20" in text
    assert f"the end of its log\n    loads\n    {LAST_WORDS}" in text
    assert "lower gpu-memory-utilization" in text
    assert "hekla logs --previous -c engine -n default patient-0-server-0-0" in text
    found = json.loads(said_of(platform, capsys, "modelserving/patient", "exitCode", "-o", "json"))
    assert [(one["pod"], one["container"], one["ended"]["exitCode"], one["log"]) for one in found["broken"]] == [
        ("patient-0-server-0-0", "engine", 3, ["loads", LAST_WORDS])
    ]
    assert found["broken"][0]["restarts"] >= 1


@pytest.mark.parametrize("name", ["pod/train-worker-0", "vcjob/train"])
def test_a_pod_that_has_its_node_and_fails_there_is_told_of(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """It was told that it does not wait, and no more."""
    text = said_of(platform, capsys, name, "does not wait and fails")
    assert "pod train-worker-0, container main, " in text
    assert "ended   with exit code 3 (Error) at 20" in text
    assert "the end of its log\n    no data" in text


def test_pods_that_are_made_anew_each_time_are_counted_with_how_they_ended(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said_of(platform, capsys, "modelserving/hasty", " times since 20")
    assert "fails: " in text.splitlines()[0]
    assert "pod hasty-0-server-0-0: container engine ended with exit code 3 (Error) (" in text
    assert "restartGracePeriodSeconds" in text


# The decisions alone


def a_pod(
    *, name: str = "p", phase: str = "Running", ready: bool = False, engine: bool = True, **status: Any
) -> Document:
    container = {"name": "engine", "ready": ready, "restartCount": 4, "image": "i", "imageID": "i", **status}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "uid": name, "ownerReferences": [{"uid": "root"}],
            "labels": {labels.NAME: "m"} if engine else {},
        },
        "spec": {"nodeName": "n1", "containers": []},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [container]},
    }  # fmt: skip


def ended(code: int, reason: str = "Error", **more: Any) -> Document:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2026-11-27T11:59:00Z", **more}}


def waits(reason: str) -> Document:
    return {"waiting": {"reason": reason, "message": "the reason at length"}}


def what_is_said(*pods: Document, failed: list[Document] | None = None) -> str:
    root = {"kind": "ModelServing", "metadata": {"name": "m", "namespace": "ml"}}
    found = below("root", pods)
    told = [{**one, "remedies": remedies(one, "ml")} for one in broken(found.pods)]
    answer = summary("modelserving.m", root, found, [], 0, told, failed or [])
    return "\n".join([answer["message"], *lines_of(answer)])


def test_an_engine_that_serves_starts_or_is_over_does_not_fail() -> None:
    assert what_is_said(a_pod(ready=True, lastState=ended(1))) == "modelserving/m does not wait"
    assert (
        what_is_said(a_pod(state={"running": {}})) == "modelserving/m does not wait: it starts, its pod not ready yet"
    )
    two = (a_pod(state=waits("ContainerCreating")), a_pod(name="q", ready=True))
    assert what_is_said(*two) == "modelserving/m does not wait: it starts, 1 of its 2 pods not ready yet"
    assert what_is_said(a_pod(phase="Succeeded", state=ended(0, "Completed"))) == "modelserving/m does not wait"


def test_a_pod_that_failed_for_good_is_an_engines_matter_and_another_owners_own() -> None:
    assert "fails: its pod does not serve" in what_is_said(a_pod(phase="Failed", state=ended(1)))
    assert what_is_said(a_pod(phase="Failed", engine=False, state=ended(1))) == "modelserving/m does not wait"


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ({"state": waits("CrashLoopBackOff"), "lastState": ended(137, "OOMKilled")}, "more memory than its limit"),
        ({"state": ended(137)}, "killed from outside"),
        ({"state": {"running": {}}, "lastState": ended(127)}, "the image has no such command"),
        ({"state": waits("CrashLoopBackOff"), "lastState": ended(0, "Completed")}, "a server must not end"),
        ({"state": waits("ImagePullBackOff"), "restartCount": 0}, "imagePullSecrets"),
        ({"state": waits("CreateContainerConfigError")}, "a Secret, a ConfigMap"),
        ({"state": ended(1, message="HTTP 401 Client Error")}, "the token that may read the model"),
    ],
)
def test_what_to_do_follows_how_it_ended(status: Document, hint: str) -> None:
    assert hint in what_is_said(a_pod(**status))


def test_of_many_broken_pods_three_are_told_and_the_others_named() -> None:
    text = what_is_said(*(a_pod(name=f"p{at}", state=ended(1)) for at in range(5)))
    assert "fails: 5 of its 5 pods do not serve" in text
    assert text.count("what to do") == 3
    assert "2 more containers do not serve: p3/engine, p4/engine" in text


def test_failures_of_others_and_of_long_ago_are_not_told() -> None:
    def event(uid: str, minutes: int, **more: Any) -> Document:
        at = rfc3339(NOW - timedelta(minutes=minutes))
        named = {"uid": uid, "kind": "ModelServing", "name": "m"}
        told = {"involvedObject": named, "reason": "PodFailed", "message": f"{minutes}", "lastTimestamp": at}
        return {**told, "count": 7, "firstTimestamp": at, **more}

    events = [event("a", 3), event("a", 1), event("other", 1), event("a", 11), event("a", 1, reason="RoleDeleting")]
    found = failures(["a"], events, NOW)
    assert [(one["object"], one["message"], one["times"]) for one in found] == [
        ("modelserving/m", "1", 7), ("modelserving/m", "3", 7),
    ]  # fmt: skip
    assert "its pods ended and were made anew, 14 times lately" in what_is_said(a_pod(ready=True), failed=found)
