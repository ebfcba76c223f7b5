"""Are the devices that the pod's claims ask for free within the node's reach, or are those that they have?"""

from collections.abc import Iterator

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import Nodes
from hekla.placement.constraint import Refusal
from hekla.placement.devices.claims import SelectorError
from hekla.placement.framework import Refused
from hekla.placement.model import Task

NO_DEVICES = Refusal("resource-claims", "cannot allocate all claims")


def refuse_live(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Nodes that cannot give the claims what they ask for; all of them, where a selector cannot be evaluated."""
    claims = task.shape.constraints.device_claims
    if not claims:
        return
    try:
        yield Refused(NO_DEVICES, ~tallies.inventory.rooms(claims, task.spec.device_claims))
    except SelectorError as error:
        yield Refused(Refusal("device-selector", str(error)), nodes.is_live)
