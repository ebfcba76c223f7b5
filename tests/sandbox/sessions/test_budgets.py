"""Accounts of sessions: what each has used in every sandbox that it had, and budgets that let it stand still and never kill. In virtual time."""

import asyncio
from dataclasses import replace

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.agents.node_contract import Usage
from hekla.sandbox.sessions.budgets import BudgetError, read_budget, smaller, spent, write_budget
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.metering import LOOK_EVERY_S, PATIENCE_S
from hekla.sandbox.sessions.store import MemoryStore, StoreUnavailableError
from hekla.testing import virtual_time
from hekla.testing.paper_sandboxes import PaperSandboxes
from sandbox.sessions.deskkit import BASE, desk, e2b_wish, wish

BOUNDED = replace(BASE, budget="cpu=10s", idle_s=0.0, life_s=24 * 3600.0)
"""On paper a session takes half a processor while it is awake: ten seconds of it are twenty."""
AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "awake"]), st.integers(1, 10**6).map(float), max_size=2
) | st.dictionaries(st.sampled_from(["network", "storage", "memory"]), st.integers(1, 1 << 50).map(float), max_size=3)


async def until(one, session, state):
    """When it is in a state; looked at as often as its budget is."""
    while (await one.find(session)).state != state:
        await asyncio.sleep(0.1)
    return asyncio.get_running_loop().time()


@given(AMOUNTS)
def test_a_budget_is_read_as_it_is_written(budget):
    assert read_budget(write_budget(budget)) == budget


@given(AMOUNTS, AMOUNTS)
def test_of_two_budgets_the_smaller_of_each_holds(one, other):
    both = smaller(one, other)
    assert both.keys() == one.keys() | other.keys()
    assert all(amount == min(each[name] for each in (one, other) if name in each) for name, amount in both.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu=1", '"gpu=1" is not one of cpu, awake, network, storage, memory'),
        ("cpu", "with = and an amount"),
        ("cpu=90", '"cpu" is "90"; it must be a duration'),
        ("cpu=-1s", "above 0"),
        ("network=lots", '"network" is "lots"; it must be an amount'),
        ("cpu=1s,cpu=2s", "named twice"),
    ],
)
def test_a_budget_that_makes_no_sense_is_told(text, words):
    with pytest.raises(BudgetError, match=words.replace("?", "\\?")):
        read_budget(text)


@pytest.mark.parametrize(
    ("budget", "usage", "words"),
    [
        ("cpu=1m", Usage(cpu_us=59_999_999), ""),
        ("cpu=1m", Usage(cpu_us=60_000_000), "it has used 1m0s of processor time of a budget of 1m0s; raise cpu in its budget"),
        ("awake=1h", Usage(wall_s=7200.0, frozen_s=3601.0), ""),
        ("awake=1h", Usage(wall_s=7200.0, frozen_s=3600.0), "it has used 1h0m0s awake of a budget of 1h0m0s"),
        ("network=1Mi", Usage(network_sent_bytes=1 << 19, network_received_bytes=1 << 19), "used 1Mi through the network"),
        ("storage=1Gi", Usage(storage_bytes=(1 << 30) + 5), "used 1Gi in files of a budget of 1Gi"),
        ("memory=4Gi", Usage(memory_byte_s=3600.0 * (4 << 30) - 1), ""),
        ("memory=4Gi", Usage(memory_byte_s=3600.0 * (4 << 30)), "used 4Gi of memory for an hour"),
    ],
)  # fmt: skip
def test_what_is_spent_is_said_in_a_sentence(budget, usage, words):
    told = spent(read_budget(budget), usage)
    assert words in told if words else told == ""


