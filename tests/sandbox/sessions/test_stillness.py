"""Sessions that sleep while nobody knows whether their sandbox does: nodes and stores that fail over it, gateways that share one. In virtual time."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from hekla.sandbox.link import LinkError, NotYetError, SandboxGoneError, UnansweredError, UnsupportedError
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import OnTimeout
from hekla.sandbox.sessions.register import BELIEVED_S
from hekla.sandbox.sessions.store import MemoryStore, StoreUnavailableError
from hekla.sandbox.sessions.upkeep import AGAIN_S, PAUSE_PATIENCE_S, USES_EVERY_S
from hekla.testing import virtual_time
from hekla.testing.paper_sandboxes import PaperSandboxes
from sandbox.sessions.deskkit import BASE, desk, e2b_wish, wish

LASTING = replace(BASE, idle_s=0.0, life_s=24 * 3600.0)
BOUNDED = replace(LASTING, budget="cpu=10s")
"""Spent on paper after 20 s awake."""


async def until(one, session, state):
    """It comes to be in a state; a test that waits for ever fails by its limit."""
    while (await one.find(session)).state is not state:
        await asyncio.sleep(0.1)


def fail_at(sandboxes, step, error):
    """Let one step of the nodes fail, each time until told otherwise."""

    def before(now):
        if now == step:
            raise error

    sandboxes.before = before


def heal(sandboxes):
    sandboxes.before = lambda step: None


async def sleeps(one, session, way):
    """Put to sleep by its owner, or by its budget."""
    if way == "budget":
        await until(one, session, State.FROZEN)
    else:
        with pytest.raises(RefusedError, match="does not answer"):
            await getattr(one, way)(session)


WAYS = {"freeze": LASTING, "pause": LASTING, "budget": BOUNDED}


@pytest.mark.parametrize("way", WAYS)
def test_an_order_to_stand_still_that_never_arrived_is_given_again(way):
    async def scenario():
        sandboxes = PaperSandboxes([WAYS[way]])
        async with desk(sandboxes) as one, asyncio.timeout(300):
            session = await one.create(wish())
            fail_at(sandboxes, "freeze", UnansweredError('node "n" does not answer'))
            await sleeps(one, session.id, way)
            assert not sandboxes.found(session.pod).is_frozen
            await asyncio.sleep(2 * USES_EVERY_S)  # silent still
            heal(sandboxes)
            await asyncio.sleep(USES_EVERY_S + 0.1)
            assert sandboxes.found(session.pod).is_frozen
            assert (await one.find(session.id)).state is not State.RUNNING

    virtual_time.run(scenario())


def test_a_session_whose_node_died_while_its_budget_stopped_it_goes_on_when_the_budget_is_raised():
    """Its row was taken back to running, with nothing spent: raised at once, nobody thawed what stood still."""

    async def scenario():
        sandboxes = PaperSandboxes([LASTING])
        async with desk(sandboxes) as one, asyncio.timeout(300):
            session = await one.create(wish(budget={"cpu": 10.0}))
            fail_at(sandboxes, "frozen", UnansweredError('node "n" does not answer'))
            await until(one, session.id, State.FROZEN)
            heal(sandboxes)
            row = await one.set_budget(session.id, "alice", "cpu=1h")
            assert (row.state, row.spent) == (State.RUNNING, "")
            await asyncio.sleep(2 * USES_EVERY_S)
            assert not sandboxes.found(session.pod).is_frozen

    virtual_time.run(scenario())


class FailsToTakeBack(MemoryStore):
    """Where a row that goes back to running cannot be written for a while."""

    is_full = False

    async def update(self, session):
        if self.is_full and session.state is State.RUNNING:
            raise StoreUnavailableError("the disk is full")
        return await super().update(session)


@pytest.mark.parametrize("way", ["freeze", "budget"])
def test_a_session_that_cannot_freeze_runs_again_once_the_store_takes_it(way):
    """The row said for ever that it stood still, with its budget spent, while its sandbox ran on."""

    async def scenario():
        sandboxes, store = PaperSandboxes([WAYS[way]]), FailsToTakeBack()
        async with desk(sandboxes, store) as one, asyncio.timeout(300):
            session = await one.create(wish())
            fail_at(sandboxes, "freeze", UnsupportedError("this runtime cannot freeze"))
            store.is_full = True
            if way == "budget":
                await until(one, session.id, State.FROZEN)
            else:
                with pytest.raises(StoreUnavailableError):
                    await one.freeze(session.id)
            assert (await one.find(session.id)).state is State.FROZEN
            store.is_full = False
            await until(one, session.id, State.RUNNING)
            assert not sandboxes.found(session.pod).is_frozen

    virtual_time.run(scenario())


def test_a_wake_that_the_store_did_not_take_stands_still_again():
    async def scenario():
        sandboxes, store = PaperSandboxes([LASTING]), FailsToTakeBack()
        async with desk(sandboxes, store) as one, asyncio.timeout(300):
            session = await one.create(wish())
            await one.freeze(session.id)
            store.is_full = True
            with pytest.raises(StoreUnavailableError):
                await one.wake(session.id)
            assert not sandboxes.found(session.pod).is_frozen
            await asyncio.sleep(USES_EVERY_S + 0.1)
            assert sandboxes.found(session.pod).is_frozen, "its row says that it sleeps"

    virtual_time.run(scenario())


def test_a_session_that_was_thawed_to_be_put_away_and_was_not_stands_still_again():
    async def scenario():
        sandboxes, store = PaperSandboxes([LASTING]), FailsToTakeBack()
        async with desk(sandboxes, store) as one:
            session = await one.create(wish())
            await one.freeze(session.id)
            store.is_full = True
            with pytest.raises(StoreUnavailableError):
                await one.pause(session.id, keeps_memory=False)
            await asyncio.sleep(USES_EVERY_S + 0.1)
            assert sandboxes.found(session.pod).is_frozen

    virtual_time.run(scenario())


@pytest.mark.parametrize("error", [NotYetError, LinkError, SandboxGoneError, UnansweredError])
@pytest.mark.parametrize("way", ["freeze", "pause", "time"])
def test_a_node_that_is_not_there_yet_when_a_gateway_starts_wakes_and_ends_no_session(way, error):
    """Those that slept counted as running and stood still; those whose time had paused them were ended."""

    async def scenario():
        sandboxes, store = PaperSandboxes([LASTING]), MemoryStore()
        async with desk(sandboxes, store) as one:
            told = {"timeout_s": 20.0, "on_timeout": OnTimeout.PAUSE} if way == "time" else {}
            session = await one.create(e2b_wish(**told))
            if way == "time":
                await until(one, session.id, State.PAUSED)
            else:
                await getattr(one, way)(session.id)
            asleep = (await one.find(session.id)).state
        fail_at(sandboxes, "freeze", error("no node agent is up yet"))
        async with desk(sandboxes, store) as one:
            await asyncio.sleep(3 * USES_EVERY_S)
            assert (await one.find(session.id)).state is asleep
            heal(sandboxes)
            assert (await one.wake(session.id)).state is State.RUNNING
            await asyncio.sleep(2 * USES_EVERY_S)
            assert not sandboxes.found(session.pod).is_frozen
            assert (await one.find(session.id)).state is State.RUNNING

    virtual_time.run(scenario())


@pytest.mark.parametrize("keeps_memory", [True, False])
@pytest.mark.parametrize("error", [NotYetError, LinkError, UnansweredError])
def test_a_session_whose_time_is_over_while_its_node_starts_anew_is_paused_when_it_is_back(keeps_memory, error):
    """It was ended, because it could not be paused."""

    async def scenario():
        sandboxes, tries = PaperSandboxes([LASTING]), []

        def before(step):
            if step in ("freeze", "checkpoint"):
                tries.append(step)
                raise error("the node starts anew")

        async with desk(sandboxes) as one:
            told = {"timeout_s": 20.0, "on_timeout": OnTimeout.PAUSE, "keeps_memory": keeps_memory}
            session = await one.create(e2b_wish(**told))
            sandboxes.before = before
            await asyncio.sleep(20.0 + 60.0)
            assert (await one.find(session.id)).state is (State.PAUSED if keeps_memory else State.RUNNING)
            assert 10 <= len(tries) <= 14, "once in five seconds"
            heal(sandboxes)
            await asyncio.sleep(AGAIN_S + 0.1)
            row = await one.find(session.id)
            assert (row.state, bool(row.sandbox)) == (State.PAUSED, keeps_memory)
            assert (await one.wake(session.id)).state is State.RUNNING

    virtual_time.run(scenario())


def test_a_session_that_no_node_can_put_away_ends_after_a_while():
    async def scenario():
        sandboxes = PaperSandboxes([LASTING])
        async with desk(sandboxes) as one:
            session = await one.create(e2b_wish(timeout_s=20.0, on_timeout=OnTimeout.PAUSE, keeps_memory=False))
            fail_at(sandboxes, "checkpoint", LinkError("the disk is full"))
            await asyncio.sleep(20.0 + PAUSE_PATIENCE_S - 1.0)
            assert (await one.find(session.id)).is_live
            await asyncio.sleep(2 * AGAIN_S)
            with pytest.raises(RefusedError, match="not found"):
                await one.find(session.id)
            assert not sandboxes.sandboxes

    virtual_time.run(scenario())


class IsGoneForAWhile(MemoryStore):
    """A store that takes nothing for a while."""

    is_gone = False

    async def update(self, session):
        if self.is_gone:
            raise StoreUnavailableError("the store is gone for a moment")
        return await super().update(session)


@pytest.mark.parametrize("due", ["end", "freeze", "pause"])
def test_what_was_due_while_the_store_was_gone_is_done_when_it_is_back(due):
    """It was tried once: a session whose time had come in that moment lived until somebody used it."""

    async def scenario():
        sandboxes, store = PaperSandboxes([LASTING]), IsGoneForAWhile()
        told = {
            "end": {"timeout_s": 20.0}, "freeze": {"freeze_s": 20.0, "timeout_s": 3600.0},
            "pause": {"timeout_s": 20.0, "on_timeout": OnTimeout.PAUSE},
        }[due]  # fmt: skip
        async with desk(sandboxes, store) as one:
            session = await one.create(e2b_wish(**told))
            await asyncio.sleep(19.0)
            store.is_gone = True
            await asyncio.sleep(10.0)
            store.is_gone = False
            await asyncio.sleep(AGAIN_S + 0.1)
            if due == "end":
                assert not sandboxes.sandboxes
            else:
                assert sandboxes.found(session.pod).is_frozen
                asleep = {"freeze": State.FROZEN, "pause": State.PAUSED}[due]
                assert (await one.find(session.id)).state is asleep

    virtual_time.run(scenario())


def test_a_session_freezes_by_itself_again_after_its_node_was_away():
    """One silence of its node, and it never froze by itself any more."""

    async def scenario():
        sandboxes = PaperSandboxes([LASTING])
        async with desk(sandboxes) as one:
            session = await one.create(wish(freeze_s=20.0))
            fail_at(sandboxes, "freeze", UnansweredError("the node does not answer"))
            await until(one, session.id, State.FROZEN)
            heal(sandboxes)
            await one.wake(session.id)
            await until(one, session.id, State.FROZEN)
            assert sandboxes.found(session.pod).is_frozen

    virtual_time.run(scenario())


class SharedStore(MemoryStore):
    is_shared = True


class SlowToTell(PaperSandboxes):
    """A node whose answer to a thaw takes its time."""

    async def thaw(self, namespace, pod, order):
        await super().thaw(namespace, pod, order)
        await asyncio.sleep(0.5)


def test_a_gateway_that_starts_while_another_wakes_a_session_leaves_it_awake():
    async def scenario():
        sandboxes, store = SlowToTell([LASTING]), SharedStore()
        async with desk(sandboxes, store) as first:
            session = await first.create(wish())
            await first.freeze(session.id)
            waking = asyncio.create_task(first.wake(session.id))
            await asyncio.sleep(0.1)
            async with desk(sandboxes, store):
                await asyncio.sleep(0.1)
            assert (await waking).state is State.RUNNING
            assert not sandboxes.found(session.pod).is_frozen

    virtual_time.run(scenario())


class SlowWay:
    """One gateway's way to the node: orders of one kind arrive when the test lets them, each but once."""

    def __init__(self, sandboxes, kind):
        self._sandboxes, self._kind = sandboxes, kind
        self.sent, self.may_arrive = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._sandboxes, name)

    async def _arrive(self, kind):
        if kind == self._kind and not self.sent.is_set():
            self.sent.set()
            await self.may_arrive.wait()

    async def freeze(self, namespace, pod, order):
        await self._arrive("freeze")
        await self._sandboxes.freeze(namespace, pod, order)

    async def thaw(self, namespace, pod, order):
        await self._arrive("thaw")
        await self._sandboxes.thaw(namespace, pod, order)


