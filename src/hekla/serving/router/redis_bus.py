"""A bus for `replicas.py` over a channel of Redis or Valkey; the package `redis` is an extra, so only this module asks for it."""

import asyncio
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from hekla.serving.router.replicas import BusGoneError, Outbox, Receive

CHANNEL: Final = "hekla:routers"


class RedisBus:
    """One channel of one server."""

    def __init__(self, client: Redis, channel: str = CHANNEL) -> None:
        self._client = client
        self._channel = channel
        self._outbox = Outbox()

    def publish(self, message: bytes) -> None:
        """As `replicas.Bus`."""
        self._outbox.put(message)

    async def run(self, receive: Receive) -> None:
        """As `replicas.Bus`."""
        why: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send())
                group.create_task(self._listen(receive))
        except* (RedisError, OSError) as errors:
            why = errors.exceptions[0]
        if why is not None:  # raised in there, it would be a group of errors up to Python 3.11.3
            raise BusGoneError(str(why) or type(why).__name__) from why

    async def _send(self) -> None:
        while True:
            await self._client.publish(self._channel, await self._outbox.get())
            _end_if_told()

    async def _listen(self, receive: Receive) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(self._channel)
            _end_if_told()
            async for message in subscription.listen():
                _end_if_told()
                if isinstance(message["data"], bytes):
                    receive(message["data"])


def _end_if_told() -> None:
    """Be cancelled where the client has kept that to itself: one that comes together with an answer may be lost, and a drain waits for ever."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
