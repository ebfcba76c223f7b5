"""Killed at any step, and started again: nothing leaks, and every session either works or is gone. Checked at every step there is."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.stock import Order
from hekla.sandbox.sessions.store import MemoryStore
from hekla.testing import virtual_time
from hekla.testing.paper_sandboxes import PaperSandboxes
from sandbox.sessions.deskkit import BASE, desk, e2b_wish, wish


class KilledError(BaseException):
    """kill -9: nothing after this happens, not even clean-up."""


class Doom:
    """Kills at the n-th step, and lets no step happen after."""

    def __init__(self, at):
        self.left = at
        self.is_dead = False

    def step(self, name=""):
        if self.is_dead:
            raise KilledError(name)
        if self.left == 0:
            self.is_dead = True
            raise KilledError(name)
        self.left -= 1


class DoomedStore(MemoryStore):
    """A store whose client may die before and after each write."""

    def __init__(self, doom):
        super().__init__()
        self.doom = doom

    def forget(self):
        """What a kill takes along."""

    async def create(self, session):
        self.doom.step("create")
        done = await super().create(session)
        self.doom.step("created")
        return done

    async def update(self, session):
        self.doom.step("update")
        done = await super().update(session)
        self.doom.step("updated")
        return done

    async def delete(self, session):
        self.doom.step("delete")
        done = await super().delete(session)
        self.doom.step("deleted")
        return done

    async def put_snapshot(self, snapshot):
        self.doom.step("put snapshot")
        await super().put_snapshot(snapshot)
        self.doom.step("put")


class LateStore(DoomedStore):
    """One that writes a session down with its first change, as SQLite's does: a kill before that takes the row along."""

    def __init__(self, doom):
        super().__init__(doom)
        self.begun = set()

    async def create(self, session):
        self.begun.add(session.id)
        return await super().create(session)

    async def update(self, session):
        self.doom.step("update")
        self.begun.discard(session.id)
        return await super().update(session)

    def forget(self):
        for session in self.begun:
            self._rows.pop(session, None)
        self.begun.clear()


STORES = {"at once": DoomedStore, "with its first change": LateStore}

ACTS = {
    "create": lambda one, session: one.create(wish()),
    "create with a key": lambda one, session: one.create(e2b_wish(idempotency_key="k")),
    "end": lambda one, session: one.end(session.id),
    "freeze": lambda one, session: one.freeze(session.id),
    "pause": lambda one, session: one.pause(session.id),
    "put away": lambda one, session: one.pause(session.id, keeps_memory=False),
    "wake": lambda one, session: one.wake(session.id),
    "fork": lambda one, session: one.fork(session.id, "alice", 2, e2b_wish()),
    "snapshot": lambda one, session: one.snapshot(session.id, "alice"),
    "set timeout": lambda one, session: one.set_timeout(session.id, "alice", 50.0),
}


async def live(store, sandboxes, acts):
    """One life of a gateway, perhaps cut short; whether it was."""
    doom = store.doom
    async with desk(sandboxes, store) as one:
        try:
            for name in acts:
                rows = await one.listed(None)
                if not rows and name != "create with a key":
                    rows = [await one.create(e2b_wish())]
                try:
                    await ACTS[name](one, rows[0] if rows else None)
                except RefusedError:
                    continue
        except (KilledError, asyncio.CancelledError):
            assert doom.is_dead
    # leaving cancels whatever else this life would have done
    store.forget()
    return doom.is_dead


async def check(store, sandboxes):
    """What the next life finds when it has mended: sandboxes and rows fit one another, and every row works or sleeps."""
    store.doom = Doom(10**9)
    sandboxes.before = lambda step: None
    async with desk(sandboxes, store) as one:
        await asyncio.sleep(5.0)
        rows = {row.id: row for row in await store.all()}
        assert {row.state for row in rows.values()} <= {State.RUNNING, State.FROZEN, State.PAUSED}
        held = {box.held.uid: box for box in sandboxes.sandboxes.values()}
        owned = {row.sandbox_uid: row for row in rows.values() if row.sandbox_uid}
        assert held.keys() == owned.keys(), "a sandbox leaked, or a session lost its own"
        for uid, row in owned.items():
            assert held[uid].claim is not None
            assert held[uid].claim.session == row.id
            assert held[uid].is_frozen is (row.state is not State.RUNNING)
        kept = {row.checkpoint for row in rows.values()} | {one.checkpoint for one in await store.snapshots()}
        assert sandboxes.checkpoints.keys() == kept - {""}, "a checkpoint leaked, or is missing"
        for row in rows.values():
            assert (await one.wake(row.id)).state is State.RUNNING


def crash(acts, at, store_of=DoomedStore):
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        store = store_of(Doom(at))
        sandboxes.before = lambda step: store.doom.step(step)
        was_killed = await live(store, sandboxes, acts)
        await check(store, sandboxes)
        return was_killed

    return virtual_time.run(scenario())


