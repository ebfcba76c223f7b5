"""Who may come in: one address has a share of the door, so that others find a place; and who agrees on TLS stands at the door, too."""

import asyncio
import contextlib
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.metrics import exposition
from hekla.sandbox.gateway.minting import Mint
from hekla.sandbox.gateway.running import Gateway, GatewaySettings
from hekla.sandbox.gateway.shares import Answer, Shares, origin_of
from hekla.sandbox.gateway.strangers import Strangers
from hekla.sandbox.sessions.store import MemoryStore
from hekla.testing.paper_sandboxes import BASE, PaperSandboxes
from hekla.testing.sandboxes import PRIVATE_KEY, guard
from hekla.wire import tls
from sandbox.gateway.test_gateway import run
from wire.certificates import Authority

ASKS = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def settings(connections, **told):
    return GatewaySettings(drain_s=0.0, bounds=Bounds(connections=connections, **told))


async def came(port, address="127.0.0.1", **told):
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), **told)


async def answered(reader):
    """The status, the headers and the body of all that comes; nothing where the connection was cut."""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(30):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return head.split()[1:2], head, body
    return [], b"", b""


async def told(port, address="127.0.0.1"):
    """The same of one who comes and asks nothing. From Python 3.11.5 on a writer that is let go of closes the connection."""
    reader, _writer = await came(port, address)
    return await answered(reader)


async def until(holds):
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)


def test_one_address_that_opens_all_it_can_keeps_nobody_else_out():
    """Eight places, and forty connections of one address: whoever came from another one was told that all were taken."""

    async def scenario(client):
        port = client.gateway.port
        greedy = [await came(port) for _ in range(40)]
        reader, writer = await came(port, "127.0.0.2")
        writer.write(ASKS)
        assert (await answered(reader))[0] == [b"200"]
        for _, writer in greedy:
            writer.close()

    run(scenario, sandboxes=PaperSandboxes([BASE]), settings=settings(8))


def test_who_has_its_share_is_told_so_with_a_time_to_come_back_and_is_counted():
    async def scenario(client):
        port = client.gateway.port
        shares = client.gateway._listener._doorway.shares
        opened = [await came(port) for _ in range(6)]
        await until(lambda: shares.taken == 6)
        status, head, body = await told(port)
        assert (status, b"retry-after: 1" in head) == ([b"429"], True)
        assert json.loads(body)["error"] == (
            "6 connections from 127.0.0.1 are open, and one address may have at most three times as many as are still free (2);"
            " close some, or try again later"
        )
        others = [await came(port, f"127.0.0.{number}") for number in (2, 3)]
        status, head, body = await told(port, "127.0.0.4")
        assert (status, b"retry-after: 1" in head) == ([b"503"], True)
        assert json.loads(body) == {"error": "8 connections are open; try again later"}
        page = exposition(client.gateway.collect()).decode()
        assert 'hekla_agents_connections_refused_total{why="share"} 1.0' in page
        assert 'hekla_agents_connections_refused_total{why="full"} 1.0' in page
        for _, writer in (*opened, *others):
            writer.close()
        await until(lambda: shares.taken == 0)
        reader, writer = await came(port)
        writer.write(ASKS)
        assert (await answered(reader))[0] == [b"200"], "its places are free again"

    run(scenario, sandboxes=PaperSandboxes([BASE]), settings=settings(8))


@given(some.integers(1, 300), some.lists(some.tuples(some.booleans(), some.integers(0, 4)), max_size=400))
def test_whoever_has_nothing_finds_a_place_while_there_is_one_and_every_place_comes_back(most, events):
    shares, entries = Shares(most), []
    for comes, number in events:
        if comes:
            entries.append(shares.enter(f"{number}"))
            if entries[-1].answer is Answer.SHARE:
                assert shares.of(f"{number}") >= 3 * (most - shares.taken) > 0
        elif entries:
            shares.leave(entries.pop(number % len(entries)))
        assert shares.taken <= most
    for entry in entries:
        shares.leave(entry)
    assert (shares.taken, shares.told, shares._of) == (0, 0, {})


