import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup
from hekla.kube.commands import Command, SetStatus, Target
from hekla.kube.errors import ApiError, ConflictError, KubeError, TransportError
from hekla.scheduler import writer as writer_module
from hekla.scheduler.writer import AT_ONCE, LONG_REST_S, PROMPT_PER_S, REST_S, StatusWriter
from hekla.testing import virtual_time


class SlowServer:
    """Carries out nothing until it is let go, and notes what it was asked, and how much at once."""

    def __init__(self) -> None:
        self.written: list[tuple[str, object]] = []
        self.at: list[float] = []
        """When each was written."""

        self.gate = asyncio.Event()
        self.at_once = self.most_at_once = 0
        self.fails = 0
        self.error: KubeError = TransportError("broken")

    async def run(self, commands: Sequence[Command]) -> list[object]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        if self.fails:
            self.fails -= 1
            raise self.error
        self.at.append(asyncio.get_running_loop().time())
        self.written += [(c.target.name, c.status) for c in commands if isinstance(c, SetStatus)]
        return []


def say(name: str, word: str) -> SetStatus:
    return SetStatus(Target(kind=Pod, name=name, namespace="default"), {"word": word})


async def settle(writer: StatusWriter) -> None:
    while not writer.is_idle:
        await asyncio.sleep(0.001)


def test_newer_words_are_merged_into_what_waits_and_never_overtakes_what_is_under_way() -> None:
    async def story() -> None:
        server = SlowServer()
        writer = StatusWriter(server)  # type: ignore[arg-type]  # the one call of an executor
        running = asyncio.create_task(writer.run())
        writer.tell([say("a", "one")])
        for _ in range(5):
            await asyncio.sleep(0)
        writer.tell([say("a", "two")])
        writer.tell([SetStatus(say("a", "").target, {"word": "three", "more": 1})])
        writer.tell([SetStatus(say("a", "").target, {"last": 2})])
        server.gate.set()
        await settle(writer)
        assert server.written == [("a", {"word": "one"}), ("a", {"word": "three", "more": 1, "last": 2})]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


def test_only_some_objects_are_written_at_once_and_a_failure_stops_nobody() -> None:
    async def story() -> None:
        server = SlowServer()
        server.fails = 3
        refused: list[str] = []
        writer = StatusWriter(server, on_refused=lambda target, _: refused.append(target.name))  # type: ignore[arg-type]  # the one call of an executor
        running = asyncio.create_task(writer.run())
        writer.tell(say(f"p{number}", "x") for number in range(200))
        for _ in range(10):
            await asyncio.sleep(0)
        server.gate.set()
        await settle(writer)
        assert len(server.written) == 197
        assert len(refused) == 3
        assert server.most_at_once == AT_ONCE
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


def told(name: str = "g", **status: object) -> SetStatus:
    return SetStatus(Target(kind=PodGroup, name=name, namespace="default"), status)


@asynccontextmanager
async def quick() -> AsyncIterator[tuple[SlowServer, StatusWriter]]:
    """A server that does not keep anybody waiting, and a writer that works."""
    server = SlowServer()
    server.gate.set()
    writer = StatusWriter(server)  # type: ignore[arg-type]  # the one call of an executor
    running = asyncio.create_task(writer.run())
    try:
        yield server, writer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def unschedulable(reason: str) -> list[object]:
    return [{"type": "Unschedulable", "status": "True", "reason": reason}]


@pytest.mark.parametrize(
    ("words", "rest_s"),
    [
        ([told(phase="Inqueue")], 0.0),
        ([told(running=1), told(phase="Pending")], 0.0),
        ([told(conditions=unschedulable("full"))], REST_S),
        ([told(running=1), told(conditions=unschedulable("full"))], REST_S),
        ([told(phase="Unknown")], REST_S),
        ([told(phase="Running"), told(running=1), told(succeeded=1)], REST_S),
    ],
)
def test_what_is_told_of_a_gang_rests_a_moment_and_what_others_act_on_not_at_all(
    words: list[SetStatus], rest_s: float
) -> None:
    async def story() -> None:
        async with quick() as (server, writer):
            for word in words:
                writer.tell([word])
            await settle(writer)
            assert server.at == pytest.approx([rest_s], abs=0.002)
            whole = {key: value for word in words for key, value in word.status.items()}
            assert server.written == [("g", whole)], "all of it in one write"

    virtual_time.run(story())


