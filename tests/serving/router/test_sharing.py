"""What replicas know of one another: loads within a tick, prompts as hints, nothing of who is silent; and a bus may fail at any time."""

import asyncio
import contextlib
import random

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.limits import Limit, Limits
from hekla.serving.router.plan import Usage
from hekla.serving.router.policies.session_affinity import Sessions
from hekla.serving.router.prefix.blocks import Blocks, seed_of
from hekla.serving.router.prefix.index import PrefixIndex
from hekla.serving.router.question import Question
from hekla.serving.router.redis_bus import RedisBus
from hekla.serving.router.replicas import BusGoneError, DatagramBus, MemoryBus, Replicas
from hekla.serving.router.sharing import MOST_BYTES, Ledger
from hekla.testing import virtual_time

PROMPT = bytes(random.Random(7).randbytes(4096))


class Router:
    """One router's fleet, memory and ledger."""

    def __init__(self, name, *, engines=("a", "b")):
        self.fleet = Fleet()
        self.index = PrefixIndex()
        self.engines = {one: self.fleet.add(Endpoint(one, "127.0.0.1", 8000, namespace="ml")) for one in engines}
        self.ledger = Ledger(name, self.fleet, lambda _: [self.index])

    def holds(self, engine, prompt=PROMPT):
        found = self.index.match(blocks(prompt), -1)
        slot = self.engines[engine].slot
        return sum(depth for bits, depth in found if bits >> slot & 1)


def blocks(prompt=PROMPT):
    return Blocks(prompt, seed_of("llama"))


def meet(one, other, now=0.0):
    """Two routers hear of each other, as they do within a second."""
    for teller, hearer in ((one, other), (other, one)):
        hearer.ledger.take(teller.ledger.report(now), now)


def tell(teller, hearer, now):
    message = teller.ledger.report(now)
    if message is not None:
        hearer.ledger.take(message, now)
    return message


def test_a_load_is_known_elsewhere_and_ends_there_too():
    one, other = Router("one"), Router("other")
    meet(one, other)
    one.engines["a"].in_flight, one.engines["a"].prefill_tokens = 3, 500
    tell(one, other, 0.1)
    seen = other.engines["a"]
    assert (seen.elsewhere_in_flight, seen.elsewhere_prefill_tokens, seen.in_flight) == (3, 500, 0)
    one.engines["a"].in_flight = one.engines["a"].prefill_tokens = 0
    tell(one, other, 0.2)
    assert (seen.elsewhere_in_flight, seen.elsewhere_prefill_tokens) == (0, 0)


def test_loads_of_several_routers_add_up():
    routers = [Router(f"r{number}") for number in range(4)]
    for one in routers[1:]:
        one.engines["b"].in_flight = 2
        tell(one, routers[0], 0.0)
    assert routers[0].engines["b"].elsewhere_in_flight == 6
    assert routers[0].ledger.peers == 3


def test_what_was_lost_is_made_good_within_a_second():
    one, other = Router("one"), Router("other")
    meet(one, other)
    one.engines["a"].in_flight = 5
    assert one.ledger.report(0.1) is not None  # and nobody hears it
    assert one.ledger.report(0.2) is None
    tell(one, other, 1.1)
    assert other.engines["a"].elsewhere_in_flight == 5


def test_who_is_silent_counts_for_nothing():
    one, other = Router("one"), Router("other")
    one.engines["a"].in_flight = 5
    tell(one, other, 0.0)
    other.ledger.expire(2.9)
    assert other.engines["a"].elsewhere_in_flight == 5
    other.ledger.expire(3.1)
    assert (other.engines["a"].elsewhere_in_flight, other.ledger.peers) == (0, 0)


def test_an_engine_that_comes_later_has_the_load_that_was_told():
    one, other = Router("one"), Router("other", engines=("b",))
    one.engines["a"].in_flight = 5
    tell(one, other, 0.0)
    late = other.fleet.add(Endpoint("a", "127.0.0.1", 8000, namespace="ml"))
    other.ledger.expire(1.0)
    assert late.elsewhere_in_flight == 5