def test_a_session_whose_budget_is_spent_stands_still_says_why_and_refuses_to_wake():
    async def scenario():
        sandboxes = PaperSandboxes([BOUNDED])
        async with desk(sandboxes) as one:
            session = await one.create(wish())
            froze = await until(one, session.id, "frozen")
            assert 19.9 <= froze <= 20.0 + LOOK_EVERY_S + 0.2
            row = await one.find(session.id)
            assert "of processor time of a budget of 10s" in row.spent
            assert sandboxes.found(row.pod).is_frozen
            with pytest.raises(RefusedError, match="stands still: it has used") as refusal:
                await one.wake(session.id)
            assert (refusal.value.status, refusal.value.reason) == (402, "budget_spent")
            await asyncio.sleep(3600)
            usage = await one.usage(session.id, "alice")
            assert usage.frozen_s == pytest.approx(3600, abs=2)
            assert usage.cpu_us / 1e6 <= 10.0 + LOOK_EVERY_S, "it used nothing while it stood still"
            assert (await one.find(session.id)).is_live, "and was not killed"

    virtual_time.run(scenario())


def test_more_budget_thaws_it_at_once_and_what_was_spent_stays_spent():
    async def scenario():
        async with desk(PaperSandboxes([replace(BOUNDED, budget="")])) as one:
            session = await one.create(wish(budget={"cpu": 10.0}))
            await until(one, session.id, "frozen")
            row = await one.set_budget(session.id, "alice", "cpu=5s")
            assert row.state == "frozen", "less does not help"
            row = await one.set_budget(session.id, "alice", "cpu=15s")
            assert (row.state, row.spent) == ("running", "")
            before = asyncio.get_running_loop().time()
            assert await until(one, session.id, "frozen") - before <= 10.0 + LOOK_EVERY_S
            row = await one.set_budget(session.id, "alice", "")
            assert row.state == "running"
            with pytest.raises(RefusedError, match="makes no sense"):
                await one.set_budget(session.id, "alice", "cpu=lots")
            with pytest.raises(RefusedError, match="not found"):
                await one.set_budget(session.id, "mallory", "cpu=1h")

    virtual_time.run(scenario())


def test_an_owner_lowers_the_budget_of_the_object_and_only_its_operator_raises_it():
    async def scenario():
        sandboxes = PaperSandboxes([BOUNDED])
        async with desk(sandboxes) as one:
            session = await one.create(wish(budget={"cpu": 3600.0}))
            assert one.budget(session) == {"cpu": 10.0}
            await until(one, session.id, "frozen")
            assert (await one.set_budget(session.id, "alice", "cpu=24h")).state == "frozen"
            sandboxes._blueprints[BASE.kind, BASE.namespace, BASE.name] = replace(BOUNDED, budget="cpu=20s")
            thawed = await until(one, session.id, "running")
            assert await until(one, session.id, "frozen") - thawed >= 19.0, (
                "the annotation was raised: it goes on by itself"
            )

    virtual_time.run(scenario())


def test_what_was_used_before_a_sleep_without_a_sandbox_counts():
    async def scenario():
        async with desk(PaperSandboxes([replace(BOUNDED, budget="")])) as one:
            session = await one.create(e2b_wish(timeout_s=3600.0))
            await asyncio.sleep(10)
            await one.pause(session.id, keeps_memory=False)
            asleep = await one.usage(session.id, "alice")
            assert asleep.cpu_us == pytest.approx(5e6, rel=0.02)
            assert (asleep.memory_bytes, asleep.storage_bytes) == (0, 0)
            await asyncio.sleep(1000)
            assert await one.usage(session.id, "alice") == asleep
            await one.wake(session.id)
            await asyncio.sleep(10)
            usage = await one.usage(session.id, "alice")
            assert usage.cpu_us == pytest.approx(10e6, rel=0.02)
            assert usage.wall_s == pytest.approx(20, rel=0.02)

    virtual_time.run(scenario())


def test_the_log_has_the_account_of_a_session_when_it_ends():
    async def scenario():
        async with desk(PaperSandboxes([replace(BOUNDED, budget="")])) as one:
            session = await one.create(wish())
            await asyncio.sleep(10)
            await one.freeze(session.id)
            await asyncio.sleep(30)
            with structlog.testing.capture_logs() as said:
                await one.end(session.id)
            ended = next(line for line in said if line["event"] == "session ends")
            assert (ended["owner"], ended["cpu_s"]) == ("alice", pytest.approx(5.0, rel=0.02))
            assert (ended["awake_s"], ended["frozen_s"]) == (pytest.approx(10, rel=0.02), pytest.approx(30, rel=0.02))

    virtual_time.run(scenario())


