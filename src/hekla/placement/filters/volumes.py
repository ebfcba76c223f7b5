"""Can the pod's volumes be reached from the node, and may it attach and mount them there?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.bookkeeping.free_volumes import has_volumes
from hekla.placement.bookkeeping.tallies import Attached, ClaimUsed, DiskUsed, Tallies
from hekla.placement.columns import Nodes
from hekla.placement.constraint import Constraints, Operator, Refusal, Requirement
from hekla.placement.framework import Refused
from hekla.placement.model import Task
from hekla.placement.node_masks import any_term, meets

OTHER_NODE = Refusal("volume-node", "node(s) had volume node affinity conflict")
OTHER_ZONE = Refusal("volume-zone", "node(s) had no available volume zone")
NO_STORAGE = Refusal("volume-storage", "node(s) did not have enough free storage")
NO_VOLUME = Refusal("no-volume", "node(s) didn't find available persistent volumes to bind")
TOO_MANY = Refusal("volume-limit", "node(s) exceed max volume count")
DISK_IN_USE = Refusal("volume-disk", "node(s) had no available disk")
CLAIM_IN_USE = Refusal(
    "volume-exclusive", "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)

_PLACES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of zones and regions by their old names, with the new ones."""

PLACE_KEYS = (*_PLACES, *_PLACES.values())
"""All labels that say in which zone or region something is."""


def refuse(nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
    """Nodes from which a bound volume cannot be reached, or none of the free ones, or where a new one finds no room."""
    if constraints.volume_terms:
        reachable = np.ones(nodes.rows, np.bool_)
        for terms in constraints.volume_terms:
            reachable &= any_term(nodes, terms)
        yield Refused(OTHER_NODE, ~reachable)
    if constraints.storage_terms:
        roomy = np.ones(nodes.rows, np.bool_)
        for terms in constraints.storage_terms:
            roomy &= any_term(nodes, terms)
        yield Refused(NO_STORAGE, ~roomy)
    if constraints.unbound_claims:
        yield Refused(NO_VOLUME, ~has_volumes(nodes, constraints.unbound_claims, ()))


def refuse_zones(nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
    """Nodes outside the zones and regions of bound volumes; a node that names neither may be anywhere."""
    if not constraints.volume_zones:
        return
    inside = np.ones(nodes.rows, np.bool_)
    for key, values in constraints.volume_zones:
        met = meets(nodes, Requirement(key, Operator.IN, values))
        if key in _PLACES:
            # The volume's label is the old one: a node that has it is asked by it, another by the new one.
            has_old = meets(nodes, Requirement(key, Operator.EXISTS))
            met = np.where(has_old, met, meets(nodes, Requirement(_PLACES[key], Operator.IN, values)))
        inside &= met
    is_placed = np.zeros(nodes.rows, np.bool_)
    for key in PLACE_KEYS:
        is_placed |= meets(nodes, Requirement(key, Operator.EXISTS))
    yield Refused(OTHER_ZONE, is_placed & ~inside)


def refuse_live(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Nodes whose free volumes other pods were given, as long as these are not bound to them."""
    claims = task.shape.constraints.unbound_claims
    if claims and tallies.given:
        yield Refused(NO_VOLUME, ~has_volumes(nodes, claims, tallies.given))


def refuse_in_use(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Every node while another pod uses a claim that only one pod may use; those where a disk cannot be shared."""
    constraints = task.shape.constraints
    for disk in constraints.disks:
        tally = tallies.find(DiskUsed(disk.name, disk.is_read_only))  # a reader minds writers, a writer everybody
        if tally is not None:
            domains, counts = tallies.counts(tally)
            yield Refused(DISK_IN_USE, counts[domains] > 0)
    for claim in constraints.exclusive_claims:
        tally = tallies.find(ClaimUsed(claim))
        if tally is not None and tallies.total(tally):
            yield Refused(CLAIM_IN_USE, nodes.is_live)


def refuse_beyond_limits(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Nodes that would have more volumes of a driver attached than they can; what is attached there counts once."""
    for driver, count in task.shape.constraints.attaches:
        limit = nodes.volume_limit(driver)
        tally = tallies.find(Attached(driver))
        if limit is None or tally is None:
            continue
        domains, counts = tallies.counts(tally)
        own = [volume for one, volume in task.spec.volumes if one == driver]
        added = count - tallies.attached(tally).there(own, len(counts))
        yield Refused(TOO_MANY, (added[domains] > 0) & ((counts + added)[domains] > limit))
