"""What comes of a stream within a millisecond of its last piece rests in the lane, to be read and written with what follows it."""

import asyncio
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane import layout
from hekla.serving.router.lane.layout import EnginePhase, State
from serving.router import lanekit
from serving.router import proxykit as kit
from serving.router.lanekit import entered, laned, shown
from serving.router.test_running import Routed, eventually

A, B, C = (kit.event(one) for one in "abc")


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return lanekit.compiled()


class Still:
    """A router with a lane whose clock stands, and which is told when streams have rested by the test; one stream of one engine."""

    def __init__(self, it: Routed, client: kit.Client) -> None:
        assert it.router.lane is not None
        self.it, self.client, self.engine, self.lane = it, client, it.engines[0], it.router.lane
        self.now = self.lane._clock()
        self.lane._clock = lambda: self.now
        self.lane._have_rested = lambda: None
        self._writer: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

    async def begin(self) -> None:
        """A stream is asked for, and its head is there with a first event."""
        before = self.engine.script

        async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            self._writer.set_result(writer)
            await self._over.wait()

        self.engine.script = lanekit._scraped(script)
        await self.client.send(kit.chat(stream=True))
        await self._writer
        self.engine.script = before
        await self.says(kit.STREAM_HEAD, kit.chunk(A))
        await self.client.head()
        assert await self.client.chunk() == A

    async def says(self, *pieces: bytes) -> None:
        writer = await self._writer
        writer.write(b"".join(pieces))
        await writer.drain()

    def over(self) -> None:
        self._over.set()

    async def ends(self) -> None:
        (await self._writer).close()
        self.over()

    @property
    def resting(self) -> int:
        return int(self.lane.slabs.words[State.REST_COUNT])

    def rested(self) -> None:
        self.lane._rest = None
        self.lane._ready(1)

    def engines(self, what: layout.Engine) -> list[int]:
        rows = self.lane.slabs.engines
        return [int(row[what]) for row in rows if row[layout.Engine.PHASE] != EnginePhase.FREE]


