"""The keys of an OpenID issuer whose tokens the gateway takes: found by discovery, fetched now and then, and at once for an unknown key."""

import asyncio
import json
from collections.abc import Callable
from typing import Final

import structlog

from hekla.edge.bearer import KeySet
from hekla.edge.key_fetching import AFTER_FAULT_S, TIMEOUT_S, KeyFetcher
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 5.0
"""How long a request waits for keys that may have changed."""


class Issuer:
    """An issuer, by its URL or that of its keys; `run` must run beside it."""

    def __init__(self, url: str, client: HttpClient, now: Callable[[], float], *, keys_url: str = "") -> None:
        self._url, self._keys_url, self._client, self._now = url, keys_url, client, now
        self._fetcher: KeyFetcher | None = None

    def current(self) -> KeySet | None:
        """The keys as last fetched; None: never yet."""
        return self._fetcher.current() if self._fetcher is not None else None

    async def refreshed(self) -> KeySet | None:
        """The keys as they are now, asked anew unless that was done a moment ago."""
        if self._fetcher is None:
            return None
        fetched = asyncio.Event()
        if (ticket := self._fetcher.refresh(fetched.set)) is not None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await fetched.wait()
            except TimeoutError:
                ticket.abandon()
        return self.current()

    async def run(self) -> None:
        """Find out where the keys are, then fetch them for ever."""
        keys_url = self._keys_url
        while not keys_url:
            keys_url = await self._discovered()
            if not keys_url:
                await asyncio.sleep(AFTER_FAULT_S)
        self._fetcher = KeyFetcher(keys_url, self._client, self._now)
        await self._fetcher.run()

    async def _discovered(self) -> str:
        """Where the issuer says its keys are (OpenID Connect Discovery 1.0, section 4); it must name itself as we know it."""
        url = f"{self._url.rstrip('/')}/.well-known/openid-configuration"
        try:
            answer = await self._client.request("GET", url, timeout_s=TIMEOUT_S)
            assert isinstance(answer.body, bytes)  # `request` answers whole
            told = json.loads(answer.body) if answer.status == 200 else {}
            if (
                not isinstance(told, dict)
                or told.get("issuer") != self._url
                or not isinstance(told.get("jwks_uri"), str)
            ):
                raise ValueError(f'it answered {answer.status}, and names no "jwks_uri" of issuer "{self._url}"')
        except (WireError, ValueError) as error:
            log.warning("issuer not discovered", url=url, why=str(error))
            return ""
        found: str = told["jwks_uri"]
        return found
