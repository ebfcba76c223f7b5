"""Real ZeroMQ: what an engine publishes is taken in, what was missed is asked for again, what is gone is forgotten.

The publisher of these tests is an XPUB: it sees subscriptions come in, so that nothing is told before somebody listens.
"""

import asyncio
import itertools

import msgspec
import pytest
import zmq
import zmq.asyncio

from hekla.serving.router import kv_feed
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.kv_feed import SLICE_S, Feed, Feeds, Publisher, Turns
from hekla.serving.router.prefix.kv_events import Stored
from hekla.testing import virtual_time

END = (-1).to_bytes(8, "big", signed=True)


def stored(number):
    event = {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": None,
        "token_ids": [number],
        "block_size": 1,
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


class Engine:
    """A publisher that remembers, and can keep a message from going out."""

    def __init__(self, *, answers_replays=True):
        self._context = zmq.asyncio.Context()
        self.events = self._context.socket(zmq.XPUB)
        self.replays = self._context.socket(zmq.ROUTER)
        for one in (self.events, self.replays):
            one.setsockopt(zmq.LINGER, 0)
            one.bind("tcp://127.0.0.1:*")
        self.sent = []
        self.asked = []
        self.publisher = Publisher(
            self.events.getsockopt_string(zmq.LAST_ENDPOINT),
            self.replays.getsockopt_string(zmq.LAST_ENDPOINT) if answers_replays else "",
        )
        self._answering = asyncio.create_task(self._answer())

    async def subscribed(self):
        """Somebody's subscription has come in."""
        while await self.events.recv() != b"\x01":
            pass

    async def say(self, number, *, is_lost=False):
        assert number == len(self.sent)
        self.sent.append(stored(number))
        if not is_lost:
            await self.events.send_multipart((b"kv", number.to_bytes(8, "big"), self.sent[number]))

    async def _answer(self):
        while True:
            client, _, start = await self.replays.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number in range(self.asked[-1], len(self.sent)):
                await self.replays.send_multipart((client, b"", number.to_bytes(8, "big"), self.sent[number]))
            await self.replays.send_multipart((client, b"", END, b""))

    async def stop(self):
        self._answering.cancel()
        await asyncio.gather(self._answering, return_exceptions=True)
        self._context.destroy(linger=0)


class Known:
    """What is known of each engine by its events: the numbers that it told."""

    def __init__(self):
        self.numbers = {}
        self.forgotten = 0
        self.changed = asyncio.Event()

    def take_in(self, endpoint, batch):
        told = [event.token_ids[0] for event in batch.events if isinstance(event, Stored)]
        self.numbers.setdefault(endpoint.name, []).extend(told)
        self.changed.set()

    def forget(self, endpoint):
        self.numbers.pop(endpoint.name, None)
        self.forgotten += 1
        self.changed.set()

    async def until(self, is_true):
        while not is_true():
            self.changed.clear()
            await self.changed.wait()


ENGINE = Endpoint("engine-0", "127.0.0.1", 8000, namespace="ml")


def tell(story, **how):
    """Run a story with one engine followed and subscribed."""

    async def told():
        engine, known = Engine(**how), Known()
        feeds = Feeds(known)
        running = asyncio.create_task(feeds.run())
        try:
            feeds.follow({ENGINE: engine.publisher})
            await engine.subscribed()
            await story(engine, known, feeds)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await engine.stop()

    asyncio.run(told())


def test_what_an_engine_tells_is_taken_in_in_order():
    async def story(engine, known, feeds):
        for number in range(5):
            await engine.say(number)
        await known.until(lambda: known.numbers.get("engine-0") == [0, 1, 2, 3, 4])

    tell(story)


def test_an_engine_that_was_there_before_us_is_asked_for_all_that_it_told():
    async def told():
        engine, known = Engine(), Known()
        for number in range(3):
            await engine.say(number)
        feeds = Feeds(known)
        running = asyncio.create_task(feeds.run())
        try:
            feeds.follow({ENGINE: engine.publisher})
            await known.until(lambda: known.numbers.get("engine-0") == [0, 1, 2])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await engine.stop()

    asyncio.run(told())


def test_a_message_that_was_lost_is_asked_for_and_the_order_is_kept():
    async def story(engine, known, feeds):
        await engine.say(0)
        await known.until(lambda: known.numbers.get("engine-0") == [0])
        await engine.say(1, is_lost=True)
        await engine.say(2)
        await known.until(lambda: known.numbers.get("engine-0") == [0, 1, 2])

    tell(story)


def test_without_a_replay_a_gap_makes_everything_doubtful():
    async def story(engine, known, feeds):
        await engine.say(0)
        await known.until(lambda: known.numbers.get("engine-0") == [0])
        await engine.say(1, is_lost=True)
        await engine.say(2)
        await known.until(lambda: known.numbers.get("engine-0") == [2])
        assert known.forgotten == 1

    tell(story, answers_replays=False)


def test_an_engine_that_dies_is_forgotten_and_nobody_else_is():
    async def story(engine, known, feeds):
        other = Engine()
        second = Endpoint("engine-1", "127.0.0.1", 8001, namespace="ml")
        feeds.follow({ENGINE: engine.publisher, second: other.publisher})
        await other.subscribed()
        await engine.say(0)
        await other.say(0)
        await known.until(lambda: len(known.numbers) == 2)
        await engine.stop()
        await known.until(lambda: known.numbers == {"engine-1": [0]})
        await other.say(1)
        await known.until(lambda: known.numbers == {"engine-1": [0, 1]})
        await other.stop()

    tell(story)


def test_an_engine_that_is_no_longer_wanted_is_forgotten():
    async def story(engine, known, feeds):
        await engine.say(0)
        await known.until(lambda: "engine-0" in known.numbers)
        feeds.follow({})
        await known.until(lambda: not known.numbers)
        assert feeds.feeds() == {}

    tell(story)


@pytest.mark.parametrize(
    "frames",
    [(b"kv",), (b"kv", b"short", b""), (b"kv", (0).to_bytes(8, "big"), b"\xc1"), (b"kv", (0).to_bytes(8, "big"), b"")],
)
def test_garbage_is_counted_and_passed_over(frames):
    async def story(engine, known, feeds):
        await engine.events.send_multipart(frames)
        engine.sent.append(stored(0))
        await engine.say(1)
        await known.until(lambda: 1 in known.numbers.get("engine-0", ()))
        assert feeds.feeds()["engine-0"].faults == 1

    tell(story, answers_replays=False)


def test_an_address_that_is_none_breaks_one_feed_and_no_other(monkeypatch):
    monkeypatch.setattr(kv_feed, "AGAIN_S", 0.001)

    async def story(engine, known, feeds):
        broken = Endpoint("broken", "127.0.0.1", 8001, namespace="ml")
        feeds.follow({broken: Publisher("no address"), ENGINE: engine.publisher})
        await engine.say(0)
        await known.until(lambda: known.numbers.get("engine-0") == [0])
        assert not feeds.feeds()["broken"].is_connected

    tell(story)


class Flood:
    """A socket in which a thousand messages wait: receiving them never waits for the loop."""

    def __init__(self):
        self.left = iter(range(1_000))

    async def recv_multipart(self):
        number = next(self.left, None)
        if number is None:
            await asyncio.Event().wait()
        return b"kv", number.to_bytes(8, "big"), stored(number)


def test_a_flood_of_events_leaves_half_of_the_time_to_requests():
    """10,000 messages of 2,000 blocks kept everything else waiting for 20 s."""

    async def story():
        ticks = iter(range(10**6))
        known = Known()
        turns = Turns(lambda: next(ticks) * SLICE_S / 10)  # every tenth message ends a slice
        feed = Feed(None, ENGINE, Publisher("tcp://nobody:1"), known, turns)
        receiving = asyncio.create_task(feed._receive(Flood()))
        seen = []
        while not seen or seen[-1] < 1_000:
            await asyncio.sleep(SLICE_S / 4)
            seen.append(len(known.numbers.get("engine-0", ())))
        receiving.cancel()
        steps = [after - before for before, after in itertools.pairwise(seen)]
        assert max(steps) <= 12
        assert known.numbers["engine-0"] == list(range(1_000))

    virtual_time.run(story())


def test_what_waited_behind_a_gap_is_taken_in_by_turns_and_before_what_comes_then():
    async def story():
        known = Known()
        turns = Turns(iter(float(number) for number in range(10**6)).__next__)  # every message ends a slice
        feed = Feed(None, ENGINE, Publisher("tcp://nobody:1", "tcp://nobody:2"), known, turns)
        await feed._take(lambda: feed.following.received(0, stored(0)))
        for number in range(2, 50):
            await feed._take(lambda number=number: feed.following.received(number, stored(number)))
        filling = asyncio.create_task(feed._take(lambda: feed.following.replayed(1, stored(1))))
        await asyncio.sleep(0)
        live = asyncio.create_task(feed._take(lambda: feed.following.received(50, stored(50))))
        await asyncio.gather(filling, live)
        assert known.numbers["engine-0"] == list(range(51))

    virtual_time.run(story())
