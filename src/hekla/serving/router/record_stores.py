"""Where cache records are kept: `recorded_caches.Records` in a Redis or Valkey. The package `redis` is an extra; only this module asks for it."""

from collections.abc import Callable, Sequence
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from hekla.serving.router.prefix.recorded import KEY_PREFIX, Entries
from hekla.serving.router.recorded_caches import RecordsGoneError

SCANNED: Final = 100
"""Keys looked at in one round trip of a sweep."""


class RedisRecords:
    """Records in one server."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._swept_to = 0
        """The server's cursor behind the last keys that a sweep is done with; 0: at the beginning, or through."""

    async def rows(self, keys: Sequence[str]) -> list[Entries]:
        """As `Records`; one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hgetall(key)
        try:
            found = await pipeline.execute(raise_on_error=False)  # a key of another type says nothing about the others
        except (RedisError, OSError) as error:
            raise RecordsGoneError(str(error) or type(error).__name__) from error
        return [one if isinstance(one, dict) else {} for one in found]

    async def sweep(self, too_old: Callable[[Entries], list[bytes]]) -> int:
        """As `Records`; walks over all keys, a hundred in a round trip."""
        swept = 0
        try:
            while True:
                cursor, keys = await self._client.scan(self._swept_to, match=f"{KEY_PREFIX}*", count=SCANNED)
                names = [key.decode() if isinstance(key, bytes) else key for key in keys]
                pipeline = self._client.pipeline(transaction=False)
                for name, entries in zip(names, await self.rows(names), strict=True):
                    if old := too_old(entries):
                        swept += len(old)
                        pipeline.hdel(name, *(one.decode() for one in old))
                await pipeline.execute()
                self._swept_to = int(cursor)  # where there are more keys than time, several sweeps get to the end
                if not self._swept_to:
                    return swept
        except (RedisError, OSError) as error:
            raise RecordsGoneError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """As `Records`."""
        await self._client.aclose()
