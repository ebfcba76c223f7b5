import asyncio
from collections.abc import Sequence

from hekla.api.pods import Pod
from hekla.kube.commands import Command, SetStatus, Target
from hekla.kube.errors import TransportError
from hekla.scheduler.writer import AT_ONCE, StatusWriter


class SlowServer:
    """Carries out nothing until it is let go, and notes what it was asked, and how much at once."""

    def __init__(self) -> None:
        self.written: list[object] = []
        self.gate = asyncio.Event()
        self.at_once = self.most_at_once = 0
        self.fails = 0

    async def run(self, commands: Sequence[Command]) -> list[object]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        if self.fails:
            self.fails -= 1
            raise TransportError("broken")
        self.written += [(c.target.name, c.status) for c in commands if isinstance(c, SetStatus)]
        return []


def say(name: str, word: str) -> SetStatus:
    return SetStatus(Target(kind=Pod, name=name, namespace="default"), {"word": word})


async def settle(writer: StatusWriter) -> None:
    while not writer.is_idle:
        await asyncio.sleep(0)


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
        writer = StatusWriter(server, on_refused=lambda target: refused.append(target.name))  # type: ignore[arg-type]  # the one call of an executor
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
