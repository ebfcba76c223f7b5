"""The ports that Gateways ask for: opened when a Gateway names them, closed when none does, each with a desk of its own.

A port that cannot be opened is told and tried again; the others go on. `gateway.py` decides for the requests.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from hekla.serving.router.gateway import GatewayDesk, wanted_ports
from hekla.serving.router.plan import Desk
from hekla.serving.router.proxy.listener import Listener
from hekla.serving.router.world import World

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.25
RETRY_S: Final = 5.0


class GatewayPorts:
    """The listeners of one router beside its own."""

    def __init__(
        self,
        world: World,
        dice: Callable[[], float],
        make_listener: Callable[[Desk], Listener],
        *,
        host: str,
        own_ports: Callable[[], Iterable[int]],
        now: Callable[[], float],
    ) -> None:
        self.open: dict[int, Listener] = {}
        self._world = world
        self._dice = dice
        self._make_listener = make_listener
        self._host = host
        self._own_ports = own_ports
        self._now = now
        self._failed: dict[int, float] = {}

    async def run(self) -> None:
        """Follow the Gateways."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Open what is wanted and not open, close what is open and not wanted."""
        wanted = wanted_ports(self._world) - set(self._own_ports())
        for port in wanted - self.open.keys():
            if self._now() >= self._failed.get(port, 0.0):
                await self._open(port)
        for port in self.open.keys() - wanted:
            self.open.pop(port).stop()
            log.info("gateway port closed", port=port)

    async def _open(self, port: int) -> None:
        listener = self._make_listener(GatewayDesk(self._world, self._dice, port))
        try:
            await listener.listen(f"gateway {port}", self._host, port)
        except OSError as error:
            self._failed[port] = self._now() + RETRY_S
            log.warning("gateway port not opened", port=port, why=error.strerror or str(error), again_s=RETRY_S)
            return
        self._failed.pop(port, None)
        self.open[port] = listener
        log.info("gateway port opened", port=port)

    async def drain(self, timeout_s: float) -> None:
        """Take no more connections, and let what is under way end."""
        await asyncio.gather(*(listener.drain(timeout_s) for listener in self.open.values()))

    def stop(self) -> None:
        """Drop everything."""
        for listener in self.open.values():
            listener.stop()
        self.open.clear()
