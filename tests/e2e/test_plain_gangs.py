"""A plain Deployment that asks for a gang waits whole on a full cluster, is told why, and starts whole once there is room."""

import json
from typing import Any, Protocol

import pytest

from hekla.testing.kubectl import Kubectl, Said

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Hekla(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> Said: ...


def deployment(name: str, replicas: int, gpus: int, **annotations: str) -> str:
    container = {
        "name": "main", "image": "busybox", "command": ["sh", "-c", "exec sleep 1000"],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }  # fmt: skip
    pod = {"schedulerName": "volcano", "terminationGracePeriodSeconds": 0, "containers": [container]}
    labels = {"app": name}
    return json.dumps(
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
    )  # fmt: skip


def items(kubectl: Kubectl, *what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl("get", *what, "-o", "json").out)["items"]
    return found


def test_a_deployment_that_is_a_gang_waits_whole_and_starts_whole(kubectl: Kubectl, hekla: Hekla) -> None:
    kubectl("create", "namespace", "plain-gang")
    here = ("--namespace", "plain-gang")
    kubectl("apply", *here, "-f", "-", stdin=deployment("filler", 3, 4))
    kubectl("rollout", "status", *here, "deployment/filler", "--timeout=90s")
    assert items(kubectl, "podgroups", *here) == [], "who asks for no gang gets no PodGroup"

    # 4 of 16 GPUs are free: one of the three pods would fit
    gang = deployment("ranks", 3, 4, **{"scheduling.volcano.sh/group-min-member": "3"})
    kubectl("apply", *here, "-f", "-", stdin=gang)
    kubectl("wait", *here, "deployment/ranks", "--for=jsonpath={.status.replicas}=3", "--timeout=90s")
    kubectl("wait", *here, "podgroup", "--all", "--for=jsonpath={.spec.minMember}=3", "--timeout=90s")
    kubectl("wait", *here, "podgroup", "--all", "--for=jsonpath={.status.phase}=Pending", "--timeout=90s")
    waiting = items(kubectl, "pods", *here, "-l", "app=ranks")
    (group,) = items(kubectl, "podgroups", *here)
    assert [pod["spec"].get("nodeName") for pod in waiting] == [None] * 3, "not even the pod that would fit has a node"
    assert {pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in waiting} == {
        group["metadata"]["name"]
    }
    said = hekla("why", f"pod/{waiting[0]['metadata']['name']}", *here, code=None).out
    assert "3 must run together" in said
    assert "insufficient nvidia.com/gpu (12 asked, 12 of 16 taken" in said

    kubectl("delete", *here, "deployment/filler", "--wait=false")
    kubectl("rollout", "status", *here, "deployment/ranks", "--timeout=90s")
    kubectl("wait", *here, "podgroup", "--all", "--for=jsonpath={.status.phase}=Running", "--timeout=90s")
    kubectl("scale", *here, "deployment/ranks", "--replicas=0")
    kubectl("wait", *here, "podgroup", "--all", "--for=delete", "--timeout=90s")
    kubectl("delete", "namespace", "plain-gang")