def test_a_gang_of_which_more_is_told_all_the_time_is_written_once_a_second() -> None:
    async def story() -> None:
        async with quick() as (server, writer):
            writer.tell([told(phase="Running")])
            for count in range(1, 101):
                await asyncio.sleep(REST_S / 2)
                writer.tell([told(running=count)])
            last = asyncio.get_running_loop().time()
            await settle(writer)
            assert server.at == pytest.approx([LONG_REST_S, 2 * LONG_REST_S, last + REST_S], abs=REST_S)
            assert server.written[-1] == ("g", {"running": 100}), "the last count a moment after it was told"

    virtual_time.run(story())


def test_of_many_gangs_only_some_are_told_early_and_the_others_in_one_write_each() -> None:
    async def story() -> None:
        async with quick() as (server, writer):
            many = [f"g{number}" for number in range(3 * PROMPT_PER_S)]
            for words in ({"phase": "Running"}, {"running": 1}, {"phase": "Completed", "running": 0}):
                writer.tell([told(name, **words) for name in many])
                await asyncio.sleep(2 * REST_S)
            await settle(writer)
            writes = Counter(name for name, _ in server.written)
            assert sorted(Counter(writes.values()).items()) == [(1, 2 * PROMPT_PER_S), (2, PROMPT_PER_S)]

    virtual_time.run(story())


AWAY = ApiError(500, "InternalError", 'failed calling webhook "validatepodgroup.volcano.sh": connection refused')


def test_what_is_refused_again_and_again_is_told_ever_more_seldom_and_at_once_after_a_success() -> None:
    """Webhooks that are away refuse the status of every group that waits: it must not be tried each second."""
    waits: list[float] = []

    async def story() -> None:
        server = SlowServer()
        server.gate.set()
        server.error = AWAY
        writer = StatusWriter(server, on_refused=lambda _, wait_s: waits.append(wait_s))  # type: ignore[arg-type]  # the one call of an executor
        running = asyncio.create_task(writer.run())
        for server.fails in (1, 1, 1, 1, 1, 1, 1, 0, 1):
            writer.tell([say("a", "x")])
            await settle(writer)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(story())
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 1.0]


def test_an_object_that_others_change_is_told_again_soon_however_often() -> None:
    waits: list[float] = []

    async def story() -> None:
        server = SlowServer()
        server.gate.set()
        server.error = ConflictError(409, "Conflict", "the object has been modified")
        writer = StatusWriter(server, on_refused=lambda _, wait_s: waits.append(wait_s))  # type: ignore[arg-type]  # the one call of an executor
        running = asyncio.create_task(writer.run())
        for _ in range(3):
            server.fails = 1
            writer.tell([say("a", "x")])
            await settle(writer)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(story())
    assert waits == [1.0, 1.0, 1.0]


def test_what_a_server_that_is_away_did_not_hear_is_told_soon_after_it_is_back() -> None:
    """A gang's phase was put off for up to 30 s for a server that was back long before; and its first refusal then, for as long."""
    waits: list[float] = []

    async def story() -> None:
        server = SlowServer()
        server.gate.set()
        writer = StatusWriter(server, on_refused=lambda _, wait_s: waits.append(wait_s))  # type: ignore[arg-type]  # the one call of an executor
        running = asyncio.create_task(writer.run())
        for server.error in (*[TransportError("broken")] * 6, AWAY):
            server.fails = 1
            writer.tell([say("a", "x")])
            await settle(writer)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(story())
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 8.0]


def test_refusals_of_more_objects_than_are_counted_back_off_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the bound had all begin with the first wait again."""
    monkeypatch.setattr(writer_module, "MOST_REFUSALS", 2)
    waits: list[float] = []

    async def story() -> None:
        server = SlowServer()
        server.gate.set()
        server.error = AWAY
        writer = StatusWriter(server, on_refused=lambda _, wait_s: waits.append(wait_s))  # type: ignore[arg-type]  # the one call of an executor
        running = asyncio.create_task(writer.run())
        for name in ("a", "b", "c", "a", "b", "c"):
            server.fails = 1
            writer.tell([say(name, "x")])
            await settle(writer)
        await asyncio.sleep(120)  # whatever was refused and is told no more is gone, most likely
        for name in ("d", "d"):
            server.fails = 1
            writer.tell([say(name, "x")])
            await settle(writer)
        assert len(writer._refusals) == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(story())
    assert waits == [1.0, 1.0, 30.0, 2.0, 2.0, 30.0, 1.0, 2.0]
