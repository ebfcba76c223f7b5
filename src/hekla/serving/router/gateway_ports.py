"""The ports that Gateways ask for: opened when a Gateway names them, closed when none does, each with a desk of its own.

A port that cannot be opened is told and tried again; the others go on. `gateway.py` decides for the requests, `certificates.py`
shows the certificates of those that speak HTTPS.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from hekla.serving.router.certificates import Certificates
from hekla.serving.router.gateway import GatewayDesk, wanted_ports
from hekla.serving.router.listeners import doors_by_port
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
        make_listener: Callable[[Desk, Certificates | None], Listener],
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
        self.certificates: dict[int, Certificates] = {}
        """Of the open ports that speak HTTPS."""
        self._version = -1

    async def run(self) -> None:
        """Follow the Gateways."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Open what is wanted and not open, close what is open and not wanted."""
        own = set(self._own_ports())
        wanted = {port: is_tls for port, is_tls in wanted_ports(self._world).items() if port not in own}
        for port in list(self.open):
            if port not in wanted or wanted[port] != (port in self.certificates):
                self.open.pop(port).stop()
                self.certificates.pop(port, None)
                log.info("gateway port closed", port=port)
        for port, is_tls in wanted.items():
            if port not in self.open and self._now() >= self._failed.get(port, 0.0):
                await self._open(port, is_tls)
        self._show_certificates()

    def _show_certificates(self) -> None:
        """Take the certificates that changed."""
        if self._version == self._world.version:
            return
        self._version = self._world.version
        doors = doors_by_port(self._world.our_gateways())
        for port, one in self.certificates.items():
            one.take(doors.get(port, []), self._world.certificates, self._world.grants.values())

    async def _open(self, port: int, is_tls: bool) -> None:
        certificates = Certificates() if is_tls else None
        listener = self._make_listener(GatewayDesk(self._world, self._dice, port, is_tls=is_tls), certificates)
        try:
            context = certificates.context if certificates is not None else None
            await listener.listen(f"gateway {port}", self._host, port, tls=context)
        except OSError as error:
            self._failed[port] = self._now() + RETRY_S
            log.warning("gateway port not opened", port=port, why=error.strerror or str(error), again_s=RETRY_S)
            return
        self._failed.pop(port, None)
        self.open[port] = listener
        if certificates is not None:
            self.certificates[port] = certificates
            self._version = -1
        log.info("gateway port opened", port=port)

    async def drain(self, timeout_s: float) -> None:
        """Take no more connections, and let what is under way end."""
        await asyncio.gather(*(listener.drain(timeout_s) for listener in self.open.values()))

    def stop(self) -> None:
        """Drop everything."""
        for listener in self.open.values():
            listener.stop()
        self.open.clear()
