"""Carries what replicas of the router tell one another: over Redis between hosts, over datagram sockets between processes of one host.

The shell of `sharing.py`. A bus that is down costs knowledge, never a request: messages are dropped, and the router goes on with what it
sees itself.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from hekla.serving.router.sharing import EVERY_S, SILENT_S, Ledger

MOST_QUEUED: Final = 64
"""Messages that wait for a bus; the oldest is dropped."""
AGAIN_S: Final = 1.0

log = structlog.get_logger()

Receive = Callable[[bytes], None]


class BusGoneError(Exception):
    """The bus cannot be reached."""


class Bus(Protocol):
    """Carries messages to everybody else; may lose them, and may bring back our own."""

    def publish(self, message: bytes) -> None:
        """Send soon; never waits, never fails."""

    async def run(self, receive: Receive) -> None:
        """Carry messages until cancelled; raises BusGoneError."""


class MemoryBus:
    """A bus within one process."""

    def __init__(self) -> None:
        self._receivers: list[Receive] = []

    def publish(self, message: bytes) -> None:
        """As `Bus`."""
        for receive in self._receivers:
            receive(message)

    async def run(self, receive: Receive) -> None:
        """As `Bus`."""
        self._receivers.append(receive)
        try:
            await asyncio.Event().wait()
        finally:
            self._receivers.remove(receive)


class DatagramBus:
    """Sockets in one directory, one for each router process of this host; whoever may open the directory may speak."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._path = directory / f"{name}.sock"
        self._socket: socket.socket | None = None

    def publish(self, message: bytes) -> None:
        """As `Bus`; who does not read fast enough, or is dead, misses it."""
        if self._socket is None:
            return
        for path in self._directory.glob("*.sock"):
            if path != self._path:
                try:
                    self._socket.sendto(message, str(path))
                except ConnectionRefusedError:  # nobody holds it: its process is gone
                    path.unlink(missing_ok=True)
                except OSError:  # its buffer is full: a later report makes it good
                    continue

    async def run(self, receive: Receive) -> None:
        """As `Bus`."""
        loop = asyncio.get_running_loop()
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            own.setblocking(False)
            own.bind(str(self._path))
        except OSError as error:
            raise BusGoneError(f"{self._path}: {os.strerror(error.errno or 0)}") from error
        self._socket = own
        gone = loop.create_future()
        loop.add_reader(own, self._read, own, receive)
        try:
            await gone
        finally:
            loop.remove_reader(own)
            self._socket = None
            own.close()
            self._path.unlink(missing_ok=True)

    @staticmethod
    def _read(own: socket.socket, receive: Receive) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                receive(own.recv(65_536))


class Outbox:
    """Messages on their way to a bus that has to be waited for."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque(maxlen=MOST_QUEUED)
        self._filled = asyncio.Event()

    def put(self, message: bytes) -> None:
        """Queue one; the oldest gives way."""
        self._messages.append(message)
        self._filled.set()

    async def get(self) -> bytes:
        """The next one."""
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        return self._messages.popleft()


class Replicas:
    """One router among its replicas; `run` must run beside it."""

    def __init__(self, ledger: Ledger, bus: Bus, now: Callable[[], float]) -> None:
        self._ledger = ledger
        self._bus = bus
        self._now = now
        self._is_gone = False

    async def run(self) -> None:
        """Tell and be told for ever; a bus that is gone is asked again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell())
            group.create_task(self._listen())

    async def _tell(self) -> None:
        expired_at = self._now()
        while True:
            now = self._now()
            if (message := self._ledger.report(now)) is not None:
                self._bus.publish(message)
            if now - expired_at > SILENT_S / 3:
                self._ledger.expire(now)
                expired_at = now
            await asyncio.sleep(EVERY_S)

    async def _listen(self) -> None:
        while True:
            try:
                await self._bus.run(self._take)
            except BusGoneError as error:
                if not self._is_gone:  # once, and not each second for as long as a server is down
                    log.warning("replicas unreachable", why=str(error), again_s=AGAIN_S)
                self._is_gone = True
                await asyncio.sleep(AGAIN_S)

    def _take(self, message: bytes) -> None:
        if self._is_gone:
            log.info("replicas reachable again")
            self._is_gone = False
        self._ledger.take(message, self._now())
