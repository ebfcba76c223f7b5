"""Is the node there, willing, and the one that was named?"""

from collections.abc import Iterator

from hekla.placement.columns import Nodes
from hekla.placement.constraint import Constraints, Effect, Refusal, Taint
from hekla.placement.framework import Refused

NOT_READY = Refusal("node-not-ready", "node(s) were not ready")
UNSCHEDULABLE = Refusal("node-unschedulable", "node(s) were unschedulable")
OTHER_NAME = Refusal("node-name", "node(s) didn't match the requested node name")

_CORDON = Taint("node.kubernetes.io/unschedulable", "", Effect.NO_SCHEDULE)


def refuse(nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
    """Nodes that are not ready, of another shard, cordoned (unless the pod tolerates that), or not the named one; blocked
    pods: all.
    """  # fmt: skip
    if constraints.blocked is not None:
        yield Refused(constraints.blocked, nodes.is_live)
    yield Refused(NOT_READY, ~nodes.is_ready)
    if nodes.is_shut.any():
        yield Refused(nodes.shut_by, nodes.is_shut)
    if not any(toleration.tolerates(_CORDON) for toleration in constraints.tolerations):
        yield Refused(UNSCHEDULABLE, ~nodes.is_schedulable)
    if constraints.node_name:
        others = nodes.is_live.copy()
        row = nodes.row_of.get(constraints.node_name)
        if row is not None:
            others[row] = False
        yield Refused(OTHER_NAME, others)
