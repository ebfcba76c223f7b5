"""Token buckets that several doors keep in one Redis or Valkey, in Kthena's format: a hash {tokens, last_update} per bucket.

What is asked within one tick goes out as one pipeline. The server's clock fills the buckets, so doors need not agree on the time.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from hekla.edge.shared_buckets import Answer, BucketsGoneError, Foreign, Lack, Share

SHORTEST_LIFE_S: Final = 600
LONGEST_LIFE_S: Final = 90 * 86_400
MOST_IN_A_PIPELINE: Final = 256
WRONG_TYPE: Final = "WRONGTYPE"
"""Redis' word for a key that holds something of another type: that bucket's trouble, and of no other."""
SHOWN: Final = 80
"""Letters of an answer that nobody understands."""

# KEYS: buckets. ARGV: for each, what must be there, what is taken, amount and rate; last, how long an idle bucket lives.
# Answers {0, 0}, or the number of the first bucket that lacks something and the seconds until it has it, as text.
_SCRIPT: Final = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local levels = {}
for i, key in ipairs(KEYS) do
  local had = redis.call('HMGET', key, 'tokens', 'last_update')
  local amount, rate = tonumber(ARGV[i * 4 - 1]), tonumber(ARGV[i * 4])
  local since = math.max(0, now - (tonumber(had[2]) or now))
  levels[i] = math.min(amount, (tonumber(had[1]) or amount) + since * rate)
  local needed = tonumber(ARGV[i * 4 - 3])
  if levels[i] < needed then
    return {i, tostring((needed - levels[i]) / rate)}
  end
end
for i, key in ipairs(KEYS) do
  local left = math.min(tonumber(ARGV[i * 4 - 1]), levels[i] - tonumber(ARGV[i * 4 - 2]))
  redis.call('HSET', key, 'tokens', tostring(left), 'last_update', string.format('%.6f', now))
  redis.call('EXPIRE', key, ARGV[#ARGV])
end
return {0, '0'}
"""

_WHATEVER: Final = -1e18
"""Needed of a bucket that may go into debt."""


def buckets_at(host: str, port: int, password: str) -> "RedisBuckets":
    """The buckets in the server there. Nothing is tried again: a door waits for an answer, and goes on alone without one; and what
    was taken by a first try, whose answer was lost, a second would take once more.
    """
    return RedisBuckets(Redis(host=host, port=port, password=password or None, retry=Retry(NoBackoff(), 0)))


class RedisBuckets:
    """Buckets in one server."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._script = client.register_script(_SCRIPT)

    async def take(self, asked: Sequence[Sequence[Share]]) -> list[Answer]:
        """As `SharedBuckets`."""
        answers: list[Answer] = []
        for start in range(0, len(asked), MOST_IN_A_PIPELINE):
            batch = asked[start : start + MOST_IN_A_PIPELINE]
            try:
                # left as it is, a pipeline that fails while it looks for its script keeps its connection for ever
                async with self._client.pipeline(transaction=False) as pipeline:
                    for shares in batch:
                        await self._script(keys=[one.key for one in shares], args=_arguments(shares), client=pipeline)
                    found = await pipeline.execute(raise_on_error=False)
            except (RedisError, OSError) as error:
                raise BucketsGoneError(str(error) or type(error).__name__) from error
            try:
                answers += [_answer(shares, one) for shares, one in zip(batch, found, strict=True)]
            except (TypeError, ValueError, IndexError) as error:
                raise BucketsGoneError(f"it answers what no Redis answers: {str(found)[:SHOWN]}") from error
        return answers

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _arguments(shares: Sequence[Share]) -> list[Any]:
    life_s = max(SHORTEST_LIFE_S, min(LONGEST_LIFE_S, int(3 * max(one.period_s for one in shares))))
    terms = [
        term
        for one in shares
        for term in (
            _WHATEVER if one.need is None else one.need,
            one.take,
            one.amount,
            one.amount / one.period_s,
        )
    ]
    return [*terms, life_s]


def _answer(shares: Sequence[Share], found: Any) -> Answer:
    if isinstance(found, ResponseError) and WRONG_TYPE in str(found):
        return Foreign(f"one of {', '.join(one.key for one in shares)} holds what is no bucket")
    if isinstance(found, Exception):
        raise BucketsGoneError(str(found) or type(found).__name__) from found
    number, wait = found
    if not number:
        return None
    lacking = shares[number - 1]
    never = lacking.need is not None and lacking.need > lacking.amount
    return Lack(number - 1, math.inf if never else float(wait))
