"""What the desk promises: sessions are made, kept, woken and ended in time, and nothing is left behind. In virtual time."""

import asyncio
import gc
import re
from dataclasses import replace

import msgspec
import pytest
import structlog
import structlog.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.agents.node_contract import Forked, ForkedChild
from hekla.kube.clock import LoopClock
from hekla.sandbox.link import LinkError, UnansweredError, UnsupportedError
from hekla.sandbox.sessions import departed
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError, SessionLimits
from hekla.sandbox.sessions.making import BURST, LINGERS_ALONE_S, LINGERS_S
from hekla.sandbox.sessions.network import NOBODY
from hekla.sandbox.sessions.records import OnTimeout, Session, SessionKind, Sight
from hekla.sandbox.sessions.stock import Blueprint, StockError
from hekla.sandbox.sessions.store import MemoryStore, StoreUnavailableError
from hekla.testing import virtual_time
from hekla.testing.paper_sandboxes import PaperSandboxes
from sandbox.sessions.deskkit import BASE, desk, e2b_wish, wish

LATE_S = 0.2
"""How late an end may be."""
ROUNDING_S = 1e-6
"""What a time since 1970 loses as a float."""


async def gone(one, session):
    """When it was gone, in the loop's time."""
    ended = asyncio.get_running_loop().create_future()
    one.tell_ends(lambda who: who == session and not ended.done() and ended.set_result(None))
    await ended
    with pytest.raises(RefusedError):
        await one.find(session)
    return asyncio.get_running_loop().time()


def test_a_session_runs_in_a_sandbox_of_its_own_and_ends_with_it():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            first, second = await one.create(wish()), await one.create(wish())
            assert first.state is State.RUNNING
            assert {box.claim.session for box in sandboxes.sandboxes.values()} == {first.id, second.id}
            assert len({first.id, second.id, first.access_token, second.access_token}) == 4
            await one.end(first.id)
            assert [box.claim.session for box in sandboxes.sandboxes.values()] == [second.id]
            with pytest.raises(RefusedError, match="not found"):
                await one.find(first.id)
            assert [row.id for row in await one.listed(None)] == [second.id]

    virtual_time.run(scenario())


class OlderSandboxes(PaperSandboxes):
    """Daemons of a version that knows of no secret to sign tokens with."""

    async def claim(self, namespace, pod, claim):
        return msgspec.structs.replace(await super().claim(namespace, pod, claim), takes_key=False)


def test_each_claim_has_a_secret_of_its_own_that_its_row_knows_if_the_daemon_took_it():
    async def scenario(sandboxes, *, is_taken):
        async with desk(sandboxes) as one:
            made = [await one.create(wish()) for _ in range(2)]
            keys = [sandboxes.found(row.pod).claim.token_key for row in made]
            assert len(set(keys)) == 2
            assert {len(key) for key in keys} == {64}
            assert [row.token_key for row in made] == (keys if is_taken else ["", ""])
            await one.pause(made[0].id, keeps_memory=False)
            woken = await one.wake(made[0].id)  # in another sandbox, by another claim
            again = sandboxes.found(woken.pod).claim.token_key
            assert again not in keys
            assert woken.token_key == (again if is_taken else "")

    virtual_time.run(scenario(PaperSandboxes([BASE]), is_taken=True))
    virtual_time.run(scenario(OlderSandboxes([BASE]), is_taken=False))


def test_a_daemon_that_asks_for_no_token_gets_no_secret():
    async def scenario():
        sandboxes = PaperSandboxes([replace(BASE, is_checked=False)])
        async with desk(sandboxes) as one:
            row = await one.create(wish())
            assert (row.token_key, sandboxes.found(row.pod).claim.token_key) == ("", "")

    virtual_time.run(scenario())


def test_somebody_elses_session_is_not_found():
    async def scenario():
        async with desk() as one:
            session = await one.create(wish())
            for call in (one.find, one.end, one.freeze, one.pause, one.usage):
                with pytest.raises(RefusedError) as refusal:
                    await call(session.id, "mallory")
                assert refusal.value.status == 404
            assert await one.listed("mallory") == []

    virtual_time.run(scenario())


@given(st.floats(0.2, 7200.0))
@settings(max_examples=30, deadline=None)
def test_a_time_that_is_over_ends_the_session_at_most_a_fifth_of_a_second_late(timeout_s):
    async def scenario():
        async with desk() as one:
            began = asyncio.get_running_loop().time()
            session = await one.create(e2b_wish(timeout_s=timeout_s))
            took_s = await gone(one, session.id) - began
            assert timeout_s - ROUNDING_S <= took_s <= timeout_s + LATE_S

    virtual_time.run(scenario())


