"""Fetches an issuer's public keys, every ten minutes and whenever a token names a key that is not among them.

The shell of `bearer.py`. Keys that were fetched stay good while the issuer cannot be reached: a door must not turn everybody
away because another service is down. Tokens expire all the same.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from hekla.edge.bearer import BearerError, KeySet
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError

EVERY_S: Final = 600.0
AFTER_FAULT_S: Final = 10.0
AT_MOST_EVERY_S: Final = 5.0
"""How soon after one fetch an unknown key may cause the next: made-up keys must not make us hammer the issuer."""
TIMEOUT_S: Final = 5.0
MOST_WAITING: Final = 1_000

log = structlog.get_logger()


class KeyFetcher:
    """The keys of one issuer; `run` must run beside it."""

    def __init__(self, uri: str, client: HttpClient, now: Callable[[], float]) -> None:
        self._uri = uri
        self._client = client
        self._now = now
        self._keys: KeySet | None = None
        self._asked_at = float("-inf")
        self._wanted = asyncio.Event()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._number = 0

    def current(self) -> KeySet | None:
        """The keys as last fetched."""
        return self._keys

    def refresh(self, then: Callable[[], None]) -> "_Ticket | None":
        """Have the keys fetched now, unless they were a moment ago."""
        is_asking = self._wanted.is_set()
        if not is_asking and self._now() - self._asked_at < AT_MOST_EVERY_S:
            return None
        if len(self._waiting) >= MOST_WAITING:
            return None
        self._number += 1
        self._waiting[self._number] = then
        self._wanted.set()
        return _Ticket(self._waiting, self._number)

    async def run(self) -> None:
        """Fetch for ever."""
        while True:
            self._wanted.set()  # who comes while we ask waits for this answer
            pause_s = EVERY_S if await self._fetch() else AFTER_FAULT_S
            self._asked_at = self._now()
            self._wanted.clear()
            self._tell()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _fetch(self) -> bool:
        try:
            answer = await self._client.request("GET", self._uri, timeout_s=TIMEOUT_S)
            if answer.status != 200:
                raise BearerError(f"the issuer answered {answer.status}")
            assert isinstance(answer.body, bytes)  # `request` answers whole
            self._keys = KeySet.parse(answer.body)
        except (WireError, BearerError) as error:
            log.warning("issuer's keys not fetched", uri=self._uri, why=str(error), kept=len(self._keys or ()))
            return False
        return True

    def _tell(self) -> None:
        waiting, self._waiting = list(self._waiting.values()), {}
        for then in waiting:
            then()


class _Ticket:
    """A place among those who wait for the keys."""

    def __init__(self, waiting: dict[int, Callable[[], None]], number: int) -> None:
        self._waiting = waiting
        self._number = number

    def abandon(self) -> None:
        """Do not call any more."""
        self._waiting.pop(self._number, None)
