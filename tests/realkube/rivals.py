"""Kubernetes' own scheduler and ours on one control plane: what both are asked with, and what they answer."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hekla.api.core import Namespace, Pod, ServiceAccount
from hekla.api.meta import Document, Resource
from hekla.api.nodes import Node
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import NotFoundError
from hekla.kube.kubeconfig import load_kubeconfig
from hekla.testing.components import Cluster
from hekla.testing.kubernetes import ControlPlane
from realkube.thrown_worlds import NAMESPACES

THEIRS, OURS = "kube", "default-scheduler"

PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: PATH}
leaderElection: {leaderElect: false}
profiles: [{schedulerName: kube, plugins: {score: {disabled: [{name: NodeResourcesBalancedAllocation}]}}}]
"""
CONFIGURATION = """
actions: allocate, backfill, preempt
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: predicates, arguments: {volumebinding.weight: 0}}]
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

    def client(self) -> ApiClient:
        """A client that may do everything; to be closed."""
        return ApiClient(load_kubeconfig(self.plane.kubeconfig).connection().transport())


@contextmanager
def on_one_control_plane(folder: Path) -> Iterator[Rivals]:
    """Both at work, as long as it lasts."""
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


async def put_namespaces(client: ApiClient) -> None:
    """Those of thrown worlds, with their accounts."""
    for name, labels in NAMESPACES.items():
        try:
            await client.get(ServiceAccount, "default", name)
        except NotFoundError:
            await client.create(Namespace, {"metadata": {"name": name, "labels": labels}})
    for namespace in NAMESPACES:
        while not (await client.list(ServiceAccount, namespace)).items:
            await asyncio.sleep(0.05)


async def put_nodes(client: ApiClient, nodes: Iterable[tuple[Document, Document]]) -> None:
    """Nodes with their statuses, until the controllers are through with them."""
    for node, status in nodes:
        await client.create(Node, node)
        await client.patch(Node, node["metadata"]["name"], {"status": status}, subresource="status")
    while not all(map(_is_settled, (await client.list(Node)).items)):
        await asyncio.sleep(0.05)


def _is_settled(node: Node) -> bool:
    """Whether the controllers have put their own taints there, and taken away those of a node that is new."""
    keys = {taint.key for taint in node.spec.taints}
    return "node.kubernetes.io/not-ready" not in keys and (
        not node.spec.unschedulable or "node.kubernetes.io/unschedulable" in keys
    )


async def put_pods(client: ApiClient, pods: Iterable[Document]) -> None:
    """Pods, in their namespaces."""
    for pod in pods:
        await client.create(Pod, pod, pod["metadata"]["namespace"])


async def decided(
    client: ApiClient, pod: Document, scheduler: str, *, otherwise: Callable[[], Awaitable[str]] | None = None,
    others_go: bool = False,
) -> str | None:  # fmt: skip
    """The node that a scheduler binds it to, or None if it refuses; the pod is gone afterwards.

    `others_go` says that who stands in its way will be gone: ours may say that it waits for room before it says where.

    `otherwise` may know the node before the pod says it: who provides a volume is told before the pod is bound.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    await client.create(Pod, pod | {"spec": pod["spec"] | {"schedulerName": scheduler}}, namespace)
    node = ""
    try:
        async with asyncio.timeout(60):
            while not node and not _is_answered(known := await client.get(Pod, name, namespace), others_go):
                node = await otherwise() if otherwise is not None else ""
                await asyncio.sleep(0.01)
    finally:
        await client.delete(Pod, name, namespace, grace_s=0)
    return node or known.spec.node_name or None


def _is_answered(pod: Pod, others_go: bool) -> bool:
    """Whether it is bound, or refused and nobody makes way for it."""
    words = [each.message for each in pod.status.conditions if each.type == "PodScheduled" and each.status == "False"]
    refused = any(not others_go or "once resource is released" not in each for each in words)
    return bool(pod.spec.node_name) or (refused and not pod.status.nominated_node_name)


Asked = tuple[Document, Mapping[str, list[Document]]]
"""A pod and the objects that are to be there for it alone, by kind; `NAME` stands for its name in all of them."""


async def answers_differ(
    rivals: Rivals,
    client: ApiClient,
    asks: Iterable[Asked],
    decide: Callable[[ApiClient, Asked, str, str], Awaitable[str | None]],
) -> list[str]:
    """Of what is asked of both, each by `decide` with the scheduler and the pod's name: where ours finds none, or none of the best, a line."""
    found = []
    for number, asked in enumerate(asks):
        for again in range(3):  # who has just been told of other objects may not know yet that they are gone
            name, since = f"{number}-{again}", len(rivals.plane.log("kube-scheduler"))
            theirs = await decide(client, asked, THEIRS, f"k{name}")
            scores = rivals.scores(f"k{name}", since)
            ours = await decide(client, asked, OURS, f"o{name}")
            if (theirs is None) == (ours is None) and (not scores or ours in scores):
                break
        else:
            found.append(f"{json.dumps(asked)}: they {theirs} of {scores}, we {ours}")
    return found


@asynccontextmanager
async def its_own(
    client: ApiClient, kinds: Mapping[str, type[Resource]], asked: Asked, name: str
) -> AsyncIterator[Asked]:
    """What is asked, by this name; the objects are there, and are deleted afterwards, the last one first."""
    pod, around = json.loads(json.dumps(asked).replace("NAME", name))
    there = [(kinds[kind], one["metadata"]) for kind, documents in around.items() for one in documents]
    for kind, documents in around.items():
        for document in documents:
            await client.create(kinds[kind], document, document["metadata"].get("namespace", ""))
    try:
        yield pod, around
    finally:
        for each, metadata in reversed(there):
            await client.delete(each, metadata["name"], metadata.get("namespace", ""))


async def clear(client: ApiClient, also: Mapping[type[Resource], str] = {}) -> None:
    """No pods and nodes are left; nor any of further kinds, whose value is a namespace or nothing."""
    for namespace in NAMESPACES:
        for pod in (await client.list(Pod, namespace)).items:
            await client.delete(Pod, pod.metadata.name, namespace, grace_s=0)
    for kind, namespace in {Node: "", **also}.items():
        for one in (await client.list(kind, namespace)).items:
            await client.delete(kind, one.metadata.name, namespace)