def test_a_prompt_that_one_sent_is_known_to_the_other():
    one, other = Router("one"), Router("other")
    meet(one, other)
    one.ledger.sent(blocks(), one.engines["b"])
    tell(one, other, 0.1)
    assert other.holds("b") == len(PROMPT) // 512
    assert other.holds("a") == 0


def test_a_lone_router_gathers_nothing():
    one = Router("one")
    one.ledger.report(0.0)
    one.ledger.sent(blocks(), one.engines["a"])
    assert one.ledger.report(0.1) is None


def test_a_message_fits_a_datagram_whatever_was_sent():
    one, other = Router("one"), Router("other")
    meet(one, other)
    for number in range(100):
        one.ledger.sent(blocks(random.Random(number).randbytes(2_000_000)), one.engines["a"])
    assert len(tell(one, other, 0.1)) < MOST_BYTES


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x00" * 100, b"\x91" * 5000, b'["x"]'])
def test_what_cannot_be_read_is_passed_over(message):
    one = Router("one")
    one.ledger.take(message, 0.0)
    assert (one.ledger.faults, one.ledger.peers) == (1, 0)


def test_own_words_that_come_back_are_passed_over():
    one = Router("one")
    one.engines["a"].in_flight = 1
    tell(one, one, 0.0)
    assert (one.engines["a"].elsewhere_in_flight, one.ledger.peers) == (0, 0)


async def until(is_true):
    """Wait for a condition; the test's own time limit ends it."""
    while not is_true():
        await asyncio.sleep(0.005)


async def share(buses, between=None):
    """Two routers on their buses know each other's loads and prompts."""
    clock = asyncio.get_running_loop().time
    routers = [Router("one"), Router("other")]
    running = [
        asyncio.create_task(Replicas(one.ledger, bus, clock).run()) for one, bus in zip(routers, buses, strict=True)
    ]
    try:
        one, other = routers
        await until(lambda: one.ledger.peers and other.ledger.peers)
        one.engines["a"].in_flight = 7
        await until(lambda: other.engines["a"].elsewhere_in_flight == 7)
        if between is not None:
            await between(routers)

        def has_learned():
            other.ledger.sent(blocks(), other.engines["b"])  # again: a hint may be lost with a bus that comes back
            return one.holds("b") == len(PROMPT) // 512

        await until(has_learned)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def test_replicas_in_one_process():
    bus = MemoryBus()
    asyncio.run(share([bus, bus]))


def test_processes_of_one_host(tmp_path):
    (tmp_path / "stale.sock").touch()
    asyncio.run(share([DatagramBus(tmp_path, "one"), DatagramBus(tmp_path, "other")]))
    assert [one.name for one in tmp_path.glob("*.sock")] == []


def test_hosts_share_through_a_real_redis_and_outlive_it(redis, monkeypatch):
    monkeypatch.setattr("hekla.serving.router.replicas.AGAIN_S", 0.01)
    # who lives says so many times before he counts as silent: with a second between two words and 0.2 s of patience,
    # both knew each other for a fifth of the time, and on a busy machine never when the test looked
    monkeypatch.setattr("hekla.serving.router.sharing.WHOLE_EVERY_S", 0.05)
    monkeypatch.setattr("hekla.serving.router.sharing.SILENT_S", 1.0)
    monkeypatch.setattr("hekla.serving.router.replicas.SILENT_S", 1.0)

    async def lose_the_server(routers):
        redis.stop()
        await until(lambda: not any(one.ledger.peers for one in routers))
        assert routers[1].engines["a"].elsewhere_in_flight == 0
        redis.start()
        await until(lambda: all(one.ledger.peers for one in routers))

    async def story():
        clients = [Redis.from_url(redis.url) for _ in range(2)]
        await share([RedisBus(one) for one in clients], lose_the_server)
        for one in clients:
            await one.aclose()

    asyncio.run(story())


class LosingClient:
    """A client of Redis that takes a cancellation for the end of an answer, as the real one does when both come together."""

    def __init__(self):
        self.is_publishing = asyncio.Event()

    async def publish(self, channel, message):
        self.is_publishing.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def pubsub(self, **options):
        yield self

    async def subscribe(self, channel):
        pass

    async def listen(self):
        await asyncio.Event().wait()
        yield {}