@asynccontextmanager
async def two_gateways(kind):
    """The way of the first is slow; both know one session."""
    sandboxes, store = PaperSandboxes([LASTING]), SharedStore()
    way = SlowWay(sandboxes, kind)
    async with desk(sandboxes, store, link=way) as slow, desk(sandboxes, store) as other, asyncio.timeout(300):
        session = await slow.create(wish())
        yield slow, other, way, session, sandboxes.found(session.pod)


async def is_told_once(sandbox, one, other, session, state):
    """Both gateways and the node agree, and go on agreeing."""
    for _ in range(2):
        await asyncio.sleep(BELIEVED_S)
        rows = [await gateway.find(session.id) for gateway in (one, other)]
        assert [row.state for row in rows] == [state, state]
        assert sandbox.is_frozen == (state is not State.RUNNING)
        await asyncio.sleep(3 * USES_EVERY_S)


def test_an_order_to_stand_still_that_arrives_after_another_gateway_woke_the_session_is_refused():
    """The session ran by its row, and stood still."""

    async def scenario():
        async with two_gateways("freeze") as (slow, other, way, session, sandbox):
            freezing = asyncio.create_task(slow.freeze(session.id))
            await way.sent.wait()
            assert (await other.wake(session.id)).state is State.RUNNING
            way.may_arrive.set()
            assert (await freezing).state is State.RUNNING
            await is_told_once(sandbox, slow, other, session, State.RUNNING)

    virtual_time.run(scenario())


