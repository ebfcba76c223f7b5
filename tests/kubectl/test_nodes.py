import re
from collections.abc import Iterator

import pytest

from hekla.testing.kubectl import Kubectl

pytestmark = pytest.mark.slow


@pytest.fixture
def node(kubectl: Kubectl) -> Iterator[str]:
    """A node that is as it was, afterwards."""
    yield "node-1"
    kubectl("uncordon", "node-1")
    kubectl("taint", "node", "node-1", "reserved-", code=None)
    kubectl("label", "node", "node-1", "disk-", code=None)


def pod_on(kubectl: Kubectl, name: str) -> str:
    return kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}").out


def test_a_cordoned_node_takes_no_pods_and_a_drained_one_has_none(kubectl: Kubectl, node: str) -> None:
    kubectl("create", "deployment", "d", "--image=any", "--replicas=4", "--", "sleep", "3600")
    kubectl("rollout", "status", "deployment/d", "--timeout=30s")
    kubectl("cordon", node)
    assert "Ready,SchedulingDisabled" in kubectl("get", "node", node).out
    kubectl("drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=40s")
    kubectl("rollout", "status", "deployment/d", "--timeout=30s")
    kubectl("wait", "deployment/d", "--for=jsonpath={.status.readyReplicas}=4", "--timeout=30s")
    where = kubectl("get", "pods", "-l", "app=d", "-o", "jsonpath={.items[*].spec.nodeName}").out.split()
    assert where == ["node-2"] * 4
    assert re.search(r"Non-terminated Pods: +\(0 in total\)", kubectl("describe", "node", node).out)
    kubectl("uncordon", node)
    assert "SchedulingDisabled" not in kubectl("get", "node", node).out


def test_a_budget_holds_a_drain_up(kubectl: Kubectl, node: str) -> None:
    kubectl("create", "deployment", "d", "--image=any", "--", "sleep", "3600")
    kubectl("rollout", "status", "deployment/d", "--timeout=30s")
    kubectl("create", "pdb", "all", "--selector=app=d", "--min-available=1")
    kubectl("wait", "pdb/all", "--for=jsonpath={.status.currentHealthy}=1", "--timeout=20s")
    [name] = kubectl("get", "pods", "-l", "app=d", "-o", "name").out.split()
    its_node = pod_on(kubectl, name.removeprefix("pod/"))
    try:
        refused = kubectl("drain", its_node, "--ignore-daemonsets", "--force", "--timeout=2s", code=1)
        assert "Cannot evict pod as it would violate the pod's disruption budget" in refused.err
        assert kubectl("get", name, "-o", "jsonpath={.status.phase}").out == "Running"
    finally:
        kubectl("uncordon", its_node)


def test_a_taint_keeps_pods_away_and_evicts_those_inside(kubectl: Kubectl, node: str) -> None:
    kubectl("label", "node", node, "disk=fast")
    here = ("--image=any", '--overrides={"spec":{"nodeSelector":{"disk":"fast"},"terminationGracePeriodSeconds":1}}')
    kubectl("run", "inside", *here, "--", "sleep", "3600")
    kubectl("wait", "pod/inside", "--for=condition=Ready", "--timeout=20s")
    kubectl("taint", "node", node, "reserved=yes:NoSchedule")
    kubectl("run", "outside", *here, "--", "sleep", "3600")
    kubectl("wait", "pod/outside", "--for=condition=PodScheduled=False", "--timeout=20s")
    why = kubectl("get", "pod", "outside", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}").out
    assert "untolerated taint {reserved: yes}" in why
    assert "0/2 nodes are available" in why
    assert "untolerated taint" in kubectl("describe", "pod", "outside").out
    kubectl("taint", "node", node, "reserved=yes:NoExecute", "--overwrite")
    kubectl("wait", "pod/inside", "--for=delete", "--timeout=20s")
    kubectl("taint", "node", node, "reserved-")
    kubectl("wait", "pod/outside", "--for=condition=Ready", "--timeout=20s")


def test_a_node_tells_what_it_has_and_how_it_confines(kubectl: Kubectl) -> None:
    kubectl(
        "run", "busy", "--image=any", '--overrides={"spec":{"containers":[{"name":"busy","image":"any","command":'
        '["sleep","3600"],"resources":{"limits":{"nvidia.com/gpu":"2","cpu":"1","memory":"64Mi"}}}]}}',
    )  # fmt: skip
    kubectl("wait", "pod/busy", "--for=condition=Ready", "--timeout=20s")
    its_node = pod_on(kubectl, "busy")
    described = kubectl("describe", "node", its_node).out
    assert re.search(r"nvidia.com/gpu +2 +2", described)
    assert re.search(r"Isolation +True .* containers run on rung \w+", described)
    assert re.search(r"Limits +\w+ ", described)
    wide = kubectl("get", "nodes", "-o", "wide").out.splitlines()
    assert wide[0].split()[:5] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert "hekla-process://" in wide[1]
    assert kubectl("get", "--raw", f"/api/v1/nodes/{its_node}").out.startswith("{")
    assert "busy" in kubectl("get", "pods", "-A", f"--field-selector=spec.nodeName={its_node},status.phase=Running").out
