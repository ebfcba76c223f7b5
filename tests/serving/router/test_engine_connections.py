"""Connections to an engine keep to one bound, whoever opens them: the fast lane, Python, or both at once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hekla.serving.router import endpoints
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.engines import Pools
from hekla.testing.desk import Engine
from serving.router import lanekit
from serving.router import proxykit as kit
from serving.router.test_running import Routed, eventually

BOUND = 3


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return lanekit.compiled()


class Counting:
    """An engine's script that answers when it is told to, and counts connections that clients' requests came by (scrapes have their own)."""

    def __init__(self) -> None:
        self._asked: set[asyncio.StreamWriter] = set()
        self.most = 0
        self.waiting = 0
        self.go = asyncio.Event()

    async def __call__(self, asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        self._asked.add(writer)
        self.most = max(self.most, self.open)
        if b"wait" in asked.body:
            self.waiting += 1
            await self.go.wait()
            self.waiting -= 1
        is_stream = b'"stream": true' in asked.body
        writer.write(kit.stream(kit.event("a"), kit.DONE) if is_stream else kit.whole())

    @property
    def open(self) -> int:
        return sum(not one.is_closing() for one in self._asked)


async def lanes(it: Routed, count: int) -> list[kit.Client]:
    """Clients whose next plain request the lane takes, where there is one."""
    clients = [await it.connect() for _ in range(count)]
    for one in clients:
        await lanekit.entered(it, one)
    return clients


def test_the_lane_and_python_together_open_no_more_connections_than_an_engine_may_have(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "BENCH_S", (0.0,))  # an engine that is refused a connection is asked again at once

    async def story(it: Routed, client: kit.Client) -> Any:
        counting = Counting()
        it.engines[0].script = lanekit._scraped(counting)
        plain = [client, *await lanes(it, 2)]
        for number, one in enumerate(plain[:2], 1):
            await one.send(kit.chat(text="wait"))
            await eventually(lambda number=number: counting.waiting == number)
        stream = await it.connect()
        await stream.send(kit.chat(stream=True, text="wait"))
        await eventually(lambda: counting.waiting == BOUND)
        assert counting.open == BOUND
        refused = [(await it.ask(kit.chat(stream=True))).status, (await plain[2].ask(kit.chat())).status]
        counting.go.set()
        answered = [(await one.answer()).status for one in (*plain[:2], stream)]
        assert counting.most == BOUND
        return refused, answered

    said, *_ = lanekit.both(tmp_path, kernel, story, kit.says(kit.whole()), bounds=Bounds(engine_connections=BOUND))
    assert said == ([503, 503], [200, 200, 200])


def test_a_connection_that_is_kept_unused_gives_way_to_whoever_needs_one(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        counting = Counting()
        plain = [client, *await lanes(it, BOUND - 1)]
        streams = [await it.connect() for _ in range(BOUND)]
        it.engines[0].script = lanekit._scraped(counting)
        statuses = []
        for clients, asked in ((plain, kit.chat(text="wait")), (streams, kit.chat(text="wait", stream=True))) * 2:
            counting.go.clear()
            for number, one in enumerate(clients, 1):
                await one.send(asked)
                await eventually(lambda number=number: counting.waiting == number)
            assert counting.open == BOUND
            counting.go.set()
            statuses += [(await one.answer()).status for one in clients]
        return statuses, counting.most

    said, *_ = lanekit.both(tmp_path, kernel, story, kit.says(kit.whole()), bounds=Bounds(engine_connections=BOUND))
    assert said == ([200] * 4 * BOUND, BOUND)


def test_a_count_is_one_for_an_address_and_is_kept_as_long_as_somebody_counts() -> None:
    async def story() -> None:
        pools = Pools(Bounds())
        plain, tls = pools.of(Engine("e", "127.0.0.1", 1)), pools.of(Engine("e", "127.0.0.1", 1, is_tls=True))
        assert plain.open is tls.open
        assert plain.open is not pools.of(Engine("e", "127.0.0.1", 2)).open
        assert await plain.open.take(1, lambda: None)
        pools.sweep(0.0)
        assert pools.of(Engine("e", "127.0.0.1", 1)) is plain
        assert not await tls.open.take(1, lambda: None)
        tls.open.give_back()
        assert await tls.open.take(1, lambda: None)

    kit.run(story())
