"""Are the host ports that the pod takes still free on the node?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.bookkeeping.tallies import ANY_ADDRESS, PortTaken, Tallies
from hekla.placement.columns import Nodes
from hekla.placement.constraint import HostPort, Refusal
from hekla.placement.framework import Refused
from hekla.placement.model import Task

TAKEN = Refusal("host-port", "node(s) didn't have free ports for the requested pod ports")


def refuse_live(nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
    """Nodes on which one of the ports is taken: on the same address, or on every address by either side."""
    if not task.shape.constraints.ports:
        return
    taken = np.zeros(nodes.rows, np.bool_)
    for port in task.shape.constraints.ports:
        for question in _conflicts(port):
            tally = tallies.find(question)
            if tally is not None:
                domains, counts = tallies.counts(tally)
                taken |= counts[domains] > 0
    yield Refused(TAKEN, taken, is_told_before_amounts=True)


def _conflicts(port: HostPort) -> tuple[PortTaken, ...]:
    if not port.ip:
        return (PortTaken(port.protocol, port.port, ANY_ADDRESS),)
    return PortTaken(port.protocol, port.port, port.ip), PortTaken(port.protocol, port.port, "")
