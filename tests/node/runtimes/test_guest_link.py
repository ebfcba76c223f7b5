"""The link into a sandbox: many streams over one, none of which holds up another, whatever their owners do."""

import ast
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.node.runtimes.guest.carry import carried_into
from hekla.node.shim.guest.cpio import archive_with
from hekla.node.shim.guest.mux import BACKLOG, LONGEST, MESSAGE, WINDOW, Mux

PATIENCE_S = 30.0


class Ends:
    """Both sides of a link, and what each heard."""

    def __init__(self) -> None:
        one, other = socket.socketpair()
        self.heard: dict[str, list[object]] = {"node": [], "guest": []}
        self.lost: list[str] = []
        self.changed = asyncio.Event()
        self.node = self._side("node", one.detach())
        self.guest = self._side("guest", other.detach())

    def _side(self, name: str, link: int) -> Mux:
        def hear(message: object) -> None:
            self.heard[name].append(message)
            self.changed.set()

        def lose() -> None:
            self.lost.append(name)
            self.changed.set()

        return Mux(link, os.dup(link), on_message=hear, on_open=lambda number, told: None, on_lost=lose)

    async def until(self, holds) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.01)

    def close(self) -> None:
        self.node.close()
        self.guest.close()


def linked(story):
    async def told():
        ends = Ends()
        try:
            await story(ends)
        finally:
            ends.close()

    asyncio.run(told())


async def read_all(descriptor: int) -> bytes:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.binary(max_size=100_000), max_size=4), min_size=1, max_size=4))
def test_every_stream_arrives_whole_and_in_order(streams):
    async def story(ends):
        read, written = [], []
        for number, pieces in enumerate(streams):
            (out, into), (seen, shown) = os.pipe(), os.pipe()
            ends.guest.attach(number, source=out)
            ends.node.attach(number, sink=shown)
            read.append(asyncio.ensure_future(read_all(seen)))

            async def write(into=into, pieces=pieces):
                transport, protocol = await asyncio.get_running_loop().connect_write_pipe(
                    asyncio.streams.FlowControlMixin, os.fdopen(into, "wb", buffering=0)
                )
                writer = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                writer.close()

            written.append(asyncio.ensure_future(write()))
        assert await asyncio.gather(*read) == [b"".join(pieces) for pieces in streams]
        await asyncio.gather(*written)
        await ends.until(lambda: not ends.node.streams and not ends.guest.streams)

    linked(story)


def test_a_stream_that_nobody_reads_holds_up_no_other_and_takes_no_more_than_its_window(tmp_path):
    async def story(ends):
        (tmp_path / "large").write_bytes(bytes(20 * WINDOW))
        seen, shown = os.pipe()
        stuck = ends.node.attach(1, sink=shown)
        ends.guest.attach(1, source=os.open(tmp_path / "large", os.O_RDONLY))
        for number in range(100):
            ends.guest.tell({"number": number})
        await ends.until(lambda: len(ends.heard["node"]) == 100)
        await ends.until(lambda: sum(map(len, stuck.inbox)) > 0)
        assert sum(map(len, stuck.inbox)) <= WINDOW
        os.close(seen)  # the reader goes away: the other side is told to stop
        await ends.until(lambda: not ends.node.streams and not ends.guest.streams)

    linked(story)


def test_what_a_command_left_in_its_pipe_is_told_before_its_end(tmp_path):
    async def story(ends):
        out, into = os.pipe()
        seen, shown = os.pipe()
        ends.node.attach(1, sink=shown)
        ends.guest.attach(1, source=out)
        os.write(into, b"last words")  # and whoever holds `into` does not close it
        ends.guest.drain(1)
        ends.guest.tell({"event": "exited"})
        await ends.until(lambda: ends.heard["node"] == [{"event": "exited"}])
        assert os.read(seen, 100) == b"last words"
        os.close(seen)
        os.close(into)

    linked(story)


def test_a_link_that_is_held_sends_nothing_until_it_goes_on():
    async def story(ends):
        ends.guest.hold({"event": "quiet"})
        ends.guest.tell({"event": "later"})
        await ends.until(lambda: ends.heard["node"] == [{"event": "quiet"}])
        ends.guest.go_on()
        await ends.until(lambda: ends.heard["node"] == [{"event": "quiet"}, {"event": "later"}])

    linked(story)


@pytest.mark.parametrize(
    "junk",
    [
        b"\x01\0\0\0\0" + (LONGEST + 1).to_bytes(4, "big"),
        bytes([MESSAGE, 0, 0, 0, 0, 0, 0, 0, 4]) + b"{no}",
        b"\x07\0\0\0\1\0\0\0\1x",
    ],
)
def test_a_guest_that_sends_junk_is_let_go(junk):
    async def story(ends):
        seen, shown = os.pipe()
        ends.node.attach(1, source=seen, sink=shown)
        os.write(ends.guest._writing, junk)
        await ends.until(lambda: "node" in ends.lost)
        assert not ends.node.streams

    linked(story)


def test_a_slow_link_makes_sources_wait(tmp_path):
    async def story(ends):
        (tmp_path / "large").write_bytes(bytes(4 * BACKLOG))
        asyncio.get_running_loop().remove_reader(ends.node._reading)  # it does not read any more
        for number in range(1, 33):
            ends.guest.attach(number, source=os.open(tmp_path / "large", os.O_RDONLY))
        await ends.until(lambda: ends.guest._out_size >= BACKLOG)
        assert ends.guest._out_size <= BACKLOG + 32 * 33_000

    linked(story)


def test_what_travels_inside_is_the_same_bytes_each_time_and_has_the_daemon(tmp_path):
    first = carried_into(tmp_path).read_bytes()
    assert carried_into(tmp_path).read_bytes() == first
    names = zipfile.ZipFile(tmp_path / "guest.pyz").namelist()
    assert {"__main__.py", "hekla/node/shim/guest/bridge.py", "hekla/sandbox/daemon/parked.py"} <= set(names)
    assert not [name for name in names if "controlplane" in name or "/serving/" in name]


def test_an_archive_for_a_kernel_is_as_it_reads_them():
    made = archive_with({"hekla/a": b"abc"})
    assert made.startswith(b"070701")
    assert len(made) % 4 == 0
    assert b"hekla/a\0" in made
    assert b"TRAILER!!!" in made


def test_what_is_carried_into_images_needs_no_newer_python_for_its_annotations():
    """Python 3.9 cannot join types with `|`, and reads the annotations of functions and classes unless they stay text."""
    code = "import sys, hekla.node.shim.sandbox.inside, hekla.sandbox.daemon.parked\n"
    code += "print('\\n'.join(one.__file__ for name, one in sys.modules.items() if name.startswith('hekla.') and one.__file__))"
    files = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert any(one.endswith("shim/sandbox/archive.py") for one in files)
    assert [one for one in files if _reads_unions(ast.parse(Path(one).read_text()))] == []


def _reads_unions(tree):
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in nodes):
        return False
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    arguments = [one for each in functions for one in ast.walk(each.args) if isinstance(one, ast.arg)]
    read = [each.returns for each in functions] + [one.annotation for one in arguments]
    read += [
        one.annotation
        for each in nodes
        if isinstance(each, ast.ClassDef | ast.Module)
        for one in each.body
        if isinstance(one, ast.AnnAssign)
    ]
    return any(isinstance(part, ast.BinOp) for one in read if one is not None for part in ast.walk(one))
