import asyncio

import pytest

from hekla.wire.limits import Limits
from hekla.wire.messages import Request, Response
from wire.wirekit import Raw, serving, until


def length(request: Request) -> Response:
    return Response(200, str(len(request.body)).encode())


async def ask(data: bytes, limits: Limits) -> bytes:
    """Everything a server says to these bytes, until it closes; the sender keeps its side open."""
    async with serving(length, limits=limits) as server:
        peer = await Raw.to(server)
        await peer.say(data)
        answer = await peer.end()
        peer.leave()
        await until(lambda: server.connections == 0)
        return answer


TIGHT = Limits(url_bytes=100, header_bytes=300, header_count=10, body_bytes=1000)
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 200 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
        (HEAD + b"a: b\r\n" * 11 + b"\r\n", 431),
        (HEAD + b"a: " + b"b" * 400 + b"\r\n\r\n", 431),
        (HEAD + b"content-length: 1001\r\n\r\n", 413),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001, 413),
        (HEAD + b"expect: a miracle\r\ncontent-length: 1\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_what_is_over_a_limit_is_answered_with_its_status_and_closed(data, status):
    answer = asyncio.run(ask(data, TIGHT))
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close\r\n" in answer


SMUGGLED = [
    b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"content-length: 3, 4\r\n\r\nabcd",
    b"content-length: +3\r\n\r\nabc",
    b"content-length: -3\r\n\r\nabc",
    b"content-length: 0x3\r\n\r\nabc",
    b"content-length: 3 3\r\n\r\nabc",
    b"content-length: 99999999999999999999999\r\n\r\nabc",
    b"content-length : 3\r\n\r\nabc",
    b"content-length:\r\n 3\r\n\r\nabc",
    b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: identity\r\n\r\n",
    b"transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    b"transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc",
    b"a: b\n\n",
    b"a: b\rc: d\r\n\r\n",
    b"a\x00: b\r\n\r\n",
    b"a: b\x00c\r\n\r\n",
    b" a: b\r\n\r\n",
    b": b\r\n\r\n",
    b"host: y\r\n\r\n",
    b"authorization: a\r\nauthorization: b\r\n\r\n",
]


@pytest.mark.parametrize("lines", SMUGGLED)
def test_a_request_whose_end_is_in_doubt_reaches_no_handler(lines):
    evil = b"GET /evil HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = asyncio.run(ask(HEAD + lines + evil, Limits()))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ", b"HTTP/1.1 413 ")), answer


def test_a_trailer_never_poses_as_a_header():
    async def run():
        seen = []

        def note(request: Request) -> Response:
            seen.append(request)
            return Response(200, b"")

        async with serving(note) as server:
            peer = await Raw.to(server)
            body = b"3;a=b\r\nabc\r\n0\r\nauthorization: Bearer admin\r\n\r\n"
            await peer.say(HEAD + b"transfer-encoding: chunked\r\ntrailer: authorization\r\n\r\n" + body)
            assert (await peer.answer())[0] == 200
            assert seen[0].body == b"abc"
            assert "authorization" not in seen[0].headers

    asyncio.run(run())


def test_a_body_over_the_limit_is_refused_before_it_is_sent():
    async def run():
        async with serving(length, limits=TIGHT) as server:
            peer = await Raw.to(server)
            await peer.say(HEAD + b"expect: 100-continue\r\ncontent-length: 100000000\r\n\r\n")
            assert (await peer.answer())[0] == 413

    asyncio.run(run())


def test_a_client_that_asks_first_is_told_to_continue():
    async def run():
        async with serving(length) as server:
            peer = await Raw.to(server)
            for _ in range(2):
                await peer.say(HEAD + b"expect: 100-continue\r\ncontent-length: 3\r\n\r\n")
                assert (await peer.answer())[0] == 100
                await peer.say(b"abc")
                assert (await peer.answer())[2] == b"3"

    asyncio.run(run())


