"""Opens the gates of pods that their queue has room for, by taking them off the pods (`placement/queueing/scheduling_gates.py` decides)."""

from collections.abc import Iterator

from hekla.dialects.feed import ClusterFeed
from hekla.kube.commands import Patch, target_of
from hekla.placement.session import Session


def gate_openings(session: Session, feed: ClusterFeed) -> Iterator[Patch]:
    """What to write. A pod has no other gate, and none can be added to it; so to empty the list takes no other away."""
    for task in session.let_through:
        pod = feed.pods.get(task.uid)
        if pod is not None and pod.spec.scheduling_gates:
            yield Patch(target_of(pod), {"spec": {"schedulingGates": []}})
