"""Everything that stands before the desk, put together: who asks, how much he may ask, and whose turn it is.

`running.py` makes one from the router's settings, gives its `guards` to the house, tells it of changed routes, and runs it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from hekla.edge.bearer import Expected
from hekla.edge.key_fetching import KeyFetcher
from hekla.edge.shared_buckets import SharedBuckets
from hekla.serving.router.authentication import Authentication
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.fair_queue import Fairness, FairOrder
from hekla.serving.router.limits import Limit, Limits, limits_of
from hekla.serving.router.plan import Guard, Refusal, Usage, Waiting
from hekla.serving.router.question import Question
from hekla.serving.router.queues import Lines
from hekla.serving.router.session_boost import BoostOrder, SessionBoost
from hekla.serving.router.shared_limits import SharedLimits
from hekla.serving.router.world import World
from hekla.wire.client import HttpClient

TICK_S: Final = 0.02
"""How often lines look at their deadlines, and limits at changed routes."""
CALM_TICK_S: Final = 0.1
"""Where nobody stands in line: waking fifty times a second took half of an idle router's CPU."""
FAULT_S: Final = 1.0
IN_FLIGHT_PER_ENGINE: Final = 16
"""Requests of a model under way per engine before others wait in a line."""

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class DoorSettings:
    """What an operator sets."""

    api_keys: Mapping[bytes, str] | None = None
    """Users by the digest of their key (`authentication.read_api_keys`); None: there are no keys, which is not a list without any."""
    expected: Expected | None = None
    """Whose bearer tokens are taken."""
    jwks_uri: str = ""
    tenants: Mapping[str, Limit] = field(default_factory=dict)
    fairness: Fairness | None = None
    """One line per model, the user who used least first; not with `session_boost`."""
    session_boost: SessionBoost | None = None


ConnectBuckets = Callable[[str], SharedBuckets]
"""The buckets of a Redis at an address; raises ImportError where the package is missing."""


