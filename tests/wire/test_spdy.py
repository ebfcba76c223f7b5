import asyncio
import zlib

import pytest

from hekla.wire.client import HttpClient
from hekla.wire.errors import ConnectionLostError, ProtocolViolationError
from hekla.wire.messages import AcceptWebSocket, Request, SwitchProtocol
from hekla.wire.spdy import (
    DataReceived,
    GoneAway,
    PongReceived,
    SpdyConnection,
    SpdyLimits,
    StreamOpened,
    StreamReplied,
    StreamReset,
)
from hekla.wire.spdy_dictionary import DICTIONARY
from hekla.wire.spdy_session import SpdySession, WebSocketBytes
from wire.wirekit import serving


def pair(**options) -> tuple[SpdyConnection, SpdyConnection]:
    return SpdyConnection(is_client=True, **options), SpdyConnection(**options)


def test_the_dictionary_is_the_one_of_the_draft():
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_a_stream_is_opened_answered_used_and_closed():
    client, server = pair()
    for number in range(3):  # the compression has a state: later blocks differ from the first
        stream = client.open_stream({"streamType": "data", "port": "80", "requestID": str(number)})
        assert stream == 2 * number + 1
        [opened] = server.receive(client.take_output())
        assert opened == StreamOpened(stream, {"streamtype": "data", "port": "80", "requestid": str(number)}, False)
        server.reply(stream, {"a": "b"})
        server.send(stream, b"hello", is_last=True)
        assert client.receive(server.take_output()) == [
            StreamReplied(stream, {"a": "b"}, False),
            DataReceived(stream, b"hello", True),
        ]
        client.send(stream, b"bye", is_last=True)
        assert server.receive(client.take_output()) == [DataReceived(stream, b"bye", True)]
        assert client.open_streams == server.open_streams == 0
        client.send(stream, b"more")
        assert client.take_output() == b""


def test_pings_are_answered_and_goodbyes_told():
    client, server = pair()
    ping = client.ping()
    assert server.receive(client.take_output()) == []
    assert client.receive(server.take_output()) == [PongReceived(ping)]
    server.go_away()
    assert client.receive(server.take_output()) == [GoneAway(0, 0)]


def test_a_reset_ends_a_stream_on_both_sides():
    client, server = pair()
    stream = client.open_stream({})
    server.receive(client.take_output())
    server.reset(stream, 3)
    assert client.receive(server.take_output()) == [StreamReset(stream, 3)]
    client.send(stream, b"late")
    assert client.open_streams == server.open_streams == 0


def test_one_stream_too_many_is_refused_and_the_connection_lives():
    client = SpdyConnection(is_client=True)
    server = SpdyConnection(limits=SpdyLimits(streams=2))
    streams = [client.open_stream({}) for _ in range(3)]
    assert len(server.receive(client.take_output())) == 2
    assert client.receive(server.take_output()) == [StreamReset(streams[2], 3)]


def test_windows_hold_data_back_until_it_was_consumed_and_lose_none():
    client, server = pair(flow_control=True)
    stream = client.open_stream({})
    server.receive(client.take_output())
    data = bytes(range(256)) * 2000
    client.send(stream, data, is_last=True)
    got, rounds = b"", 0
    while True:
        events = server.receive(client.take_output())
        if not events:
            break
        received = b"".join(event.data for event in events)
        assert len(received) <= 65536
        got += received
        server.consumed(stream, len(received))
        client.receive(server.take_output())
        rounds += 1
    assert got == data
    assert rounds > 5
    with pytest.raises(ProtocolViolationError, match="wait"):
        client.send(client.open_stream({}), bytes(5_000_000))


def test_a_sender_that_ignores_the_windows_is_stopped():
    _, server = pair(flow_control=True)
    rude = SpdyConnection(is_client=True)
    stream = rude.open_stream({})
    rude.send(stream, bytes(100_000))
    with pytest.raises(ProtocolViolationError, match="window"):
        server.receive(rude.take_output())


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02\x00\x01\x00\x00\x00\x00",  # version 2
        b"\x80\x03\x00\x01\x00\x00\x00\x04\x00\x00\x00\x01",  # a short SYN_STREAM
        b"\x80\x03\x00\x06\x00\x00\x00\x02\x00\x00",  # a short PING
        b"\x80\x03\x00\x04\x00\x00\x00\x04\x00\x00\x00\x09",  # SETTINGS that announce more than they hold
        b"\x00\x00\x00\x01\x00\xff\xff\xff",  # a frame of 16 MiB
        b"\x80\x03\x00\x01\x00\x00\x00\x0e\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00abcd",  # no compressed block
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 9,
    ],
)
def test_broken_frames_end_the_connection_with_a_goodbye(data):
    server = SpdyConnection()
    with pytest.raises(ProtocolViolationError):
        server.receive(data)
    assert server.take_output()[:4] == b"\x80\x03\x00\x07"
    with pytest.raises(ProtocolViolationError):
        server.receive(b"")


def test_a_header_block_that_unpacks_to_much_is_refused():
    client, server = pair()
    client.open_stream({"a": "b" * 900_000})
    bomb = client.take_output()
    assert len(bomb) < 5000
    with pytest.raises(ProtocolViolationError, match="over the limit"):
        server.receive(bomb)


async def shout(session: SpdySession) -> None:
    async def answer(stream) -> None:
        await stream.send(stream.headers["port"].encode())
        while data := await stream.receive():
            await stream.send(data.upper())
        await stream.close()

    async with session, asyncio.TaskGroup() as tasks:
        while (stream := await session.accept()) is not None:
            tasks.create_task(answer(stream))


def handler(request: Request):
    if request.path == "/ws":
        return AcceptWebSocket(lambda ws: shout(SpdySession(WebSocketBytes(ws))), "SPDY/3.1+portforward.k8s.io")
    return SwitchProtocol("SPDY/3.1", lambda duplex: shout(SpdySession(duplex)))


@pytest.mark.parametrize("path", ["/ws", "/raw"])
def test_streams_run_side_by_side_over_an_upgrade_and_over_a_websocket(path):
    async def run():
        async with serving(handler) as server, HttpClient() as client:
            url = f"http://127.0.0.1:{server.port}{path}"
            if path == "/ws":
                ws = await client.websocket(url, subprotocols=("SPDY/3.1+portforward.k8s.io",))
                carrier = WebSocketBytes(ws)
            else:
                carrier = await client.upgrade("POST", url, "SPDY/3.1")

            async def talk(session: SpdySession, port: int) -> None:
                stream = await session.open({"streamtype": "data", "port": str(port)})
                text = f"port {port} ".encode() * 30_000

                async def write() -> None:
                    await stream.send(text)
                    await stream.close()

                writing = asyncio.create_task(write())
                got = b""
                while data := await stream.receive():
                    got += data
                await writing
                assert got == str(port).encode() + text.upper()

            async with SpdySession(carrier, is_client=True) as session:
                await asyncio.gather(*[talk(session, port) for port in range(5)])

    asyncio.run(run())


def test_a_session_that_is_cut_wakes_every_reader():
    async def run():
        async def cut(duplex) -> None:
            await duplex.receive()

        async with serving(lambda _: SwitchProtocol("SPDY/3.1", cut)) as server, HttpClient() as client:
            duplex = await client.upgrade("POST", f"http://127.0.0.1:{server.port}/", "SPDY/3.1")
            async with SpdySession(duplex, is_client=True) as session:
                stream = await session.open({})
                with pytest.raises(ConnectionLostError):
                    await stream.receive()
                assert await session.accept() is None

    asyncio.run(run())
