"""Follows the KV events of all engines that publish them, and keeps what they tell in the index of the fleet.

Which engines publish, and where, stands in annotations (`backends.py`); `kv_feed.py` subscribes; `prefix/precise.py` is the
index. An engine whose events are followed is believed before guesses about it.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import structlog

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.kv_feed import Feeds, Publisher
from hekla.serving.router.prefix.kv_events import Batch
from hekla.serving.router.world import World

log = structlog.get_logger()

LOOK_S: Final = 1.0
"""How often it is looked which engines there are: their events of a second ago are asked for anyway."""


class CacheEvents:
    """The feeds of one router."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.feeds: Feeds | None = None
        """While it runs."""
        self.strangers = 0
        """Batches of another rank than the one that was to publish there."""

    async def run(self) -> None:
        """Follow until cancelled."""
        feeds = self.feeds = Feeds(self)
        running = asyncio.create_task(feeds.run())
        try:
            while not running.done():
                feeds.follow(dict(self._wanted()))
                await asyncio.wait((running,), timeout=LOOK_S)
            running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.feeds = None

    def _wanted(self) -> Iterator[tuple[Endpoint, Publisher]]:
        for one in self._world.fleet.by_name.values():
            if one.events_port:
                host = f"[{one.host}]" if ":" in one.host else one.host
                replay = f"tcp://{host}:{one.replay_port}" if one.replay_port else ""
                yield one, Publisher(f"tcp://{host}:{one.events_port}", replay)

    def take_in(self, endpoint: Endpoint, batch: Batch) -> None:
        """What an engine tells; when it emptied its cache, guesses about it are wrong as well.

        What another rank than the one of this port tells is left out: a request sent by it would find nothing.
        """
        if not self._is_known(endpoint):
            return
        if None not in (endpoint.rank, batch.rank) and endpoint.rank != batch.rank:
            self.strangers += 1
            if self.strangers == 1:
                log.warning("kv events of another rank", engine=endpoint.name, rank=batch.rank, expected=endpoint.rank)
            return
        endpoint.has_events = True
        if self._world.fleet.precise.apply(endpoint.slot, batch):
            self._forget_guesses(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """Its events are not followed any more, or began anew; what it had is unknown."""
        endpoint.has_events = False
        if self._is_known(endpoint):  # else its slot may be another's by now
            self._world.fleet.precise.forget(endpoint.slot)

    def _is_known(self, endpoint: Endpoint) -> bool:
        return self._world.fleet.by_name.get(f"{endpoint.namespace}/{endpoint.name}") is endpoint

    def _forget_guesses(self, endpoint: Endpoint) -> None:
        for pool in self._world.pools():
            if endpoint in pool.members:
                pool.index.forget(endpoint.slot)
