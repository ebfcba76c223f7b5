"""Removes pods that nobody else will: on nodes that are gone, leaving without ever having had a node, or ended long ago.

Ended pods are kept, as a record, up to a threshold over the whole cluster.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.controlplane.pod_state import has_ended, is_leaving
from hekla.kube.commands import Command, Delete, RequeueAfter, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339

QUARANTINE = timedelta(seconds=40)
"""A node that has just vanished may come back (a restart of everything); its pods are given this long."""

MAX_ENDED = 12_500


def _pods_of(node: Node, world: World) -> Iterator[tuple[str, str]]:
    """The pods of a node that is gone; one that is there needs nothing."""
    if world.get(Node, "", node.metadata.name) is None:
        for pod in world.placed(Pod, node.metadata.name):
            yield pod.metadata.namespace, pod.metadata.name


def _is_lost(pod: Pod, world: World) -> bool:
    if not pod.spec.node_name:
        return is_leaving(pod)
    return world.get(Node, "", pod.spec.node_name) is None


@reconciler(Pod, concerns=_is_lost, finds={Node: _pods_of}, name="pod-gc")
def reconcile_lost_pod(pod: Pod, world: World, now: datetime) -> Iterator[Command]:
    """Force away a pod that has nobody to end it."""
    node = pod.spec.node_name
    if not node:
        if is_leaving(pod) and not pod.metadata.finalizers:
            yield Delete(target_of(pod), reason="it was deleted before it had a node", grace_s=0)
        return
    if world.get(Node, "", node) is not None:
        return
    since = parse_rfc3339(pod.metadata.deletion_timestamp or pod.status.start_time or pod.metadata.creation_timestamp)
    left_s = ((since or now) + QUARANTINE - now).total_seconds()
    if left_s > 0:
        yield RequeueAfter(left_s + 0.1)
        return
    if not has_ended(pod):
        # A controller that counts failures must see one, and not just a pod that is gone.
        message = f"PodGC: node {node} no longer exists"
        yield SetStatus(target_of(pod), {"phase": "Failed", "reason": "DeletionByPodGC", "message": message})
    yield Delete(target_of(pod), reason=f"node {node} no longer exists", grace_s=0)


def surplus_ended(pods: Iterable[Pod]) -> list[Pod]:
    """The oldest ended pods beyond the number that is kept."""
    ended = [pod for pod in pods if has_ended(pod) and not is_leaving(pod)]
    surplus = len(ended) - MAX_ENDED
    return sorted(ended, key=lambda pod: pod.metadata.creation_timestamp or "")[:surplus] if surplus > 0 else []
