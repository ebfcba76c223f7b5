"""When the daemon of a sandbox that waits has an interpreter and itself ready, and how long it keeps the first; in virtual time."""

import asyncio
import json
import socket
from types import SimpleNamespace

import pytest

from hekla.sandbox.daemon import parked
from hekla.sandbox.daemon.http import HttpError
from hekla.sandbox.daemon.parked import SPARE_KEPT_S, Parked
from hekla.sandbox.daemon.server import Options
from hekla.testing import virtual_time


class Waiting(Parked):
    """A parked daemon without sandbox and interpreters: its timers are as they are."""

    def __init__(self, *, taken_ns=0, is_claimed=False, started=()):
        self.made, self.let_go, self.rehearsed, self.names = [], [], 0, []
        self._expected = None
        self._options = Options()
        self._taken_ns, self._is_claimed, self._started, self._tasks = taken_ns, is_claimed, dict(started), set()
        contexts = SimpleNamespace(make_spare=self._make, let_spare_go=self._let_go, renew_environment=lambda: None)
        self._daemon = SimpleNamespace(contexts=contexts, processes=SimpleNamespace(environment={}))

    async def _make(self):
        self.made.append(asyncio.get_running_loop().time())

    def _let_go(self):
        self.let_go.append(asyncio.get_running_loop().time())

    async def _rehearse(self):
        self.rehearsed += 1

    def rename(self, name):
        """Not the test's own machine."""
        self.names.append(name)


def test_an_interpreter_waits_for_a_minute_after_a_pod_took_its_sandbox():
    async def scenario():
        waiting, taken_s = Waiting(), asyncio.get_running_loop().time()
        await waiting._go({"hostname": "box", "env": {}}, [])
        await asyncio.sleep(SPARE_KEPT_S - 1)
        assert not waiting.let_go
        await asyncio.sleep(2)
        assert waiting.let_go == [pytest.approx(taken_s + SPARE_KEPT_S)]

    virtual_time.run(scenario())


def test_a_copy_that_is_told_whose_it_will_be_lets_nobody_in_before_its_pod_is_there(monkeypatch):
    async def scenario():
        waiting = Waiting()
        told, handled = [], []
        contexts, daemon = waiting._daemon.contexts, waiting._daemon
        contexts.add_variables, contexts.fill_soon = as_told(told), lambda: told.append("fill soon")
        daemon.claimed, daemon.handle = told.append, as_told(handled)
        waiting._operations = {"unpack": as_told(told)}
        monkeypatch.setattr(parked.os, "environ", {})
        claim = {
            "hostname": "",
            "env": {"WHOSE": "b"},
            "random_seed": "",
            "default_user": "",
            "secrets": {"session": "s-b"},
        }
        await waiting._fill({"op": "fill", "has_files": False, "has_variables": False, "claim": claim}, [])
        assert told == [{"WHOSE": "b"}, {"session": "s-b"}]
        with pytest.raises(HttpError, match="nobody has claimed"):
            await waiting._handle(SimpleNamespace(path="/files"), None)
        await waiting._go({"hostname": "box", "env": {"WHOSE": "the pod", "POD": "its own"}}, [])
        assert told[2:] == ["fill soon"]
        assert daemon.processes.environment == {"WHOSE": "b", "POD": "its own"}
        assert waiting.names == ["box"]
        await waiting._handle(SimpleNamespace(path="/files"), None)
        assert len(handled) == 1

    virtual_time.run(scenario())


def as_told(told):
    async def hear(first, *more):
        told.append(first)

    return hear


@pytest.mark.parametrize(
    ("how", "is_made", "is_rehearsed"),
    [
        ({}, True, True),
        ({"taken_ns": 1}, False, True),
        ({"is_claimed": True}, False, False),
        ({"started": {"main": 7}}, False, False),
    ],
    ids=["in the stock", "a pod took it", "claimed", "runs a command"],
)
def test_an_interpreter_waits_in_the_stock_alone_and_a_program_is_rehearsed_until_somebody_comes(
    how, is_made, is_rehearsed
):
    async def scenario():
        waiting = Waiting(**how)
        waiting._rest()
        await asyncio.sleep(0.1)
        assert bool(waiting.made) == is_made
        assert bool(waiting.rehearsed) == is_rehearsed
        assert not waiting._tasks, "it is held while it is made, and not for ever"

    virtual_time.run(scenario())


def test_nothing_is_rehearsed_where_somebody_came_while_the_interpreter_was_made():
    async def scenario():
        waiting = Waiting()

        async def claimed_meanwhile():
            waiting._is_claimed = True

        waiting._daemon.contexts.make_spare = claimed_meanwhile
        waiting._rest()
        await asyncio.sleep(0.1)
        assert not waiting.rehearsed

    virtual_time.run(scenario())


def test_an_order_that_comes_while_a_program_is_rehearsed_is_followed_afterwards(monkeypatch):
    async def scenario():
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def rehearsal(options, nursery):
            begun.set()
            await may_end.wait()

        monkeypatch.setattr(parked, "rehearse", rehearsal)
        node, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with node, its:
            its.setblocking(False)
            node.setblocking(False)
            waiting = Parked(its, Options(), SimpleNamespace(), {})
            rehearsing = asyncio.ensure_future(waiting._rehearse())
            await begun.wait()
            node.send(json.dumps({"op": "ping", "n": 7}).encode())
            for _ in range(10):
                await asyncio.sleep(0)
            with pytest.raises(BlockingIOError):
                node.recv(100)
            may_end.set()
            await rehearsing
            answer = await asyncio.get_running_loop().sock_recv(node, 100)
            assert json.loads(answer) == {"n": 7}
            asyncio.get_running_loop().remove_reader(its.fileno())

    asyncio.run(scenario())