def test_idleness_ends_a_session_but_not_while_a_request_runs():
    async def scenario():
        async with desk() as one:
            session = await one.create(wish())
            one.enter(session)
            await asyncio.sleep(10 * BASE.idle_s)  # a request that outlives the idle time ten times over
            assert (await one.find(session.id)).state is State.RUNNING
            one.leave(session)
            left = asyncio.get_running_loop().time()
            with structlog.testing.capture_logs() as said:
                assert BASE.idle_s - ROUNDING_S <= await gone(one, session.id) - left <= BASE.idle_s + LATE_S
            assert [event["why"] for event in said if event["event"] == "session ends"] == ["nobody used it"]

    virtual_time.run(scenario())


def test_who_owned_a_session_that_ended_by_itself_learns_when_and_why_and_nobody_else_does(monkeypatch):
    monkeypatch.setattr(departed, "KEPT_S", 100.0)

    async def scenario():
        async with desk() as one:
            idle, timed, asked = [await one.create(wish(owner="ann", **more)) for more in ({}, {"timeout_s": 5.0}, {})]
            await one.end(asked.id)
            await gone(one, timed.id)
            await gone(one, idle.id)

            async def told(session, owner):
                with pytest.raises(RefusedError) as refusal:
                    await one.find(session.id, owner)
                assert (refusal.value.status, refusal.value.reason) == (404, "session_not_found")
                return refusal.value.sentence.removeprefix(f'session "{session.id}" not found')

            for owner in ("ann", Sight.ALL):
                assert re.fullmatch(r": it ended at \S+T\S+Z: nobody used it", await told(idle, owner))
                assert re.fullmatch(r": it ended at \S+T\S+Z: its time is over", await told(timed, owner))
            assert (
                await told(asked, "ann")
                == await told(idle, "bob")
                == await told(timed, "bob")
                == await told(idle, None)
                == ""
            )
            await asyncio.sleep(101.0)
            assert await told(idle, "ann") == ""

    virtual_time.run(scenario())


def test_of_sessions_that_ended_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(departed, "MOST", 3)
    known = departed.Departed()
    rows = [Session(id=f"s{n}", kind="", namespace="", name="", owner="ann") for n in range(5)]
    for row in rows:
        known.add(row, "w" * 1000, 1.0)
    assert [bool(known.sentence(row.id, "ann", 1.0)) for row in rows] == [False, False, True, True, True]
    assert len(known.sentence("s4", "ann", 1.0)) < 400
    known.add(rows[0], "why", 2.0 + departed.KEPT_S)
    assert len(known) == 1


def test_idle_times_below_a_minute_hold_and_a_hundred_patient_sessions_do_not_hide_one():
    async def scenario():
        quick = Blueprint(kind=BASE.kind, namespace="default", name="quick", idle_s=1.0)
        slow = Blueprint(kind=BASE.kind, namespace="default", name="slow", idle_s=8 * 3600.0, life_s=0.0)
        async with desk(PaperSandboxes([quick, slow]), limits=SessionLimits(per_owner=200)) as one:
            for _ in range(100):
                await one.create(wish(name="slow"))
            session = await one.create(wish(name="quick"))
            began = asyncio.get_running_loop().time()
            assert await gone(one, session.id) - began <= 1.0 + LATE_S
            assert len(await one.listed(None)) == 100

    virtual_time.run(scenario())


def test_use_keeps_a_session_until_its_longest_life():
    async def scenario():
        async with desk() as one:
            began = asyncio.get_running_loop().time()
            session = await one.create(wish())

            async def use():
                while True:
                    one.enter(session)
                    one.leave(session)
                    await asyncio.sleep(BASE.idle_s / 2)

            using = asyncio.create_task(use())
            took_s = await gone(one, session.id) - began
            using.cancel()
            assert BASE.life_s - ROUNDING_S <= took_s <= BASE.life_s + LATE_S

    virtual_time.run(scenario())


def test_a_timeout_is_set_anew_and_a_refresh_never_shortens():
    async def scenario():
        async with desk() as one:
            session = await one.create(e2b_wish(timeout_s=300.0))
            assert (await one.set_timeout(session.id, "alice", 10.0, shortens=False)).expires_s == session.expires_s
            assert (await one.set_timeout(session.id, "alice", 10.0)).expires_s < session.expires_s
            longer = await one.set_timeout(session.id, "alice", 500.0, shortens=False)
            assert longer.expires_s > session.expires_s
            with pytest.raises(RefusedError, match="must lie between"):
                await one.set_timeout(session.id, "alice", 10**9)

    virtual_time.run(scenario())


