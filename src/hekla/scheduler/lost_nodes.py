"""The nodes below a gang that do not answer: its pods there run on in the API server's books, and end nowhere."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hekla.api.meta import Document
from hekla.api.nodes import Node, NodeCondition
from hekla.placement.model import Job

if TYPE_CHECKING:
    from hekla.dialects.feed import ClusterFeed

MOST_NODES = 10
"""Nodes that are told of; of a job on more of them the first are enough."""


def lost_nodes(feed: "ClusterFeed", job: Job) -> list[Document]:
    """Each node that is gone or not ready and has pods of the job, with a sentence; those with the most pods first."""
    pods_on: dict[str, list[str]] = {}
    for uid in job.tasks:
        pod = feed.pods.get(uid)
        if pod is not None and pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
            pods_on.setdefault(pod.spec.node_name, []).append(pod.metadata.name)
    found = list(_told(feed, pods_on))
    return sorted(found, key=lambda one: (-len(one["pods"]), one["node"]))[:MOST_NODES]


def _told(feed: "ClusterFeed", pods_on: dict[str, list[str]]) -> Iterator[Document]:
    for name, pods in pods_on.items():
        node = feed.node(name)
        if node is None:
            yield _document(
                name,
                pods,
                "",
                f'node "{name}" is not there any more: the controllers of Kubernetes take its pods away soon',
            )
        elif (ready := _ready(node)) is not None and ready.status != "True":
            yield _document(name, pods, ready.last_transition_time or "", _sentence(name, ready))


def _document(node: str, pods: Iterable[str], since: str, message: str) -> Document:
    return {"node": node, "pods": sorted(pods), "since": since, "message": message}


def _ready(node: Node) -> NodeCondition | None:
    return next((one for one in node.status.conditions if one.type == "Ready"), None)


def _sentence(name: str, ready: NodeCondition) -> str:
    since = f" since {ready.last_transition_time}" if ready.last_transition_time else ""
    why = f" ({ready.message.rstrip('.')})" if ready.message else ""
    return (
        f'node "{name}" is not ready{since}{why}: Kubernetes evicts its pods when they have tolerated that long enough, 300 s by default, '
        "and they go when the node is back; if the machine is gone for good, delete the node"
    )
