"""Whether the lines of several processes are those of one router: one room, one use by user, one memory of sessions, each told within a tick."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from hekla.serving.router.endpoints import Fleet
from hekla.serving.router.fair_queue import Fairness, FairOrder
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.redis_bus import RedisBus
from hekla.serving.router.replicas import DatagramBus, Replicas
from hekla.serving.router.session_boost import BoostOrder, SessionBoost
from hekla.serving.router.settings import part_of_bounds
from hekla.serving.router.sharing import SILENT_S, Ledger
from serving.router import proxykit as kit
from serving.router.test_queues import Door, ask


class Process(Door):
    """One process: its lines, and a ledger that tells of them."""

    def __init__(self, name, order=None, room=4, family="one"):
        super().__init__(order or FairOrder(Fairness()), room)
        self.asked = {}
        self.ledger = Ledger(name, Fleet(), lambda _: (), family=family, turns=self.lines)

    def send(self, name, question, now=0.0):
        self.asked[name] = question
        return super().send(name, question, now)

    def finish(self, now=0.0, output=0):
        """The request that began first is over."""
        self.end(self.asked.pop(self.running.pop(0)), output, now)


def tell_all(processes, now=0.0):
    for one in processes:
        message = one.ledger.report(now)
        for other in processes if message is not None else ():
            other.ledger.take(message, now)
    for one in processes:
        one.lines.tick(now)


def family(*processes):
    tell_all(processes)
    tell_all(processes)  # who has come is told everything
    return processes


def running(processes):
    return [len(one.running) for one in processes]


def test_processes_share_the_room_of_the_engines_and_none_keeps_it_from_the_others():
    processes = one, other = family(Process("one"), Process("other"))
    for number in range(6):
        one.send(f"a{number}", ask())
    tell_all(processes, 0.1)
    for number in range(6):
        other.send(f"b{number}", ask())
    assert running(processes) == [4, 0], "there is no more room, whoever asks"
    tell_all(processes, 0.2)
    for number in range(2):
        one.finish()
        tell_all(processes, 0.3 + number)
    assert running(processes) == [2, 2], "places that come free go to the one that has less"
    one.finish()
    tell_all(processes, 3.0)
    assert running(processes) == [2, 2], "and then each keeps its part"


def test_a_user_who_used_much_in_one_process_comes_last_in_another():
    processes = one, other = family(Process("one"), Process("other", room=1))
    one.send("x", ask("ada", tokens=1000))
    tell_all(processes, 0.1)
    one.finish()
    tell_all(processes, 0.2)
    other.send("first", ask("eve", tokens=1))
    other.send("ada's", ask("ada", tokens=1), now=0.3)
    other.send("bob's", ask("bob", tokens=1), now=0.4)
    other.finish(now=0.5)
    assert other.running == ["bob's"]


def test_a_session_that_ended_in_one_process_goes_first_in_another():
    processes = one, other = family(
        Process("one", BoostOrder(SessionBoost())), Process("other", BoostOrder(SessionBoost()), room=1)
    )
    one.send("x", ask(session="s"))
    tell_all(processes, 0.1)
    one.finish(now=0.2)
    tell_all(processes, 0.2)
    other.send("now", ask())
    other.send("new", ask(session="t"), now=0.3)
    other.send("follow-up", ask(session="s"), now=0.4)
    other.finish(now=0.5)
    assert other.running == ["follow-up"]


def test_a_pace_that_an_operator_set_is_divided_among_the_processes():
    processes = [Process(name, FairOrder(Fairness(max_qps=10.0)), room=1000) for name in ("one", "other")]
    family(*processes)
    for one in processes:
        for number in range(20):
            one.send(f"{number}", ask())
    for tick in range(1, 51):
        for one in processes:
            one.lines.tick(tick * 0.02)
    assert 10 <= sum(running(processes)) <= 12, "ten in a second, and one at once in each"


def test_who_falls_silent_takes_no_room_with_it():
    processes = one, other = family(Process("one"), Process("other"))
    for number in range(4):
        one.send(f"a{number}", ask())
    tell_all(processes, 0.1)
    other.send("b", ask())
    assert other.running == []
    other.ledger.expire(0.2 + SILENT_S)
    other.lines.tick(0.2 + SILENT_S)
    assert other.running == ["b"]


def test_other_routers_have_lines_of_their_own():
    processes = one, other = family(Process("one"), Process("other", family="another"))
    for number in range(4):
        one.send(f"a{number}", ask("ada", tokens=1000))
        other.send(f"b{number}", ask())
    tell_all(processes, 0.1)
    assert running(processes) == [4, 4]


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["send", "finish", "tell"])), max_size=60),
)
def test_nobody_is_lost_and_the_room_is_kept_but_for_what_has_not_been_told(room, story):
    processes = family(*(Process(name, room=room) for name in ("a", "b", "c")))
    sent, over, now = 0, 0, 1.0
    for number, act in story:
        now += 0.05
        one = processes[number]
        if act == "send":
            sent += 1
            one.send(f"r{sent}", ask(f"u{sent % 3}"), now)
        elif act == "finish" and one.running:
            over += 1
            one.finish(now)
        elif act == "tell":
            tell_all(processes, now)
        assert sum(running(processes)) <= room * len(processes)
    while any(running(processes)):
        now += 0.05
        next(one for one in processes if one.running).finish(now)
        over += 1
        tell_all(processes, now)
        tell_all(processes, now)
    assert over == sent
    assert not any(one.refused for one in processes)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
def test_where_all_is_told_at_once_the_room_is_kept_to_the_request(room, story):
    processes = family(*(Process(name, room=room) for name in ("a", "b", "c")))
    for number, (at, is_new) in enumerate(story):
        one = processes[at]
        if is_new:
            one.send(f"r{number}", ask(), number * 0.05)
        elif one.running:
            one.finish(number * 0.05)
        message = one.ledger.report(number * 0.05)
        for other in processes if message is not None else ():
            other.ledger.take(message, number * 0.05)
        assert sum(running(processes)) <= room


async def ends_share(buses):
    """Over a real bus: what one process holds the other sees, and its place when it is free."""
    processes = one, other = Process("one", room=1), Process("other", room=1)
    loop = asyncio.get_running_loop()
    tasks = [
        asyncio.create_task(Replicas(process.ledger, bus, loop.time).run())
        for process, bus in zip(processes, buses, strict=True)
    ]

    async def until(is_so):
        async with asyncio.timeout(30):
            while not is_so():
                for process in processes:
                    process.lines.tick(loop.time())
                await asyncio.sleep(0.01)

    try:
        await until(lambda: all(process.ledger.peers for process in processes))
        one.send("a", ask("ada"), loop.time())
        await until(lambda: other.lines._elsewhere.get("llama") is not None)
        other.send("b", ask("bob"), loop.time())
        assert (one.running, other.running) == (["a"], [])
        one.finish(loop.time())
        await until(lambda: other.running == ["b"])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def patient(monkeypatch):
    """Nobody counts as silent, however busy the machine."""
    for module in ("sharing", "replicas"):
        monkeypatch.setattr(f"hekla.serving.router.{module}.SILENT_S", 600.0)


@pytest.mark.usefixtures("patient")
def test_processes_of_one_host_share_lines_without_any_server(tmp_path):
    kit.run(ends_share([DatagramBus(tmp_path, name) for name in ("one", "other")]))


@pytest.mark.usefixtures("patient")
def test_processes_share_lines_through_a_real_redis(redis):
    async def story():
        clients = [Redis.from_url(redis.url) for _ in range(2)]
        await ends_share([RedisBus(one) for one in clients])
        for one in clients:
            await one.aclose()

    kit.run(story())


def test_processes_of_one_router_divide_its_bounds_and_a_whole_body_fits_into_each_part():
    whole = Bounds()
    part = part_of_bounds(whole, 4)
    assert (part.connections, part.bodies_bytes) == (whole.connections // 4, whole.bodies_bytes // 4)
    assert part_of_bounds(whole, 32).bodies_bytes == whole.body_bytes
    assert part_of_bounds(whole, 1) is whole
