"""When the daemon of a sandbox that waits in a stock has an interpreter ready, and how long it keeps one; in virtual time."""

import asyncio
from types import SimpleNamespace

import pytest

from hekla.sandbox.daemon.parked import SPARE_KEPT_S, Parked
from hekla.testing import virtual_time


class Waiting(Parked):
    """A parked daemon without sandbox and interpreters: its timers are as they are."""

    def __init__(self, *, taken_ns=0, is_claimed=False, started=()):
        self.made, self.let_go = [], []
        self._taken_ns, self._is_claimed, self._started, self._tasks = taken_ns, is_claimed, dict(started), set()
        contexts = SimpleNamespace(make_spare=self._make, let_spare_go=self._let_go, renew_environment=lambda: None)
        self._daemon = SimpleNamespace(contexts=contexts, processes=SimpleNamespace(environment={}))

    async def _make(self):
        self.made.append(asyncio.get_running_loop().time())

    def _let_go(self):
        self.let_go.append(asyncio.get_running_loop().time())

    @staticmethod
    def rename(name):
        """Not the test's own machine."""


def test_an_interpreter_waits_for_a_minute_after_a_pod_took_its_sandbox():
    async def scenario():
        waiting, taken_s = Waiting(), asyncio.get_running_loop().time()
        await waiting._go({"hostname": "box", "env": {}}, [])
        await asyncio.sleep(SPARE_KEPT_S - 1)
        assert not waiting.let_go
        await asyncio.sleep(2)
        assert waiting.let_go == [pytest.approx(taken_s + SPARE_KEPT_S)]

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("how", "is_made"),
    [({}, True), ({"taken_ns": 1}, False), ({"is_claimed": True}, False), ({"started": {"main": 7}}, False)],
    ids=["in the stock", "a pod took it", "claimed", "runs a command"],
)
def test_an_interpreter_is_made_ready_only_while_nobody_has_come(how, is_made):
    async def scenario():
        waiting = Waiting(**how)
        waiting._rest()
        await asyncio.sleep(0.1)
        assert bool(waiting.made) == is_made
        assert not waiting._tasks, "it is held while it is made, and not for ever"

    virtual_time.run(scenario())
