"""Commands inside a container of the process runtime, and the container's own streams: pipes or a terminal."""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from hekla.node.runtimes import ContainerSpec, ExecError
from hekla.node.runtimes.logs import read_conversation
from hekla.node.runtimes.spawner_link import Report

T = TypeVar("T")

CHUNK = 32 * 1024
LIFE = f"exec-{secrets.token_hex(3)}"
"""A sandbox may outlive the node that ran a command in it: the next one's commands are others."""
_numbers = itertools.count(1)


class OrderLink(Protocol):
    """Takes the orders of a command: a spawner's link, or a sandbox's."""

    async def send(self, order: Report, fds: Sequence[int] = ()) -> None:
        """Give one order, with descriptors if it has any."""


class ProcessExec:
    """A command that the spawner runs for us; we hold the other ends of its streams."""

    def __init__(self, link: OrderLink, *, has_stdin: bool, has_tty: bool, has_terminals: bool = False) -> None:
        """Where the container `has_terminals` of its own, the command's is one of them, and has a name there."""
        self._terminal: socket.socket | None = None
        self._has_terminals = has_tty and has_terminals
        self.id = f"{LIFE}-{next(_numbers)}"
        self._link, self._has_stdin, self._has_tty = link, has_stdin, has_tty
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._stdin = -1
        self._outputs: dict[int, int] = {}
        self._resize_far: Callable[[int, int, int], bool] | None = None

    async def start(self, container: str, argv: Sequence[str]) -> None:
        """Open the streams and give the order; returns once the command runs."""
        theirs = self._open_streams()
        try:
            order = {
                "order": "exec", "id": container, "session": self.id, "argv": list(argv), "tty": self._has_tty,
                "own_terminal": self._has_terminals,
            }  # fmt: skip
            await self._link.send({**order, "fds": len(theirs)}, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        try:
            await self._started
            if self._terminal is not None:
                self._receive_terminal(self._terminal)
        except BaseException:
            self._close_streams()
            raise

    def take_terminal(self, master: int, resize: Callable[[int, int, int], bool] | None = None) -> None:
        """Another terminal than the one that was opened here: a sandbox has its own, and a far one is resized by `resize`."""
        self._close_streams()
        self._resize_far = resize
        os.set_blocking(master, False)
        self._stdin, self._outputs = master, {master: 1}

    def handle(self, report: Report) -> None:
        """A report of the spawner about this command."""
        event = report["event"]
        if event == "exec_started":
            _resolve(self._started, None)
        elif event == "exec_failed":
            if not self._started.done():
                self._started.set_exception(ExecError(report["message"]))
        elif event == "exec_ended":
            _resolve(self._started, None)
            _resolve(self._ended, int(report["code"]))

    async def read(self) -> tuple[int, bytes]:
        """The next output of either stream."""
        while self._outputs:
            descriptor = await _first_readable(list(self._outputs), self._ended)
            if descriptor is None:
                return self._read_the_rest()
            data = _read_now(descriptor)
            if data:
                return self._outputs[descriptor], data
            if data is not None:
                del self._outputs[descriptor]
                if not self._has_tty:
                    os.close(descriptor)
        return 1, b""

    async def write(self, data: bytes) -> None:
        """Feed standard input, waiting while the command is slow; a closed end swallows it."""
        view = memoryview(data)
        while view and self._stdin >= 0:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await _until_writable(self._stdin, self._ended)
                if self._ended.done():
                    return
            except OSError:
                return

    async def close_stdin(self) -> None:
        """End standard input; a terminal gets Ctrl-D."""
        if self._has_tty:
            await self.write(b"\x04")
        elif self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def resize(self, *, columns: int, rows: int) -> None:
        """Tell the terminal its size."""
        if self._has_tty and self._stdin >= 0:
            if self._resize_far is not None and self._resize_far(self._stdin, columns, rows):
                return
            with contextlib.suppress(OSError, struct.error):
                fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> int:
        """The exit code."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Kill it if it runs, and close our ends."""
        if not self._ended.done():
            await self._link.send({"order": "kill_exec", "session": self.id})
        self._close_streams()

    def _open_streams(self) -> list[int]:
        if not self._has_tty:
            return self._open_pipes()
        if not self._has_terminals:
            return self._open_terminal()
        self._terminal, theirs = socket.socketpair()
        self._terminal.setblocking(False)
        return [theirs.detach()]

    def _receive_terminal(self, channel: socket.socket) -> None:
        """It was sent before the command began."""
        try:
            _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        except OSError:
            descriptors = []
        if not descriptors:
            raise ExecError("the container gave no terminal")
        self.take_terminal(descriptors[0])

    def _open_terminal(self) -> list[int]:
        master, slave = os.openpty()
        os.set_blocking(master, False)
        self._stdin = master
        self._outputs = {master: 1}
        return [slave]

    def _open_pipes(self) -> list[int]:
        stdin, out, err = os.pipe(), os.pipe(), os.pipe()
        for descriptor in (stdin[1], out[0], err[0]):
            os.set_blocking(descriptor, False)
        self._stdin = stdin[1]
        if not self._has_stdin:
            os.close(stdin[1])
            self._stdin = -1
        self._outputs = {out[0]: 1, err[0]: 2}
        return [stdin[0], out[1], err[1]]

    def _read_the_rest(self) -> tuple[int, bytes]:
        """The command has ended: what it left in the pipes, without waiting for those it left behind."""
        for descriptor, number in list(self._outputs.items()):
            data = _read_now(descriptor)
            if data:
                return number, data
            del self._outputs[descriptor]
            if descriptor != self._stdin:
                os.close(descriptor)
        return 1, b""

    def _close_streams(self) -> None:
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None
        for descriptor in {*self._outputs, self._stdin} - {-1}:
            os.close(descriptor)
        self._outputs, self._stdin = {}, -1


class AttachedStreams:
    """The streams of a container's own process, joined from now on."""

    def __init__(
        self, link: OrderLink, container: str, spec: ContainerSpec, directory: Path, log: Path,
        gone: "asyncio.Future[None]",
    ) -> None:  # fmt: skip
        self._link, self._container, self._spec, self._gone = link, container, spec, gone
        self._lines = read_conversation(log, lambda: not gone.done())
        self._stdin = os.open(directory / "stdin", os.O_WRONLY | os.O_NONBLOCK) if spec.has_stdin else -1

    async def read(self) -> tuple[int, bytes]:
        """The next output; both streams arrive as one."""
        async for piece in self._lines:
            if piece:
                return 1, piece
        return 1, b""

    async def write(self, data: bytes) -> None:
        """Feed the container's standard input."""
        view = memoryview(data)
        while view and self._stdin >= 0 and not self._gone.done():
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await _until_writable(self._stdin, self._gone)
            except OSError:
                return

    async def close_stdin(self) -> None:
        """Leave; with stdinOnce this ends the container's standard input."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
            if self._spec.stdin_once:
                await self._link.send({"order": "tell", "id": self._container, "message": {"end_stdin": True}})

    def resize(self, *, columns: int, rows: int) -> None:
        """Tell the container's terminal its size."""
        message = {"size": [columns, rows]}
        task = asyncio.ensure_future(self._link.send({"order": "tell", "id": self._container, "message": message}))
        _running.add(task)
        task.add_done_callback(_running.discard)

    async def wait(self) -> int:
        """Returns when the container ends."""
        await asyncio.shield(self._gone)
        return 0

    async def close(self) -> None:
        """Leave; the container goes on."""
        await self.close_stdin()


_running: set["asyncio.Future[None]"] = set()
"""Keeps resizes alive until they are sent: the loop holds tasks weakly."""


def _read_now(descriptor: int) -> bytes | None:
    """What is there; empty at the end, None if there is nothing yet."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None
    except OSError as problem:
        if problem.errno == errno.EIO:
            return b""  # the other end of a terminal is closed
        raise


async def _first_readable(descriptors: list[int], ended: "asyncio.Future[int]") -> int | None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[int] = loop.create_future()
    for descriptor in descriptors:
        loop.add_reader(descriptor, _resolve, ready, descriptor)
    try:
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        return ready.result() if ready.done() else None
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


async def _until_writable(descriptor: int, ended: "asyncio.Future[int] | asyncio.Future[None]") -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _resolve, ready, None)
    try:
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_writer(descriptor)


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)
