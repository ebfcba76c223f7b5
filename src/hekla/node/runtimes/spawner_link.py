"""The agent's end of one spawner: starts it or finds it again, sends orders, hands reports on. `hekla.node.shim.spawner` is the other end.

`spawners.py` holds all of a node: after an upgrade there may be more than one.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

import hekla
from hekla.node.runtimes import NodeError
from hekla.node.runtimes.sweep import describe_process, kill_process_of
from hekla.node.shim.spawner import PROTOCOL
from hekla.wire.open_files import FOUND

log = structlog.get_logger(__name__)

Report = dict[str, Any]

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import main; main()"
SPAWNER = "hekla.node.shim.spawner"
BACKLOG = 4
WELCOME_TIMEOUT_S, END_TIMEOUT_S = 30.0, 30.0


class SpawnerGoneError(NodeError):
    """The spawner has ended, and with it every container that it started."""


class NotUnderstoodError(NodeError):
    """A spawner of an earlier life speaks otherwise."""


@dataclass(frozen=True)
class Left:
    """One attempt that an earlier life of this node left with its spawner: it runs, or has ended meanwhile."""

    name: str
    note: Report
    started_at: float
    end: Report | None
    is_gone: bool
    memory: Report
    """What that life remembered of it; spawners of earlier releases keep none."""


class SpawnerLink:
    """One spawner process and the socket to it."""

    def __init__(
        self,
        directory: Path,
        name: str,
        on_report: Callable[["SpawnerLink", Report], None],
        on_lost: Callable[["SpawnerLink"], None],
        *,
        grace_s: float,
    ) -> None:
        """Its files are NAME.sock, NAME.secret and NAME.json in the directory; for `grace_s` containers wait for an agent that is away."""
        self.name = name
        self._directory, self._on_report, self._on_lost, self._grace_s = directory, on_report, on_lost, grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.pid = 0
        """The spawner's process id; 0 if none runs."""

    @property
    def is_open(self) -> bool:
        """Whether orders reach a spawner."""
        return self._socket is not None

    @property
    def description(self) -> Path:
        """Which process it is."""
        return self._directory / f"{self.name}.json"

    @property
    def secret(self) -> Path:
        """What the spawner's agent must know, readable for its user alone: containers see nothing of a node's state."""
        return self._directory / f"{self.name}.secret"

    def open(self) -> None:
        """Start the spawner. Popen uses vfork here, so the agent's size does not matter."""
        if self._process is not None:
            self._process.poll()  # bury the one before
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._directory / f"{self.name}.sock")
        self.secret.unlink(missing_ok=True)
        with open(os.open(self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as secret:
            secret.write(secrets.token_hex(32))
        with (
            _addressed(self._directory, self.name) as address,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
            (self._directory / "spawner.log").open("ab") as written,
        ):
            listener.bind(address)
            listener.listen(BACKLOG)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    _BOOT.format(SPAWNER),
                    str(Path(hekla.__file__).parent.parent),
                    str(listener.fileno()),
                    str((self._directory / f"{self.name}.sock").absolute()),
                    str(self._grace_s),
                ],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HEKLA_FILES": str(FOUND)},
            )
            self.pid = self._process.pid
            self.description.write_text(json.dumps(describe_process(self.pid)))
            sock = _new_socket()
            sock.connect(address)  # does not wait: the socket listens already
        sock.sendall(_framed(self._hello(retires=False)))
        self._listen(sock, bytearray())

    async def find(self, *, retires: bool) -> list[Left]:
        """Take over the spawner that an earlier life left, with what it holds; one that `retires` starts nothing more, and ends with the
        last of it. Raises OSError: there is none; NotUnderstoodError.
        """
        found: list[Left] = []
        sock, inbox = _new_socket(), bytearray()
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                with _addressed(self._directory, self.name) as address:
                    await asyncio.get_running_loop().sock_connect(sock, address)
                await self._send_over(sock, self._hello(retires=retires))
                async for report in _reports(sock, inbox):
                    if report["event"] == "welcome":
                        if report["protocol"] != PROTOCOL:
                            raise NotUnderstoodError(f"it speaks protocol {report['protocol']}, and we {PROTOCOL}")
                        self.pid = report["pid"]
                        self.description.write_text(json.dumps(describe_process(self.pid)))
                        self._listen(sock, inbox)
                        return found
                    memory = report.get("memory", {})
                    found.append(
                        Left(report["id"], report["note"], report["at"], report["end"], report["is_gone"], memory)
                    )
            raise ConnectionResetError("it has ended")
        except (KeyError, ValueError, TypeError) as problem:  # no JSON, or another meaning
            sock.close()
            raise NotUnderstoodError(f"it is not understood: {problem!r}") from None
        except BaseException:
            sock.close()
            raise

    async def send(self, order: Report, fds: Sequence[int] = ()) -> None:
        """Send one order, with descriptors if it has any (they may be closed afterwards)."""
        if self._socket is None:
            raise SpawnerGoneError(
                "the spawner has ended and its containers with it; the next container starts another"
            )
        try:
            await self._send_over(self._socket, order, fds)
        except OSError as problem:
            raise SpawnerGoneError(f"the spawner has ended ({problem}); the next container starts another") from None

    async def leave(self) -> None:
        """Go, and leave to it what it holds."""
        if self._socket is not None:
            sock, self._socket = self._socket, None
            await self._stop_reading()
            sock.close()

    async def close(self) -> None:
        """Let the spawner kill all it runs, and end."""
        if self._socket is not None:
            sock, self._socket = self._socket, None
            await self._stop_reading()
            try:
                async with asyncio.timeout(END_TIMEOUT_S), _until_it_ends(self.pid):
                    await self._send_over(sock, {"order": "end"})
                    while await _receive(asyncio.get_running_loop(), sock):
                        continue  # until it has closed its end, which is the last it does before it ends
            except TimeoutError:  # it is stuck; what it is the parent of ends with it
                await asyncio.to_thread(kill_process_of, self.description)
            except OSError:
                pass  # it was ending
            sock.close()
        if self._process is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
        self.description.unlink(missing_ok=True)

    def _hello(self, *, retires: bool) -> Report:
        secret = self.secret.read_text() if self.secret.exists() else ""  # those of earlier releases ask for none
        return {"order": "hello", "protocol": PROTOCOL, "secret": secret, "grace_s": self._grace_s, "retires": retires}

    def _listen(self, sock: socket.socket, inbox: bytearray) -> None:
        self._socket = sock
        self._reader = asyncio.get_running_loop().create_task(self._read(sock, inbox))

    async def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    async def _send_over(self, sock: socket.socket, order: Report, fds: Sequence[int] = ()) -> None:
        data = _framed(order)
        async with self._writing:
            sent = await _send_with_fds(sock, data, fds) if fds else 0
            if sent < len(data):
                await asyncio.get_running_loop().sock_sendall(sock, data[sent:])

    async def _read(self, sock: socket.socket, inbox: bytearray) -> None:
        async for report in _reports(sock, inbox):
            if report["event"] == "welcome":
                continue  # of one that we started: it holds nothing yet
            try:
                self._on_report(self, report)
            except Exception:  # a task boundary: one report's trouble must not leave all containers unheard
                log.exception("spawner report not understood", report=report)
        # a link may end without it; then what it holds would run on unheard, and be started again
        await asyncio.to_thread(kill_process_of, self.description)
        self._socket, self.pid = None, 0
        sock.close()
        self._on_lost(self)


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return made


