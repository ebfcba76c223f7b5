"""A port at which everybody who waits is let in at once.

libuv lets in one connection for each turn of the loop, and a turn serves all who are in already: of 32 clients who came together
with prompts of 350 kB the last was let in after 31 such turns, 250 ms.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Final

import structlog

_MOST_AT_ONCE: Final = 64
"""More wait for the next turn of the loop: those who are in are not to wait for a whole backlog."""
_PAUSE_S: Final = 0.1
"""Where no descriptor is left, who waits is looked at again after so long: the port would be ready all the time."""
_LACKING: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""A kernel without IPv6, or with none configured, of a name that stands for both families."""

Make = Callable[[], asyncio.Protocol]
Welcome = Callable[[socket.socket], bool]
"""Takes a connection as it is, with all that comes of it, or says that it does not."""

log = structlog.get_logger(__name__)


class Port:
    """One address, or what one name stands for."""

    def __init__(
        self,
        make: Make,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
        welcome: Welcome | None = None,
        is_flood: Callable[[], bool] | None = None,
    ) -> None:
        """`make` makes the protocol of a connection that `welcome` does not take; TLS is for `make` alone.

        `is_flood` is asked whether the next who is to agree on TLS is one too many, and is closed: nobody else hears of those that have
        not agreed (`entering`), and each has a file open.
        """
        self._make, self._tls = make, tls
        self._handshake_timeout_s = handshake_timeout_s if tls else None
        self._welcome = welcome if tls is None else None
        self._is_flood = is_flood if tls else None
        self._listening: list[socket.socket] = []
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._entering: set[asyncio.Task[None]] = set()
        self._is_full = False

    @property
    def entering(self) -> int:
        """How many have not agreed on TLS yet."""
        return len(self._entering)

    async def open(self, host: str, port: int, *, backlog: int, shares_port: bool = False) -> int:
        """Listen; returns the port. Raises OSError where it is taken, or this machine has none of the addresses."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            lacking: OSError | None = None
            for family, address in dict.fromkeys((family, address) for family, *_, address in found):
                try:
                    one = _listening(family, address, backlog, shares_port=shares_port)
                except OSError as error:
                    if error.errno not in _LACKING:
                        raise
                    log.info("an address that this machine lacks is left out", host=host, address=address[0])
                    lacking = error
                    continue
                self._listening.append(one)
                loop.add_reader(one.fileno(), self._let_in, one)
            if lacking is not None and not self._listening:
                raise lacking
        except OSError:
            self.close()
            raise
        bound: int = self._listening[0].getsockname()[1]
        return bound

    def take(self, listening: socket.socket) -> int:
        """Let in at a socket that listens already, with who waits there; returns the port."""
        self._listening.append(listening)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._let_in, listening)
        bound: int = listening.getsockname()[1]
        return bound

    def close(self) -> None:
        """Nobody is let in any more; who is in stays."""
        loop = asyncio.get_running_loop()
        for timer in self._paused.values():
            timer.cancel()
        for one in self._listening:
            loop.remove_reader(one.fileno())
            one.close()
        self._listening.clear()

    def _let_in(self, listening: socket.socket) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                one = listening.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # nobody waits, or he left
                return
            except OSError as error:
                self._pause(listening, error)
                return
            self._is_full = False
            self._take(one)

    def _take(self, one: socket.socket) -> None:
        try:
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            is_taken = self._welcome is not None and self._welcome(one)
        except OSError:  # it is gone
            one.close()
            return
        if self._is_flood is not None and self._is_flood():
            one.close()
        elif not is_taken:
            task = asyncio.get_running_loop().create_task(self._enter(one))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, one: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, one, ssl=self._tls, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except OSError as error:  # it left, or does not speak TLS
            log.debug("a connection was not made", why=str(error))
            one.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        if not self._is_full:  # or the log would fill while somebody waits
            log.warning("connections wait", why=str(error), again_in_s=_PAUSE_S)
        self._is_full = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        self._paused[listening] = loop.call_later(_PAUSE_S, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        del self._paused[listening]
        asyncio.get_running_loop().add_reader(listening.fileno(), self._let_in, listening)


def _listening(family: int, address: Iterable[object], backlog: int, *, shares_port: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(tuple(address))
        one.listen(backlog)
    except OSError:
        one.close()
        raise
    return one
