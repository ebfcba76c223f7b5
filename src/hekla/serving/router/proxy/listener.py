"""Listens for clients, keeps the time of everything that may take too long, and stops in good order."""

import asyncio
import ssl
from collections.abc import Callable

import structlog

from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.clients import ClientConnection, Doorway, Front, Phase
from hekla.serving.router.proxy.engines import Pools

log = structlog.get_logger(__name__)

TICK_S = 0.25
_BACKLOG = 4096


class Listener:
    """The addresses that one router listens on, and the connections that came in by them."""

    def __init__(
        self, front: Front, bounds: Bounds, pools: Pools, clock: Callable[[], float], *, shares_ports: bool = False
    ) -> None:
        """`shares_ports` lets several processes listen on one address, each with its own connections."""
        self._shares_ports = shares_ports
        self._clock = clock
        self._doorway = Doorway(front, bounds)
        self._pools = pools
        self._servers: dict[str, asyncio.Server] = {}
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._doorway.connections)

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more connections."""
        return self._doorway.is_draining

    @property
    def doorway(self) -> Doorway:
        """What its connections share."""
        return self._doorway

    async def listen(self, name: str, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen on one more address; returns the port."""
        loop = asyncio.get_running_loop()
        self._doorway.now = self._pools.now = self._clock()
        server = await loop.create_server(
            lambda: ClientConnection(self._doorway),
            host,
            port,
            backlog=_BACKLOG,
            ssl=tls,
            reuse_port=self._shares_ports or None,
        )
        self._servers[name] = server
        if self._ticker is None:
            self.tick()
        address: tuple[str, int] = server.sockets[0].getsockname()[:2]
        return address[1]

    def close(self, name: str) -> None:
        """Listen on an address no more; its connections go on."""
        server = self._servers.pop(name, None)
        if server is not None:
            server.close()

    def tick(self) -> None:
        """Look at everything that waits, and again in a moment."""
        if self._ticker is not None:
            self._ticker.cancel()
        now = self._doorway.now = self._clock()
        for connection in tuple(self._doorway.connections):
            try:
                connection.tick(now)
            except Exception:  # one connection's trouble is not the others'
                log.exception("a connection's time could not be kept")
        if self._doorway.lane is not None:
            self._doorway.lane.sweep(now)
        self._pools.sweep(now)
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self.tick)

    async def drain(self, timeout_s: float) -> bool:
        """Take no more connections, finish what is under way, close what is idle; whether all of it ended in time."""
        doorway = self._doorway
        doorway.is_draining = True
        for name in tuple(self._servers):
            self.close(name)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while doorway.connections and asyncio.get_running_loop().time() < deadline:
            for connection in tuple(doorway.connections):
                if connection.phase is Phase.IDLE:
                    connection.cut()
                elif connection.phase is Phase.LANE:
                    connection.transport.close()  # as soon as nothing is under way on it
            await asyncio.sleep(min(0.05, timeout_s))
        return not doorway.connections

    def stop(self) -> None:
        """Drop everything."""
        for name in tuple(self._servers):
            self.close(name)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for connection in tuple(self._doorway.connections):
            connection.transport.abort()
        self._pools.close()
