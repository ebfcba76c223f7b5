"""Which free volumes a pod's claims are bound to on a node: a volume that one pod was given is no other's.

The claim with the fewest choices picks first, and picks the smallest volume that the node reaches. Where the choices of
claims lie within one another, as those of claims of one class by size do, that finds volumes for all claims wherever it
can be done.
"""

from collections.abc import Callable, Container, Sequence
from itertools import groupby

import numpy as np

from hekla.placement.columns import BoolArray, FloatArray, IntArray, Nodes
from hekla.placement.constraint import FreeVolume, UnboundClaim
from hekla.placement.node_masks import any_term


def has_volumes(nodes: Nodes, claims: Sequence[UnboundClaim], taken: Container[str]) -> BoolArray:
    """Nodes that reach a free volume for every claim.  # [node]"""
    enough = np.ones(nodes.rows, np.bool_)
    for _, same_class in groupby(claims, key=lambda claim: claim.storage_class):
        for number, claim in enumerate(same_class, 1):
            enough &= _reaching(nodes, claim, taken) >= number
    return enough


def chosen_on(nodes: Nodes, claims: Sequence[UnboundClaim], taken: Container[str], row: int) -> tuple[str, ...]:
    """The volumes that claims get on a node; fewer than there are claims if there are no more."""
    found = list[str]()
    for claim in claims:
        free = (v.name for v in claim.choices if v.name not in taken and v.name not in found and reach(nodes, v)[row])
        found += [name for name in [next(free, None)] if name is not None]
    return tuple(found)


def tightness(
    nodes: Nodes, claims: Sequence[UnboundClaim], taken: Container[str], shape: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """How well volumes are used, by `shape` of requested / capacity, as a mean over the claims' classes.  # [node]"""
    classes = {claim.storage_class for claim in claims}
    liked = np.zeros(nodes.rows, np.float32)
    for name in sorted(classes):
        own = [claim for claim in claims if claim.storage_class == name]
        capacity = sum((_smallest(nodes, claim, taken) for claim in own), np.zeros(nodes.rows, np.int64))
        requested = sum(claim.requested for claim in own)
        share = np.where(capacity > 0, requested / np.maximum(capacity, 1), 0.0).astype(np.float32)
        liked += np.where(capacity > 0, shape(share), np.float32(0))
    return liked / np.float32(len(classes))


def reach(nodes: Nodes, volume: FreeVolume) -> BoolArray:
    """Nodes that reach a volume; found once per cycle.  # [node]"""
    key = ("reach", nodes.version, volume.terms)
    known: BoolArray | None = nodes.notes.get(key)
    if known is None:
        known = nodes.notes[key] = nodes.is_live.copy() if volume.terms is None else any_term(nodes, volume.terms)
    return known


def _reaching(nodes: Nodes, claim: UnboundClaim, taken: Container[str]) -> IntArray:
    count = np.zeros(nodes.rows, np.int64)
    for volume in claim.choices:
        if volume.name not in taken:
            count += reach(nodes, volume)
    return count


def _smallest(nodes: Nodes, claim: UnboundClaim, taken: Container[str]) -> IntArray:
    """The size of the smallest free volume that a node reaches, 0 where there is none.  # [node]"""
    size = np.zeros(nodes.rows, np.int64)
    for volume in reversed(claim.choices):
        if volume.name not in taken:
            size = np.where(reach(nodes, volume), volume.capacity, size)
    return size
