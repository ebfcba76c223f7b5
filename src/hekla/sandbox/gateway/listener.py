"""Listens for clients, keeps the time of everything that may take too long, and stops in good order."""

import asyncio
import socket
import ssl

from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.inside import InsidePools
from hekla.sandbox.gateway.thresholds import Thresholds
from hekla.sandbox.gateway.visitors import Doorway, Front, Phase, Visitor
from hekla.wire.accepting import Port

TICK_S = 0.25
_BACKLOG = 4096


class Listener:
    """The address that a gateway listens on, and the connections that came in by it."""

    def __init__(self, front: Front, bounds: Bounds, pools: InsidePools) -> None:
        self._doorway = Doorway(front, bounds)
        self._pools = pools
        self._thresholds: Thresholds | None = None
        self._opened: Port | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self.port = 0

    async def start(
        self, host: str, port: int, *, door: socket.socket | None = None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Listen; port 0 picks one. A `door` is open already, and some may wait there."""
        if ssl_context is not None:
            self._thresholds = Thresholds(self._doorway, ssl_context)
        welcome = self._thresholds.welcome if self._thresholds is not None else None
        self._opened = Port(lambda: Visitor(self._doorway), welcome=welcome)
        self.port = (
            self._opened.take(door) if door is not None else await self._opened.open(host, port, backlog=_BACKLOG)
        )
        self._tick()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._doorway.visitors) + (self._thresholds.count if self._thresholds is not None else 0)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = self._doorway.now = loop.time()
        for visitor in tuple(self._doorway.visitors):
            visitor.tick(now)
        self._pools.sweep(now)
        self._ticker = loop.call_later(TICK_S, self._tick)

    async def stop(self, grace_s: float) -> None:
        """Accept no more, finish what is under way; after the grace drop what is left."""
        if self._opened is None:
            return
        self._opened.close()
        self._doorway.is_draining = True
        if self._thresholds is not None:
            self._thresholds.close()
        for visitor in tuple(self._doorway.visitors):
            if visitor.phase in (Phase.IDLE, Phase.HEAD):
                visitor.close()
        loop = asyncio.get_running_loop()
        ends = loop.time() + grace_s
        while self._doorway.visitors and loop.time() < ends:
            await asyncio.sleep(0.01)
        for visitor in tuple(self._doorway.visitors):
            visitor.cut()
        if self._ticker is not None:
            self._ticker.cancel()
        self._pools.close()
