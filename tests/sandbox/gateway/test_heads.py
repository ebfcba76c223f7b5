"""The few sandboxes that are claimed next wait with a connection to their daemon; the others do not, and whoever is taken keeps none for ever."""

import asyncio
from contextlib import asynccontextmanager

from hekla.sandbox.gateway import heads as heads_of
from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.heads import EACH, LOOK_EVERY_S, MOST, REST_S, Heads
from hekla.sandbox.gateway.inside import InsidePools
from hekla.sandbox.link import DAEMON, LinkError, Way
from hekla.sandbox.sessions.stock import Held
from hekla.testing import virtual_time

REHEARSED = b"HTTP/1.1 204 No Content\r\nconnection: keep-alive\r\n\r\n"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
BOUNDS = Bounds()


class World(asyncio.Transport):
    """A stock, and daemons that answer what is written to them at once."""

    def __init__(self):
        super().__init__()
        self.waiting, self.asked, self.answers, self.is_making = [], [], {}, False
        self.pools = InsidePools(BOUNDS, lambda namespace, pod, port: Way(lambda make: self.connect(pod, port, make)))
        self.heads = Heads(self, self.pools, lambda: self.is_making)
        self.changed = lambda: None

    def next_up(self, each):
        return [Held(namespace="n", name=one, uid=one, pod=one, session="") for one in self.waiting[:each]]

    def tell_waiting(self, listener):
        self.changed = listener

    async def connect(self, pod, port, make):
        assert port == DAEMON
        if pod not in self.answers:
            raise LinkError("there is no such sandbox")
        Line(self, pod).join(make())

    def pool(self, pod):
        return self.pools.of(("n", pod, DAEMON))

    def wait(self, *pods, answer=REHEARSED):
        self.waiting += pods
        self.answers |= dict.fromkeys(pods, answer)
        self.changed()


class Line(asyncio.Transport):
    """One connection, and who is at its other end."""

    def __init__(self, world, pod):
        super().__init__()
        self.world, self.pod, self.is_over = world, pod, False

    def join(self, protocol):
        self.protocol = protocol
        protocol.connection_made(self)

    def write(self, data):
        self.world.asked.append((self.pod, data.partition(b" HTTP")[0]))
        asyncio.get_running_loop().call_soon(self.protocol.data_received, self.world.answers[self.pod])

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def is_closing(self):
        return self.is_over

    def abort(self):
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


def live(story):
    @asynccontextmanager
    async def begun():
        world = World()
        world.heads.start()
        try:
            yield world
        finally:
            await world.heads.stop()
            world.pools.close()

    async def told():
        async with begun() as world:
            await story(world)

    virtual_time.run(told())


def swept(world):
    world.pools.sweep(asyncio.get_running_loop().time())


async def rested():
    await asyncio.sleep(3 * REST_S)


def test_those_that_are_next_have_a_connection_and_the_others_none():
    async def story(world):
        pods = [f"p{number:02}" for number in range(EACH + 3)]
        world.wait(*pods)
        await rested()
        assert world.asked == [(pod, b"POST /rehearsal") for pod in pods[:EACH]]
        assert [bool(world.pool(pod).idle) for pod in pods] == [True] * EACH + [False] * 3

    live(story)


def test_whoever_is_next_once_one_was_taken_is_heated_and_the_others_are_not_asked_again():
    async def story(world):
        world.wait(*(f"p{number}" for number in range(EACH + 1)))
        await rested()
        world.waiting.pop(0)
        world.changed()
        await rested()
        assert [pod for pod, _ in world.asked] == [f"p{number}" for number in range(EACH + 1)]

    live(story)


def test_a_head_stays_hot_and_one_that_was_taken_as_long_as_any_connection():
    async def story(world):
        world.wait("a", "b")
        await rested()
        await asyncio.sleep(10 * BOUNDS.inside_idle_s)
        swept(world)
        assert world.pool("a").idle
        world.waiting.remove("a")
        world.changed()
        await rested()
        swept(world)
        assert world.pool("a").idle
        await asyncio.sleep(BOUNDS.inside_idle_s + 1)
        swept(world)
        assert not world.pool("a").idle
        assert world.pool("b").idle

    live(story)


def test_a_connection_that_its_daemon_closed_is_made_again():
    async def story(world):
        world.wait("a")
        await rested()
        world.pool("a").idle[0].abort()
        await asyncio.sleep(LOOK_EVERY_S + 3 * REST_S)
        assert len(world.asked) == 2
        assert world.pool("a").idle

    live(story)


def test_one_that_cannot_be_heated_is_left_alone():
    async def story(world):
        world.wait("an older daemon", answer=REFUSED)
        world.waiting.append("gone")
        world.wait("a")
        await rested()
        await asyncio.sleep(3 * LOOK_EVERY_S)
        assert [pod for pod, _ in world.asked] == ["an older daemon", "a"]
        assert world.pool("a").idle

    live(story)


def test_nothing_is_heated_while_somebody_waits_for_a_session():
    async def story(world):
        world.is_making = True
        world.wait("a")
        await asyncio.sleep(100 * REST_S)
        assert world.asked == []
        world.is_making = False
        await rested()
        assert world.pool("a").idle

    live(story)


def test_many_templates_have_no_more_heads_than_a_gateway_can_bear(monkeypatch):
    async def story(world):
        world.next_up = lambda each: World.next_up(world, MOST + 5)
        world.wait(*(f"p{number:03}" for number in range(MOST + 5)))
        await rested()
        assert len(world.asked) == MOST

    monkeypatch.setattr(heads_of, "EACH", 1)
    live(story)
