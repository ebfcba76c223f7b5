"""The HTTP server: listens, hands each connection to `connection.py`, keeps its time limits, and stops in good order.

    server = Server()
    await server.start(handler, port=0)
    ...
    await server.stop(grace_s=5)

A handler that is a plain function and returns a `Response` with bytes costs no task; one that returns a future (say, of
a group commit) costs none either; a coroutine gets a task that is cancelled when the client leaves.
"""

import asyncio
import contextlib
import errno
import ssl
import sys
import traceback
from email.utils import formatdate

from hekla.wire.accepting import Port
from hekla.wire.connection import Connection
from hekla.wire.limits import Limits, is_flood
from hekla.wire.messages import Handler, Request
from hekla.wire.service import Observer, OnError, Refuse, Service, plain_refusal

_BACKLOG = 1024
_TICK_S = 1.0
_HANDSHAKE_TIMEOUT_S = 10.0


class Server:
    """One listening address and the connections that came in by it."""

    def __init__(self) -> None:
        self._listener: Port | None = None
        self._service: Service | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._tick_s = _TICK_S
        self._port = 0

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._port

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._service.connections) if self._service else 0

    async def start(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        or_any_port: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        observer: Observer | None = None,
        on_error: OnError | None = None,
        refuse: Refuse = plain_refusal,
    ) -> None:
        """Listen and serve; port 0 picks one, and `or_any_port` picks anew where the wished one is taken."""
        if self._listener is not None:
            raise RuntimeError(f"the server listens on port {self._port} already; make another one")
        loop = asyncio.get_running_loop()
        limits = limits or Limits()
        service = Service(handler, limits, observer, on_error or report_error, refuse, loop, set())
        timeout_s = _HANDSHAKE_TIMEOUT_S if ssl_context else None
        listener = Port(
            lambda: Connection(service), tls=ssl_context, handshake_timeout_s=timeout_s,
            is_flood=lambda: is_flood(listener.entering + len(service.connections), limits.connections),
        )  # fmt: skip
        self._port = await self._listen(listener, host, port, or_any_port=or_any_port)
        self._listener, self._service = listener, service
        shortest_s = min(limits.request_timeout_s, limits.idle_timeout_s, limits.send_timeout_s, limits.ping_interval_s)
        self._tick_s = min(_TICK_S, shortest_s / 4)
        self._tick()

    @staticmethod
    async def _listen(listener: Port, host: str, port: int, *, or_any_port: bool) -> int:
        try:
            return await listener.open(host, port, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not (or_any_port and port):
                raise
        return await listener.open(host, 0, backlog=_BACKLOG)

    def _tick(self) -> None:
        service = self._service
        assert service is not None
        service.date_line = f"date: {formatdate(usegmt=True)}\r\n".encode()
        now = service.loop.time()
        for connection in tuple(service.connections):
            connection.tick(now)
        self._ticker = service.loop.call_later(self._tick_s, self._tick)

    def take_leave(self) -> None:
        """Go on answering whoever comes, and have clients come anew, elsewhere if they can: each answer is its connection's last."""
        if self._service is not None:
            self._service.is_stopping, self._service.ends_streams = True, False

    def give_up_port(self) -> None:
        """Accept no more, so that whoever comes after this process may listen there; who is connected is served until `stop`."""
        if self._listener is not None:
            self._listener.close()

    async def stop(self, grace_s: float = 5.0, *, ends_streams: bool = True) -> None:
        """Accept no more, finish what is in flight, end streams or let them end; after the grace drop what is left."""
        listener, service = self._listener, self._service
        if listener is None or service is None:
            return
        self._listener = None
        service.is_stopping, service.ends_streams = True, ends_streams
        listener.close()
        for connection in tuple(service.connections):
            connection.stop()
        await self._wait_empty(service, grace_s)
        for connection in tuple(service.connections):
            connection.abort()
        await self._wait_empty(service, 1.0)
        if self._ticker is not None:
            self._ticker.cancel()

    @staticmethod
    async def _wait_empty(service: Service, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while service.connections:
                    await asyncio.sleep(0.005)


def report_error(request: Request, error: BaseException) -> None:
    """What happens to a handler's error if nobody else takes it: it goes to stderr, with its trace."""
    sys.stderr.write(f"handler failed: {request.method} {request.target[:200]}\n")
    traceback.print_exception(error, file=sys.stderr)
