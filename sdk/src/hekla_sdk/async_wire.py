"""The exchanges of `AsyncSession`: what `wire.py` does, awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TypeVar

import httpx

from hekla_sdk.errors import HeklaError, UnreachableError
from hekla_sdk.exchange import (
    MOST_REFUSAL,
    Answer,
    Request,
    Steps,
    fine,
    spent,
    state_asked,
    wait_refused_s,
    wait_unconnected_s,
)
from hekla_sdk.settings import Gateway
from hekla_sdk.wire import timeout_of, too_large, unreachable

Told = TypeVar("Told")


class AsyncStream:
    """An answer as it comes."""

    def __init__(
        self, response: httpx.Response, broken: Callable[[httpx.TransportError], Awaitable[HeklaError]]
    ) -> None:
        self._response, self._broken = response, broken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.aiter_bytes():
                yield piece
        except httpx.TransportError as error:
            raise await self._broken(error) from error

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        await self.close()

    async def close(self) -> None:
        """Read no more; what runs inside runs on, cells are interrupted."""
        await self._response.aclose()


class AsyncWire:
    """Connections to one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._users = 1
        self._client = httpx.AsyncClient(
            base_url=f"{gateway.url}/hekla/v1/", headers={"authorization": f"Bearer {gateway.key}"}
        )

    def shared(self) -> "AsyncWire":
        """The same for one more, who closes it too."""
        self._users += 1
        return self

    async def close(self) -> None:
        """The last one closes the connections."""
        self._users -= 1
        if self._users == 0:
            await self._client.aclose()

    async def do(self, steps: Steps[Told]) -> Told:
        """Take an operation's steps."""
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._answer(request))
        except StopIteration as over:
            value: Told = over.value
            return value

    async def open(self, request: Request) -> AsyncStream:
        """An answer that comes while something runs; refusals are raised."""
        response = await self._sent(request)
        if response.status_code >= 300:
            try:
                fine(await self._read(request, response, MOST_REFUSAL))
            finally:
                await response.aclose()
        return self._stream(request, response)

    async def _answer(self, request: Request) -> Answer:
        response = await self._sent(request)
        try:
            return await self._read(request, response, request.most)
        finally:
            await response.aclose()

    def _stream(self, request: Request, response: httpx.Response) -> AsyncStream:
        return AsyncStream(response, lambda error: self._broken(request, error))

    async def _broken(self, request: Request, error: httpx.TransportError) -> HeklaError:
        asked = state_asked(request)
        try:
            answered = await self._client.get(asked.path, timeout=timeout_of(asked)) if asked else None
        except httpx.TransportError:
            answered = None
        refused = spent(Answer(answered.status_code, answered.content)) if answered is not None else None
        return refused or unreachable(self.gateway, error)

    async def _read(self, request: Request, response: httpx.Response, most: int) -> Answer:
        body = bytearray()
        async for piece in self._stream(request, response):
            body += piece
            if len(body) > most:
                raise too_large(most)
        return Answer(response.status_code, bytes(body), response.headers.get("retry-after", ""))

    async def _sent(self, request: Request) -> httpx.Response:
        """The head of the answer; what was not taken is sent again, as often as `exchange.py` says."""
        if self._client.is_closed:
            raise UnreachableError("this session's connections were given back; get it again with `connect`")
        tries = 0
        while True:
            tries += 1
            built = self._client.build_request(
                request.method, request.path, content=request.body, headers=dict(request.headers), timeout=timeout_of(request)
            )  # fmt: skip
            try:
                response = await self._client.send(built, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                wait_s = wait_unconnected_s(tries)
                if wait_s is None:
                    raise unreachable(self.gateway, error) from error
            except httpx.TransportError as error:
                raise await self._broken(request, error) from error
            else:
                wait_s = wait_refused_s(
                    Answer(response.status_code, b"", response.headers.get("retry-after", "")), tries
                )
                if wait_s is None:
                    return response
                await response.aclose()
            await asyncio.sleep(wait_s)
