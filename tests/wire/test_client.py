import asyncio
import contextlib
import http.server
import threading

import pytest

from hekla.wire.client import HttpClient
from hekla.wire.errors import BadReplyError, ConnectFailedError, ConnectionLostError, ReplyTooLargeError, TimedOutError
from hekla.wire.limits import ClientLimits
from hekla.wire.messages import Request, Response
from wire.wirekit import serving, until


def echo(request: Request) -> Response:
    words = f"{request.method} {request.target} ".encode() + request.body
    return Response(200, words, "text/plain", [("x-peer", str(request.peer.port))])


@contextlib.asynccontextmanager
async def scripted(*answers: bytes):
    """A server that says fixed bytes: each connection gets the next answer for each request, and None closes."""
    left = list(answers)
    connections = []

    async def serve(reader, writer):
        connections.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while left:
                await reader.readuntil(b"\r\n\r\n")
                answer = left.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                if b"connection: close" in answer:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()


def test_a_request_goes_out_and_its_answer_comes_back():
    async def run():
        async with serving(echo) as server, HttpClient(headers=[("x-a", "b")]) as client:
            response = await client.request("POST", f"http://127.0.0.1:{server.port}/a?b", body=b"hello")
            assert (response.status, response.body) == (200, b"POST /a?b hello")
            assert response.header("x-peer")
            assert response.content_type == "text/plain"

    asyncio.run(run())


def test_connections_are_kept_and_bounded():
    async def run():
        async with serving(echo) as server, HttpClient(limits=ClientLimits(connections_per_origin=3)) as client:
            url = f"http://127.0.0.1:{server.port}/"
            answers = await asyncio.gather(*[client.request("GET", url) for _ in range(50)])
            assert len({answer.header("x-peer") for answer in answers}) <= 3
            assert server.connections <= 3

    asyncio.run(run())


def test_cancelling_one_who_waits_for_a_connection_starves_nobody():
    async def run():
        gate = asyncio.Event()

        async def slow(_: Request) -> Response:
            await gate.wait()
            return Response(200, b"")

        async with serving(slow) as server, HttpClient(limits=ClientLimits(connections_per_origin=1)) as client:
            url = f"http://127.0.0.1:{server.port}/"
            tasks = [asyncio.create_task(client.request("GET", url)) for _ in range(6)]
            await until(lambda: server.connections)
            tasks[0].cancel()
            tasks[1].cancel()
            tasks[3].cancel()
            gate.set()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(each, asyncio.CancelledError) for each in done] == [
                True,
                True,
                False,
                True,
                False,
                False,
            ]

    asyncio.run(run())


def test_a_stream_gives_pieces_as_they_come_and_keeps_the_connection_at_its_end():
    async def run():
        sinks = []
        async with serving(lambda _: Response(200, sinks.append)) as server, HttpClient() as client:
            url = f"http://127.0.0.1:{server.port}/"
            for _ in range(2):
                async with client.stream("GET", url) as streamed:
                    assert streamed.status == 200
                    sinks[-1].write(b"one")
                    pieces = streamed.__aiter__()
                    assert await anext(pieces) == b"one"
                    sinks[-1].write(b"two")
                    sinks[-1].close()
                    assert [piece async for piece in pieces] == [b"two"]
            assert server.connections == 1

    asyncio.run(run())


def test_leaving_a_stream_early_tells_the_server():
    async def run():
        closed = asyncio.Event()
        async with serving(lambda _: Response(200, lambda sink: sink.on_close(closed.set))) as server:
            async with HttpClient() as client, client.stream("GET", f"http://127.0.0.1:{server.port}/"):
                pass
            await closed.wait()

    asyncio.run(run())


def test_a_slow_reader_of_a_stream_holds_little_and_gets_everything():
    async def run():
        async def flood():
            for _ in range(300):
                yield b"x" * 65536

        limits = ClientLimits(read_ahead_bytes=100_000)
        async with serving(lambda _: Response(200, flood())) as server, HttpClient(limits=limits) as client:
            total = 0
            async with client.stream("GET", f"http://127.0.0.1:{server.port}/") as streamed:
                async for piece in streamed:
                    assert streamed._inbox._size < 1_000_000
                    total += len(piece)
                    await asyncio.sleep(0)
            assert total == 300 * 65536

    asyncio.run(run())


