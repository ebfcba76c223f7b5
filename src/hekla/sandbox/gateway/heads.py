"""Keeps the heads of pools hot: the few sandboxes that are claimed next wait with a connection to their daemon, which has rehearsed a claim.

A session's first request then takes what a second one does: to connect is 1 ms of it, and what a daemon writes to for the first token
another (`daemon/rehearsal.py`; by itself it does so half a second after its birth). A connection is two descriptors, so it is for few. Nothing of it knows a claim: the
connection is the gateway's alone, and a daemon answers by whose it is when it is asked.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from hekla.sandbox.daemon.rehearsal import WANTED_AT
from hekla.sandbox.gateway.asking import Gathered, connected
from hekla.sandbox.gateway.inside import InsidePool, InsidePools, Key
from hekla.sandbox.gateway.relay import along
from hekla.sandbox.link import DAEMON
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.stock import Stock

log = structlog.get_logger(__name__)

EACH: Final = 8
"""Of each template: as many as begin in one turn (`sessions/making.py`)."""
MOST: Final = 64
"""Of all templates together; sandboxes of the others are claimed as well, a millisecond later."""
REST_S: Final = 0.3
"""So long after one was taken or came nobody waits for a first program any more, most likely."""
LOOK_EVERY_S: Final = 30.0
"""A daemon closes a connection that says nothing for five minutes."""
PATIENCE_S: Final = 5.0
_ASKED: Final = b"POST %b HTTP/1.1\r\nhost: sandbox\r\ncontent-length: 0\r\n\r\n" % WANTED_AT.encode()


class Heads:
    """The heads of a gateway's pools."""

    def __init__(self, stock: Stock, pools: InsidePools, is_making: Callable[[], bool]) -> None:
        """While somebody waits for a session nothing is done here."""
        self._stock, self._pools, self._is_making = stock, pools, is_making
        self._hot: dict[Key, InsidePool] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now, and whenever others are next."""
        self._stock.tell_waiting(self._changed.set)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="heads of pools")

    async def stop(self) -> None:
        """Leave the connections to whoever closes them all."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._rest()
            self._changed.clear()
            await self.look()
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _rest(self) -> None:
        await asyncio.sleep(REST_S)
        while self._is_making():
            await asyncio.sleep(REST_S)

    async def look(self) -> None:
        """Heat those that are next and are not hot, one by one; those that were taken are cooled as any other is."""
        wanted = [(one.namespace, one.pod, DAEMON) for one in self._stock.next_up(EACH)[:MOST]]
        for key in self._hot.keys() - set(wanted):
            self._hot.pop(key).cool()
        for key in wanted:
            pool = self._hot.get(key)
            if pool is None or (pool.is_at_head and not pool.idle):
                await self._heat(key)
            if self._changed.is_set() and self._is_making():
                return  # and look again

    async def _heat(self, key: Key) -> None:
        pool = self._hot[key] = self._pools.of(key)
        pool.is_at_head = True
        try:
            async with asyncio.timeout(PATIENCE_S):
                connection, answer = await connected(pool), Gathered(0)
                try:
                    connection.start(answer, along(pool.way.prefix, pool.way.lines, _ASKED))
                    await answer.whole
                except BaseException:
                    connection.abort()
                    raise
        except (RefusedError, TimeoutError) as refusal:
            # whoever has it next connects by himself; it is not tried again
            log.debug("sandbox not heated", namespace=key[0], pod=key[1], error=str(refusal) or "it did not answer")
        pool.is_at_head = bool(pool.idle)