def test_a_clock_that_jumps_ends_nothing_early():
    async def scenario():
        clock = LoopClock()
        async with desk(clock=clock) as one:
            session = await one.create(e2b_wish(timeout_s=300.0))
            clock.skew_s = 3600.0  # somebody sets the machine's clock
            await asyncio.sleep(200.0)
            assert (await one.find(session.id)).state is State.RUNNING
            clock.skew_s = -3600.0
            began = asyncio.get_running_loop().time()
            assert await gone(one, session.id) - began <= 100.0 + LATE_S

    virtual_time.run(scenario())


def test_a_pause_on_timeout_keeps_the_session_and_a_connect_wakes_it():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(e2b_wish(timeout_s=5.0, on_timeout=OnTimeout.PAUSE))
            await asyncio.sleep(5.0 + LATE_S)
            assert (await one.find(session.id)).state is State.PAUSED
            assert [box.is_frozen for box in sandboxes.sandboxes.values()] == [True]
            await asyncio.sleep(24 * 3600.0)
            assert (await one.wake(session.id)).state is State.RUNNING
            assert [box.is_frozen for box in sandboxes.sandboxes.values()] == [False]

    virtual_time.run(scenario())


def test_a_pause_without_memory_gives_the_sandbox_back_and_resumes_with_the_same_credentials():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(e2b_wish())
            next(iter(sandboxes.sandboxes.values())).files["a"] = 1
            paused = await one.pause(session.id, keeps_memory=False)
            assert (paused.state, sandboxes.sandboxes) == (State.PAUSED, {})
            assert len(sandboxes.checkpoints) == 1
            woken = await one.wake(session.id)
            assert (woken.id, woken.access_token) == (session.id, session.access_token)
            assert woken.sandbox_uid != session.sandbox_uid
            assert [box.files for box in sandboxes.sandboxes.values()] == [{"a": 1}]
            assert sandboxes.checkpoints == {}

    virtual_time.run(scenario())


def test_an_idle_session_freezes_and_those_who_wake_it_wait_together():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        steps = []
        sandboxes.before = steps.append
        async with desk(sandboxes) as one:
            session = await one.create(wish(freeze_s=5.0))
            await asyncio.sleep(5.0 + LATE_S)
            assert (await one.find(session.id)).state is State.FROZEN
            woken = await asyncio.gather(*(one.wake(session.id) for _ in range(20)))
            assert {row.state for row in woken} == {State.RUNNING}
            assert steps.count("thaw") == 1

    virtual_time.run(scenario())


@pytest.mark.parametrize("sleep", ["freeze", "pause"])
def test_a_session_whose_node_was_killed_while_it_froze_it_is_woken_by_the_next_request(sleep):
    """It counted as running and stood still, and whoever asked it was told to thaw it first."""

    async def scenario():
        sandboxes = PaperSandboxes([BASE])

        def fall_silent(step):
            if step == "frozen":
                raise UnansweredError('node "n" does not answer')

        async with desk(sandboxes) as one:
            session = await one.create(wish())
            sandboxes.before = fall_silent
            with pytest.raises(RefusedError, match="does not answer"):
                await getattr(one, sleep)(session.id)
            sandboxes.before = lambda step: None
            assert (await one.wake(session.id)).state is State.RUNNING
            assert not next(iter(sandboxes.sandboxes.values())).is_frozen

    virtual_time.run(scenario())


def test_what_is_mended_at_a_start_does_not_stop_what_was_woken_meanwhile():
    async def scenario():
        sandboxes, store = PaperSandboxes([BASE]), MemoryStore()
        async with desk(sandboxes, store) as one:
            session = await one.create(wish())
            await one.freeze(session.id)
        async with desk(sandboxes, store) as one:
            await one.wake(session.id)
            await asyncio.sleep(5.0)
            assert (await one.find(session.id)).state is State.RUNNING
            assert not next(iter(sandboxes.sandboxes.values())).is_frozen

    virtual_time.run(scenario())


def test_a_runtime_that_cannot_freeze_is_asked_once():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])

        def refuse(step):
            if step == "freeze":
                raise UnsupportedError("this runtime cannot freeze")

        sandboxes.before = refuse
        async with desk(sandboxes) as one:
            session = await one.create(wish(freeze_s=1.0))
            await asyncio.sleep(10.0)
            found = await one.find(session.id)
            assert (found.state, found.freeze_s) == (State.RUNNING, 0.0)
            with pytest.raises(RefusedError, match="cannot freeze") as refusal:
                await one.pause(session.id)
            assert refusal.value.status == 409
            assert (await one.find(session.id)).state is State.RUNNING

    virtual_time.run(scenario())


