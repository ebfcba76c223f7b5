"""A router among its replicas: what is told of each request that is sent, and the bus that carries it, as the settings say.

`sharing.py` has what is told, `replicas.py` and `redis_bus.py` the ways. A router without replicas tells nobody.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.metrics import Labels
from hekla.serving.router.policies.session_affinity import Sessions
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.index import PromptMemory
from hekla.serving.router.replicas import Bus, DatagramBus, Replicas
from hekla.serving.router.settings import RouterSettings
from hekla.serving.router.sharing import Budgets, Ledger, Turns
from hekla.serving.router.world import World


class Replication:
    """What one router shares."""

    def __init__(self, settings: RouterSettings, now: Callable[[], float]) -> None:
        self._now = now
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._family = settings.family
        self._bus = self._bus_of(settings)
        self._world: World | None = None
        self._ledger: Ledger | None = None

    def share(self, world: World, budgets: Budgets | None = None, turns: Turns | None = None) -> None:
        """Tell of this world's engines, and of budgets and lines to processes of the same family, from now on."""
        self._world = world
        if self._bus is not None:
            self._ledger = Ledger(
                self._name,
                world.fleet,
                self._indexes_of,
                sessions_of=self._sessions_of,
                family=self._family,
                budgets=budgets,
                turns=turns,
            )

    def joined(self, pool: Pool) -> Pool:
        """A pool of which the others are told."""
        if self._bus is not None:
            pool.on_sent = lambda blocks, endpoint: self._ledger.sent(blocks, endpoint) if self._ledger else None
            pool.sessions.on_settled = lambda name, where: self._ledger.settled(name, where) if self._ledger else None
        return pool

    async def run(self) -> None:
        """Tell and be told, until cancelled."""
        if self._ledger is None or self._bus is None:
            await asyncio.Event().wait()
            return
        await Replicas(self._ledger, self._bus, self._now).run()

    def gauges(self) -> Iterable[tuple[str, Labels, float]]:
        """How many routers were heard of lately."""
        if self._ledger is not None:
            yield "hekla_router_replicas", (), self._ledger.peers

    def _indexes_of(self, endpoint: Endpoint) -> Iterable[PromptMemory]:
        assert self._world is not None
        return [pool.index for pool in self._world.pools() if endpoint in pool.members]

    def _sessions_of(self, endpoint: Endpoint) -> Iterable[Sessions]:
        assert self._world is not None
        return [pool.sessions for pool in self._world.pools() if endpoint in pool.members]

    def _bus_of(self, settings: RouterSettings) -> Bus | None:
        if settings.redis:
            from redis.asyncio import Redis

            from hekla.serving.router.redis_bus import RedisBus

            host, _, port = settings.redis.rpartition(":")
            return RedisBus(Redis(host=host, port=int(port), password=settings.redis_password or None))
        if settings.replicas_directory:
            return DatagramBus(Path(settings.replicas_directory), self._name)
        return None