@contextlib.asynccontextmanager
async def _until_it_ends(pid: int) -> AsyncIterator[None]:
    """Leaves the block once the process has ended, whoever its parent is. Its sockets close a moment before."""
    loop = asyncio.get_running_loop()
    try:
        process = os.pidfd_open(pid)
    except OSError:  # it has
        yield
        return
    ended = asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        yield
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


@contextlib.contextmanager
def _addressed(directory: Path, name: str) -> Iterator[str]:
    """The address of a socket there; not by path: that of a state directory may be longer than a socket's may be."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}.sock"
    finally:
        os.close(descriptor)


def _framed(order: Report) -> bytes:
    body = json.dumps(order).encode()
    return struct.pack(">I", len(body)) + body


async def _send_with_fds(sock: socket.socket, data: bytes, fds: Sequence[int]) -> int:
    while True:
        try:
            return socket.send_fds(sock, [data], list(fds))
        except BlockingIOError:
            await _until_writable(sock)


async def _reports(sock: socket.socket, inbox: bytearray) -> AsyncIterator[Report]:
    """One after the other; what was received beyond the last one that was taken stays in the inbox."""
    loop = asyncio.get_running_loop()
    while True:
        while len(inbox) >= 4:
            length = struct.unpack(">I", inbox[:4])[0]
            if len(inbox) < 4 + length:
                break
            report = json.loads(bytes(inbox[4 : 4 + length]))
            del inbox[: 4 + length]
            yield report
        data = await _receive(loop, sock)
        if not data:
            return
        inbox += data


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
