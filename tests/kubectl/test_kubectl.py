import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from hekla.testing.api_server import LiveApiServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: "nginx:1", ports: [{containerPort: 80}]}]
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, description: what is wanted, properties: {size: {type: integer, description: how large}}}}
"""


class Kubectl(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", fails: bool = False) -> str: ...


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    home: Path = tmp_path_factory.mktemp("home")
    with LiveApiServer() as server:

        def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
            command = ["kubectl", "--server", server.url, *arguments]
            environment = {**os.environ, "HOME": str(home), "KUBECONFIG": str(home / "none")}
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=60, check=False, env=environment
            )
            assert (done.returncode != 0) is fails, f"{arguments}: {done.stdout}{done.stderr}"
            return done.stdout + done.stderr

        yield run


def test_apply_twice_changes_once_and_diff_tells_what_would(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "applied")
    assert "created" in kubectl("apply", "-n", "applied", "-f", "-", stdin=DEPLOYMENT)
    assert "unchanged" in kubectl("apply", "-n", "applied", "-f", "-", stdin=DEPLOYMENT)
    changed = DEPLOYMENT.replace("nginx:1", "nginx:2")
    told = kubectl("diff", "-n", "applied", "-f", "-", stdin=changed, fails=True)
    assert "+      - image: nginx:2" in told
    assert "configured" in kubectl("apply", "-n", "applied", "-f", "-", stdin=changed)
    pruned = changed.replace(", ports: [{containerPort: 80}]", "")
    kubectl("apply", "-n", "applied", "-f", "-", stdin=pruned)
    assert (
        kubectl("get", "deploy", "web", "-n", "applied", "-o", "jsonpath={.spec.template.spec.containers[0].ports}")
        == ""
    )


def test_what_was_applied_by_the_client_moves_to_the_server(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "moved")
    kubectl("apply", "-n", "moved", "-f", "-", stdin=DEPLOYMENT)
    said = kubectl("apply", "--server-side", "-n", "moved", "-f", "-", stdin=DEPLOYMENT)
    assert said.strip() == "deployment.apps/web serverside-applied"
    shown = json.loads(kubectl("get", "deploy", "web", "-n", "moved", "-o", "json", "--show-managed-fields"))
    owners = {(one["manager"], one["operation"]) for one in shown["metadata"]["managedFields"]}
    assert owners == {("kubectl", "Apply"), ("kubectl-last-applied", "Apply")}
    changed = DEPLOYMENT.replace("nginx:1", "nginx:2")
    refused = kubectl(
        "apply", "--server-side", "--field-manager=other", "-n", "moved", "-f", "-", stdin=changed, fails=True
    )
    assert 'conflict with "kubectl": .spec.template.spec.containers[name="c"].image' in refused
    kubectl(
        "apply", "--server-side", "--field-manager=other", "--force-conflicts", "-n", "moved", "-f", "-", stdin=changed
    )


def test_every_output_of_get_is_made(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "shown", "--from-literal=a=b")
    assert "DATA" in kubectl("get", "cm", "shown")
    assert kubectl("get", "cm", "shown", "-o", "name").strip() == "configmap/shown"
    assert kubectl("get", "cm", "shown", "-o", "jsonpath={.data.a}") == "b"
    assert "a: b" in kubectl("get", "cm", "shown", "-o", "yaml")
    assert json.loads(kubectl("get", "cm", "shown", "-o", "json"))["data"] == {"a": "b"}
    assert kubectl("get", "cm", "shown", "--no-headers", "-o", "custom-columns=A:.data.a").strip() == "b"
    assert kubectl("get", "cm", "shown", "-o", "go-template={{.data.a}}") == "b"
    assert "shown" in kubectl("get", "cm", "-A", "--sort-by=.metadata.name", "--chunk-size=1")
    assert "NAMESPACE" in kubectl("get", "cm", "-A", "-o", "wide", "--show-labels")
    kubectl("get", "all")
    assert 'configmaps "absent" not found' in kubectl("get", "cm", "absent", fails=True)


def test_objects_are_labelled_annotated_scaled_and_patched(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "changed")
    kubectl("apply", "-n", "changed", "-f", "-", stdin=DEPLOYMENT)
    kubectl("label", "deploy/web", "-n", "changed", "x=y")
    kubectl("label", "deploy/web", "-n", "changed", "app-")
    kubectl("annotate", "deploy/web", "-n", "changed", "note=hello")
    kubectl("scale", "deploy/web", "-n", "changed", "--replicas=5", "--current-replicas=2")
    kubectl("set", "image", "deploy/web", "-n", "changed", "c=nginx:7")
    kubectl("set", "env", "deploy/web", "-n", "changed", "A=B")
    kubectl("patch", "deploy", "web", "-n", "changed", "-p", '{"spec":{"paused":true}}')
    kubectl("patch", "deploy", "web", "-n", "changed", "--type=json", "-p", '[{"op":"remove","path":"/spec/paused"}]')
    kubectl("patch", "deploy", "web", "-n", "changed", "--type=merge", "-p", '{"spec":{"minReadySeconds":3}}')
    found = json.loads(kubectl("get", "deploy", "web", "-n", "changed", "-o", "json"))
    container = found["spec"]["template"]["spec"]["containers"][0]
    assert found["metadata"]["labels"] == {"x": "y"}
    assert (found["spec"]["replicas"], found["spec"]["minReadySeconds"], container["image"]) == (5, 3, "nginx:7")
    assert container["env"] == [{"name": "A", "value": "B"}]
    assert "nginx:7" in kubectl("describe", "deploy", "web", "-n", "changed")


def test_wait_sees_what_another_writes(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("name: web,", "name: waited,"))
    assert "condition met" in kubectl("wait", "deploy/waited", "--for=jsonpath={.spec.replicas}=2", "--timeout=5s")
    kubectl("delete", "deploy", "waited", "--wait=true", "--cascade=background")
    kubectl("wait", "deploy/waited", "--for=delete", "--timeout=5s")


def test_explain_knows_builtin_and_custom_kinds(kubectl: Kubectl) -> None:
    assert "FIELD: replicas <integer>" in kubectl("explain", "deploy.spec.replicas")
    assert "containers" in kubectl("explain", "pod.spec", "--recursive")
    kubectl("apply", "-f", "-", stdin=DEFINITION)
    kubectl("wait", "crd/widgets.example.com", "--for=condition=Established", "--timeout=10s")
    widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 3}\n"
    kubectl("apply", "-f", "-", stdin=widget)
    assert kubectl("get", "wd", "--no-headers").split() == ["w", "3"]
    assert "how large" in kubectl("explain", "widget.spec.size")
    assert "unknown field" in kubectl("apply", "-f", "-", stdin=widget.replace("size: 3", "sise: 3"), fails=True)
    kubectl("delete", "crd", "widgets.example.com")


def test_unknown_fields_are_refused_before_anything_is_stored(kubectl: Kubectl) -> None:
    said = kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("replicas: 2", "replica: 2"), fails=True)
    assert 'unknown field "spec.replica"' in said


def test_what_there_is_and_who_i_am_is_told(kubectl: Kubectl) -> None:
    resources = kubectl("api-resources", "--verbs=list", "-o", "name")
    assert {"pods", "deployments.apps", "jobs.batch"} <= set(resources.split())
    assert "batch/v1" in kubectl("api-versions")
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "system:masters" in kubectl("auth", "whoami")
    assert kubectl("get", "--raw", "/readyz") == "ok"


def test_dry_runs_at_the_server_store_nothing(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "dry", "--from-literal=a=b", "--dry-run=server")
    kubectl("get", "cm", "dry", fails=True)


def test_typed_creations_of_every_sort_arrive(kubectl: Kubectl) -> None:
    """`kubectl create` sends protobuf for these."""
    kubectl("create", "namespace", "typed")
    kubectl("create", "secret", "generic", "s", "--from-literal=k=v", "-n", "typed")
    kubectl("create", "deployment", "d", "--image=nginx", "--replicas=3", "-n", "typed")
    kubectl("create", "job", "j", "--image=busybox", "-n", "typed", "--", "echo", "hi")
    kubectl("create", "cronjob", "c", "--image=busybox", "--schedule=*/5 * * * *", "-n", "typed")
    kubectl("create", "service", "clusterip", "svc", "--tcp=80:8080", "-n", "typed")
    kubectl("create", "role", "r", "--verb=get,list", "--resource=pods", "-n", "typed")
    kubectl("create", "rolebinding", "rb", "--role=r", "--user=me", "-n", "typed")
    kubectl("create", "quota", "q", "--hard=pods=5", "-n", "typed")
    kubectl("create", "pdb", "p", "--selector=app=d", "--min-available=1", "-n", "typed")
    kubectl("create", "serviceaccount", "sa", "-n", "typed")
    assert kubectl("get", "svc", "svc", "-n", "typed", "-o", "jsonpath={.spec.ports[0].targetPort}") == "8080"
    assert kubectl("get", "deploy", "d", "-n", "typed", "-o", "jsonpath={.spec.replicas}") == "3"
    assert kubectl("get", "cronjob", "c", "-n", "typed", "-o", "jsonpath={.spec.schedule}") == "*/5 * * * *"


def test_deletion_says_what_went(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "gone", "--from-literal=a=b")
    assert 'configmap "gone" deleted' in kubectl("delete", "cm", "gone")
    kubectl("create", "configmap", "g1", "--from-literal=a=b")
    kubectl("label", "cm", "g1", "sweep=yes")
    kubectl("delete", "cm", "-l", "sweep=yes")
    kubectl("get", "cm", "g1", fails=True)
