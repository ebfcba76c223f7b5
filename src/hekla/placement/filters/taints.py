"""Does the pod tolerate the node's taints?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.columns import BoolArray, FloatArray, Nodes
from hekla.placement.constraint import Constraints, Effect, Refusal, Taint
from hekla.placement.framework import Refused

_HARD = frozenset({Effect.NO_SCHEDULE, Effect.NO_EXECUTE})


def refuse(nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
    """Nodes with a taint that keeps pods away and that the pod does not tolerate."""
    for taint, carriers in sorted(nodes.taints().items(), key=_name):  # a node with two is told the first of them
        if taint.effect in _HARD and not any(t.tolerates(taint) for t in constraints.tolerations):
            yield Refused(Refusal("taint", f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"), carriers)


def score(nodes: Nodes, constraints: Constraints) -> FloatArray | None:
    """1 where no taint would rather be left alone, falling to 0 where most would; None if there is no such taint."""
    disliked = _disliked(nodes, constraints)
    most = disliked.max(initial=0)
    return 1 - disliked / most if most > 0 else None


def compares(nodes: Nodes, constraints: Constraints) -> bool:
    """Whether it matters which of the nodes most would rather be left alone: not while they are disliked alike, or not at all."""
    if sum(taint.effect is Effect.PREFER_NO_SCHEDULE for taint in nodes.taints()) < 2:
        return False
    key = ("disliked otherwise", nodes.version, constraints.tolerations)
    known: bool | None = nodes.notes.get(key)
    if known is None:
        disliked = _disliked(nodes, constraints)
        known = nodes.notes[key] = len(np.unique(disliked[nodes.is_live & (disliked > 0)])) > 1
    return known


def worst(nodes: Nodes, constraints: Constraints, among: BoolArray) -> tuple[float, int]:
    """How many taints of a node would rather be left alone at most among some nodes, and how many of these have so many."""
    disliked = _disliked(nodes, constraints)[among]
    most = disliked.max(initial=0)
    return float(most), int(np.count_nonzero(disliked == most))


def milder(nodes: Nodes, constraints: Constraints, among: BoolArray) -> FloatArray | None:
    """How much less taints speak against nodes than `score` says, if 0 is what most of the nodes that the pod can go to would
    rather be left alone; None if that is the same for them.  # [node]
    """
    disliked = _disliked(nodes, constraints)
    most, most_among = disliked.max(initial=0), np.max(disliked, where=among, initial=0)
    if most_among in (0, most):
        return None
    told: FloatArray = disliked * np.float32(1 / most - 1 / most_among)
    return told


def _disliked(nodes: Nodes, constraints: Constraints) -> FloatArray:
    """How many taints of a node would rather be left alone by such a pod; found once per cycle while nodes stay what they
    are.  # [node]
    """
    key = ("disliked", nodes.version, constraints.tolerations)
    known: FloatArray | None = nodes.notes.get(key)
    if known is None:
        known = nodes.notes[key] = np.zeros(nodes.rows, np.float32)
        for taint, carriers in nodes.taints().items():
            is_mild = taint.effect is Effect.PREFER_NO_SCHEDULE
            if is_mild and not any(t.tolerates(taint) for t in constraints.tolerations):
                known += carriers
    return known


def _name(entry: tuple[Taint, BoolArray]) -> tuple[str, str, str]:
    taint, _ = entry
    return taint.key, taint.value, taint.effect