def test_an_owner_has_so_many_sessions_and_room_for_ten_serves_ten_of_a_thousand():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        sandboxes.room, sandboxes.takes_s = 10, 1.0
        async with desk(sandboxes, limits=SessionLimits(per_owner=500)) as one:
            made = await asyncio.gather(*(one.create(wish()) for _ in range(1000)), return_exceptions=True)
            await asyncio.sleep(1.0)
            refused = [one for one in made if isinstance(one, RefusedError)]
            assert len(refused) == 990
            assert {refusal.reason for refusal in refused} == {"no_room", "owner_limit"}
            assert len(await one.listed(None)) == len(sandboxes.sandboxes) == 10
            first = (await one.listed(None))[0]
            await one.end(first.id)
            assert (await one.create(wish())).state is State.RUNNING

    virtual_time.run(scenario())


def test_the_same_key_asked_twice_at_once_makes_one_session():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        sandboxes.takes_s = 1.0
        async with desk(sandboxes) as one:
            wished = e2b_wish(idempotency_key="k")
            made = await asyncio.gather(*(one.create(wished) for _ in range(5)))
            assert len({row.id for row in made}) == 1
            assert {row.state for row in made} == {State.RUNNING}
            assert len(sandboxes.sandboxes) == 1
            other = await one.create(e2b_wish(idempotency_key="k", owner="bob"))
            assert other.id != made[0].id

    virtual_time.run(scenario())


def test_the_desk_is_in_a_hurry_as_long_as_somebody_waits_for_a_session():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        sandboxes.takes_s = 1.0
        async with desk(sandboxes) as one:
            assert not one.is_making
            asked = [asyncio.ensure_future(one.create(wish())) for _ in range(2)]
            await asyncio.sleep(0.5)
            assert one.is_making
            await asked[0]
            await asked[1]
            await asyncio.sleep(LINGERS_ALONE_S + ROUNDING_S)
            assert not one.is_making
            late = asyncio.ensure_future(one.create(wish()))
            await asyncio.sleep(0.5)
            late.cancel()
            await asyncio.sleep(0.1)
            assert not one.is_making, "who left does not wait"
            with pytest.raises(RefusedError):
                await one.create(wish(name="unknown"))
            await asyncio.sleep(LINGERS_ALONE_S + ROUNDING_S)
            assert not one.is_making

    virtual_time.run(scenario())


def test_after_a_burst_its_first_requests_come_before_what_nobody_waits_for_and_after_one_session_its_first():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        sandboxes.takes_s = 0.1
        async with desk(sandboxes) as one:
            await asyncio.gather(*(one.create(wish()) for _ in range(BURST - 1)))
            assert one.is_making
            await asyncio.sleep(LINGERS_ALONE_S + ROUNDING_S)
            assert not one.is_making
            await asyncio.gather(*(one.create(wish()) for _ in range(BURST)))
            assert one.is_making
            await asyncio.sleep(LINGERS_S + ROUNDING_S)
            assert not one.is_making
            await one.create(wish())
            await asyncio.sleep(LINGERS_ALONE_S + ROUNDING_S)
            assert not one.is_making, "the burst is forgotten"
            assert one.was_making(0.25)
            await asyncio.sleep(0.25)
            assert not one.was_making(0.25)

    virtual_time.run(scenario())


def test_a_caller_who_leaves_leaves_nothing_behind():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        sandboxes.takes_s = 10.0
        async with desk(sandboxes) as one:
            asking = asyncio.create_task(one.create(wish()))
            await asyncio.sleep(5.0)
            asking.cancel()
            await asyncio.sleep(60.0)
            assert (sandboxes.sandboxes, await one.listed(None)) == ({}, [])

    virtual_time.run(scenario())


def test_a_sandbox_that_is_ready_too_late_is_refused_and_given_back():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        sandboxes.takes_s = 130.0
        async with desk(sandboxes) as one:
            with pytest.raises(RefusedError, match="timed out") as refusal:
                await one.create(wish())
            assert refusal.value.status == 504
            await asyncio.sleep(60.0)
            assert (sandboxes.sandboxes, await one.listed(None)) == ({}, [])

    virtual_time.run(scenario())


def test_a_sandbox_that_a_quota_refuses_is_waited_for_and_then_refused_in_the_servers_words():
    """On a real cluster who met a full quota heard after two minutes that creation had timed out, and nothing of the quota."""

    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        sandboxes.takes_s = 130.0
        sandboxes.refuses = (
            'pods "base-1" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
        )
        async with desk(sandboxes) as one:
            with pytest.raises(RefusedError, match="exceeded quota: q") as refusal:
                await one.create(wish())
            assert (refusal.value.status, refusal.value.reason) == (429, "quota")
            sandboxes.refuses = 'admission webhook "x" denied the request'
            with pytest.raises(RefusedError, match="timed out: admission webhook") as refusal:
                await one.create(wish())
            assert refusal.value.status == 504

    virtual_time.run(scenario())


