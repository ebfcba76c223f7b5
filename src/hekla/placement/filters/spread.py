"""Does the pod keep the domains of a topology even?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.bookkeeping.tallies import Spreading, Tallies
from hekla.placement.columns import BoolArray, FloatArray, IdArray, IntArray, Nodes
from hekla.placement.constraint import Refusal, TopologySpread
from hekla.placement.filters import selectors, taints
from hekla.placement.framework import Among, Refused
from hekla.placement.model import Task

TOO_FULL = Refusal("topology-spread", "node(s) didn't match pod topology spread constraints")
NO_DOMAIN = Refusal(
    "topology-spread-label", "node(s) didn't match pod topology spread constraints (missing required label)"
)


def refuse_live(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Nodes whose domain would be ahead of the emptiest by more than the allowed skew, and nodes without a domain."""
    for spread in task.shape.constraints.spreads:
        if not spread.is_hard:
            continue
        even = evenness(nodes, tallies, spread, task)
        yield Refused(NO_DOMAIN, even.domains < 0)
        yield Refused(TOO_FULL, ~np.take(even.open(), even.domains))


class Evenness:
    """How even a hard constraint's domains are, as pods come."""

    def __init__(
        self, domains: IdArray, counts: IntArray, present: IdArray, spread: TopologySpread, *, joins: bool
    ) -> None:
        self.domains = domains  # [node]
        self._counts, self._present = counts, present
        self._has_enough = len(present) >= max(spread.min_domains, 1)
        self._skew, self._joins = spread.max_skew - int(joins), joins

    def open(self) -> BoolArray:
        """Which domains may take a pod; the last, where nodes without a domain look, may."""
        is_open = self._counts <= self._least() + self._skew
        is_open[-1] = True
        return is_open

    def joined(self, domain: int) -> None:
        """A pod came to a domain."""
        if self._joins:
            self._counts[domain] += 1

    def _least(self) -> int:
        """The count of the emptiest domain that the pod could use; 0 while there are fewer domains than it wants."""
        return int(self._counts[self._present].min()) if self._has_enough else 0


def evenness(nodes: Nodes, tallies: Tallies, spread: TopologySpread, task: Task) -> Evenness:
    """How even things are now, in a copy that can be told of pods that come."""
    domains, counts = _counts(tallies, spread)
    joins = spread.selector.matches(task.spec.namespace, task.spec.labels)
    return Evenness(domains, counts.copy(), _present(nodes, spread, task, domains), spread, joins=joins)


def score_among(nodes: Nodes, tallies: Tallies, task: Task, among: Among) -> FloatArray | None:
    """kube-scheduler's: 1 in the emptiest domain that the pod can go to, less where more of the counted pods are.  # [node]

        crowd(node) = sum over soft constraints of count * log(domains + 2) + max skew - 1
        score(node) = (most + least - crowd) / most, and 0 for a node that lacks a key

    Most, least and the number of domains are those of the nodes that the pod can go to. The logarithm makes up for keys
    with few domains: they hold more of the pods each.
    """
    soft = [spread for spread in task.shape.constraints.spreads if not spread.is_hard]
    if not soft:
        return None
    counted = [(spread, *_counts(tallies, spread)) for spread in soft]
    has_keys = np.logical_and.reduce([domains >= 0 for _, domains, _ in counted])
    heeded = among() & has_keys
    crowd = np.zeros(nodes.rows, np.float64)
    for spread, domains, counts in counted:
        is_there = np.zeros(len(counts), np.bool_)
        is_there[domains[heeded]] = True  # sorting them, as `unique` does, took half a millisecond of 10,000 nodes
        weight = np.log(np.count_nonzero(is_there) + 2)
        crowd += np.take(counts * weight + (spread.max_skew - 1), domains)
    there = crowd[heeded]
    least, most = (there.min(), there.max()) if len(there) else (0.0, 0.0)
    told = (most + least - crowd) / most if most > 0 else np.ones(nodes.rows)
    told = np.clip(told, 0, 1, out=told)
    told[~has_keys] = 0
    return told.astype(np.float32)


def _counts(tallies: Tallies, spread: TopologySpread) -> tuple[IdArray, IntArray]:
    tally = tallies.find(Spreading(spread.topology_key, spread.selector))
    assert tally is not None, f"the spread over {spread.topology_key} was not registered with its pod"
    return tallies.counts(tally)


def _present(nodes: Nodes, spread: TopologySpread, task: Task, domains: IdArray) -> IdArray:
    """The domains with a node that the pod could use; found once per cycle while nodes stay what they are."""
    key = ("spread", nodes.version, spread, task.shape.constraints)
    known: IdArray | None = nodes.notes.get(key)
    if known is None:
        known = nodes.notes[key] = np.unique(domains[_eligible(nodes, spread, task) & (domains >= 0)])
    return known


def _eligible(nodes: Nodes, spread: TopologySpread, task: Task) -> BoolArray:
    constraints = task.shape.constraints
    rows = nodes.is_live.copy()
    allowed = selectors.eligible(nodes, constraints) if spread.honours_affinity else None
    if allowed is not None:
        rows &= allowed
    if spread.honours_taints:
        for refused in taints.refuse(nodes, constraints):
            rows &= ~refused.rows
    return rows
