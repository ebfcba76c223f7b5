"""What a stream has to say at once that is more than a turn's is read over several, and others are heard in between."""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane import layout
from hekla.serving.router.lane.layout import MOST_READS, SCRATCH_BYTES, State
from serving.router import lanekit
from serving.router import proxykit as kit
from serving.router.lanekit import entered
from serving.router.test_lane_rests import Still, tell, unread
from serving.router.test_running import eventually

A_TURN = (MOST_READS + 1) * SCRATCH_BYTES
LONG = [kit.event(f"{number} " + "words " * 2_000) for number in range(A_TURN // 6_000)]
"""Two turns of it."""
WIDE = 1 << 22


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return lanekit.compiled()


async def much_is_said(it: Still) -> int:
    """More waits of the stream than is read in a turn, and its client takes whatever comes; the engine's descriptor."""
    client = it.lane.slabs.clients[0]
    here = int(client[layout.Client.FD])
    engine = int(it.lane.slabs.engines[client[layout.Client.ENGINE], layout.Engine.FD])
    with socket.socket(fileno=os.dup(here)) as to_client, socket.socket(fileno=os.dup(engine)) as from_engine:
        to_client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WIDE)
        it.client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WIDE)
        from_engine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WIDE)
        if from_engine.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < WIDE:
            pytest.skip("this system lets no socket hold more than a turn: net.core.rmem_max is below 4194304")
    writer, said = await it._writer, b"".join(kit.chunk(one) for one in LONG)
    sent, mine = 0, writer.get_extra_info("socket").fileno()
    with contextlib.suppress(BlockingIOError):
        while sent < len(said):
            sent += os.write(mine, said[sent:])
    writer.write(said[sent:])
    assert unread(engine) > A_TURN + SCRATCH_BYTES
    return engine


def test_a_stream_that_has_much_to_say_lets_another_client_have_his_turn(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Still) -> None:
        other = await it.it.connect()
        await entered(it.it, other)
        assert it.lane.connections == 2
        engine = await much_is_said(it)
        await eventually(lambda: it.resting == 1)
        before, asked = unread(engine), len(it.engine.asked)
        await other.send(kit.chat(text="another"))
        it.rested()
        assert 0 < before - unread(engine) <= A_TURN
        assert unread(engine) > 0
        await eventually(lambda: len(it.engine.asked) > asked)
        assert (await other.answer()).status == 200
        assert unread(engine) > 0, "his whole answer went between two turns of the stream"
        asyncio.get_running_loop().call_soon(it.rested)
        await it.says(kit.chunk(kit.DONE), kit.LAST)
        it.over()
        got = [await next_chunk(it) for _ in range(len(LONG) + 2)]
        assert got == [*LONG, kit.DONE, None]

    tell(tmp_path, kernel, story)


async def next_chunk(it: Still) -> bytes | None:
    """What comes next to the client; what rests is let go on."""
    getting = asyncio.ensure_future(it.client.chunk())
    while not getting.done():
        it.rested()
        await asyncio.sleep(0)
    return await getting


@pytest.mark.parametrize("is_whole", [True, False], ids=["to its end", "cut off"])
@pytest.mark.parametrize("rests", [True, False], ids=["rests", "does not rest"])
def test_what_is_left_of_a_stream_is_read_without_any_news_of_it(
    tmp_path: Path, kernel: Kernel, is_whole: bool, rests: bool
) -> None:
    """Epoll, which tells once of each change, is asked to tell again."""

    async def story(it: Still) -> None:
        it.lane.slabs.words[State.MOST_READS] = 0
        it.lane._have_rested = it.rested
        if not rests:
            it.lane.slabs.words[State.REST_COUNT] = layout.GATHERED
            it.lane.slabs.doubles[State.REST_UNTIL] = it.now + 1.0
        engine = await much_is_said(it)
        if is_whole:
            await it.says(kit.chunk(kit.DONE), kit.LAST)
        else:
            await it.ends()
        it.lane._rest = None
        it.lane._ready(1 if rests else 0)
        assert unread(engine) > 0
        it.over()
        if is_whole:
            assert [await it.client.chunk() for _ in range(len(LONG) + 2)] == [*LONG, kit.DONE, None]
        else:
            assert [await it.client.chunk() for _ in LONG] == LONG
            assert b'"error"' in await it.client.closed()

    tell(tmp_path, kernel, story)
