import asyncio

import pytest
import websocket as foreign

from hekla.testing.garbage import without_collections
from hekla.wire.client import HttpClient
from hekla.wire.client_connection import ClientConnection
from hekla.wire.connection import Connection
from hekla.wire.errors import BadReplyError, ConnectionLostError, UpgradeRefusedError
from hekla.wire.limits import ClientLimits, Limits
from hekla.wire.messages import AcceptWebSocket, Request, Response, SwitchProtocol
from hekla.wire.requests import RequestReader
from hekla.wire.tunnels import Inbox, RawDuplex
from hekla.wire.websocket import WebSocketSession, is_upgrade, offered_subprotocols
from wire.wirekit import Raw, serving, until


async def echo(ws) -> None:
    while (message := await ws.receive()) is not None:
        await ws.send(message)


def handler(request: Request):
    if request.path == "/echo" and is_upgrade(request):
        chosen = next((name for name in offered_subprotocols(request) if name.startswith("v")), "")
        return AcceptWebSocket(echo, chosen, [("x-a", "b")])
    if request.path == "/raw":
        return SwitchProtocol("SPDY/3.1", raw_echo)
    return Response(403, b"no sockets here", "text/plain")


async def raw_echo(duplex) -> None:
    while data := await duplex.receive():
        await duplex.send(data.upper())


def test_messages_come_back_whole_whatever_their_size():
    async def run():
        async with serving(handler) as server, HttpClient() as client:
            ws = await client.websocket(f"ws://127.0.0.1:{server.port}/echo", subprotocols=("x1", "v5"))
            assert ws.subprotocol == "v5"
            for message in (b"", "", b"abc", "grüße", b"x" * 200, b"y" * 70_000, "z" * 3_000_000):
                await ws.send(message)
                assert await ws.receive() == message
            await ws.close(1000, "bye")
            assert await ws.receive() is None
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_a_foreign_client_is_served():
    async def run():
        async with serving(handler) as server:

            def talk() -> list:
                url = f"ws://127.0.0.1:{server.port}/echo"
                ws = foreign.create_connection(url, subprotocols=["v4"], timeout=10)
                ws.send("hello")
                got = [ws.getsubprotocol(), ws.recv()]
                ws.ping("beat")
                ws.send_binary(b"\0\1")
                got.append(ws.recv_data(control_frame=True))
                got.append(ws.recv())
                ws.close()
                return got

            assert await asyncio.to_thread(talk) == ["v4", "hello", (10, b"beat"), b"\0\1"]
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_a_message_over_the_limit_closes_with_1009():
    async def run():
        async with serving(handler, limits=Limits(message_bytes=1000)) as server, HttpClient() as client:
            ws = await client.websocket(f"ws://127.0.0.1:{server.port}/echo")
            await ws.send(b"x" * 1001)
            assert await ws.receive() is None
            assert ws.close_code == 1009

    asyncio.run(run())


def test_a_refused_upgrade_says_what_the_server_said():
    async def run():
        async with serving(handler) as server, HttpClient() as client:
            with pytest.raises(UpgradeRefusedError, match=r"403.*no sockets here") as refused:
                await client.websocket(f"ws://127.0.0.1:{server.port}/other")
            assert (refused.value.status, refused.value.body) == (403, b"no sockets here")
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_a_subprotocol_that_was_not_offered_is_an_error():
    async def run():
        async with serving(lambda _: AcceptWebSocket(echo, "v9")) as server, HttpClient() as client:
            with pytest.raises(BadReplyError, match="v9"):
                await client.websocket(f"ws://127.0.0.1:{server.port}/", subprotocols=("v5",))

    asyncio.run(run())


def test_a_broken_handshake_is_refused_and_the_connection_kept():
    async def run():
        async with serving(lambda _: AcceptWebSocket(echo)) as server:
            peer = await Raw.to(server)
            await peer.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await peer.answer())[0] == 400
            upgrade = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            await peer.say(upgrade + b"sec-websocket-key: a\r\nsec-websocket-version: 8\r\n\r\n")
            status, headers, _ = await peer.answer()
            assert (status, headers["sec-websocket-version"]) == (426, "13")
            await peer.say(upgrade + b"\r\n" + b"GET /2 HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await peer.answer())[0] == 400
            assert (await peer.answer())[0] == 400
            key = b"upgrade: websocket\r\nsec-websocket-key: a\r\nsec-websocket-version: 13\r\n\r\n"
            await peer.say(b"GET / HTTP/1.1\r\nhost: x\r\n" + key)
            assert (await peer.answer())[0] == 400

    asyncio.run(run())


def test_a_peer_that_breaks_the_framing_is_cut_with_1002():
    async def run():
        ended = asyncio.Event()

        async def serve(ws) -> None:
            assert await ws.receive() is None
            ended.set()

        async with serving(lambda _: AcceptWebSocket(serve)) as server:
            peer = await Raw.to(server)
            await peer.say(
                b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
                b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
                b"\xff\xff\xff\xff\xff\xff"
            )
            answer = await peer.end()
            assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer
            assert b"\x03\xea" in answer
            await ended.wait()

    asyncio.run(run())


def test_a_silent_peer_is_pinged_and_a_dead_one_cut():
    async def run():
        async with serving(handler, limits=Limits(ping_interval_s=0.05)) as server, HttpClient() as client:
            alive = await client.websocket(f"ws://127.0.0.1:{server.port}/echo")
            reading = asyncio.create_task(alive.receive())
            dead = await client.websocket(f"ws://127.0.0.1:{server.port}/echo")
            dead._transport.pause_reading()
            await until(lambda: server.connections == 1)
            assert not reading.done()
            reading.cancel()

    asyncio.run(run())


def test_a_reader_that_sleeps_stops_the_writer_and_loses_nothing():
    async def run():
        sent = 0

        async def flood(ws) -> None:
            nonlocal sent
            for number in range(400):
                await ws.send(number.to_bytes(4, "big") * 16384)
                sent += 1

        async with serving(lambda _: AcceptWebSocket(flood)) as server, HttpClient() as client:
            ws = await client.websocket(f"ws://127.0.0.1:{server.port}/")
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.05)
            assert sent < 400
            got = 0
            while (message := await ws.receive()) is not None:
                assert message[:4] == got.to_bytes(4, "big")
                got += 1
            assert got == 400

    asyncio.run(run())