class Doors:
    """The guards of one router."""

    def __init__(
        self,
        settings: DoorSettings,
        world: World,
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        connect: ConnectBuckets,
    ) -> None:
        self.limits = Limits()
        self.limits.set_tenants(settings.tenants)
        self.shared = SharedBudgets(connect, now)
        self.lines = _lines(settings, world)
        self._client = HttpClient()
        self._keys = KeyFetcher(settings.jwks_uri, self._client, now) if settings.jwks_uri else None
        self.authentication: Authentication | None = None
        if settings.api_keys is not None or settings.expected is not None:
            self.authentication = Authentication(
                wall=wall, api_keys=settings.api_keys, expected=settings.expected, keys=self._keys
            )
        self._world = world
        self._now = now
        self._version = -1

    @property
    def guards(self) -> Sequence[Guard]:
        """In the order in which they are asked."""
        found: tuple[Guard | None, ...] = (self.authentication, self.limits, self.shared, self.lines)
        return [one for one in found if one is not None]

    def guards_with(self, beginning: Guard) -> Sequence[Guard]:
        """The same, and one that holds who comes too early: a stranger takes none of its places, and the others need what it waits for."""
        first = 0 if self.authentication is None else 1
        return (*self.guards[:first], beginning, *self.guards[first:])

    @property
    def changes(self) -> int:
        """Counts whatever changes who may ask how much."""
        return self._version + self.limits.changes

    def look_at_routes(self) -> None:
        """Take the routes' limits, if routes changed."""
        if self._version == self._world.version:
            return
        self._version = self._world.version
        limits = limits_of(route.source for route in self._world.routes.by_key.values())
        self.limits.set_routes(limits, self._now())
        self.shared.set_routes(limits)

    async def run(self) -> None:
        """Fetch keys, carry shared budgets, watch deadlines, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            group.create_task(self.shared.run())
            if self._keys is not None:
                group.create_task(lasting(self._keys.run, "issuer's keys"))
        await self._client.close()

    async def _tick(self) -> None:
        while True:
            self.look_at_routes()
            if self.lines is not None:
                self.lines.tick(self._now())
            await asyncio.sleep(TICK_S if self.lines is not None else CALM_TICK_S)


class SharedBudgets:
    """The guard of the routes whose budgets are in a Redis: one `SharedLimits` for each address."""

    def __init__(self, connect: ConnectBuckets, now: Callable[[], float]) -> None:
        self._connect = connect
        self._now = now
        self._by_address: dict[str, SharedLimits] = {}
        self._address_of: dict[str, str] = {}
        self._running: dict[SharedLimits, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def is_alone(self) -> dict[str, bool]:
        """By address, whether the server does not answer and the router keeps its budgets by itself."""
        return {address: one.is_gone for address, one in self._by_address.items()}

    def ask_anew(self) -> None:
        """Ask those that do not answer whether they are back; `is_alone` says it a moment later."""
        for one in self._by_address.values():
            one.ask_anew()

    def set_routes(self, limits: Mapping[str, Limit]) -> None:
        """Take the limits that name a server; who is no longer named is let go."""
        shared = {name: limit for name, limit in limits.items() if limit.redis}
        self._address_of = {name: limit.redis for name, limit in shared.items()}
        addresses = set(self._address_of.values())
        self._by_address = {
            address: self._by_address.get(address) or SharedLimits(self._connect(address), self._now, server=address)
            for address in sorted(addresses)
        }
        for address, one in self._by_address.items():
            one.set_routes({name: limit for name, limit in shared.items() if limit.redis == address})
        self._changed.set()

    def has(self, model: str) -> bool:
        """Whether a model's budget is in a Redis."""
        return model in self._address_of

    def admit(self, question: Question, now: float) -> Refusal | Waiting | None:
        """Ask the server of the model's budget."""
        if not self._address_of:
            return None
        keeper = self._keeper(question)
        return None if keeper is None else keeper.admit(question, now)

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """Settle with it."""
        if self._address_of and (keeper := self._keeper(question)) is not None:
            keeper.ended(question, usage, now)

    async def run(self) -> None:
        """Carry what is asked to the servers, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for one in [one for one in self._running if one not in self._by_address.values()]:
                    await self._let_go(one)
                for address, one in self._by_address.items():
                    if one not in self._running:
                        self._running[one] = asyncio.create_task(lasting(one.run, f"limits in {address}"))
        finally:
            for one in list(self._running):
                await self._let_go(one)

    async def _let_go(self, keeper: SharedLimits) -> None:
        task = self._running.pop(keeper)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.close()

    def _keeper(self, question: Question) -> SharedLimits | None:
        address = self._address_of.get(question.model)
        return None if address is None else self._by_address[address]


class EngineRoom:
    """What lines ask about the engines: `queues.Room` over the world."""

    def __init__(self, world: World, in_flight_per_engine: int) -> None:
        self._world = world
        self._per_engine = in_flight_per_engine

    def knows(self, model: str) -> bool:
        """Whether a route has the name."""
        routes, _ = self._world.routes.candidates(model)
        return any(True for _ in routes)

    def may_start(self, model: str, in_flight: int, now: float) -> bool:
        """Whether there is room: fewer under way than the engines may have, and one of them with nothing waiting.

        Where there is no engine at all the desk decides: it may hold so many as one may have, or say why not; the others keep
        their order until there is one. What goes to providers needs none.
        """
        engines, is_all = self._engines(model)
        if not engines:
            return not is_all or in_flight < self._per_engine
        return in_flight < self._per_engine * len(engines) and any(not one.waiting for one in engines)

    def has_engines(self, model: str) -> bool:
        """Whether there is an engine, or requests may go where none is needed."""
        engines, is_all = self._engines(model)
        return bool(engines) or not is_all

    def _engines(self, model: str) -> tuple[list[Endpoint], bool]:
        """The engines that a model's requests may go to, and whether all go to engines."""
        routes, _ = self._world.routes.candidates(model)
        keys = {target.key for route in routes for rule in route.rules for target in rule.targets}
        servers = [self._world.servers[key] for key in keys if key in self._world.servers]
        return [one for server in servers for one in server.decode.members], len(servers) == len(keys)


def _lines(settings: DoorSettings, world: World) -> Lines | None:
    if settings.fairness is not None:
        return Lines(FairOrder(settings.fairness), EngineRoom(world, IN_FLIGHT_PER_ENGINE))
    if settings.session_boost is not None:
        return Lines(BoostOrder(settings.session_boost), EngineRoom(world, settings.session_boost.in_flight_per_pod))
    return None


async def lasting(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Run work that should never end; a mistake in it is told, and it begins anew: it must not take the router along."""
    while True:
        try:
            await work()
        except Exception:  # whatever it was, the router goes on
            log.exception("router's work broken", work=name, again_s=FAULT_S)
        await asyncio.sleep(FAULT_S)
