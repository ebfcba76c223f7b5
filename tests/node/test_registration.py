import asyncio
from types import SimpleNamespace

from hekla.api.coordination import Lease
from hekla.api.nodes import Node
from hekla.kube.clock import LoopClock
from hekla.node.registration import STATUS_EVERY_S, Registrar, Standing, VirtualNode
from hekla.node.runtimes import Limits
from hekla.node.runtimes.cgroups import CgroupV2
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


class Conditions(Slow):
    """Remembers what conditions say."""

    def __init__(self):
        super().__init__()
        self.told = []

    async def patch(self, kind, name, body, *_, **__):
        if "status" in body:
            self.told.append({each["type"]: each["message"] for each in body["status"]["conditions"]})


def test_a_weight_that_is_refused_after_the_start_is_in_the_nodes_condition_at_its_next_status(tmp_path):
    async def story():
        client, tree, node = Conditions(), CgroupV2(tmp_path), VirtualNode(name="n", capacity={})
        sandboxes = SimpleNamespace(
            name="sandbox", isolation="shared-kernel", refusal="", unshared="", sandbox_features=()
        )
        registrar = Registrar(
            client,
            LoopClock(),
            {"n": node},
            lambda _: Standing(rung="r", isolation="", limits=tree.describe(), sandboxes=[sandboxes]),
        )
        await registrar.register()
        (tmp_path / "one").mkdir()
        tree.create("one", Limits(cpu_request_milli=1000))
        sandboxes.unshared = "it is refused"
        running = asyncio.create_task(registrar.run())
        await asyncio.sleep(2 * STATUS_EVERY_S - 1)
        running.cancel()
        return client.told

    before, after = virtual_time.run(story())
    assert "not shared" not in before["Limits"]
    assert f"CPU is not shared by requests: {tmp_path}/one/cpu.weight does not take 100 (" in after["Limits"]
    told = "pods of runtime class sandbox are isolated as shared-kernel"
    assert before["Sandboxes"] == told
    assert after["Sandboxes"] == f"{told}, and do not share the CPU by their requests: it is refused"


def renewed(*renewals):
    """What is patched in the end, by (begins at, takes), in seconds since the lease was made."""

    async def story():
        client = Slow()
        node = VirtualNode(name="n", capacity={})
        registrar = Registrar(client, LoopClock(), {"n": node}, lambda _: STANDING)
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
