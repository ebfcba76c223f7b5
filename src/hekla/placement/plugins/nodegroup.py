"""Tie queues to pools of nodes: a node belongs to the group that its label `volcano.sh/nodegroup-name` names.

    may be used     groups that the queue requires or prefers, without those it shuns; and those it dislikes, last
    score           1 where required + 1/2 where preferred;  -1/100 where disliked
    limits          what the queue holds in a group + request <= limit, for each resource that is limited

A queue without affinity uses no node of any group. With `strict: false` it uses the nodes without a group, which
otherwise nobody does. Where queues are a tree, a queue without affinity uses the groups of the nearest above it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import BoolArray, FloatArray, Nodes
from hekla.placement.constraint import Constraints, Refusal
from hekla.placement.framework import Reading, Refused, plugin
from hekla.placement.model import JobSpec, Task, TaskSpec
from hekla.placement.node_selection.score import Score, by_node
from hekla.placement.queue import NodeGroups, Queue
from hekla.placement.registry import as_bool
from hekla.placement.shape import Shape

LABEL = "volcano.sh/nodegroup-name"
LIMITS_KEY = "volcano.sh/nodegroup-resource-limits"

NO_LABEL = Refusal("nodegroup-label", "node group label not found")
NO_AFFINITY = Refusal("nodegroup-affinity", "node group affinity not specified")
OTHER_GROUP = Refusal("nodegroup", "node does not satisfy the node group affinity")
UNREADABLE = Refusal(
    "nodegroup-limits", f"node group resource limit annotation invalid: {LIMITS_KEY} of the queue cannot be read"
)

_BEST, _DISLIKED = 1.5, 0.01
"""A group that is required and preferred, and how far below nothing one is that is disliked (Volcano's 150 and -1)."""

_UNSET = NodeGroups()


@dataclass(frozen=True, slots=True)
class NodeGroupAffinity:
    """What a queue says of groups of nodes, as its pods carry it."""

    groups: NodeGroups
    queue: str
    limits: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    """The most it may hold, by group and resource."""

    is_readable: bool = True


@plugin
@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Keeps the pods of a queue to its groups of nodes."""

    strict: bool = True
    """Whether nodes without a group are for nobody; else they are for queues without affinity."""

    preferred_order: bool = False
    """Whether a group counts the more the earlier the queue prefers it."""

    hierarchy: bool = False
    """Whether queues without affinity take over that of the nearest queue above."""

    @property
    def weight(self) -> float:
        """So that a point is worth what it is in Volcano, where this plug-in has no weight."""
        return _BEST + _DISLIKED

    def read(self, task: TaskSpec, job: JobSpec, queues: Mapping[str, Queue]) -> Reading | None:
        """The rule of the pod's queue."""
        queue = queues.get(job.queue)
        limits = queue.group_limits if queue is not None else {}
        told = tuple((group, tuple(sorted(most.items()))) for group, most in sorted((limits or {}).items()))
        rule = NodeGroupAffinity(self._groups(job.queue, queues), job.queue, told, limits is not None)
        return Reading((("nodegroup", rule),), is_single=bool(told), watched_queue=job.queue if told else "")

    def refuse(self, nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
        """Nodes of other groups, or of none."""
        rule = _rule(constraints)
        ids = nodes.label(LABEL)
        has_group: BoolArray = ids >= 0
        if not rule.is_readable:
            yield Refused(UNREADABLE, np.ones(nodes.rows, np.bool_))
        if self.strict or rule.groups:
            yield Refused(NO_LABEL, ~has_group)
        if not rule.groups:
            yield Refused(NO_AFFINITY, has_group)
        else:
            groups = rule.groups
            named = {*groups.required, *groups.preferred} - {*groups.shunned} | {*groups.disliked}
            yield Refused(OTHER_GROUP, has_group & ~np.isin(ids, _ids(nodes, named)))

    def refuse_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
        """Nodes of groups in which the queue would hold more than it may."""
        rule, ids = _rule(task.shape.constraints), nodes.label(LABEL)
        for group, limits in rule.limits:
            rows: BoolArray = np.isin(ids, _ids(nodes, {group}))
            exceeded = [name for name, most in limits if self._would_hold(nodes, rule.queue, rows, task, name) > most]
            if exceeded:
                sentence = f"node group resource limit exceeded: insufficient {', '.join(exceeded)} in group {group}"
                yield Refused(Refusal(f"nodegroup-limit/{group}", sentence), rows)

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """Required groups first, then preferred ones, disliked ones last."""
        groups, ids = _rule(shape.constraints).groups, nodes.label(LABEL)
        liked: FloatArray = np.zeros(nodes.rows, np.float32)
        liked += np.isin(ids, _ids(nodes, set(groups.required)))
        number = len(set(groups.preferred))
        for place, group in enumerate(dict.fromkeys(groups.preferred)):
            share = (number - place) / number if self.preferred_order else 1.0
            liked += np.isin(ids, _ids(nodes, {group})) * np.float32(0.5 * share)
        liked[np.isin(ids, _ids(nodes, set(groups.disliked)))] = -_DISLIKED
        return by_node((liked + np.float32(_DISLIKED)) / np.float32(self.weight))

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `strict` and `enablePreferredOrder`, and `enableHierarchy` of the configuration."""
        return cls(
            strict=as_bool("strict", arguments.get("strict", True)),
            preferred_order=as_bool("enablePreferredOrder", arguments.get("enablePreferredOrder", False)),
            hierarchy=as_bool("hierarchy", arguments.get("hierarchy", False)),
        )

    def _groups(self, queue: str, queues: Mapping[str, Queue]) -> NodeGroups:
        """The queue's own affinity, or that of the nearest above; a ring of queues has none."""
        met = set[str]()
        while queue in queues and queue not in met:
            groups = queues[queue].node_groups
            if groups is not None or not self.hierarchy:
                return groups or _UNSET
            met.add(queue)
            queue = queues[queue].parent
        return _UNSET

    @staticmethod
    def _would_hold(nodes: Nodes, queue: str, rows: BoolArray, task: Task, resource: str) -> int:
        index = nodes.resources.get(resource)
        asked = task.shape.request.get(resource, 0)
        return asked + (int(nodes.queue_use.of(nodes, queue)[index, rows].sum()) if index is not None else 0)


def _rule(constraints: Constraints) -> NodeGroupAffinity:
    rule = constraints.trait("nodegroup")
    return rule if isinstance(rule, NodeGroupAffinity) else NodeGroupAffinity(_UNSET, "")


def _ids(nodes: Nodes, groups: set[str]) -> list[int]:
    values = nodes.label_values(LABEL)
    return [values[group] for group in groups if group in values]