def test_what_begins_with_a_checkpoint_is_made_where_it_lies():
    """On a cluster of two nodes every other one began on the node without it, again and again until its time was over."""

    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(e2b_wish())
            sandboxes.places[session.pod] = "n1"  # the node's name of then
            snapshot = await one.snapshot(session.id, "alice")
            sandboxes.checkpoint_nodes[snapshot.checkpoint] = "n2"
            await one.create(replace(e2b_wish(), snapshot=snapshot))
            assert (sandboxes.asked_nodes, sandboxes.likely_nodes) == (["n2"], ["n1"])
            paused = await one.pause(session.id, keeps_memory=False)
            sandboxes.checkpoint_nodes[paused.checkpoint] = "n3"
            await one.wake(session.id)
            assert sandboxes.asked_nodes == ["n2", "n3"]
            assert sandboxes.likely_nodes == ["n1", "n1", "n1"], "looked for, and dropped when it is used up"

    virtual_time.run(scenario())


def test_a_session_whose_used_up_checkpoint_cannot_be_dropped_runs():
    class Away(PaperSandboxes):
        async def drop_checkpoint(self, checkpoint, likely=""):
            raise LinkError("its node does not answer")

    async def scenario():
        async with desk(Away([BASE])) as one:
            session = await one.create(e2b_wish())
            await one.pause(session.id, keeps_memory=False)
            awake = await one.wake(session.id)
            assert (awake.state, awake.checkpoint) == (State.RUNNING, "")

    virtual_time.run(scenario())


