import asyncio

from hekla.api.coordination import Lease
from hekla.api.nodes import Node
from hekla.kube.clock import LoopClock
from hekla.node.registration import Registrar, Standing, VirtualNode
from hekla.testing import virtual_time

STANDING = Standing(rung="user-namespaces", isolation="", limits="")


class Slow:
    """A client whose patches of leases take long to arrive."""

    def __init__(self):
        self.takes_s = 0
        self.patched = []

    async def create(self, *_, **__):
        self.patched = []

    async def patch(self, kind, *_, **__):
        if kind is Lease:
            await asyncio.sleep(self.takes_s)
        self.patched.append(kind)


def renewed(*renewals):
    """What is patched in the end, by (begins at, takes), in seconds since the lease was made."""

    async def story():
        client = Slow()
        node = VirtualNode(name="n", capacity={})
        registrar = Registrar(client, LoopClock(), {"n": (node, STANDING)})
        await registrar.register()
        for begins_s, takes_s in renewals:
            await asyncio.sleep(begins_s - asyncio.get_running_loop().time())
            client.takes_s = takes_s
            await registrar._renew("n")
        return client.patched

    return virtual_time.run(story())


def test_a_lease_runs_out_between_two_slow_renewals_whose_answers_lie_close_together():
    """Controllers count from the stamp: it was of second 10, and the next arrived in second 65."""
    assert renewed((10, 20), (50, 15)) == [Lease, Lease, Node]
    assert renewed((10, 0), (20, 20), (50, 0)) == [Lease, Lease, Lease]
    assert renewed((45, 0)) == [Lease, Node], "the first stamp is that of the making"
    assert renewed((10, 0), (49, 0), (50, 39)) == [Lease, Lease, Lease]
