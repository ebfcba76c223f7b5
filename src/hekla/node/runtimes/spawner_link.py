"""The agent's end of the spawner: starts it, sends orders, hands reports on. `hekla.node.shim.spawner` is the other end."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

import hekla
from hekla.node.runtimes import NodeError

log = structlog.get_logger(__name__)

Report = dict[str, Any]

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import main; main()"
SPAWNER = "hekla.node.shim.spawner"


class SpawnerGoneError(NodeError):
    """The spawner has ended, and with it every container of this node."""


class SpawnerLink:
    """One spawner process and the socket to it."""

    def __init__(
        self,
        log_file: Path,
        on_report: Callable[[Report], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._log_file, self._on_report, self._on_lost = log_file, on_report, on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    @property
    def pid(self) -> int:
        """The spawner's process id; 0 if it does not run."""
        return self._process.pid if self._process else 0

    @property
    def is_open(self) -> bool:
        """Whether orders reach a spawner."""
        return self._socket is not None

    def open(self) -> None:
        """Start the spawner. Popen uses vfork here, so the agent's size does not matter."""
        if self._process is not None:
            self._process.poll()  # bury the one before
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        source = str(Path(hekla.__file__).parent.parent)
        with theirs, self._log_file.open("ab") as written:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    _BOOT.format(SPAWNER),
                    source,
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )
        self._socket = ours
        self._reader = asyncio.get_running_loop().create_task(self._read(ours))

    async def send(self, order: Report, fds: Sequence[int] = ()) -> None:
        """Send one order, with descriptors if it has any (they may be closed afterwards)."""
        if self._socket is None:
            raise SpawnerGoneError(
                "the spawner has ended and its containers with it; the next container starts another"
            )
        body = json.dumps(order).encode()
        data = struct.pack(">I", len(body)) + body
        try:
            async with self._writing:
                sent = await self._send_with_fds(self._socket, data, fds) if fds else 0
                if sent < len(data):
                    await asyncio.get_running_loop().sock_sendall(self._socket, data[sent:])
        except OSError as problem:
            raise SpawnerGoneError(f"the spawner has ended ({problem}); the next container starts another") from None

    async def close(self) -> None:
        """Let the spawner kill all it runs and end."""
        if self._socket is not None:
            sock, self._socket = self._socket, None
            if self._reader is not None:
                self._reader.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._reader
            sock.close()
        if self._process is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._process.wait)

    async def _send_with_fds(self, sock: socket.socket, data: bytes, fds: Sequence[int]) -> int:
        while True:
            try:
                return socket.send_fds(sock, [data], list(fds))
            except BlockingIOError:
                await _until_writable(sock)

    async def _read(self, sock: socket.socket) -> None:
        loop, inbox = asyncio.get_running_loop(), bytearray()
        while data := await _receive(loop, sock):
            inbox += data
            while len(inbox) >= 4:
                length = struct.unpack(">I", inbox[:4])[0]
                if len(inbox) < 4 + length:
                    break
                report = json.loads(bytes(inbox[4 : 4 + length]))
                del inbox[: 4 + length]
                try:
                    self._on_report(report)
                except Exception:  # a task boundary: one report's trouble must not leave all containers unheard
                    log.exception("spawner report not understood", report=report)
        self._socket = None
        sock.close()
        self._on_lost()


async def _receive(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytes:
    try:
        return await loop.sock_recv(sock, 1 << 18)
    except OSError:
        return b""


async def _until_writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(sock, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(sock)