def test_an_order_to_stand_still_that_arrives_first_gives_way_to_the_wake_that_follows():
    async def scenario():
        async with two_gateways("freeze") as (slow, other, way, session, sandbox):
            way.may_arrive.set()
            await slow.freeze(session.id)
            assert (await other.wake(session.id)).state is State.RUNNING
            await is_told_once(sandbox, slow, other, session, State.RUNNING)

    virtual_time.run(scenario())


def test_an_order_to_go_on_that_arrives_after_another_gateway_froze_the_session_anew_is_given_again():
    """Whoever asked was refused, and the session slept by its row, and ran."""

    async def scenario():
        async with two_gateways("thaw") as (slow, other, way, session, sandbox):
            await slow.freeze(session.id)
            waking = asyncio.create_task(slow.wake(session.id))
            await way.sent.wait()
            await other.wake(session.id)
            await other.freeze(session.id)
            way.may_arrive.set()
            assert (await waking).state is State.RUNNING
            await is_told_once(sandbox, slow, other, session, State.RUNNING)

    virtual_time.run(scenario())


def test_two_gateways_that_wake_one_session_both_find_it_awake():
    """The slower one's client was told of a conflict."""

    async def scenario():
        async with two_gateways("thaw") as (slow, other, way, session, sandbox):
            await slow.freeze(session.id)
            waking = asyncio.create_task(slow.wake(session.id))
            await way.sent.wait()
            await other.wake(session.id)
            way.may_arrive.set()
            assert (await waking).state is State.RUNNING
            await is_told_once(sandbox, slow, other, session, State.RUNNING)

    virtual_time.run(scenario())


def test_a_session_whose_gateway_died_over_waking_it_stands_still_again_though_others_share_it():
    async def scenario():
        sandboxes, store = PaperSandboxes([LASTING]), SharedStore()
        async with desk(sandboxes, store) as one, asyncio.timeout(300):
            session = await one.create(wish())
            await one.freeze(session.id)
            await sandboxes.thaw(session.namespace, session.pod, (await one.find(session.id)).thaw_order)
            async with desk(sandboxes, store) as other:
                await asyncio.sleep(0.1)
                await is_told_once(sandboxes.found(session.pod), one, other, session, State.FROZEN)

    virtual_time.run(scenario())
