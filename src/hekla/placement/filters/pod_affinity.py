"""Is the node near the pods that the pod wants to be near, and far from those it, or they, want apart?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.bookkeeping.tallies import Selected, Tallies
from hekla.placement.columns import BoolArray, FloatArray, IdArray, Nodes
from hekla.placement.constraint import PodTerm, Refusal
from hekla.placement.framework import Among, Refused
from hekla.placement.model import Task

NOT_NEAR = Refusal("pod-affinity", "node(s) didn't match pod affinity rules")
NOT_APART = Refusal("pod-anti-affinity", "node(s) didn't match pod anti-affinity rules")
UNWANTED = Refusal("existing-anti-affinity", "node(s) didn't satisfy existing pods anti-affinity rules")


def refuse_live(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Nodes that break a required term of the pod, or of a pod that runs there."""
    constraints = task.shape.constraints
    if constraints.affinity:
        yield Refused(NOT_NEAR, ~_near(nodes, tallies, task))
    if constraints.anti_affinity:
        yield Refused(
            NOT_APART, _any_occupied(nodes, tallies, [_selected(tallies, t) for t in constraints.anti_affinity])
        )
    if task.carriers and (repelling := tallies.repelling(task)):
        yield Refused(UNWANTED, _any_occupied(nodes, tallies, repelling))


def score_among(nodes: Nodes, tallies: Tallies, task: Task, among: Among) -> FloatArray | None:
    """Preferred terms, the pod's own and those of pods that run there, stretched to 0..1 over the nodes it can go to.  # [node]

    A term of the pod's own counts once for every pod in the node's domain that meets it; one of a pod that runs there, and
    that the pod meets, counts in that pod's domain. Who must be near such pods likes to see one come, too.
    """
    preferred = task.shape.constraints.preferred_pods
    wanted = [(_selected(tallies, wish.term), wish.weight) for wish in preferred] + list(tallies.fond_of(task))
    if not wanted:
        return None
    liked = np.zeros(nodes.rows, np.float32)
    for tally, weight in wanted:
        domains, counts = tallies.counts(tally)
        liked += np.take((counts * weight).astype(np.float32), domains)
    return _stretched(liked, among())


def _near(nodes: Nodes, tallies: Tallies, task: Task) -> BoolArray:
    """Nodes whose domains hold a pod for every term, one that meets all. The first of a group may start anywhere that has the keys."""
    terms = task.shape.constraints.company
    has_keys = np.ones(nodes.rows, np.bool_)
    near = np.ones(nodes.rows, np.bool_)
    for term in terms:
        domains, counts = tallies.counts(_selected(tallies, term))
        has_keys &= domains >= 0
        near &= counts[domains] > 0
    is_first = all(tallies.total(_selected(tallies, term)) == 0 for term in terms)
    if is_first and all(term.selector.matches(task.spec.namespace, task.spec.labels) for term in terms):
        return has_keys
    return near & has_keys


def _any_occupied(nodes: Nodes, tallies: Tallies, counted: list[int]) -> BoolArray:
    """Nodes with at least one counted pod in their domain; a node without the key is in no domain.  # [node]"""
    by_key: dict[tuple[int, int], tuple[IdArray, BoolArray]] = {}
    for tally in counted:
        domains, counts = tallies.counts(tally)
        known = by_key.get((id(domains), len(counts)))  # what is asked of the same domains is looked up for nodes once
        by_key[id(domains), len(counts)] = domains, counts > 0 if known is None else known[1] | (counts > 0)
    occupied = np.zeros(nodes.rows, np.bool_)
    for domains, has_some in by_key.values():
        occupied |= np.take(has_some, domains)  # of bytes and by `take`: a third of the time of `counts[domains] > 0`
    return occupied


def _selected(tallies: Tallies, term: PodTerm) -> int:
    tally = tallies.find(Selected(term.topology_key, term.selector))
    assert tally is not None, f"the term on {term.topology_key} was not registered with its pod"
    return tally


def _stretched(values: FloatArray, among: BoolArray) -> FloatArray:
    """Values stretched so that the least among some nodes is 0 and the greatest 1; all 0 if they are equal."""
    there = values[among]
    if not len(there):
        return values
    low, high = there.min(), there.max()
    if high <= low:
        return np.zeros_like(values)
    stretched: FloatArray = (values - low) / (high - low)
    return np.clip(stretched, 0, 1, out=stretched)
