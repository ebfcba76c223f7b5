"""Listens for clients, keeps the time of everything that may take too long, and stops in good order."""

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.clients import ClientConnection, Doorway, Front, Phase
from hekla.serving.router.proxy.engines import Pools
from hekla.wire.accepting import Port
from hekla.wire.limits import is_flood

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
        self._ports: dict[str, Port] = {}
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._doorway.connections)

    @property
    def entering(self) -> int:
        """How many have not agreed on TLS yet, at all ports together."""
        return sum(port.entering for port in self._ports.values())

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more connections."""
        return self._doorway.is_draining

    @property
    def doorway(self) -> Doorway:
        """What its connections share."""
        return self._doorway

    async def listen(
        self, name: str, host: str, port: int, *, tls: ssl.SSLContext | None = None, door: socket.socket | None = None
    ) -> int:
        """Listen on one more address, or let in at a door where some may wait already; returns the port."""
        self._doorway.now = self._pools.now = self._clock()
        opened = Port(lambda: ClientConnection(self._doorway), tls=tls, welcome=self._welcome, is_flood=self._is_flood)
        if door is not None:
            number = opened.take(door)
        else:
            number = await opened.open(host, port, backlog=_BACKLOG, shares_port=self._shares_ports)
        self._ports[name] = opened
        if self._ticker is None:
            self.tick()
        return number

    def _welcome(self, one: socket.socket) -> bool:
        """Whether the fast lane takes a connection on which nothing was said yet."""
        doorway = self._doorway
        if doorway.lane is None or len(doorway.connections) >= doorway.bounds.connections:
            return False
        return doorway.lane.welcome(ClientConnection(doorway), one)

    def _is_flood(self) -> bool:
        """Whether those that are to agree on TLS, whatever their port, and those that are in are too many."""
        return is_flood(self.entering + len(self._doorway.connections), self._doorway.bounds.connections)

    def close(self, name: str) -> None:
        """Listen on an address no more; its connections go on."""
        port = self._ports.pop(name, None)
        if port is not None:
            port.close()

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
        for name in tuple(self._ports):
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
        for name in tuple(self._ports):
            self.close(name)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for connection in tuple(self._doorway.connections):
            connection.transport.abort()
        self._pools.close()