def test_a_body_behind_an_upgrade_that_nobody_takes_up_is_read():
    async def run():
        async with serving(length) as server:
            peer = await Raw.to(server)
            upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
            await peer.say(HEAD + upgrade + b"content-length: 3\r\n\r\nab")
            await peer.say(
                b"c" + HEAD + upgrade + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n" + HEAD + b"\r\n"
            )
            assert [(await peer.answer())[2] for _ in range(3)] == [b"3", b"2", b"0"]

    asyncio.run(run())


def test_a_request_that_trickles_is_given_up():
    async def run():
        async with serving(length, limits=Limits(request_timeout_s=0.1)) as server:
            for beginning in (b"GET / HT", HEAD + b"content-length: 3\r\n\r\na"):
                peer = await Raw.to(server)
                await peer.say(beginning)
                assert (await peer.end()).startswith(b"HTTP/1.1 408 ")
                peer.leave()
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_idle_connections_are_closed_without_a_word():
    async def run():
        async with serving(length, limits=Limits(idle_timeout_s=0.05)) as server:
            fresh, used = await Raw.to(server), await Raw.to(server)
            await used.say(HEAD + b"\r\n")
            assert (await used.answer())[0] == 200
            assert await fresh.end() == b""
            assert await used.end() == b""

    asyncio.run(run())


def test_a_reader_who_takes_nothing_of_a_response_is_cut_off():
    async def run():
        body = b"x" * 50_000_000
        limits = Limits(send_timeout_s=0.1)
        async with serving(lambda _: Response(200, body), limits=limits) as server:
            peer = await Raw.to(server)
            peer.writer.transport.pause_reading()
            await peer.say(HEAD + b"\r\n")
            await until(lambda: server.connections == 1)
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_one_connection_too_many_is_told_so():
    async def run():
        async with serving(length, limits=Limits(connections=2)) as server:
            kept = [await Raw.to(server) for _ in range(2)]
            await until(lambda: server.connections == 2)
            late = await Raw.to(server)
            assert (await late.end()).startswith(b"HTTP/1.1 503 ")
            late.leave()
            await until(lambda: server.connections == 2)
            await kept[0].say(HEAD + b"\r\n")
            assert (await kept[0].answer())[0] == 200

    asyncio.run(run())


def test_a_flood_of_pipelined_requests_is_bounded_and_those_taken_are_answered():
    async def run():
        gate = asyncio.Event()

        async def slow(_: Request) -> Response:
            await gate.wait()
            return Response(200, b"")

        async with serving(slow, limits=Limits(pipelined=10)) as server:
            peer = await Raw.to(server)
            await peer.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
            await until(lambda: server.connections)
            gate.set()
            answer = await peer.end()
            assert answer.count(b"HTTP/1.1 200 ") == 11
            assert answer.count(b"HTTP/1.1 429 ") == 1

    asyncio.run(run())


def test_a_pipelining_client_that_does_not_read_makes_no_more_answers_than_fit():
    async def run():
        made = 0

        def big(_: Request) -> Response:
            nonlocal made
            made += 1
            return Response(200, b"x" * 1_000_000)

        async with serving(big) as server:
            peer = await Raw.to(server)
            peer.writer.transport.pause_reading()
            await peer.say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
            await until(lambda: made)
            await asyncio.sleep(0.05)
            assert made < 50
            peer.writer.transport.resume_reading()
            for _ in range(100):
                assert len((await peer.answer())[2]) == 1_000_000

    asyncio.run(run())


def test_a_refusal_is_worded_by_the_application():
    async def run():
        def refuse(status: int, sentence: str) -> Response:
            return Response(status, f'{{"message":"{sentence}"}}'.encode())

        async with serving(length, refuse=refuse) as server:
            peer = await Raw.to(server)
            await peer.say(b"nonsense\r\n\r\n")
            answer = await peer.end()
            assert b"application/json" in answer
            assert b'{"message":' in answer

    asyncio.run(run())