def test_a_server_that_stops_says_going_away():
    async def run():
        async with serving(handler) as server:
            client = HttpClient(limits=ClientLimits())
            ws = await client.websocket(f"ws://127.0.0.1:{server.port}/echo")
            await server.stop(grace_s=5)
            assert await ws.receive() is None
            assert ws.close_code == 1001
            with pytest.raises(ConnectionLostError):
                await ws.send("more")
            await client.close()

    asyncio.run(run())


def test_a_raw_upgrade_carries_bytes_both_ways():
    async def run():
        async with serving(handler) as server, HttpClient() as client:
            duplex = await client.upgrade("POST", f"http://127.0.0.1:{server.port}/raw", "SPDY/3.1")
            await duplex.send(b"abc")
            assert await duplex.receive() == b"ABC"
            await duplex.close()
            await until(lambda: server.connections == 0)
            with pytest.raises(UpgradeRefusedError):
                await client.upgrade("POST", f"http://127.0.0.1:{server.port}/other", "SPDY/3.1")
            plain = await client.request("POST", f"http://127.0.0.1:{server.port}/raw")
            assert plain.status == 400

    asyncio.run(run())


class Written(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""


MASK = bytes(4)  # a key that changes nothing
EMPTY, PING = b"\x00\x80" + MASK, b"\x89\x80" + MASK


def test_a_message_of_endless_empty_pieces_is_closed_and_a_peer_that_takes_no_answers_gets_none():
    """Neither counted: both filled the memory, a few bytes for each of the peer's."""

    async def run():
        transport = Written()
        session = WebSocketSession(
            transport,
            asyncio.get_running_loop(),
            is_client=False,
            subprotocol="",
            message_bytes=6400,
            ping_interval_s=30,
        )
        session.pause_writing()
        session.feed(PING * 100)
        assert transport.written == b""
        session.resume_writing()
        session.feed(PING)
        assert transport.written == b"\x8a\x00"
        session.feed(b"\x02\x80" + MASK)
        for _ in range(20):
            session.feed(EMPTY * 100)
        assert transport.written[2:6] == b"\x88" + transport.written[3:4] + (1009).to_bytes(2, "big")

    asyncio.run(run())


class ClosedByThePeer(Written):
    """As asyncio's transport of TLS is before its connection hears of the loss."""

    def is_closing(self):
        return True

    def close(self):
        raise AssertionError("closed again, it has no protocol left for whoever aborts it")


@pytest.mark.parametrize("kind", ["websocket", "raw"])
def test_what_the_peer_closed_is_not_closed_again(kind):
    async def run():
        loop = asyncio.get_running_loop()
        if kind == "raw":
            await RawDuplex(ClosedByThePeer(), loop).close()
            return
        session = WebSocketSession(
            ClosedByThePeer(), loop, is_client=True, subprotocol="", message_bytes=6400, ping_interval_s=30
        )
        session.lost()
        session._transport = ClosedByThePeer()
        await session.close()

    asyncio.run(run())


PARTS = (Connection, RequestReader, ClientConnection, WebSocketSession, RawDuplex, Inbox)


@pytest.mark.parametrize("is_left_open", [False, True])
@pytest.mark.parametrize("kind", ["websocket", "raw", "refused", "plain"])
def test_both_ends_of_a_tunnel_that_is_over_go_at_once_and_wait_for_no_collection(kind, is_left_open):
    async def visit(server, client):
        url = f"http://127.0.0.1:{server.port}"
        if kind == "plain":
            await client.request("GET", f"{url}/other")
        elif kind == "refused":
            with pytest.raises(UpgradeRefusedError):
                await client.upgrade("POST", f"{url}/other", "SPDY/3.1")
        else:
            raw = kind == "raw"
            tunnel = await (
                client.upgrade("POST", f"{url}/raw", "SPDY/3.1") if raw else client.websocket(f"{url}/echo")
            )
            await tunnel.send(b"abc")
            await tunnel.receive()
            if not is_left_open:
                await tunnel.close()

    async def run(still_there):
        async with serving(handler) as server:
            async with HttpClient() as client:
                await visit(server, client)
            await until(lambda: not server.connections)
            for _ in range(5):  # turns of the loop in which tasks end
                await asyncio.sleep(0)
            assert not still_there(*PARTS)

    with without_collections() as still_there:
        asyncio.run(run(still_there))
