import json
import re
import urllib.request

import pytest

from hekla.testing.kubectl import Kubectl
from hekla.testing.platform import PlatformProcess

pytestmark = pytest.mark.slow


def test_who_may_do_what_is_answered(kubectl: Kubectl) -> None:
    kubectl("create", "serviceaccount", "robot")
    robot = f"--as=system:serviceaccount:{kubectl.namespace}:robot"
    assert kubectl("auth", "can-i", "list", "pods", robot, code=1).out == "no\n"
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods,pods/log")
    kubectl("create", "rolebinding", "robot", "--role=reader", f"--serviceaccount={kubectl.namespace}:robot")
    assert kubectl("auth", "can-i", "list", "pods", robot).out == "yes\n"
    assert kubectl("auth", "can-i", "delete", "pods", robot, code=1).out == "no\n"
    listed = kubectl("auth", "can-i", "--list", robot).out
    assert re.search(r"^pods +\[\] +\[\] +\[get list\]$", listed, re.MULTILINE), listed
    kubectl("get", "pods", robot)
    refused = kubectl("get", "secrets", robot, code=1)
    user = f"system:serviceaccount:{kubectl.namespace}:robot"
    assert refused.err == (
        f'Error from server (Forbidden): secrets is forbidden: User "{user}" cannot list resource "secrets" '
        f'in API group "" in the namespace "{kubectl.namespace}"\n'
    )
    assert user in kubectl("auth", "whoami", robot).out
    assert "kubernetes-admin" in kubectl("auth", "whoami").out


def test_a_token_opens_what_its_roles_allow(kubectl: Kubectl, whole_platform: PlatformProcess) -> None:
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "rolebinding", "robot", "--clusterrole=view", f"--serviceaccount={kubectl.namespace}:robot")
    token = kubectl("create", "token", "robot", "--duration=1h").out.strip()
    alone = kubectl.home / "token-kubeconfig"
    alone.write_text("")
    bearer = Kubectl(alone, kubectl.home, kubectl.namespace)
    where = ("--server", whole_platform.url, "--insecure-skip-tls-verify", "--token", token)
    assert "No resources found" in bearer("get", "pods", *where).err
    assert "configmaps is forbidden" in bearer("create", "configmap", "c", *where, code=1).err
    broken = bearer("get", "pods", *where[:-1], token[:-4] + "AAAA", code=1)
    assert "You must be logged in to the server" in broken.err
    nobody = bearer("get", "pods", *where[:3], code=None)
    assert nobody.code != 0
    unknown = bearer("get", "pods", "--server", whole_platform.url, "--token", token, code=1)
    assert "certificate signed by unknown authority" in unknown.err


def test_a_pod_speaks_with_the_token_it_was_given(kubectl: Kubectl) -> None:
    kubectl("create", "rolebinding", "default", "--clusterrole=view", f"--serviceaccount={kubectl.namespace}:default")
    script = (
        # what a container says before somebody attaches is in its log only, here as elsewhere
        "read _; D=/var/run/secrets/kubernetes.io/serviceaccount; "
        'curl -sS --cacert $D/ca.crt -H "Authorization: Bearer $(cat $D/token)" '
        "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces/$(cat $D/namespace)/pods"
    )
    command = ("run", "inside", "-i", "--rm", "--quiet", "--image=any", "--restart=Never", "--", "sh", "-c", script)
    said = kubectl(*command, stdin="\n")
    assert [one["metadata"]["name"] for one in json.loads(said.out)["items"]] == ["inside"]


def test_the_server_tells_what_it_is_and_has(kubectl: Kubectl, whole_platform: PlatformProcess) -> None:
    assert whole_platform.url in kubectl("cluster-info").out
    version = kubectl("version", "-o", "json").json["serverVersion"]
    assert version["gitVersion"].startswith("v1.36")
    resources = kubectl("api-resources", "--no-headers").out
    for row in (
        r"^pods +po +v1 +true +Pod$",
        r"^jobs +vcjob,vj +batch.volcano.sh/v1alpha1 +true +Job$",
        r"^jobs +batch/v1 +true +Job$",
    ):
        assert re.search(row, resources, re.MULTILINE), row
    assert "queues.scheduling.volcano.sh" in kubectl("api-resources", "--namespaced=false", "-o", "name").out.split()
    assert "scheduling.volcano.sh/v1beta1" in kubectl("api-versions").out.split()
    assert kubectl("get", "--raw", "/healthz").out == "ok"
    assert "hekla_store_revision" in kubectl("get", "--raw", "/metrics").out
    with kubectl.running("proxy", "--port=0") as proxy:
        port = proxy.wait_for(r"127\.0\.0\.1:(\d+)")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=10) as answer:
            assert json.load(answer)["gitVersion"] == version["gitVersion"]


def test_kinds_are_explained_field_by_field(kubectl: Kubectl) -> None:
    assert "FIELD: nodeName <string>" in kubectl("explain", "pod.spec.nodeName").out
    assert "capability" in kubectl("explain", "queue", "--recursive").out
    volcano = kubectl("explain", "job", "--api-version=batch.volcano.sh/v1alpha1", "--recursive").out
    assert "minAvailable" in volcano
    assert "topologyPolicy" in volcano
    assert 'field "nonsense" does not exist' in kubectl("explain", "pod.spec.nonsense", code=1).err


def test_what_is_not_there_is_said_clearly(kubectl: Kubectl) -> None:
    assert "Metrics API not available" in kubectl("top", "nodes", code=1).err
    assert 'the server doesn\'t have a resource type "nonsense"' in kubectl("get", "nonsense", code=1).err
    assert 'namespaces "absent" not found' in kubectl("create", "configmap", "c", "-n", "absent", code=1).err
    assert 'pods "absent" not found' in kubectl("describe", "pod", "absent", code=1).err
    timed_out = kubectl("wait", "namespace", kubectl.namespace, "--for=condition=Never", "--timeout=1s", code=1)
    assert "timed out waiting for the condition" in timed_out.err
