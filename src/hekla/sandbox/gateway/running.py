"""A gateway that runs: desk, doors and listener put together."""

import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import Metric

from hekla.kube.clock import Clock, SystemClock
from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.doors.agent_sandbox import AgentSandboxDoor, NamedSandboxes
from hekla.sandbox.gateway.doors.agentcube import ManagerDoor, RouterDoor
from hekla.sandbox.gateway.doors.e2b.control import ControlDoor
from hekla.sandbox.gateway.doors.e2b.inside import InsideDoor
from hekla.sandbox.gateway.doors.hekla import HeklaDoor
from hekla.sandbox.gateway.doors.mcp import McpDoor
from hekla.sandbox.gateway.doors.own import OwnDoor
from hekla.sandbox.gateway.front import Door, GatewayFront, House
from hekla.sandbox.gateway.guard import Guard
from hekla.sandbox.gateway.heads import Heads
from hekla.sandbox.gateway.inside import InsidePools
from hekla.sandbox.gateway.listener import Listener
from hekla.sandbox.gateway.metrics import GatewayMetrics
from hekla.sandbox.gateway.minting import Mint
from hekla.sandbox.link import SandboxLink
from hekla.sandbox.sessions.desk import Desk
from hekla.sandbox.sessions.limits import SessionLimits
from hekla.sandbox.sessions.stock import Stock
from hekla.sandbox.sessions.store import SessionStore


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """What a gateway is told."""

    host: str = "127.0.0.1"
    port: int = 0
    domain: str = ""
    """Of preview hosts, `<port>-<session>.<domain>`; empty: any domain that leads here."""
    drain_s: float = 2.0
    bounds: Bounds = field(default_factory=Bounds)
    limits: SessionLimits = field(default_factory=SessionLimits)


class Gateway:
    """One gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        store: SessionStore,
        stock: Stock,
        link: SandboxLink,
        guard: Guard,
        mint: Mint,
        named: NamedSandboxes | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`named`: Sandboxes that clients may name, where there are objects."""
        self._settings = settings
        self.desk = Desk(
            store=store, stock=stock, link=link, clock=clock or SystemClock(), limits=settings.limits, public_key=mint.public_pem
        )  # fmt: skip
        pools = InsidePools(settings.bounds, link.way)
        self.house = House(
            desk=self.desk, guard=guard, mint=mint, link=link, bounds=settings.bounds, pools=pools, metrics=GatewayMetrics(),
            domain=settings.domain, wall=time.time,
        )  # fmt: skip
        self._heads = Heads(stock, pools, lambda: self.desk.is_making)
        own = OwnDoor(store)
        doors: list[Door] = [
            InsideDoor(settings.domain),
            *([AgentSandboxDoor(named)] if named is not None else []),
            HeklaDoor(),
            McpDoor(),
            RouterDoor(),
            ManagerDoor(),
            ControlDoor(),
        ]
        self._listener = Listener(GatewayFront(self.house, doors, own), settings.bounds, pools)

    def collect(self) -> Iterable[Metric]:
        """Its numbers, as they stand now."""
        return self.house.metrics.collect(self.desk.states(), self.desk.counts)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.port

    async def start(self, *, door: socket.socket | None = None, ssl_context: ssl.SSLContext | None = None) -> None:
        """Mend what a crash left, then listen, or let in who waits at a door that is open already."""
        await self.desk.start()
        await self._listener.start(self._settings.host, self._settings.port, door=door, ssl_context=ssl_context)
        self._heads.start()

    async def stop(self) -> None:
        """Finish what is under way; sessions live on."""
        await self._heads.stop()
        await self._listener.stop(self._settings.drain_s)
        await self.desk.close()
