"""Kubernetes' own scheduler and ours on one control plane, asked about the same pods in turns: both must find the same nodes good.

Left out is what differs by design: the balance of cpu and memory, whose formula changed in 1.36, and the words of a refusal.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hekla.api.core import Namespace, Pod, ServiceAccount
from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import NotFoundError
from hekla.kube.kubeconfig import load_kubeconfig
from hekla.testing.components import Cluster
from hekla.testing.kubernetes import PROGRAMS, ControlPlane, missing
from realkube.thrown_worlds import NAMESPACES, Dice

COMING = 12
THEIRS, OURS = "kube", "default-scheduler"
ROUNDED = 2
"""Of a score: kube-scheduler cuts each part of one to a whole number."""

PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: PATH}
leaderElection: {leaderElect: false}
profiles: [{schedulerName: kube, plugins: {score: {disabled: [{name: NodeResourcesBalancedAllocation}]}}}]
"""
CONFIGURATION = """
actions: allocate, backfill
tiers:
- plugins: [{name: priority}, {name: gang}, {name: predicates}]
- plugins: [{name: nodeorder, arguments: {balancedresource.weight: 0}}]
"""


@dataclass
class Rivals:
    """A control plane on which both run."""

    plane: ControlPlane

    def scores(self, pod: str, since: int) -> dict[str, int]:
        """What kube-scheduler thought of the nodes that it could take, by its log; of a single one it does not think."""
        text = self.plane.log("kube-scheduler")[since:]
        found = re.findall(rf'final score for pod" pod="\S+/{pod}" node="(\S+)" score=(-?\d+)', text)
        return {node: int(score) for node, score in found}


@pytest.fixture(scope="module")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rivals]:
    if why := missing(*PROGRAMS, "kube-scheduler"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("rivals")
    with ControlPlane(folder, controller_args=("--node-monitor-grace-period=24h",)) as plane:
        cluster = Cluster(plane.kubeconfig, folder)
        cluster.install()
        cluster.kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
        written = folder / "kube-scheduler.yaml"
        written.write_text(PROFILE.replace("PATH", str(plane.kubeconfig_of("kube-scheduler"))))
        plane.start_scheduler(f"--config={written}", "-v=10")
        (folder / "volcano.conf").write_text(CONFIGURATION)
        cluster.ours("delete", "configmap", "volcano-scheduler-configmap")
        flags = (f"--scheduler-name={OURS}", "--no-leader-elect", "--groups-for-gangs-only")
        with cluster.running("scheduler", *flags, f"--scheduler-conf={folder / 'volcano.conf'}"):
            yield Rivals(plane)


@pytest.mark.parametrize("seed", [0, 3, 10, 12])
def test_both_find_the_same_nodes_good(rivals: Rivals, seed: int) -> None:
    differ = asyncio.run(_differences(rivals, seed))
    assert not differ, "\n".join(differ)


async def _differences(rivals: Rivals, seed: int) -> list[str]:
    client = ApiClient(load_kubeconfig(rivals.plane.kubeconfig).connection().transport())
    dice, found = Dice(seed), list[str]()
    try:
        await _put(client, dice)
        for pod in dice.coming(COMING):
            since = len(rivals.plane.log("kube-scheduler"))
            theirs = await _decided(client, pod, THEIRS)
            scores = rivals.scores(pod["metadata"]["name"], since)
            ours = await _decided(client, pod, OURS)
            if (theirs is None) != (ours is None):
                found.append(f"{pod}: they {theirs}, we {ours}")
            elif ours is not None and scores.get(ours, 0) < max(scores.values(), default=0) - ROUNDED:
                found.append(f"{pod}: they {scores}, we {ours}")
    finally:
        await _clear(client)
        await client.close()
    return found


async def _put(client: ApiClient, dice: Dice) -> None:
    for name, labels in NAMESPACES.items():
        try:
            await client.get(ServiceAccount, "default", name)
        except NotFoundError:
            await client.create(Namespace, {"metadata": {"name": name, "labels": labels}})
    nodes = dice.nodes()
    for node, status in nodes:
        await client.create(Node, node)
        await client.patch(Node, node["metadata"]["name"], {"status": status}, subresource="status")
    while not all(map(_is_settled, (await client.list(Node)).items)):
        await asyncio.sleep(0.05)
    for namespace in NAMESPACES:
        while not (await client.list(ServiceAccount, namespace)).items:
            await asyncio.sleep(0.05)
    for pod in dice.running(nodes):
        await client.create(Pod, pod, pod["metadata"]["namespace"])


def _is_settled(node: Node) -> bool:
    """Whether the controllers have put their own taints there, and taken away those of a node that is new."""
    keys = {taint.key for taint in node.spec.taints}
    return "node.kubernetes.io/not-ready" not in keys and (
        not node.spec.unschedulable or "node.kubernetes.io/unschedulable" in keys
    )


async def _decided(client: ApiClient, pod: Document, scheduler: str) -> str | None:
    """The node that a scheduler binds it to, or None if it refuses; the pod is gone afterwards."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    await client.create(Pod, pod | {"spec": pod["spec"] | {"schedulerName": scheduler}}, namespace)
    async with asyncio.timeout(60):
        while True:
            known = await client.get(Pod, name, namespace)
            refused = any(each.type == "PodScheduled" and each.status == "False" for each in known.status.conditions)
            if known.spec.node_name or refused:
                break
            await asyncio.sleep(0.01)
        await client.delete(Pod, name, namespace, grace_s=0)
    return known.spec.node_name or None


async def _clear(client: ApiClient) -> None:
    for namespace in NAMESPACES:
        for pod in (await client.list(Pod, namespace)).items:
            await client.delete(Pod, pod.metadata.name, namespace, grace_s=0)
    for node in (await client.list(Node)).items:
        await client.delete(Node, node.metadata.name)
