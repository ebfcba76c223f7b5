"""Listens for clients, keeps the time of everything that may take too long, and stops in good order."""

import asyncio
import socket
import ssl
from typing import Any

from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.inside import InsidePools
from hekla.sandbox.gateway.visitors import Doorway, Front, Phase, Visitor

TICK_S = 0.25
_BACKLOG = 4096


class Listener:
    """The address that a gateway listens on, and the connections that came in by it."""

    def __init__(self, front: Front, bounds: Bounds, pools: InsidePools) -> None:
        self._doorway = Doorway(front, bounds)
        self._pools = pools
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self.port = 0

    async def start(
        self, host: str, port: int, *, door: socket.socket | None = None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Listen; port 0 picks one. A `door` is open already, and some may wait there."""
        where: dict[str, Any] = {"host": host, "port": port} if door is None else {"sock": door}
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Visitor(self._doorway), backlog=_BACKLOG, ssl=ssl_context, **where
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._tick()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._doorway.visitors)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = self._doorway.now = loop.time()
        for visitor in tuple(self._doorway.visitors):
            visitor.tick(now)
        self._pools.sweep(now)
        self._ticker = loop.call_later(TICK_S, self._tick)

    async def stop(self, grace_s: float) -> None:
        """Accept no more, finish what is under way; after the grace drop what is left."""
        if self._server is None:
            return
        self._server.close()
        self._doorway.is_draining = True
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