@pytest.mark.parametrize("written", STORES)
@pytest.mark.parametrize("act", ACTS)
def test_killed_at_every_step_of_an_act_nothing_leaks(act, written):
    at = 0
    while crash([act], at, STORES[written]):
        at += 1
    assert at > 3, "an act has steps"


@given(
    st.lists(st.sampled_from(sorted(ACTS)), min_size=1, max_size=6), st.integers(0, 80), st.sampled_from(sorted(STORES))
)
@settings(max_examples=150, deadline=None)
def test_killed_anywhere_in_any_life_nothing_leaks(acts, at, written):
    crash(acts, at, STORES[written])


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(sorted(ACTS)), min_size=1, max_size=3), st.integers(0, 30)),
        min_size=2,
        max_size=4,
    ),
    st.sampled_from(sorted(STORES)),
)
@settings(max_examples=50, deadline=None)
def test_killed_again_and_again_nothing_leaks(lives, written):
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        store = STORES[written](Doom(0))
        for acts, at in lives:
            store.doom = Doom(at)
            sandboxes.before = lambda step: store.doom.step(step)
            try:
                await live(store, sandboxes, acts)
            except KilledError:  # while it mended what the last life left
                store.forget()
        await check(store, sandboxes)

    virtual_time.run(scenario())


class Pool(PaperSandboxes):
    """Some wait from the beginning; that one is somebody's is on disk when `settled` returns, and lost with a kill before."""

    def __init__(self, waiting):
        super().__init__([BASE])
        for _ in range(waiting):
            self._new(Order(session="", blueprint=BASE))
        self.undurable = {}

    def adopted(self, order):
        waiting = next((box for box in self.sandboxes.values() if not box.held.session), None)
        if waiting is None:
            return None
        self.before("adopt")
        waiting.held = replace(waiting.held, session=order.session, is_warm=True)
        self.undurable[waiting.held.uid] = waiting
        self.before("adopted")
        return waiting.held

    async def take(self, order):
        return self.adopted(order) or await super().take(order)

    async def take_forks(self, orders):
        return [self.adopted(order) or (await super(Pool, self).take_forks([order]))[0] for order in orders]

    async def settled(self, held):
        self.before("settle")
        await asyncio.sleep(1.0)  # nodes are faster than the disk
        self.before("on its way to the disk")
        self.undurable.pop(held.uid, None)
        self.before("settled")

    async def held(self):
        return [one for one in await super().held() if one.session]

    def lose(self):
        for box in self.undurable.values():
            box.held = replace(box.held, session="")


async def check_pool(store, sandboxes):
    """After a kill: who was told whose it is does not wait in a pool, and rows and sandboxes fit one another."""
    sandboxes.lose()
    store.forget()
    store.doom, sandboxes.before = Doom(10**9), lambda step: None
    async with desk(sandboxes, store):
        await asyncio.sleep(5.0)
        rows = {row.sandbox_uid: row for row in await store.all()}
        boxes = {box.held.uid: box for box in sandboxes.sandboxes.values()}
        assert all(box.claim is None for box in boxes.values() if not box.held.session)
        assert {uid for uid, box in boxes.items() if box.held.session} == rows.keys()


@pytest.mark.parametrize("written", STORES)
@pytest.mark.parametrize("key", ["", "k"])
def test_a_sandbox_that_was_told_whose_it_is_is_never_back_in_its_pool_though_its_adoption_was_lost(key, written):
    """Claimed on the node before its label was on disk, killed there, and living on: it waited in its pool with a stranger's environment."""

    def crash_of_one(at):
        async def scenario():
            sandboxes, store = Pool(1), STORES[written](Doom(at))
            sandboxes.before = lambda step: store.doom.step(step)
            async with desk(sandboxes, store) as one:
                with contextlib.suppress(KilledError, asyncio.CancelledError):
                    await one.create(e2b_wish(idempotency_key=key))
            was_killed = store.doom.is_dead
            await check_pool(store, sandboxes)
            return was_killed

        return virtual_time.run(scenario())

    at = 0
    while crash_of_one(at):
        at += 1
    assert at > 8, "creating has steps"


@pytest.mark.parametrize("written", STORES)
@pytest.mark.parametrize("key", ["", "k"])
def test_a_copy_that_was_filled_out_of_the_pool_is_never_back_in_it_though_its_adoption_was_lost(key, written):
    """As above, with the variables of the session that it is a copy of."""

    def crash_of_a_fork(at):
        async def scenario():
            sandboxes, store = Pool(2), STORES[written](Doom(10**9))
            async with desk(sandboxes, store) as one:
                parent = await one.create(e2b_wish())
                store.doom = Doom(at)
                sandboxes.before = lambda step: store.doom.step(step)
                with contextlib.suppress(KilledError, asyncio.CancelledError):
                    await one.fork(parent.id, "alice", 2, e2b_wish(idempotency_key=key))
            was_killed = store.doom.is_dead
            await check_pool(store, sandboxes)
            assert parent.id in [row.id for row in await store.all()]
            return was_killed

        return virtual_time.run(scenario())

    at = 0
    while crash_of_a_fork(at):
        at += 1
    assert at > 12, "forking has steps"
