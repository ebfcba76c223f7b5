"""What /metrics says of sessions is what callers saw: how they began, woke, slept and ended, who waited how long, who was refused."""

import asyncio
from dataclasses import replace

import pytest

from hekla.sandbox.gateway.metrics import FAMILIES, GatewayMetrics
from hekla.sandbox.sessions.counts import ENDED, REFUSED, SLEPT, STARTS, WAKINGS
from hekla.sandbox.sessions.limits import RefusedError, SessionLimits
from hekla.testing import virtual_time
from hekla.testing.paper_sandboxes import PaperSandboxes
from sandbox.sessions.deskkit import BASE, desk, e2b_wish, wish


def told(one):
    """Samples of the gateway's page by name and labels, without buckets."""
    page = GatewayMetrics().collect(one.states(), one.counts)
    samples = (sample for family in page for sample in family.samples if not sample.name.endswith("_bucket"))
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


class Pool(PaperSandboxes):
    """Some of its sandboxes had waited."""

    waiting = 0

    async def take(self, order):
        held = await super().take(order)
        if self.waiting:
            self.waiting -= 1
            return replace(held, is_warm=True)
        return held


def test_starts_are_told_by_what_they_began_with_and_take_as_long_as_their_callers_wait():
    async def scenario():
        sandboxes = Pool([BASE])
        sandboxes.waiting = 2
        async with desk(sandboxes) as one:
            first, _ = await one.create(wish()), await one.create(wish())
            sandboxes.takes_s = 3.0
            await one.create(wish())
            snapshot = await one.snapshot(first.id, "alice")
            await one.create(wish(snapshot=snapshot))
            sandboxes.takes_s = 0.0
            await one.fork(first.id, "alice", 3, wish())
            found = told(one)
            assert [
                found["hekla_agents_start_seconds_count", start] for start in ("warm", "cold", "restored", "fork")
            ] == [2, 1, 1, 3]
            assert found["hekla_agents_start_seconds_sum", "cold"] == pytest.approx(3.0)
            assert found["hekla_agents_start_seconds_sum", "warm"] == pytest.approx(0.0)
            assert found["hekla_agents_sessions", "running"] == 7

    virtual_time.run(scenario())


def test_a_session_that_was_asked_for_with_a_key_twice_began_once():
    async def scenario():
        async with desk() as one:
            await one.create(wish(idempotency_key="a"))
            await one.create(wish(idempotency_key="a"))
            assert one.counts.tally.value(STARTS, "cold") == 1

    virtual_time.run(scenario())


def test_refusals_are_told_by_their_reason_each_copy_for_itself():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes, limits=SessionLimits(per_owner=2)) as one:
            parent = await one.create(wish())
            for asked in (wish(name="none"), wish(owner="bob", name="none")):
                with pytest.raises(RefusedError):
                    await one.create(asked)
            with pytest.raises(RefusedError):
                await one.fork(parent.id, "alice", 5, wish())
            sandboxes.room = 1
            with pytest.raises(RefusedError):
                await one.create(wish())
            refused = one.counts.tally
            assert refused.value(REFUSED, "template_not_found") == 2
            assert refused.value(REFUSED, "owner_limit") == 5
            assert refused.value(REFUSED, "no_room") == 1
            assert refused.value(STARTS, "cold") == 1

    virtual_time.run(scenario())


def test_sleeps_and_wakings_are_told_by_how_the_session_slept():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = (await one.create(e2b_wish())).id
            await one.freeze(session)
            await one.freeze(session)  # it does already
            await asyncio.gather(one.wake(session), one.wake(session))  # they wait together
            await one.pause(session)
            await one.wake(session)
            await one.pause(session, keeps_memory=False)
            sandboxes.takes_s = 2.0
            await one.wake(session)
            await one.wake(session)  # it runs
            found = told(one)
            for sleep in ("frozen", "paused", "stored"):
                assert found["hekla_agents_slept_total", sleep] == 1, sleep
                assert found["hekla_agents_wake_seconds_count", sleep] == 1, sleep
            assert found["hekla_agents_wake_seconds_sum", "stored"] == pytest.approx(2.0)
            assert one.counts.tally.value(WAKINGS, "frozen") == 1

    virtual_time.run(scenario())


def test_ends_are_told_by_why():
    async def scenario():
        async with desk() as one:
            await one.end((await one.create(wish())).id)
            await one.create(wish())
            await asyncio.sleep(BASE.idle_s + 1)
            ends = one.counts.tally
            assert ends.value(ENDED, "asked") == 1
            assert ends.value(ENDED, "nobody used it") == 1

    virtual_time.run(scenario())


def test_a_page_names_every_family_before_anything_has_happened():
    async def scenario():
        async with desk() as one:
            page = {family.name: family for family in GatewayMetrics().collect(one.states(), one.counts)}
            assert set(page) == {
                family.name.removesuffix("_total") if family.kind == "counter" else family.name for family in FAMILIES
            }
            assert told(one)[SLEPT.name, "frozen"] == 0

    virtual_time.run(scenario())
