import asyncio

import pytest

from hekla.kube.errors import NotFoundError, TransportError
from hekla.kube.in_process import InProcessTransport
from hekla.wire.messages import Request, Response, SwitchProtocol


class Pushing:
    """A handler whose body is pushed by the test."""

    def __init__(self):
        self.sink = None
        self.ended = []

    def __call__(self, request):
        def push(sink):
            self.sink = sink
            sink.on_close(lambda: self.ended.append(True))

        return Response(200, push)


def get(target="/watch"):
    return Request("GET", target)


def test_pieces_come_as_they_are_pushed():
    async def scenario():
        handler = Pushing()
        stream = InProcessTransport(handler).stream(get())
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        handler.sink.write(b"one")
        assert await first == b"one"
        handler.sink.write(b"two")
        assert handler.sink.buffered == 3
        handler.sink.close()
        assert [piece async for piece in stream] == [b"two"]
        assert handler.ended == [True]

    asyncio.run(scenario())


def test_a_reader_that_leaves_ends_the_subscription():
    async def scenario():
        handler = Pushing()
        stream = InProcessTransport(handler).stream(get())
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        handler.sink.write(b"one")
        await waiting
        await stream.aclose()
        assert handler.ended == [True]
        handler.sink.write(b"nobody hears this")
        assert handler.sink.buffered == 0

    asyncio.run(scenario())


def test_a_reader_that_is_too_far_behind_is_cut_off():
    async def scenario():
        handler = Pushing()
        stream = InProcessTransport(handler, max_buffered=10).stream(get())
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        handler.sink.write(b"x" * 11)
        with pytest.raises(TransportError, match="cut"):
            await waiting
        assert handler.ended == [True]

    asyncio.run(scenario())


def test_a_closed_transport_cuts_its_streams_and_refuses_calls():
    async def scenario():
        transport = InProcessTransport(Pushing())
        waiting = asyncio.ensure_future(anext(transport.stream(get())))
        await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(TransportError):
            await waiting
        with pytest.raises(TransportError, match="closed"):
            await transport.send(get())

    asyncio.run(scenario())


def test_the_server_sees_a_local_peer_and_whom_to_act_for():
    seen = []

    async def handle(request):
        seen.append(request)
        return Response(200, b"ok")

    async def scenario():
        await InProcessTransport(handle, "system:kube-scheduler", groups=["a", "b"]).send(get())

    asyncio.run(scenario())
    assert seen[0].peer.is_local
    assert seen[0].headers == {"impersonate-user": "system:kube-scheduler", "impersonate-group": "a, b"}


def test_refusals_of_a_stream_are_raised_and_upgrades_refused():
    async def scenario():
        missing = InProcessTransport(lambda request: Response(404, b'{"kind":"Status","code":404}'))
        with pytest.raises(NotFoundError):
            await anext(missing.stream(get()))
        upgrade = InProcessTransport(lambda request: SwitchProtocol("SPDY/3.1", None))
        with pytest.raises(TransportError, match="upgrade"):
            await upgrade.send(get("/exec"))

    asyncio.run(scenario())
