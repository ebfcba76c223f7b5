"""Can the pod's volumes be reached from the node?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.columns import Nodes
from hekla.placement.constraint import Constraints, Refusal
from hekla.placement.filters.selectors import any_term
from hekla.placement.framework import Refused
from hekla.placement.model import Task
from hekla.placement.tallies import ClaimUsed, Tallies

OTHER_NODE = Refusal("volume-node", "node(s) had volume node affinity conflict")
CLAIM_IN_USE = Refusal(
    "volume-exclusive", "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)


def refuse(nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
    """Nodes from which a bound volume cannot be reached."""
    if constraints.volume_terms:
        reachable = np.ones(nodes.rows, np.bool_)
        for terms in constraints.volume_terms:
            reachable &= any_term(nodes, terms)
        yield Refused(OTHER_NODE, ~reachable)


def refuse_live(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Every node while another pod uses a claim that only one pod may use."""
    for claim in task.shape.constraints.exclusive_claims:
        tally = tallies.find(ClaimUsed(claim))
        if tally is not None and tallies.total(tally):
            yield Refused(CLAIM_IN_USE, nodes.is_live)