def unread(descriptor: int) -> int:
    """Bytes that wait to be read from a socket."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def tell(tmp_path: Path, kernel: Kernel, story: Callable[[Still], Awaitable[None]]) -> None:
    async def told() -> None:
        async with laned(tmp_path, kernel, kit.says(kit.whole())) as it:
            client = await it.connect()
            await entered(it, client)
            still = Still(it, client)
            await still.begin()
            try:
                await story(still)
            finally:
                still.over()

    kit.run(told())


def test_pieces_that_come_at_once_go_on_together(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        await it.says(kit.chunk(B))
        await eventually(lambda: it.resting == 1)
        assert it.engines(layout.Engine.IS_DEAF) == [1]
        await it.says(kit.chunk(C))
        await it.says(kit.chunk(kit.DONE) + kit.LAST)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not it.client.reader._buffer
        it.over()
        it.rested()
        assert [await it.client.chunk() for _ in range(4)] == [B, C, kit.DONE, None]
        assert it.resting == 0
        assert shown(await it.client.ask(kit.chat()))[0] == 200
        it.lane.fold()
        assert it.lane.taken == 3  # the one by which the connection entered, the stream, the last

    tell(tmp_path, kernel, story)


def test_a_piece_that_comes_later_goes_on_as_it_comes(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        for piece in (B, C):
            it.now += 1.5 * layout.GATHER_S  # nine hours after its start a machine's clock rounds a millisecond down
            await it.says(kit.chunk(piece))
            assert await it.client.chunk() == piece
        assert it.resting == 0
        assert it.engines(layout.Engine.IS_DEAF) == [0]

    tell(tmp_path, kernel, story)


def test_who_has_rested_long_enough_is_read_at_the_next_look_at_anything(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        await it.says(kit.chunk(B))
        await eventually(lambda: it.resting == 1)
        it.now += layout.GATHER_S
        it.lane._ready()
        assert await it.client.chunk() == B
        assert it.resting == 0

    tell(tmp_path, kernel, story)


def test_where_too_many_rest_pieces_go_on_as_they_come(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        it.lane.slabs.words[State.REST_COUNT] = layout.GATHERED
        it.lane.slabs.doubles[State.REST_UNTIL] = it.now + 1.0
        await it.says(kit.chunk(B))
        assert await it.client.chunk() == B
        it.rested()
        assert it.resting == 0

    tell(tmp_path, kernel, story)


def test_an_engine_that_leaves_while_its_stream_rests_is_heard_to_its_last_event(
    tmp_path: Path, kernel: Kernel
) -> None:
    async def story(it: Still) -> None:
        await it.says(kit.chunk(B))
        await eventually(lambda: it.resting == 1)
        await it.ends()
        it.rested()
        assert await it.client.chunk() == B
        assert b'"error"' in await it.client.closed()

    tell(tmp_path, kernel, story)


def test_an_engine_whose_connection_breaks_while_its_stream_rests_is_told_at_once(
    tmp_path: Path, kernel: Kernel
) -> None:
    async def story(it: Still) -> None:
        await it.says(kit.chunk(B))
        await eventually(lambda: it.resting == 1)
        broken = (await it._writer).transport
        broken.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        broken.abort()
        assert b'"error"' in await it.client.closed()
        it.rested()
        assert it.resting == 0

    tell(tmp_path, kernel, story)


def test_a_client_who_leaves_while_his_stream_rests_leaves_nothing(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        await it.says(kit.chunk(B))
        await eventually(lambda: it.resting == 1)
        it.engine.gone.clear()
        it.client.leave()
        await eventually(lambda: not it.engines(layout.Engine.FD))
        it.rested()
        assert it.resting == 0
        other = await it.it.connect()
        await entered(it.it, other)
        assert it.lane.connections == 1

    tell(tmp_path, kernel, story)


def test_a_lane_that_is_closed_while_streams_rest_asks_for_nothing_more(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        await it.says(kit.chunk(B))
        await eventually(lambda: it.resting == 1)
        assert it.lane._rest is not None
        it.lane.close()
        assert it.lane._rest.cancelled()

    tell(tmp_path, kernel, story)


def test_an_engine_that_has_rested_and_takes_the_next_prompt_slowly_gets_all_of_it(
    tmp_path: Path, kernel: Kernel
) -> None:
    async def story(it: Still) -> None:
        await it.says(kit.chunk(B) + kit.chunk(kit.DONE) + kit.LAST)
        await eventually(lambda: it.resting == 1)
        it.over()
        it.rested()
        assert [await it.client.chunk() for _ in range(3)] == [B, kit.DONE, None]
        (descriptor,) = it.engines(layout.Engine.FD)
        assert it.engines(layout.Engine.IS_DEAF) == [1]
        with socket.socket(fileno=os.dup(descriptor)) as its:
            its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        text = "many words " * 60_000
        assert (await it.client.ask(kit.chat(text=text))).status == 200
        assert text.encode() in it.engine.asked[-1].body
        assert it.engines(layout.Engine.IS_DEAF) == [0]

    tell(tmp_path, kernel, story)


def test_a_client_who_lags_behind_what_has_rested_gets_all_of_it(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        texts = [kit.event(f"{number} " + "words " * 1_000) for number in range(40)]
        here, transport = int(it.lane.slabs.clients[0, layout.Client.FD]), it.client.writer.transport
        (engine,) = it.engines(layout.Engine.FD)
        with socket.socket(fileno=os.dup(here)) as to_client, socket.socket(fileno=os.dup(engine)) as from_engine:
            clients = transport.get_extra_info("socket")
            to_client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            clients.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            from_engine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            transport.pause_reading()
            saying = asyncio.create_task(it.says(*(kit.chunk(one) for one in texts)))
            await eventually(lambda: it.resting == 1 and unread(engine) > 150_000)
            it.rested()
            assert it.lane.connections == 0, "Python goes on"
            to_client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            clients.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        transport.resume_reading()
        await saying
        await it.says(kit.chunk(kit.DONE), kit.LAST)
        assert [await it.client.chunk() for _ in range(42)] == [*texts, kit.DONE, None]

    tell(tmp_path, kernel, story)


def test_a_request_that_was_sent_ahead_of_the_end_of_a_rest_gets_to_its_engine_whole(
    tmp_path: Path, kernel: Kernel
) -> None:
    """It goes to the engine that has just rested, while that is read; which is told of it when it takes more, all the same."""

    async def story(it: Still) -> None:
        await it.says(kit.chunk(B) + kit.chunk(kit.DONE) + kit.LAST)
        await eventually(lambda: it.resting == 1)
        (descriptor,) = it.engines(layout.Engine.FD)
        with socket.socket(fileno=os.dup(descriptor)) as its:
            its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        transport = (await it._writer).transport
        transport.pause_reading()
        text = "many words " * 12_000
        here = int(it.lane.slabs.clients[0, layout.Client.FD])
        with socket.socket(fileno=os.dup(here)) as mine:
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        await it.client.send(kit.chat(text=text))
        await eventually(lambda: unread(here) > len(text))
        it.over()
        it.rested()
        assert it.lane.slabs.clients[0, layout.Client.UNSENT] > 0
        transport.resume_reading()
        assert [await it.client.chunk() for _ in range(3)] == [B, kit.DONE, None]
        assert (await it.client.answer()).status == 200
        assert text.encode() in it.engine.asked[-1].body

    tell(tmp_path, kernel, story)


def test_the_loop_is_asked_for_the_end_of_a_rest(tmp_path: Path, kernel: Kernel) -> None:
    """Without anybody's help, by the clock."""

    async def story() -> None:
        async with laned(tmp_path, kernel, kit.says(kit.whole())) as it:
            client = await it.connect()
            await entered(it, client)
            lane, ended = it.router.lane, asyncio.Event()
            assert lane is not None
            have_rested = lane._have_rested

            def told() -> None:
                ended.set()
                have_rested()

            lane._have_rested = told
            now = lane._clock()
            lane._clock = lambda: now

            async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                writer.write(kit.STREAM_HEAD + kit.chunk(A))
                await writer.drain()
                await eventually(lambda: it.router.lane is not None and lane.slabs.clients[0, layout.Client.EVENTS] > 0)
                writer.write(kit.chunk(B) + kit.chunk(kit.DONE) + kit.LAST)

            it.engines[0].script = lanekit._scraped(script)
            answer = await client.ask(kit.chat(stream=True))
            assert answer.body.endswith(A + B + kit.DONE)
            assert ended.is_set()

    kit.run(story())
