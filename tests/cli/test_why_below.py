"""`hekla why` of what is not scheduled itself: the gangs and pods below it answer; a route says where requests go."""

import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from hekla.api.kthena import ModelServer
from hekla.api.meta import Document
from hekla.cli.main import main
from hekla.cli.why_below import below, complaints, sleep_of, summary, text, to_be_asked
from hekla.cli.why_route import route_verdict, server_state
from hekla.testing.platform import PlatformProcess, running_platform

HUGE = "resources: {requests: {cpu: 100}}"
OBJECTS = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: ranks, annotations: {{scheduling.volcano.sh/group-min-member: "2"}}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: ranks}}}}
  template:
    metadata: {{labels: {{app: ranks}}}}
    spec:
      schedulerName: volcano
      containers: [{{name: main, image: any, {HUGE}}}]
---
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {{name: extract}}
spec:
  schedulerName: volcano
  minAvailable: 1
  tasks:
  - name: main
    replicas: 1
    template: {{spec: {{restartPolicy: Never, containers: [{{name: main, image: any, {HUGE}}}]}}}}
---
apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {{name: etl}}
spec: {{flows: [{{name: extract}}]}}
---
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
metadata: {{name: qwen}}
spec:
  schedulerName: volcano
  replicas: 1
  template:
    gangPolicy: {{minRoleReplicas: {{server: 1}}}}
    roles:
    - name: server
      replicas: 1
      workerReplicas: 0
      entryTemplate: {{metadata: {{labels: {{app: qwen}}}}, spec: {{containers: [{{name: main, image: any, {HUGE}}}]}}}}
---
apiVersion: networking.serving.volcano.sh/v1alpha1
kind: ModelServer
metadata: {{name: qwen}}
spec: {{inferenceEngine: vLLM, workloadSelector: {{matchLabels: {{app: qwen}}}}, workloadPort: {{port: 8000}}}}
---
apiVersion: networking.serving.volcano.sh/v1alpha1
kind: ModelRoute
metadata: {{name: chat}}
spec:
  modelName: chat
  rules:
  - targetModels: [{{modelServerName: qwen, weight: 90}}, {{modelServerName: nobody, weight: 10}}]