def test_a_snapshot_is_there_until_its_checkpoint_is_dropped():
    """Its row went first: of a node that was silent just then nobody asked for the checkpoint again, and it was kept for good."""

    class Silent(PaperSandboxes):
        is_silent = True

        async def drop_checkpoint(self, checkpoint, likely=""):
            if self.is_silent:
                raise LinkError("its node does not answer")
            await super().drop_checkpoint(checkpoint, likely)

    async def scenario():
        sandboxes = Silent([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(e2b_wish())
            snapshot = await one.snapshot(session.id, "alice")
            with pytest.raises(RefusedError, match="its node does not answer") as refused:
                await one.delete_snapshot(snapshot)
            assert refused.value.status == 502
            assert await one.snapshots("alice") == [snapshot]
            sandboxes.is_silent = False
            await one.delete_snapshot(snapshot)
            assert await one.snapshots("alice") == []

    virtual_time.run(scenario())


def test_forks_are_sessions_of_their_own_with_fresh_credentials():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            parent = await one.create(e2b_wish())
            sandboxes.found(parent.pod).files["x"] = 1
            children = await one.fork(parent.id, "alice", 3, e2b_wish())
            tokens = {row.access_token for row in (parent, *children)}
            assert (len(tokens), len({row.id for row in children})) == (4, 3)
            assert {row.parent for row in children} == {parent.id}
            assert {row.lineage for row in children} == {(parent.sandbox_uid,)}
            assert all(sandboxes.found(row.pod).files == {"x": 1} for row in children)
            assert (await one.find(parent.id)).expires_s == parent.expires_s
            with pytest.raises(RefusedError, match="ask for 1 to"):
                await one.fork(parent.id, "alice", 0, e2b_wish())

    virtual_time.run(scenario())


def test_a_frozen_session_wakes_for_its_fork_and_one_that_is_paused_without_its_sandbox_is_not_forked():
    async def scenario():
        async with desk(PaperSandboxes([BASE])) as one:
            parent = await one.create(e2b_wish())
            await one.freeze(parent.id)
            (copy,) = await one.fork(parent.id, "alice", 1, e2b_wish())
            assert {row.state for row in (copy, await one.find(parent.id))} == {State.RUNNING}
            await one.pause(parent.id, keeps_memory=False)
            with pytest.raises(RefusedError, match="is paused and cannot be forked") as refusal:
                await one.fork(parent.id, "alice", 1, e2b_wish())
            assert refusal.value.status == 409

    virtual_time.run(scenario())


@pytest.mark.parametrize("keeps_memory", [True, False])
def test_a_session_that_falls_asleep_before_its_fork_has_its_turn_is_not_forked_and_nothing_is_made(keeps_memory):
    class Slow(PaperSandboxes):
        async def checkpoint(self, namespace, pod, order):
            await asyncio.sleep(5.0)
            return await super().checkpoint(namespace, pod, order)

    async def scenario():
        sandboxes = Slow([BASE])
        async with desk(sandboxes) as one:
            parent = await one.create(e2b_wish())
            writing = asyncio.create_task(one.snapshot(parent.id, "alice"))
            await asyncio.sleep(1.0)
            pausing = asyncio.create_task(one.pause(parent.id, keeps_memory=keeps_memory))
            forking = asyncio.create_task(one.fork(parent.id, "alice", 2, e2b_wish()))
            await writing
            with pytest.raises(RefusedError, match="is paused and cannot be forked"):
                await forking
            await pausing
            assert [row.id for row in await one.listed(None)] == [parent.id]
            assert len(sandboxes.sandboxes) == keeps_memory

    virtual_time.run(scenario())


def test_who_asks_a_copy_that_is_being_filled_waits_for_it():
    class Slow(PaperSandboxes):
        async def fork(self, namespace, pod, children):
            await asyncio.sleep(5.0)
            return await super().fork(namespace, pod, children)

    async def scenario():
        async with desk(Slow([BASE])) as one:
            parent = await one.create(e2b_wish())
            forking = asyncio.create_task(one.fork(parent.id, "alice", 1, e2b_wish()))
            await asyncio.sleep(1.0)
            (copy,) = [row for row in await one.listed(None) if row.id != parent.id]
            assert copy.state is State.CREATING
            assert (await one.wake(copy.id)).state is State.RUNNING
            assert [row.id for row in await forking] == [copy.id]

    virtual_time.run(scenario())


def test_a_copy_for_which_its_parents_node_has_no_room_says_so():
    """It was only that a pod does not run there after 15 s; the parent's node was cordoned."""

    class Cordoned(PaperSandboxes):
        async def fork(self, namespace, pod, children):
            self.refuses = "no node takes its pod: 0/2 nodes are available: 1 node(s) were unschedulable."
            named = await children
            return Forked(
                children=[ForkedChild(uid=one.uid, error="does not run here") for one in named],
                paused_us=1,
                left_out=[],
            )

    async def scenario():
        async with desk(Cordoned([BASE])) as one:
            parent = await one.create(e2b_wish())
            (copy,) = await one.fork(parent.id, "alice", 1, e2b_wish())
            assert copy.sentence == (
                "the copy failed: does not run here: no node takes its pod: 0/2 nodes are available: 1 node(s) were unschedulable."
            )

    virtual_time.run(scenario())


def test_the_desk_is_in_a_hurry_while_somebody_waits_for_copies():
    class Watched(PaperSandboxes):
        async def fork(self, namespace, pod, children):
            seen.append(one_desk[0].is_making)
            return await super().fork(namespace, pod, children)

    seen, one_desk = [], []

    async def scenario():
        async with desk(Watched([BASE])) as one:
            one_desk.append(one)
            parent = await one.create(e2b_wish())
            await asyncio.sleep(LINGERS_ALONE_S + ROUNDING_S)
            await one.fork(parent.id, "alice", 2, e2b_wish())
            await asyncio.sleep(LINGERS_ALONE_S + ROUNDING_S)
            assert (seen, one.is_making) == ([True], False)

    virtual_time.run(scenario())


def test_the_parent_is_asked_to_pack_while_its_copies_are_being_made():
    class Watched(PaperSandboxes):
        async def fork(self, namespace, pod, children):
            seen.append("packs")
            return await super().fork(namespace, pod, children)

        async def take_forks(self, orders):
            await asyncio.sleep(1.0)
            seen.append("named")
            return await super().take_forks(orders)

    seen = []

    async def scenario():
        async with desk(Watched([BASE])) as one:
            parent = await one.create(e2b_wish())
            await one.fork(parent.id, "alice", 2, e2b_wish())
            assert seen == ["packs", "named"]

    virtual_time.run(scenario())


def test_who_cannot_be_copied_is_told_so_whoever_of_both_fails(caplog):
    class Broken(PaperSandboxes):
        async def fork(self, namespace, pod, children):
            if "node" in broken:
                raise LinkError("the parent does not answer")
            return await super().fork(namespace, pod, children)

        async def take_forks(self, orders):
            await asyncio.sleep(1.0)
            if "stock" in broken:
                raise StockError(429, "quota", "no room for copies")
            return await super().take_forks(orders)

    broken = set()

    async def scenario():
        async with desk(Broken([BASE])) as one:
            parent = await one.create(e2b_wish())
            for broken_now, told in (
                ({"node"}, "does not answer"),
                ({"node", "stock"}, "no room"),
                ({"stock"}, "no room"),
            ):
                broken.clear()
                broken.update(broken_now)
                with pytest.raises(RefusedError, match=told):
                    await one.fork(parent.id, "alice", 2, e2b_wish())
                await asyncio.sleep(1.0)
                assert [row.id for row in await one.listed(None)] == [parent.id]

    virtual_time.run(scenario())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_copies_that_the_disk_refuses_are_not_waited_for_and_nothing_of_them_stays():
    class Refused(PaperSandboxes):
        async def fork(self, namespace, pod, children):
            await asyncio.sleep(15.0)  # their pods never run
            return await super().fork(namespace, pod, children)

        async def settled(self, held):
            if len(self.sandboxes) > 1:
                raise StockError(503, "api_server", "the disk is full")

    async def scenario():
        async with desk(Refused([BASE])) as one:
            parent = await one.create(e2b_wish())
            began = asyncio.get_running_loop().time()
            with pytest.raises(RefusedError, match="the disk is full"):
                await one.fork(parent.id, "alice", 2, e2b_wish())
            assert asyncio.get_running_loop().time() - began < 1.0
            await asyncio.sleep(1.0)
            assert [row.id for row in await one.listed(None)] == [parent.id]

    virtual_time.run(scenario())


@pytest.mark.parametrize("is_warm", [False, True], ids=["made anew", "out of the pool"])
@pytest.mark.parametrize("while_it_is", ["taken", "filled"])
@pytest.mark.parametrize("ended", [1, 3])
def test_a_copy_that_is_ended_on_its_way_takes_no_sibling_with_it_and_leaves_nothing(while_it_is, is_warm, ended):
    class Slow(PaperSandboxes):
        async def fork(self, namespace, pod, children):
            await children
            if while_it_is == "filled":
                await asyncio.sleep(5.0)
            return await super().fork(namespace, pod, children)

        async def take_forks(self, orders):
            if while_it_is == "taken":
                await asyncio.sleep(5.0)
            return [replace(held, is_warm=is_warm) for held in await super().take_forks(orders)]

    async def scenario():
        sandboxes = Slow([BASE])
        async with desk(sandboxes) as one:
            parent = await one.create(e2b_wish())
            forking = asyncio.create_task(one.fork(parent.id, "alice", 3, e2b_wish()))
            await asyncio.sleep(1.0)
            copies = [row.id for row in await one.listed(None) if row.id != parent.id]
            others = copies[ended:]
            for copy in copies[:ended]:
                await one.end(copy, "alice")
            told = await forking
            refused = [one for one in told if isinstance(one, RefusedError)]
            assert [(one.status, str(one)) for one in refused] == [(404, "the session was ended meanwhile")] * ended
            assert {row.id for row in told if row not in refused} == set(others)
            await asyncio.sleep(1.0)
            assert {row.id for row in await one.listed(None)} == {parent.id, *others}
            assert len(sandboxes.sandboxes) == 1 + len(others)

    virtual_time.run(scenario())


def test_of_a_session_that_the_disk_wrote_down_and_then_refused_nothing_stays():
    class FailsLate(MemoryStore):
        fails_after: int = 1000

        async def update(self, row):
            written = await super().update(row)
            if row.state is State.RUNNING:
                self.fails_after -= 1
                if self.fails_after < 0:
                    self.fails_after = 1000
                    raise StoreUnavailableError("the disk is broken")
            return written

    async def scenario():
        sandboxes, store = PaperSandboxes([BASE]), FailsLate()
        async with desk(sandboxes, store) as one:
            parent = await one.create(e2b_wish())
            for copies_that_run, failing in (
                (0, lambda: one.create(e2b_wish())),
                (1, lambda: one.fork(parent.id, "alice", 2, e2b_wish())),
            ):
                store.fails_after = copies_that_run
                with pytest.raises(RefusedError, match="the disk is broken"):
                    await failing()
                await asyncio.sleep(1.0)
                assert [row.id for row in await store.all()] == [parent.id]
                assert len(sandboxes.sandboxes) == 1

    virtual_time.run(scenario())


def test_forks_count_towards_their_owners_limit_before_anything_is_made():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes, limits=SessionLimits(per_owner=3)) as one:
            parent = await one.create(e2b_wish())
            with pytest.raises(RefusedError, match="at most 3 sessions"):
                await one.fork(parent.id, "alice", 3, e2b_wish())
            assert len(sandboxes.sandboxes) == 1

    virtual_time.run(scenario())


def test_a_session_whose_sandbox_is_gone_ends_when_that_shows():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(wish(freeze_s=5.0))
            sandboxes.sandboxes.clear()  # the node died
            await asyncio.sleep(30.0)
            with pytest.raises(RefusedError):
                await one.find(session.id)

    virtual_time.run(scenario())


def test_an_end_that_fails_is_tried_until_it_is_done():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        failures = iter([True] * 5)

        def fail(step):
            if step == "drop" and next(failures, False):
                from hekla.sandbox.sessions.stock import StockError

                raise StockError(503, "api_server", "the API server does not answer")

        sandboxes.before = fail
        store = MemoryStore()
        async with desk(sandboxes, store) as one:
            session = await one.create(wish())
            await one.end(session.id)
            with pytest.raises(RefusedError):
                await one.find(session.id)
            await asyncio.sleep(10.0)
            assert sandboxes.sandboxes == {}
            assert await store.all() == []

    virtual_time.run(scenario())


def test_a_session_that_was_paused_because_its_time_was_over_lives_its_time_again_when_woken():
    async def scenario():
        async with desk() as one:
            session = await one.create(e2b_wish(timeout_s=5.0, on_timeout=OnTimeout.PAUSE))
            await asyncio.sleep(100.0)
            await one.wake(session.id)
            await asyncio.sleep(4.0)
            assert (await one.find(session.id)).state is State.RUNNING
            await asyncio.sleep(1.0 + LATE_S)
            assert (await one.find(session.id)).state is State.PAUSED

    virtual_time.run(scenario())


@pytest.mark.parametrize("sleep", ["", "freeze", "pause"])
def test_a_session_whose_container_was_started_anew_is_gone_and_not_empty(sleep):
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            lost, kept = await one.create(wish()), await one.create(wish())
            if sleep:
                await getattr(one, sleep)(lost.id)
            ended = asyncio.create_task(gone(one, lost.id))
            await asyncio.sleep(0)
            sandboxes.start_anew(lost.pod)
            await ended
            assert [box.held.session for box in sandboxes.sandboxes.values()] == [kept.id], "its sandbox was given back"
            assert (await one.find(kept.id)).state is State.RUNNING

    virtual_time.run(scenario())


def test_an_agent_whose_own_server_was_started_anew_keeps_its_session():
    async def scenario():
        agent = Blueprint(kind=SessionKind.RUNTIME, namespace="default", name="agent")
        sandboxes = PaperSandboxes([agent])
        async with desk(sandboxes) as one:
            session = await one.create(wish(kind=SessionKind.RUNTIME, name="agent"))
            sandboxes.start_anew(session.pod)
            assert await one.sweep(is_start=True) == 0
            assert (await one.find(session.id)).state is State.RUNNING

    virtual_time.run(scenario())


def test_whose_sandbox_ran_out_of_memory_is_told_so_by_its_nodes_sentence():
    """It stood in the pod's status alone, which an agent's developer does not see."""

    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(wish(owner="ann"))
            sandboxes.start_anew(session.pod, "it held 300 MiB of memory, its limit is 256 MiB")
            await gone(one, session.id)
            with pytest.raises(RefusedError, match="its limit is 256 MiB"):
                await one.find(session.id, "ann")
            with pytest.raises(RefusedError) as refused:
                await one.find(session.id, "bob")
            assert "MiB" not in refused.value.sentence

    virtual_time.run(scenario())


def test_a_container_that_was_started_anew_while_no_gateway_looked_is_found_by_the_next():
    async def scenario():
        sandboxes, store = PaperSandboxes([BASE]), MemoryStore()
        async with desk(sandboxes, store=store) as one:
            session = await one.create(wish())
        sandboxes.start_anew(session.pod)
        async with desk(sandboxes, store=store) as another:
            with pytest.raises(RefusedError, match="not found"):
                await another.find(session.id)
        assert not sandboxes.sandboxes

    virtual_time.run(scenario())


def test_whom_a_session_may_reach_changes_while_it_runs_and_stays_so_when_it_wakes():
    async def scenario():
        sandboxes = PaperSandboxes([BASE])
        async with desk(sandboxes) as one:
            session = await one.create(wish())
            changed = await one.restrict(session.id, "alice", {"allowOut": ["pypi.org"], "denyOut": ["0.0.0.0/0"]})
            assert sandboxes.sandboxes[session.pod].egress == "pypi.org"
            assert (await one.find(session.id)).network == changed.network
            await one.restrict(session.id, "alice", {"allowInternetAccess": False})
            assert sandboxes.sandboxes[session.pod].egress == NOBODY, "its way out leads nowhere, and may lead on again"
            with pytest.raises(RefusedError) as refusal:
                await one.restrict(session.id, "mallory", {})
            assert refusal.value.status == 404

    virtual_time.run(scenario())


@pytest.mark.parametrize("keeps_memory", [True, False])
def test_a_paused_session_sleeps_on_after_its_snapshot(keeps_memory):
    """It was left awake: its time ran from then on, and ended it."""

    async def scenario():
        async with desk(PaperSandboxes([BASE])) as one:
            session = await one.create(e2b_wish(timeout_s=60.0))
            await one.pause(session.id, keeps_memory=keeps_memory)
            snapshot = await one.snapshot(session.id, "alice")
            row = await one.find(session.id)
            assert (row.state, bool(row.checkpoint)) == (State.PAUSED, not keeps_memory)
            assert [known.id for known in await one.snapshots("alice")] == [snapshot.id]
            await asyncio.sleep(600.0)
            assert (await one.find(session.id)).state is State.PAUSED
            assert (await one.wake(session.id)).state is State.RUNNING

    virtual_time.run(scenario())
