"""Does the pod keep the domains of a topology even?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.columns import BoolArray, FloatArray, IdArray, IntArray, Nodes
from hekla.placement.constraint import Refusal, Spread
from hekla.placement.filters import selectors, taints
from hekla.placement.framework import Refused
from hekla.placement.model import Task
from hekla.placement.tallies import Selected, Tallies

TOO_FULL = Refusal("topology-spread", "node(s) didn't match pod topology spread constraints")
NO_DOMAIN = Refusal(
    "topology-spread-label", "node(s) didn't match pod topology spread constraints (missing required label)"
)


def refuse_live(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Nodes whose domain would be ahead of the emptiest by more than the allowed skew, and nodes without a domain."""
    for spread in task.shape.constraints.spreads:
        if not spread.is_hard:
            continue
        domains, counts = _counts(tallies, spread)
        yield Refused(NO_DOMAIN, domains < 0)
        joins = spread.selector.matches(task.spec.namespace, task.spec.labels)
        limit = _least(nodes, spread, task, domains, counts) + spread.max_skew - int(joins)
        is_full = counts > limit
        is_full[-1] = False  # where nodes without a domain look
        yield Refused(TOO_FULL, np.take(is_full, domains))


def score_live(nodes: Nodes, tallies: Tallies, task: Task) -> FloatArray | None:
    """1 in the emptiest domain, falling to 0 in the fullest, over the soft constraints.  # [node]"""
    soft = [spread for spread in task.shape.constraints.spreads if not spread.is_hard]
    if not soft:
        return None
    crowd = np.zeros(nodes.rows, np.float32)
    for spread in soft:
        domains, counts = _counts(tallies, spread)
        fullest = max(int(counts.max(initial=0)), 1)
        crowd += np.where(domains >= 0, counts[domains] / fullest, 1).astype(np.float32)
    return 1 - crowd / np.float32(len(soft))


def _counts(tallies: Tallies, spread: Spread) -> tuple[IdArray, IntArray]:
    tally = tallies.find(Selected(spread.topology_key, spread.selector))
    assert tally is not None, f"the spread over {spread.topology_key} was not registered with its pod"
    return tallies.counts(tally)


def _least(nodes: Nodes, spread: Spread, task: Task, domains: IdArray, counts: IntArray) -> int:
    """The count of the emptiest domain that the pod could use; 0 while there are fewer domains than it wants."""
    present = _present(nodes, spread, task, domains)
    if len(present) < spread.min_domains or not len(present):
        return 0
    return int(counts[present].min())


def _present(nodes: Nodes, spread: Spread, task: Task, domains: IdArray) -> IdArray:
    """The domains with a node that the pod could use; found once per cycle while nodes stay what they are."""
    key = ("spread", nodes.version, spread, task.shape.constraints)
    known: IdArray | None = nodes.notes.get(key)
    if known is None:
        known = nodes.notes[key] = np.unique(domains[_eligible(nodes, spread, task) & (domains >= 0)])
    return known


def _eligible(nodes: Nodes, spread: Spread, task: Task) -> BoolArray:
    constraints = task.shape.constraints
    rows = nodes.is_live.copy()
    allowed = selectors.eligible(nodes, constraints) if spread.honours_affinity else None
    if allowed is not None:
        rows &= allowed
    if spread.honours_taints:
        for refused in taints.refuse(nodes, constraints):
            rows &= ~refused.rows
    return rows
