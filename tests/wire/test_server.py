import asyncio
import gzip
import socket

import pytest
import uvloop

from hekla.testing.garbage import without_collections
from hekla.wire.connection import Connection
from hekla.wire.limits import Limits
from hekla.wire.messages import Request, Response
from hekla.wire.requests import RequestReader
from hekla.wire.sinks import PushSink
from wire.wirekit import Raw, serving, until


def echo(request: Request) -> Response:
    words = f"{request.method} {request.target} {len(request.body)}".encode()
    return Response(200, words, "text/plain")


def get(path: str = "/", *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: x", *lines, "", ""]).encode()


def test_a_plain_handler_answers_a_get():
    async def run():
        async with serving(echo) as server:
            peer = await Raw.to(server)
            await peer.say(get("/a?b=c"))
            status, headers, body = await peer.answer()
            assert (status, body) == (200, b"GET /a?b=c 0")
            assert headers["content-type"] == "text/plain"
            assert "date" in headers

    asyncio.run(run())


def test_a_server_that_takes_its_leave_answers_on_and_keeps_no_connection():
    async def run():
        async with serving(echo) as server:
            kept = await Raw.to(server)
            await kept.say(get("/1"))
            assert "connection" not in (await kept.answer())[1]
            server.take_leave()
            for peer in (kept, await Raw.to(server)):
                await peer.say(get("/2"))
                status, headers, _ = await peer.answer()
                assert (status, headers["connection"]) == (200, "close")
            await until(lambda: server.connections == 0)

    asyncio.run(run())


def test_a_connection_is_kept_for_the_next_request():
    async def run():
        async with serving(echo) as server:
            peer = await Raw.to(server)
            for number in range(3):
                await peer.say(get(f"/{number}"))
                assert (await peer.answer())[2] == f"GET /{number} 0".encode()
            assert server.connections == 1

    asyncio.run(run())


def test_pipelined_requests_are_answered_in_order_even_if_the_first_is_slow():
    async def run():
        gate = asyncio.Event()

        async def slow(request: Request) -> Response:
            await gate.wait()
            return echo(request)

        async with serving(lambda r: slow(r) if r.path == "/slow" else echo(r)) as server:
            peer = await Raw.to(server)
            await peer.say(get("/slow") + get("/2") + get("/3"))
            gate.set()
            bodies = [(await peer.answer())[2] for _ in range(3)]
            assert bodies == [b"GET /slow 0", b"GET /2 0", b"GET /3 0"]

    asyncio.run(run())


def test_a_handler_may_return_a_future():
    async def run():
        future = asyncio.get_running_loop().create_future()
        async with serving(lambda _: future) as server:
            peer = await Raw.to(server)
            await peer.say(get())
            await until(lambda: server.connections)
            future.set_result(Response(201, b"{}"))
            assert (await peer.answer())[0] == 201

    asyncio.run(run())


def test_a_client_that_leaves_cancels_the_handler_that_works_for_it():
    async def run():
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def forever(_: Request) -> Response:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        async with serving(forever) as server:
            peer = await Raw.to(server)
            await peer.say(get())
            await began.wait()
            peer.leave()
            await cancelled.wait()

    asyncio.run(run())


def test_a_handler_that_raises_is_answered_500_and_reported():
    async def run():
        reported = []

        def broken(_: Request) -> Response:
            raise KeyError("x")

        async def broken_later(_: Request) -> Response:
            raise KeyError("y")

        for handler in (broken, broken_later):
            async with serving(handler, on_error=lambda _, error: reported.append(error)) as server:
                peer = await Raw.to(server)
                await peer.say(get())
                assert (await peer.answer())[0] == 500
                await peer.say(get())
                assert (await peer.answer())[0] == 500
        assert [repr(error) for error in reported] == ["KeyError('x')"] * 2 + ["KeyError('y')"] * 2

    asyncio.run(run())


def test_a_header_with_a_line_break_is_never_written():
    async def run():
        def split(_: Request) -> Response:
            return Response(200, b"", headers=[("x", "a\r\nset-cookie: b")])

        async def split_later(request: Request) -> Response:
            return split(request)

        for handler in (split, split_later):
            async with serving(handler, on_error=lambda _, __: None) as server:
                peer = await Raw.to(server)
                await peer.say(get())
                status, headers, _ = await peer.answer()
                assert status == 500
                assert "set-cookie" not in headers

    asyncio.run(run())


def test_head_tells_the_length_and_sends_no_body():
    async def run():
        async with serving(lambda _: Response(200, b"12345")) as server:
            peer = await Raw.to(server)
            await peer.say(b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await peer.end()
            assert b"content-length: 5\r\n" in answer
            assert answer.endswith(b"\r\n\r\n")

    asyncio.run(run())


def test_http_1_0_closes_unless_asked_to_keep():
    async def run():
        async with serving(echo) as server:
            peer = await Raw.to(server)
            await peer.say(b"GET / HTTP/1.0\r\n\r\n")
            assert (await peer.end()).endswith(b"GET / 0")
            peer = await Raw.to(server)
            await peer.say(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            assert (await peer.answer())[1]["connection"] == "keep-alive"
            await peer.say(b"GET / HTTP/1.0\r\n\r\n")
            assert (await peer.answer())[0] == 200

    asyncio.run(run())


def test_an_iterator_is_sent_in_chunks():
    async def run():
        async def pieces():
            for piece in (b"one", b"", b"two"):
                yield piece

        async with serving(lambda _: Response(200, pieces())) as server:
            peer = await Raw.to(server)
            await peer.say(get() + get("/again"))
            assert (await peer.answer())[2] == b"onetwo"

    asyncio.run(run())


def test_an_iterator_that_breaks_cuts_the_connection_so_that_nobody_takes_the_body_for_whole():
    async def run():
        async def pieces():
            yield b"half"
            raise OSError("disk")

        async with serving(lambda _: Response(200, pieces()), on_error=lambda _, __: None) as server:
            peer = await Raw.to(server)
            await peer.say(get())
            assert b"0\r\n\r\n" not in await peer.end()

    asyncio.run(run())


def test_a_push_is_written_as_it_comes_and_closed_in_good_order():
    async def run():
        sinks, closed = [], []

        def watch(sink):
            sinks.append(sink)
            sink.on_close(lambda: closed.append(1))

        async with serving(lambda _: Response(200, watch)) as server:
            peer = await Raw.to(server)
            await peer.say(get())
            await peer.reader.readuntil(b"\r\n\r\n")
            sinks[0].write(b"event 1\n")
            assert await peer.reader.readexactly(13) == b"8\r\nevent 1\n\r\n"
            sinks[0].write(b"event 2\n")
            sinks[0].close()
            sinks[0].write(b"too late")
            assert await peer.chunks() == b"event 2\n"
            assert closed == [1]
            await peer.say(get())
            assert b"200" in await peer.reader.readuntil(b"\r\n\r\n")

    asyncio.run(run())


def test_a_push_learns_that_its_reader_has_left():
    async def run():
        closed = asyncio.Event()
        async with serving(lambda _: Response(200, lambda sink: sink.on_close(closed.set))) as server:
            peer = await Raw.to(server)
            await peer.say(get())
            await peer.reader.readuntil(b"\r\n\r\n")
            peer.leave()
            await closed.wait()

    asyncio.run(run())


def test_a_push_to_a_reader_who_does_not_read_is_counted_and_then_cut():
    async def run():
        sinks, closed = [], asyncio.Event()

        def watch(sink):
            sinks.append(sink)
            sink.on_close(closed.set)

        async with serving(lambda _: Response(200, watch), limits=Limits(push_buffer_bytes=1 << 20)) as server:
            peer = await Raw.to(server)
            peer.writer.transport.pause_reading()
            await peer.say(get())
            await until(lambda: sinks)
            seen = 0
            while not closed.is_set():
                sinks[0].write(b"x" * 65536)
                seen = max(seen, sinks[0].buffered)
                await asyncio.sleep(0)
            assert 0 < seen <= (1 << 20)
            await until(lambda: not server.connections)

    asyncio.run(run())


def test_large_responses_are_compressed_for_those_who_accept_it():
    async def run():
        body = b"pods and more pods " * 100_000
        async with serving(lambda _: Response(200, body)) as server:
            peer = await Raw.to(server)
            await peer.say(get("/", "accept-encoding: gzip"))
            _, headers, packed = await peer.answer()
            assert headers["content-encoding"] == "gzip"
            assert gzip.decompress(packed) == body
            await peer.say(get("/", "accept-encoding: gzip;q=0"))
            assert "content-encoding" not in (await peer.answer())[1]

    asyncio.run(run())


def test_stopping_finishes_what_is_in_flight_and_closes_what_is_idle():
    async def run():
        began, gate = asyncio.Event(), asyncio.Event()

        async def slow(_: Request) -> Response:
            began.set()
            await gate.wait()
            return Response(200, b"done")

        async with serving(slow) as server:
            idle, busy = await Raw.to(server), await Raw.to(server)
            await busy.say(get())
            await began.wait()
            stopping = asyncio.create_task(server.stop(grace_s=30))
            assert await idle.end() == b""
            gate.set()
            status, headers, body = await busy.answer()
            assert (status, headers["connection"], body) == (200, "close", b"done")
            await stopping
            with pytest.raises(ConnectionRefusedError):
                await Raw.to(server)

    asyncio.run(run())


def test_stopping_ends_streams_and_drops_what_outlives_the_grace():
    async def run():
        async def never(_: Request) -> Response:
            await asyncio.Event().wait()
            raise AssertionError

        handler = {"/watch": lambda _: Response(200, lambda sink: sink.write(b"x")), "/never": never}
        async with serving(lambda r: handler[r.path](r)) as server:
            watcher, waiter = await Raw.to(server), await Raw.to(server)
            await watcher.say(get("/watch"))
            await watcher.reader.readuntil(b"\r\n\r\n1\r\nx\r\n")
            await waiter.say(get("/never"))
            await until(lambda: server.connections == 2)
            await server.stop(grace_s=0.05)
            assert await watcher.end() == b"0\r\n\r\n"
            assert await waiter.end() == b""
            assert server.connections == 0

    asyncio.run(run())


def test_stopping_lets_streams_end_where_they_have_an_end_and_cuts_those_that_outlive_the_grace():
    async def run():
        sinks = []
        async with serving(lambda _: Response(200, sinks.append)) as server:
            ends, stays = await Raw.to(server), await Raw.to(server)
            for reader in (ends, stays):
                await reader.say(get("/answer"))
                await reader.reader.readuntil(b"\r\n\r\n")
            stopping = asyncio.create_task(server.stop(grace_s=0.2, ends_streams=False))
            await asyncio.sleep(0)
            sinks[0].write(b"the rest")
            sinks[0].close()
            assert await ends.end() == b"8\r\nthe rest\r\n0\r\n\r\n"
            await stopping
            assert await stays.end() == b""
            assert server.connections == 0

    asyncio.run(run())


def test_a_taken_port_is_refused_or_replaced_as_asked():
    async def run():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            async with serving(echo, port=port, or_any_port=True) as server:
                assert server.port not in (0, port)
            with pytest.raises(OSError, match="use"):
                async with serving(echo, port=port):
                    pass

    asyncio.run(run())


def test_the_observer_sees_every_answer():
    async def run():
        seen = []
        async with serving(echo, observer=lambda *what: seen.append(what)) as server:
            peer = await Raw.to(server)
            await peer.say(get("/x"))
            await peer.answer()
            [(request, status, duration_s, size)] = seen
            assert (request.target, status, size) == ("/x", 200, 8)
            assert duration_s >= 0

    asyncio.run(run())


def test_the_observer_sees_streams_that_were_cut_and_clients_that_left():
    async def run():
        seen, began = [], asyncio.Event()

        async def never(_: Request) -> Response:
            began.set()
            await asyncio.Event().wait()
            raise AssertionError

        handler = {"/watch": lambda _: Response(200, lambda sink: None), "/never": never}
        options = {"observer": lambda request, status, *_: seen.append((request.path, status))}
        async with serving(lambda r: handler[r.path](r), **options) as server:
            watcher, waiter = await Raw.to(server), await Raw.to(server)
            await watcher.say(get("/watch"))
            await watcher.reader.readuntil(b"\r\n\r\n")
            await waiter.say(get("/never"))
            await began.wait()
            watcher.leave()
            waiter.leave()
            await until(lambda: len(seen) == 2)
            assert sorted(seen) == [("/never", 499), ("/watch", 200)]

    asyncio.run(run())


def test_a_handler_whose_own_work_was_cancelled_is_answered_500():
    async def run():
        async def cancelled(_: Request) -> Response:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
            raise AssertionError

        async with serving(cancelled, on_error=lambda _, __: None) as server:
            peer = await Raw.to(server)
            await peer.say(get())
            assert (await peer.answer())[0] == 500

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["plain", "task", "push", "refused", "left"])
def test_a_connection_that_has_ended_goes_at_once_and_waits_for_no_collection(kind):
    async def later(request: Request) -> Response:
        await asyncio.sleep(0)
        return echo(request)

    def handler(request: Request):
        if kind == "push":
            return Response(200, lambda sink: sink.write(b"one"), "text/plain")
        return asyncio.sleep(1000) if kind == "left" else later(request) if kind == "task" else echo(request)

    async def visit(server):
        peer = await Raw.to(server)
        await peer.say(b"nonsense\r\n\r\n" if kind == "refused" else get())
        if kind != "left":
            await peer.reader.read(20)
        peer.writer.close()

    async def run(still_there):
        async with serving(handler) as server:
            await visit(server)
            await until(lambda: not server.connections)
            for _ in range(5):  # turns of the loop in which whoever answered is cancelled
                await asyncio.sleep(0)
            assert not still_there(Connection, RequestReader, PushSink)

    with without_collections() as still_there:
        asyncio.run(run(still_there))


def test_clients_that_come_together_are_let_in_together():
    """libuv lets in one a turn: the last of 32 waited for 31 turns, each of which served who was in already."""

    async def run():
        async with serving(echo) as server:
            waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(32)]
            for _ in range(8):
                await asyncio.sleep(0)
            assert server.connections == 32
            for one in waiting:
                one.close()

    uvloop.run(run())
