import asyncio
import random
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.errors import TransportError
from hekla.kube.in_process import InProcessTransport
from hekla.kube.leases import LeaderElector, LeaseTimes
from hekla.testing import virtual_time
from hekla.testing.flaky import FlakyTransport
from hekla.testing.server import api_server


class Candidate:
    def __init__(self, server, name, seed):
        self.flaky = FlakyTransport(InProcessTransport(server.handle))
        self.clock = LoopClock()
        self.elector = LeaderElector(
            ApiClient(self.flaky), namespace="default", name="boss", identity=name, clock=self.clock,
            dice=random.Random(seed),
        )  # fmt: skip
        self.terms = 0
        self.is_working = False

    async def lead(self):
        self.terms += 1
        self.is_working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False

    def start(self, tasks):
        return tasks.create_task(self.elector.run(self.lead))


async def never_both(candidates):
    while True:
        assert sum(candidate.elector.is_leader for candidate in candidates) <= 1, "two lead at once"
        assert sum(candidate.is_working for candidate in candidates) <= 1, "two work at once"
        await asyncio.sleep(0.1)


def run_with(count, scenario):
    async def main():
        async with api_server() as server:
            candidates = [Candidate(server, f"c{number}", number) for number in range(count)]
            async with asyncio.TaskGroup() as group:
                tasks = [candidate.start(group) for candidate in candidates]
                tasks.append(group.create_task(never_both(candidates)))
                await scenario(candidates, tasks)
                for task in tasks:
                    task.cancel()

    virtual_time.run(main())


async def leader_of(candidates):
    for _ in range(10_000):
        for candidate in candidates:
            if candidate.is_working:
                return candidate
        await asyncio.sleep(0.1)
    raise AssertionError("nobody leads")


def test_one_leads_and_keeps_leading():
    async def scenario(candidates, _):
        await asyncio.sleep(600)
        assert sorted(candidate.terms for candidate in candidates) == [0, 0, 1]

    run_with(3, scenario)


def test_a_leader_cut_off_from_the_server_stops_before_the_next_begins():
    async def scenario(candidates, _):
        first = await leader_of(candidates)
        first.flaky.is_away = True
        await asyncio.sleep(10.5)
        assert not first.elector.is_leader
        await asyncio.sleep(20)
        second = await leader_of(candidates)
        assert second is not first
        first.flaky.is_away = False
        await asyncio.sleep(60)
        assert second.is_working

    run_with(2, scenario)


def test_a_leader_that_ends_gives_the_lease_back_at_once():
    async def scenario(candidates, tasks):
        first = await leader_of(candidates)
        tasks[candidates.index(first)].cancel()
        await asyncio.sleep(3)
        assert await leader_of(candidates) is not first

    run_with(2, scenario)


def test_answers_that_are_lost_do_not_make_two_leaders():
    async def scenario(candidates, _):
        dice = random.Random(3)

        def lose(request):
            if dice.random() < 0.4:
                raise TransportError("the answer was lost")

        for candidate in candidates:
            candidate.flaky.after = lose
        await asyncio.sleep(3600)
        assert sum(candidate.terms for candidate in candidates) >= 1

    run_with(3, scenario)


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
def test_a_wall_clock_that_jumps_changes_nothing(jump_s):
    async def scenario(candidates, _):
        first = await leader_of(candidates)
        for candidate in candidates:
            candidate.clock.epoch += timedelta(seconds=jump_s)
        await asyncio.sleep(120)
        assert first.is_working
        assert first.terms == 1

    run_with(2, scenario)


def test_a_leader_renews_by_one_write_and_reads_only_where_somebody_else_has_written():
    async def scenario(candidates, _):
        first = await leader_of(candidates)
        first.flaky.requests.clear()
        await asyncio.sleep(60)
        assert {line.partition(" ")[0] for line in first.flaky.requests} == {"PATCH"}
        assert len(first.flaky.requests) == pytest.approx(30, abs=1)
        lease = first.elector._path
        noted = {"metadata": {"annotations": {"note": "x"}}}
        await candidates[1].elector._client.request("PATCH", lease, noted, content_type="application/merge-patch+json")
        await asyncio.sleep(60)
        assert first.terms == 1
        assert first.is_working

    run_with(2, scenario)


def test_a_candidate_says_once_behind_whom_it_waits():
    with capture_logs() as logged:

        async def scenario(candidates, tasks):
            first = await leader_of(candidates)
            await asyncio.sleep(60)
            tasks[candidates.index(first)].cancel()
            await asyncio.sleep(60)

        run_with(2, scenario)
    waiting = [(one["identity"], one["held_by"]) for one in logged if one["event"] == "waits for the lease"]
    assert len(waiting) == 1
    assert {*waiting[0]} == {"c0", "c1"}


def test_a_lease_that_was_deleted_by_hand_is_made_anew():
    async def scenario(candidates, _):
        first = await leader_of(candidates)
        await first.elector._client.request("DELETE", first.elector._path)
        await asyncio.sleep(60)
        assert first.terms == 1
        assert first.is_working

    run_with(1, scenario)


def test_a_lease_that_could_overlap_is_refused():
    with pytest.raises(ValueError, match="renewal < renew deadline < duration"):
        LeaseTimes(duration_s=10, renew_deadline_s=10)


def test_a_candidate_without_a_server_says_why_it_waits():
    async def scenario(candidates, tasks):
        [candidate] = candidates
        await asyncio.sleep(1)
        assert candidate.elector.trouble == ""
        candidate.flaky.is_away = True
        await asyncio.sleep(60)
        assert candidate.elector.trouble
        candidate.flaky.is_away = False
        await asyncio.sleep(60)
        assert candidate.elector.trouble == ""

    run_with(1, scenario)
