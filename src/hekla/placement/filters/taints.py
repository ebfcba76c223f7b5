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
    disliked = _disliked(nodes, constraints)
    return len(np.unique(disliked[nodes.is_live & (disliked > 0)])) > 1


def score_among(nodes: Nodes, constraints: Constraints, among: BoolArray) -> FloatArray:
    """As `score`, but 0 is what most of the nodes that the pod can go to would rather be left alone.  # [node]"""
    disliked = _disliked(nodes, constraints)
    most = disliked[among].max(initial=0)
    return np.clip(1 - disliked / most, 0, 1).astype(np.float32) if most > 0 else np.ones_like(disliked)


def _disliked(nodes: Nodes, constraints: Constraints) -> FloatArray:
    """How many taints of a node would rather be left alone by such a pod.  # [node]"""
    disliked = np.zeros(nodes.rows, np.float32)
    for taint, carriers in nodes.taints().items():
        if taint.effect is Effect.PREFER_NO_SCHEDULE and not any(t.tolerates(taint) for t in constraints.tolerations):
            disliked += carriers
    return disliked


def _name(entry: tuple[Taint, BoolArray]) -> tuple[str, str, str]:
    taint, _ = entry
    return taint.key, taint.value, taint.effect