"""
PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "JobTemplate": "/apis/flow.volcano.sh/v1alpha1/namespaces/default/jobtemplates",
    "JobFlow": "/apis/flow.volcano.sh/v1alpha1/namespaces/default/jobflows",
    "ModelServing": "/apis/workload.serving.volcano.sh/v1alpha1/namespaces/default/modelservings",
    "ModelServer": "/apis/networking.serving.volcano.sh/v1alpha1/namespaces/default/modelservers",
    "ModelRoute": "/apis/networking.serving.volcano.sh/v1alpha1/namespaces/default/modelroutes",
}


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    """One small node, and five things that ask for more."""
    with running_platform(without=("router", "agents"), flags=("--nodes", "1", "--cpu-per-node", "2")) as running:
        for document in yaml.safe_load_all(OBJECTS):
            answer = running.ask("POST", PATHS[document["kind"]], document)
            assert answer.status == 201, answer.body
        yield running


def said(platform: PlatformProcess, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["why", *words, "--kubeconfig", str(platform.kubeconfig)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def until_said(platform: PlatformProcess, capsys: pytest.CaptureFixture[str], sentence: str, *words: str) -> str:
    end = time.monotonic() + 60
    while sentence not in (text := said(platform, capsys, *words)):
        assert time.monotonic() < end, text
    return text


@pytest.mark.parametrize(
    "words",
    [["deployment/ranks"], ["deploy", "ranks"], ["jobflow/etl"], ["jf/etl"], ["modelserving/qwen"]],
    ids=" ".join,
)
def test_the_gang_below_answers(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    text = until_said(platform, capsys, "waits for its gang", *words)
    assert "podgroup/" in text
    assert "in namespace default waits" in text
    assert "insufficient cpu" in text or "Insufficient cpu" in text


def test_a_program_reads_the_gangs_explanations(platform: PlatformProcess, capsys: pytest.CaptureFixture[str]) -> None:
    until_said(platform, capsys, "waits for its gang", "deployment/ranks")
    found = json.loads(said(platform, capsys, "deployment.apps/ranks", "-o", "json"))
    assert [one["verdict"] for one in found["items"]] == ["Waits"]
    assert sum(found["gangs"].values()) == 1


def test_a_route_says_which_of_its_servers_take_requests_and_why_none_does(
    platform: PlatformProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(platform, capsys, "modelroute/chat")
    assert "modelroute/chat leads to 2 ModelServers, of which 0 take requests, for requests for chat" in text
    assert 'ModelServer "nobody" does not exist; create it or name another' in text
    assert "rule 0, weight 90: ModelServer qwen" in text
    assert "modelserver/qwen takes no requests" in said(platform, capsys, "modelserver/qwen")


def test_what_is_not_there_is_not_found(platform: PlatformProcess, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("modelserving/none", "modelroute/none", "statefulset/none"):
        assert main(["why", words, "--kubeconfig", str(platform.kubeconfig)]) == 1
        assert "not found" in capsys.readouterr().err


# The decisions alone


def test_what_the_api_server_refuses_is_told_where_nothing_stands_below() -> None:
    """A queue that does not exist: `what stands below, and its events, say why`, and there was neither."""
    said = 'Some groups is progressing: []; the API server refuses what is missing: unable to find queue "nope"'
    progressing = {"type": "Progressing", "status": "True", "reason": "GroupsRefused", "message": said}
    assert list(complaints({"status": {"conditions": [progressing]}})) == [f"GroupsRefused: {said}"]
    assert list(complaints({"status": {"conditions": [progressing | {"reason": "GroupProgressing"}]}})) == []


def an_object(kind: str, name: str, *, owner: str = "", **more: Any) -> Document:
    owners = [{"uid": owner}] if owner else []
    metadata = {"name": name, "uid": f"{kind}/{name}", "ownerReferences": owners, **more.pop("metadata", {})}
    return {"kind": kind, "metadata": metadata, **more}


def test_what_an_object_owns_is_followed_down_and_nothing_else() -> None:
    gang = {"annotations": {"scheduling.k8s.io/group-name": "a"}}
    found = below("ModelBooster/b", [
        an_object("ModelServing", "s", owner="ModelBooster/b"),
        an_object("PodGroup", "a", owner="ModelServing/s", status={"phase": "Inqueue"}),
        an_object("PodGroup", "runs", owner="ModelServing/s", status={"phase": "Running"}),
        an_object("PodGroup", "foreign", owner="ModelServing/other"),
        an_object("Pod", "a-0", owner="ModelServing/s", metadata=gang),
        an_object("Pod", "lone", owner="ModelServing/s"),
        an_object("Pod", "placed", owner="ModelServing/s", spec={"nodeName": "n1"}),
        an_object("Pod", "ring", owner="Pod/ring"),
    ])  # fmt: skip
    assert [one["metadata"]["name"] for one in found.gangs] == ["a", "runs"]
    assert [one["metadata"]["name"] for one in found.jobs] == ["s"]
    assert to_be_asked(found) == ["podgroup.a", "pod.lone"]


def test_a_server_counts_the_pods_that_it_leads_to_and_names_those_that_wait() -> None:
    spec = {"workloadSelector": {"matchLabels": {"modelserving.volcano.sh/name": "qwen"}}}
    server, labels = msgspec.convert({"spec": spec}, ModelServer), {"labels": {"modelserving.volcano.sh/name": "qwen"}}
    ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    pods = [
        an_object("Pod", "ready", metadata=labels, spec={"nodeName": "n1"}, status=ready),
        an_object("Pod", "starts", metadata=labels, spec={"nodeName": "n1"}, status={"phase": "Pending"}),
        an_object("Pod", "waits", metadata=labels),
        an_object("Pod", "other"),
    ]
    state = server_state(server, pods)
    assert (state["pods"], state["readyPods"], state["waitingPods"]) == (3, ["ready"], ["waits"])
    assert state["otherPods"] == ["starts (Pending)"]
    assert "ask `hekla why modelserving/qwen`" in server_state(server, [])["error"]


@pytest.mark.parametrize(
    ("container", "is_told"),
    [
        ({"readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1}}, True),
        ({"ports": [{"containerPort": 8000}], "livenessProbe": {"tcpSocket": {"port": 8000}}}, True),
        ({"ports": [{"containerPort": 9090}, {"containerPort": 8001}]}, False),
        ({"readinessProbe": {"httpGet": {"port": "http"}}}, False),
        ({}, False),
    ],
)
def test_a_server_that_asks_another_port_than_its_pods_have_says_so(container: Document, is_told: bool) -> None:
    """It said that it takes requests, all of which failed."""
    spec = {"workloadSelector": {"matchLabels": {"app": "m"}}, "workloadPort": {"port": 8001}}
    ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    pod = an_object("Pod", "m-0", metadata={"labels": {"app": "m"}}, spec={"containers": [container]}, status=ready)
    state = server_state(msgspec.convert({"spec": spec}, ModelServer), [pod])
    told = "requests go to port 8001, and what its pods declare or are probed at is 8000: workloadPort?"
    assert state.get("error") == (told if is_told else None)


def test_a_server_whose_engine_names_no_port_is_not_told_that_of_its_sidecar() -> None:
    """An exporter declared its own port, and a server that worked was called wrong."""
    spec = {"workloadSelector": {"matchLabels": {"app": "m"}}, "workloadPort": {"port": 8000}}
    ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    containers = [{"name": "engine"}, {"name": "exporter", "ports": [{"containerPort": 9090}]}]
    pod = an_object("Pod", "m-0", metadata={"labels": {"app": "m"}}, spec={"containers": containers}, status=ready)
    assert "error" not in server_state(msgspec.convert({"spec": spec}, ModelServer), [pod])


@pytest.mark.parametrize(
    ("targets", "verdict"),
    [
        ([], "leads nowhere: it has no targets"),
        (
            [{"server": "a", "ready": 1, "weight": 0}, {"server": "b", "weight": 0}],
            "leads nowhere: the weight of each target is 0",
        ),
        ([{"server": "a", "ready": 2}, {"server": "b"}], "leads to 2 ModelServers, of which 1 takes requests"),
        (
            [{"server": "a"}, {"provider": "p"}],
            "leads to one ModelServer, which takes none now, and to 1 provider outside",
        ),
        (
            [{"server": "a", "ready": 1, "weight": 0}, {"server": "b", "ready": 1, "weight": 100}],
            "leads to one ModelServer, which takes requests",
        ),
        ([{"server": "a", "ready": 1}], "leads to one ModelServer, which takes requests"),
    ],
)
def test_the_verdict_on_a_route(targets: list[dict[str, Any]], verdict: str) -> None:
    assert route_verdict(targets) == verdict


def test_a_model_that_sleeps_is_told_with_what_wakes_it() -> None:
    serving = an_object("ModelServing", "lazy", spec={"replicas": 0})
    target = {"target": {"targetRef": {"name": "lazy"}}, "minReplicas": 0, "maxReplicas": 3}
    policy = an_object("AutoscalingPolicy", "p", spec={"homogeneousTarget": target})
    told = "ModelServing lazy has no replicas, and AutoscalingPolicy p wakes it when a request comes"
    assert sleep_of(serving, [policy]) == told
    assert sleep_of(serving, []).endswith("and no AutoscalingPolicy wakes it")
    assert sleep_of(an_object("ModelServing", "lazy", spec={"replicas": 1}), [policy]) == ""
    by_role = {"replicas": 1, "template": {"roles": [{"name": "prefill", "replicas": 0}]}}
    assert sleep_of(an_object("ModelServing", "lazy", spec=by_role), [policy]) == told
    fine = {"type": "Progressing", "status": "False", "reason": "AllGroupsReady", "message": "All groups are ready"}
    root = {**serving, "metadata": {**serving["metadata"], "namespace": "ml"}, "status": {"conditions": [fine]}}
    answer = summary("modelserving.lazy", root, below("x", []), [], 0, asleep=told)
    assert (answer["message"], answer["complaints"]) == (f"modelserving/lazy sleeps: {told}", [])


def test_pods_that_a_quota_refuses_are_told_in_its_words() -> None:
    root = {"kind": "ModelServing", "metadata": {"name": "m", "namespace": "ml", "uid": "m"}}
    found = below("m", [an_object("PodGroup", "m-1", owner="m", status={"phase": "Inqueue"})])
    said = 'Error creating: pods "m-1-server-0-0" is forbidden: exceeded quota: small'
    refusal = {"object": "modelserving/m", "message": said, "times": 3, "since": "then", "last": "now"}
    answer = summary("modelserving.m", root, found, [], 0, refused=[refusal])
    assert f"  refused {said} (3 times since then, last at now)" in text(answer).splitlines()
