"""Tells subscribers over ZeroMQ which blocks the cache gains and loses, in vLLM's encoding, and again to who missed some.

Three frames a batch: topic, sequence number (8 bytes, big-endian, from 0), and msgpack of `[time, events, rank]`. A
request on the replay endpoint names the first number that is missing; what is still remembered comes, and then -1.
Frames and order are those of vLLM 0.32, which sends the topic in replays too.
"""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from hekla.app.engine.settings import KvEvents
from hekla.simulation.engine.happenings import AllBlocksCleared, BlockEvent, BlockRemoved, BlockStored

END = (-1).to_bytes(8, "big", signed=True)
MEDIUM = "GPU"


def encoded(events: Iterable[BlockEvent], at_s: float) -> bytes:
    """A batch as vLLM 0.23 and later write it: events are maps."""
    return msgspec.msgpack.encode([at_s, [_event(one) for one in events], 0])


def _event(one: BlockEvent) -> dict[str, Any]:
    match one:
        case BlockStored():
            return {
                "type": "BlockStored", "block_hashes": one.hashes, "parent_block_hash": one.parent,
                "token_ids": one.tokens, "block_size": one.block_size, "lora_id": None, "medium": MEDIUM,
                "lora_name": one.lora or None,
            }  # fmt: skip
        case BlockRemoved():
            return {"type": "BlockRemoved", "block_hashes": one.hashes, "medium": MEDIUM}
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}


class KvPublisher:
    """One publisher; batches wait in the socket, at most `hwm` for each subscriber, and are then dropped for it."""

    def __init__(self, config: KvEvents) -> None:
        self._config = config
        self._topic = config.topic.encode()
        self._context = zmq.asyncio.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self._events = self._context.socket(zmq.PUB)
        self._events.set_hwm(config.hwm)
        self._replays = self._context.socket(zmq.ROUTER) if config.replay_endpoint else None
        self._remembered: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._next = 0
        self.endpoint = ""
        self.replay_endpoint = ""

    def bind(self) -> None:
        """Listen; raises zmq.ZMQError where the address is taken."""
        self._events.bind(self._config.endpoint)
        self.endpoint = self._events.getsockopt_string(zmq.LAST_ENDPOINT)
        if self._replays is not None:
            assert self._config.replay_endpoint
            self._replays.bind(self._config.replay_endpoint)
            self.replay_endpoint = self._replays.getsockopt_string(zmq.LAST_ENDPOINT)

    def publish(self, events: Iterable[BlockEvent]) -> None:
        """Tell of one step's events; never waits."""
        payload = encoded(events, time.time())
        self._remembered.append((self._next, payload))
        self._events.send_multipart((self._topic, self._next.to_bytes(8, "big"), payload), zmq.DONTWAIT)
        self._next += 1

    async def answer_replays(self) -> None:
        """Serve the replay endpoint until cancelled."""
        socket = self._replays
        while socket is not None:
            frames = await socket.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue  # not a request; vLLM ignores it too
            client, _, wanted = frames
            first = int.from_bytes(wanted, "big")
            for number, payload in [one for one in self._remembered if one[0] >= first]:
                await socket.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), payload))
            await socket.send_multipart((client, b"", b"", END, b""))

    def close(self) -> None:
        """Let go of the sockets."""
        self._context.destroy(linger=0)