def test_a_cut_stream_is_an_error_and_never_an_end():
    async def run():
        sinks = []
        async with (
            serving(lambda _: Response(200, sinks.append)) as server,
            HttpClient() as client,
            client.stream("GET", f"http://127.0.0.1:{server.port}/") as streamed,
        ):
            sinks[0].write(b"half")
            pieces = streamed.__aiter__()
            assert await anext(pieces) == b"half"
            sinks[0].abort()
            with pytest.raises(ConnectionLostError):
                await anext(pieces)

    asyncio.run(run())


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_an_idempotent_request_on_a_connection_that_died_idle_is_sent_again():
    async def run():
        async with scripted(OK, None, OK) as (url, _), HttpClient() as client:
            assert (await client.request("GET", f"{url}/")).body == b"ok"
            assert (await client.request("GET", f"{url}/")).body == b"ok"
        async with scripted(OK, None, OK) as (url, _), HttpClient() as client:
            assert (await client.request("GET", f"{url}/")).body == b"ok"
            with pytest.raises(ConnectionLostError):
                await client.request("POST", f"{url}/", body=b"{}")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nconnection: close", b"connection: close"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nx: y\r\n\r\n", b"abc"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_all_framings_of_an_answer_are_understood(answer, expected):
    async def run():
        async with scripted(answer) as (url, _), HttpClient() as client:
            assert (await client.request("GET", f"{url}/", timeout_s=5)).body == expected

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", BadReplyError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nab", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef", BadReplyError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000, ReplyTooLargeError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 5000 + b"\r\n\r\n", ReplyTooLargeError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 50_000, ReplyTooLargeError),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", BadReplyError),
        (b"HTTP/1.1 200 OK\r\n", TimedOutError),
    ],
)
def test_a_bad_answer_is_an_error_with_its_name(answer, error):
    async def run():
        limits = ClientLimits(header_bytes=2000, body_bytes=2000)
        async with scripted(answer, b"") as (url, _), HttpClient(limits=limits) as client:
            with pytest.raises(error):
                await client.request("GET", f"{url}/", timeout_s=0.5 if error is TimedOutError else 5)

    asyncio.run(run())


def test_what_follows_an_answer_uninvited_reaches_no_other_request():
    async def run():
        evil = OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
        async with scripted(evil, OK, OK) as (url, made), HttpClient() as client:
            assert (await client.request("GET", f"{url}/")).body == b"ok"
            assert (await client.request("GET", f"{url}/")).body == b"ok"
            assert len(made) == 2

    asyncio.run(run())


def test_head_reads_no_body_and_keeps_the_connection_straight():
    async def run():
        async with serving(echo) as server, HttpClient() as client:
            url = f"http://127.0.0.1:{server.port}/"
            head = await client.request("HEAD", url)
            assert (head.body, head.header("content-length")) == (b"", "7")
            assert (await client.request("GET", url)).body == b"GET / "
            assert server.connections == 1

    asyncio.run(run())


def test_a_server_that_is_not_there_is_named():
    async def run():
        async with serving(echo) as server:
            port = server.port
        async with HttpClient() as client:
            with pytest.raises(ConnectFailedError, match=str(port)):
                await client.request("GET", f"http://127.0.0.1:{port}/")

    asyncio.run(run())


def test_idle_connections_are_closed_after_a_while():
    async def run():
        async with serving(echo) as server, HttpClient(limits=ClientLimits(idle_s=0.02)) as client:
            await client.request("GET", f"http://127.0.0.1:{server.port}/")
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_closing_the_client_fails_what_is_under_way():
    async def run():
        async def never(_: Request) -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        async with serving(never) as server:
            client = HttpClient()
            task = asyncio.create_task(client.request("GET", f"http://127.0.0.1:{server.port}/"))
            await until(lambda: server.connections)
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(Exception, match="closed"):
                await task

    asyncio.run(run())


def test_a_host_that_is_no_ascii_cannot_be_connected_to():
    async def run():
        async with HttpClient() as client:
            with pytest.raises(ConnectFailedError, match="xn--"):
                await client.request("GET", "http://höst:1/")

    asyncio.run(run())


def test_targets_and_headers_cannot_smuggle_lines():
    async def run():
        async with HttpClient() as client:
            for url, headers in [
                ("http://127.0.0.1:1/a b", ()),
                ("http://127.0.0.1:1/a\r\nx: y", ()),
                ("http://127.0.0.1:1/", [("a", "b\r\nc: d")]),
                ("http://127.0.0.1:1/", [("a\r\nb", "c")]),
                ("ftp://127.0.0.1:1/", ()),
            ]:
                with pytest.raises(ValueError, match=r"."):
                    await client.request("GET", url, headers)

    asyncio.run(run())


def test_pythons_own_http_server_is_understood():
    class Plain(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", "3")
            self.end_headers()
            self.wfile.write(b"abc")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        async def run():
            async with HttpClient() as client:
                url = f"http://127.0.0.1:{server.server_port}/"
                for _ in range(3):
                    assert (await client.request("GET", url)).body == b"abc"
                assert (await client.request("POST", url, body=b"12345")).body == b"54321"

        try:
            asyncio.run(run())
        finally:
            server.shutdown()
            thread.join()