def test_a_bus_ends_when_it_is_told_though_its_client_loses_that():
    async def story():
        client = LosingClient()
        bus = RedisBus(client)
        bus.publish(b"news")
        running = asyncio.create_task(bus.run(print))
        await client.is_publishing.wait()
        running.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()

    asyncio.run(story())


class Process:
    """One process of a router: its budgets and its sessions, beside its ledger."""

    def __init__(self, name, family="one"):
        self.fleet = Fleet()
        self.engines = {one: self.fleet.add(Endpoint(one, "127.0.0.1", 8000, namespace="ml")) for one in ("a", "b")}
        self.limits, self.sessions = Limits(), Sessions()
        self.limits.set_routes({"m": Limit(input_tokens=100, output_tokens=50, period_s=1e9, key="m")}, 0.0)
        self.limits.set_tenants({"*": Limit(requests=3, period_s=1e9, key="*")})
        self.ledger = Ledger(
            name,
            self.fleet,
            lambda _: (),
            sessions_of=lambda _: (self.sessions,),
            family=family,
            budgets=self.limits,
        )
        self.sessions.on_settled = self.ledger.settled

    def asks(self, tokens, user="ada", answer=0):
        question = Question("/v1/chat/completions", "m", b"", tokens, user=user)
        refusal = self.limits.admit(question, 0.0)
        if refusal is None:
            self.limits.ended(question, Usage(tokens, answer), 0.0)
        return refusal.reason if refusal else "ok"


def family(*names):
    found = [Process(name) for name in names]
    for one in found:
        message = one.ledger.report(0.0)
        for other in found:
            other.ledger.take(message, 0.0)
    for one in found:
        one.limits.tell()
    return found


def test_processes_of_one_router_have_one_budget():
    one, other = family("one", "other")
    assert one.asks(60, answer=10) == "ok"
    tell(one, other, 0.1)
    assert other.asks(60) == "input_rate_limit"
    assert other.asks(40, user="bob", answer=40) == "ok"
    tell(other, one, 0.2)
    assert one.asks(0, user="eve") == "output_rate_limit"


def test_a_tenant_of_one_process_is_the_others_too():
    one, other = family("one", "other")
    assert [one.asks(1) for _ in range(2)] == ["ok", "ok"]
    tell(one, other, 0.1)
    assert [other.asks(1) for _ in range(2)] == ["ok", "rate_limit"]
    tell(other, one, 0.2)
    assert one.asks(1) == "rate_limit"


def test_other_routers_have_budgets_of_their_own():
    one, other = Process("one"), Process("other", family="another")
    meet(one, other)
    assert one.asks(100) == "ok"
    tell(one, other, 0.1)
    assert other.asks(100) == "ok"


def test_a_session_is_where_another_process_sent_it():
    one, other = family("one", "other")
    one.sessions.settle("s", one.engines["b"], 0.0)
    tell(one, other, 0.1)
    candidates = list(other.engines.values())
    assert other.sessions.home("s", candidates, 0.2) is other.engines["b"]
    assert other.ledger.report(0.3) is None  # what was told is not told on


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=40))
def test_what_was_taken_is_told_once_and_to_all(story):
    processes = family("a", "b", "c")
    for number, tokens in story:
        processes[number].asks(tokens, user=f"u{tokens}")
        message = processes[number].ledger.report(0.0)
        if message is not None:
            for one in processes:
                one.ledger.take(message, 0.0)
    levels = {one.limits._routes["m"].input.level for one in processes}
    assert len(levels) == 1


class Fickle:
    """A bus that is gone three times, and then there."""

    def __init__(self):
        self.left = 3

    def publish(self, message): ...

    async def run(self, receive):
        if self.left:
            self.left -= 1
            raise BusGoneError("connection refused")
        receive(b"of another router")
        await asyncio.Event().wait()


def test_the_log_says_once_that_the_replicas_are_out_of_reach_and_once_that_they_are_back():
    async def story():
        with structlog.testing.capture_logs() as logs:
            running = asyncio.create_task(Replicas(Router("a").ledger, Fickle(), lambda: 0.0).run())
            await asyncio.sleep(60)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        said = ["replicas unreachable", "replicas reachable again"]
        assert [one["event"] for one in logs if one["event"] in said] == said

    virtual_time.run(story())
