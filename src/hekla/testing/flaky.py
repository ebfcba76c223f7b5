"""A transport that breaks on demand: cut streams, lost answers, a server that is away. For tests of what survives it."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from hekla.kube.client import Transport
from hekla.kube.errors import TransportError
from hekla.wire.messages import Request, Response

Verdict = Callable[[Request], None]
"""Looks at a request and raises what should go wrong with it."""


class FlakyTransport:
    """Passes everything on to a real transport, except what it was told to break."""

    prefers_watch_list = False

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.is_away = False
        self.before: Verdict = lambda request: None
        self.after: Verdict = lambda request: None
        """Called when the server has done the work: what it raises is an answer that was lost on its way."""

        self.requests: list[str] = []
        self.streams = 0
        """How many streams are open."""

        self.cut_after: int | None = None
        """Cut each stream after so many pieces."""

        self._cuts: set[asyncio.Future[None]] = set()

    async def send(self, request: Request) -> Response:
        """Pass on, or break."""
        self._judge(request)
        response = await self.inner.send(request)
        self.after(request)
        return response

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Pass on piece by piece, until cut."""
        self._judge(request)
        cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cuts.add(cut)
        self.streams += 1
        source = self.inner.stream(request)
        count = 0
        try:
            while self.cut_after is None or count < self.cut_after:
                piece = await _next_or_cut(source, cut)
                if piece is None:
                    return
                count += 1
                yield piece
            raise TransportError("the stream was cut by the test")
        finally:
            self.streams -= 1
            self._cuts.discard(cut)
            cut.cancel()
            await source.aclose()  # type: ignore[attr-defined]  # every transport's stream is an async generator

    def cut(self) -> None:
        """Break all open streams now."""
        for cut in list(self._cuts):
            if not cut.done():
                cut.set_exception(TransportError("the stream was cut by the test"))

    async def close(self) -> None:
        """Close the real transport."""
        await self.inner.close()

    def _judge(self, request: Request) -> None:
        self.requests.append(f"{request.method} {request.target}")
        if self.is_away:
            raise TransportError("the server is away")
        self.before(request)


async def _next_or_cut(source: object, cut: "asyncio.Future[None]") -> bytes | None:
    step = asyncio.ensure_future(anext(source, None))  # type: ignore[call-overload]  # an async iterator of bytes
    try:
        await asyncio.wait({step, cut}, return_when=asyncio.FIRST_COMPLETED)
        if cut.done():
            await cut
        piece: bytes | None = await step
        return piece
    finally:
        if not step.done():
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