@pytest.mark.parametrize(
    ("most", "greedy", "each", "left"), [(256, 1, 192, 64), (20_000, 1, 15_000, 5000), (256, 3, 77, 25)]
)
def test_greedy_addresses_share_alike_and_leave_a_third_of_that(most, greedy, each, left):
    shares = Shares(most)
    for _ in range(most):
        for number in range(greedy):
            shares.enter(f"{number}")
    assert all(abs(shares.of(f"{number}") - each) <= 1 for number in range(greedy))
    assert abs(most - shares.taken - left) <= 1


def test_of_a_flood_so_many_are_told_as_there_is_time_for():
    shares = Shares(64)
    told = [entry.is_told for entry in (shares.enter("a") for _ in range(200)) if entry.answer is not Answer.COME_IN]
    assert told == [True] * 24 + [False] * 128


def test_a_network_of_ipv6_is_one_address_and_its_guesses_are_counted_together():
    assert origin_of("192.0.2.7") == "192.0.2.7"
    assert origin_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert origin_of("64:ff9b::192.0.2.7") == "192.0.2.7", (
        "who has no IPv6 comes to a network that has nothing else by a translator"
    )
    assert origin_of("2001:db8:1:2:3:4:5:6") == origin_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert origin_of("fe80::1%eth0") == "fe80::/64"
    assert origin_of("2001:db8:1:3::9") == "2001:db8:1:3::/64"
    assert [origin_of(odd) for odd in ("", "no:address")] == ["", "no:address"]
    strangers = Strangers(at_once=2)
    for number in range(2):
        strangers.missed(f"2001:db8::{number}", 0.0)
    assert strangers.is_over("2001:db8::ffff", 0.0)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def secured(authority, scenario, told):
    """A gateway that speaks TLS."""

    async def main():
        sandboxes = PaperSandboxes([BASE])
        running = Gateway(
            told, store=MemoryStore(), stock=sandboxes, link=sandboxes, guard=guard(), mint=Mint(PRIVATE_KEY)
        )
        await running.start(ssl_context=tls.server_context(*authority.issue("gateway"), None))
        try:
            await scenario(running, tls.client_context(ca_data=authority.file.read_bytes()))
        finally:
            await running.stop()
        assert running._listener.connections == 0

    asyncio.run(main())


def test_connections_that_never_agree_on_tls_have_a_place_like_any_other(authority):
    """They were nobody's before the handshake's end: whoever opened them and said nothing could have every file of the gateway."""

    async def scenario(running, trusting):
        shares = running._listener._doorway.shares
        silent = [await came(running.port) for _ in range(40)]
        await until(lambda: shares.taken == 6 and running._listener.connections <= 6 + 17)
        reader, writer = await came(running.port, "127.0.0.2", ssl=trusting)
        writer.write(ASKS)
        assert (await answered(reader))[0] == [b"200"]
        for _, writer in silent:
            writer.close()
        await until(lambda: running._listener.connections == 0)
        assert (shares.taken, shares.told) == (0, 0)

    secured(authority, scenario, settings(8))


def test_who_comes_as_the_gateway_stops_is_let_go_too(authority):
    """Cancelled before its first step, a handshake gave neither its place nor its file back."""

    async def scenario(running, trusting):
        listener = running._listener
        ours, theirs = socket.socketpair()
        with ours:
            assert listener._thresholds.welcome(theirs)
            await listener.stop(0.0)
            await until(lambda: listener.connections == 0)
            assert (listener._doorway.shares.taken, theirs.fileno()) == (0, -1)

    secured(authority, scenario, settings(8))


def test_who_does_not_agree_in_time_is_let_go_and_who_is_one_too_many_reads_why_by_tls(authority):
    async def scenario(running, trusting):
        shares = running._listener._doorway.shares
        opened = [await came(running.port, ssl=trusting) for _ in range(6)]
        reader, _ = await came(running.port, ssl=trusting)
        assert (await answered(reader))[0] == [b"429"]
        silent, _ = await came(running.port, "127.0.0.2")
        assert await silent.read() == b""
        await until(lambda: shares.taken == 6)
        nonsense, writer = await came(running.port, "127.0.0.2")
        writer.write(ASKS)
        with contextlib.suppress(ConnectionResetError):
            assert not (await nonsense.read()).startswith(b"HTTP")
        await until(lambda: shares.taken == 6)
        for _, writer in opened:
            writer.close()

    secured(authority, scenario, settings(8, handshake_timeout_s=0.2))