def test_an_objects_budget_that_makes_no_sense_makes_no_session_and_stops_none_that_runs():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(wish())
            sandboxes._blueprints[BASE.kind, BASE.namespace, BASE.name] = replace(BASE, budget="cpu=lots")
            with pytest.raises(
                RefusedError, match='"default/base" has a budget that makes no sense: "cpu" is "lots"'
            ) as refusal:
                await one.create(wish())
            assert refusal.value.status == 422
            await asyncio.sleep(30)
            assert (await one.find(session.id)).state == "running"

    virtual_time.run(scenario())


def test_whoever_waits_for_an_answer_is_let_go_when_the_session_stands_still():
    async def scenario():
        async with desk(PaperSandboxes([BOUNDED])) as one:
            cut = []
            one.tell_ends(cut.append)
            session = await one.create(wish())
            one.enter(session)
            await until(one, session.id, "frozen")
            assert cut == [session.id]

    virtual_time.run(scenario())


class FailsOnce(MemoryStore):
    """A store that loses its next write."""

    fails = False

    async def update(self, session):
        if self.fails:
            self.fails = False
            raise StoreUnavailableError("the store is gone for a moment")
        return await super().update(session)


def test_a_store_that_failed_once_stops_no_budget_from_being_kept():
    """Whoever looks at budgets ended with the first write that failed: no budget was kept until the gateway was started again."""

    async def scenario():
        store = FailsOnce()
        async with desk(PaperSandboxes([BOUNDED]), store) as one, asyncio.timeout(60):
            session = await one.create(wish())
            store.fails = True
            await until(one, session.id, "frozen")
            assert not store.fails, "the first try failed"

    virtual_time.run(scenario())


class SilentNode(PaperSandboxes):
    """Where some sandboxes do not say what they used until they may."""

    def __init__(self, blueprints):
        super().__init__(blueprints)
        self.silent, self.says, self.asked, self.ahead_s = set(), asyncio.Event(), 0, 0.0

    async def usage(self, namespace, pod):
        usage = await super().usage(namespace, pod)
        if pod in self.silent:
            self.asked += 1
            await self.says.wait()
        return msgspec.structs.replace(usage, wall_s=usage.wall_s + self.ahead_s)


def test_a_silent_node_keeps_no_other_nodes_sessions_from_standing_still_and_none_of_its_own_from_its_owner():
    """Nodes were asked one after the other for a minute each, with their sessions locked."""

    async def scenario():
        sandboxes = SilentNode([BOUNDED])
        async with desk(sandboxes) as one, asyncio.timeout(300):
            hidden, seen = await one.create(wish()), await one.create(wish())
            sandboxes.silent.add(hidden.pod)
            assert await until(one, seen.id, "frozen") <= 20.0 + LOOK_EVERY_S + 0.2
            assert (await one.find(hidden.id)).state == "running"
            async with asyncio.timeout(LOOK_EVERY_S):  # while its node is asked
                assert (await one.freeze(hidden.id)).state == "frozen"
                assert (await one.wake(hidden.id)).state == "running"
            asked = sandboxes.asked
            await asyncio.sleep(10 * PATIENCE_S)
            assert sandboxes.asked - asked <= 11, "one question at a time"
            sandboxes.silent.clear()
            await until(one, hidden.id, "frozen")

    virtual_time.run(scenario())


def test_an_owner_who_pauses_while_the_node_is_asked_is_faster_than_the_budget():
    async def scenario():
        sandboxes = SilentNode([replace(BOUNDED, budget="awake=15s")])
        async with desk(sandboxes) as one, asyncio.timeout(300):
            session = await one.create(e2b_wish(timeout_s=3600.0))
            await asyncio.sleep(14.5)
            sandboxes.silent.add(session.pod)
            while not sandboxes.asked:
                await asyncio.sleep(0.1)
            sandboxes.ahead_s = 60.0
            pausing = asyncio.create_task(one.pause(session.id, keeps_memory=False))
            await asyncio.sleep(0.1)
            sandboxes.says.set()
            await pausing
            await asyncio.sleep(10 * LOOK_EVERY_S)
            row = await one.find(session.id)
            assert (row.state, row.spent) == ("paused", "")

    virtual_time.run(scenario())
