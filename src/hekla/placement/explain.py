# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""Why does a task find no node? Every node's refusal, counted.

For each node the first plug-in that refuses it is told, as kube-scheduler does; a node that lacks several resources
is counted under each.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hekla.placement.columns import BoolArray
from hekla.placement.constraint import Refusal
from hekla.placement.devices.shares import GPU_MILLI
from hekla.placement.framework import Filter, LiveFilter, Refused
from hekla.placement.model import Task
from hekla.placement.policy import Policy

TOO_MANY_PODS = Refusal("insufficient/pods", "Too many pods")


@dataclass(frozen=True)
class Explanation:
    """How many nodes there are, how many could take the task, and why the others do not."""

    nodes: int
    feasible: int
    reasons: tuple[tuple[Refusal, int], ...]
    blocked: Refusal | None = None
    """Why no node at all can take the task for now: told without a count, as kube-scheduler does."""

    def sentence(self) -> str:
        """Kubernetes' sentence: `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.`"""
        if not self.nodes:
            return "no nodes available to schedule pods"
        if self.blocked is not None:
            return f"0/{self.nodes} nodes are available: {self.blocked.sentence}."
        counted = sorted(f"{count} {refusal.sentence}" for refusal, count in self.reasons)
        tail = f": {', '.join(counted)}." if counted else "."
        return f"{self.feasible}/{self.nodes} nodes are available{tail}"


def explain(policy: Policy, task: Task, within: BoolArray | None = None) -> Explanation:
    """Ask every plug-in about every node, or about those of a mask."""
    nodes, blocked = policy.cluster.nodes, task.shape.constraints.blocked
    if blocked is not None:
        return Explanation(len(nodes), 0, ((blocked, len(nodes)),), blocked)
    undecided = nodes.is_live.copy() if within is None else nodes.is_live & within
    number = len(nodes) if within is None else int(undecided.sum())
    counts: Counter[Refusal] = Counter()
    for group in _groups(policy, task):
        told = np.zeros(nodes.rows, np.bool_)
        for refused in group:
            rows = refused.rows & undecided
            if rows.any():
                counts[refused.refusal] += int(rows.sum())
                told |= rows
        undecided &= ~told
    reasons = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0].sentence)))
    return Explanation(number, int(undecided.sum()), reasons)


def examples(policy: Policy, task: Task, most: int) -> dict[Refusal, tuple[str, ...]]:
    """For each refusal the first few nodes, by name, that are counted under it."""
    nodes = policy.cluster.nodes
    undecided, found = nodes.is_live.copy(), dict[Refusal, list[int]]()
    for group in _groups(policy, task):
        told = np.zeros(nodes.rows, np.bool_)
        for refused in group:
            rows = refused.rows & undecided
            found.setdefault(refused.refusal, []).extend(np.flatnonzero(rows).tolist())
            told |= rows
        undecided &= ~told
    rank = nodes.rank()
    return {
        refusal: tuple(nodes.names[row] for row in sorted(rows, key=lambda row: -int(rank[row]))[:most])
        for refusal, rows in found.items()
        if rows
    }


def open_rows(policy: Policy, task: Task) -> BoolArray:
    """The nodes that a task may use, amounts and the pods that run there aside."""
    nodes = policy.cluster.nodes
    rows: BoolArray = nodes.is_live.copy()
    for plugin in policy.asked(Filter):
        for refused in plugin.refuse(nodes, task.shape.constraints):
            rows &= ~refused.rows
    return rows


def _groups(policy: Policy, task: Task) -> Iterator[list[Refused]]:
    """Refusals in the order in which they are told; those of one group are told together."""
    nodes, tallies = policy.cluster.nodes, policy.cluster.tallies
    for plugin in policy.asked(Filter):
        for refused in plugin.refuse(nodes, task.shape.constraints):
            yield [refused]
    others = [refused for live in policy.asked(LiveFilter) for refused in live.refuse_live(nodes, tallies, task)]
    yield from ([refused] for refused in others if refused.is_told_before_amounts)
    yield list(_insufficient(policy, task))
    yield from ([refused] for refused in others if not refused.is_told_before_amounts)


def _insufficient(policy: Policy, task: Task) -> Iterator[Refused]:
    nodes, shape = policy.cluster.nodes, task.shape
    names = {index: name for name, index in nodes.resources.items()}
    for resource, amount in zip(shape.resources.tolist(), shape.amounts.tolist(), strict=True):
        lacking: BoolArray = nodes.idle[resource] < amount
        if names[resource] == GPU_MILLI:
            lacking = lacking | ~nodes.devices.fits(amount, nodes.rows)
        yield Refused(insufficient(names[resource]), lacking)


def insufficient(resource: str) -> Refusal:
    """The refusal of a node that lacks a resource."""
    return TOO_MANY_PODS if resource == "pods" else Refusal(f"insufficient/{resource}", f"Insufficient {resource}")
