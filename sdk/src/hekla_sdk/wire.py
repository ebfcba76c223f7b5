"""The exchanges of `Session`: over httpx, one connection pool for a session and its forks."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import TracebackType
from typing import TypeVar

import httpx

from hekla_sdk.errors import BadAnswerError, HeklaError, UnreachableError
from hekla_sdk.exchange import (
    CONNECT_S,
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

Told = TypeVar("Told")


def timeout_of(request: Request) -> httpx.Timeout:
    """How long each step of a request may take."""
    return httpx.Timeout(request.patience_s, connect=CONNECT_S)


def unreachable(gateway: Gateway, error: httpx.TransportError) -> UnreachableError:
    """What to tell of a connection that was not made or broke."""
    return UnreachableError(f"the gateway at {gateway.url} does not answer: {f'{error}' or type(error).__name__}")


def too_large(most: int) -> BadAnswerError:
    """What to tell of an answer that is larger than it may be."""
    return BadAnswerError(f"the answer has more than {most} bytes; ask for less, or allow more with `most`")


class Stream:
    """An answer as it comes."""

    def __init__(self, response: httpx.Response, broken: Callable[[httpx.TransportError], HeklaError]) -> None:
        self._response, self._broken = response, broken

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._response.iter_bytes()
        except httpx.TransportError as error:
            raise self._broken(error) from error

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Read no more; what runs inside runs on, cells are interrupted."""
        self._response.close()


class Wire:
    """Connections to one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._users = 1
        self._client = httpx.Client(
            base_url=f"{gateway.url}/hekla/v1/", headers={"authorization": f"Bearer {gateway.key}"}
        )

    def shared(self) -> "Wire":
        """The same for one more, who closes it too."""
        self._users += 1
        return self

    def close(self) -> None:
        """The last one closes the connections."""
        self._users -= 1
        if self._users == 0:
            self._client.close()

    def do(self, steps: Steps[Told]) -> Told:
        """Take an operation's steps."""
        try:
            request = next(steps)
            while True:
                request = steps.send(self._answer(request))
        except StopIteration as over:
            value: Told = over.value
            return value

    def open(self, request: Request) -> Stream:
        """An answer that comes while something runs; refusals are raised."""
        response = self._sent(request)
        if response.status_code >= 300:
            with closing(response):
                fine(self._read(request, response, MOST_REFUSAL))
        return self._stream(request, response)

    def _answer(self, request: Request) -> Answer:
        with closing(self._sent(request)) as response:
            return self._read(request, response, request.most)

    def _stream(self, request: Request, response: httpx.Response) -> Stream:
        return Stream(response, lambda error: self._broken(request, error))

    def _broken(self, request: Request, error: httpx.TransportError) -> HeklaError:
        """Why a connection broke: what the gateway says of the session, if it says anything, else the connection's own words."""
        asked = state_asked(request)
        try:
            answered = self._client.get(asked.path, timeout=timeout_of(asked)) if asked else None
        except httpx.TransportError:
            answered = None
        refused = spent(Answer(answered.status_code, answered.content)) if answered is not None else None
        return refused or unreachable(self.gateway, error)

    def _read(self, request: Request, response: httpx.Response, most: int) -> Answer:
        body = bytearray()
        for piece in self._stream(request, response):
            body += piece
            if len(body) > most:
                raise too_large(most)
        return Answer(response.status_code, bytes(body), response.headers.get("retry-after", ""))

    def _sent(self, request: Request) -> httpx.Response:
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
                response = self._client.send(built, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                wait_s = wait_unconnected_s(tries)
                if wait_s is None:
                    raise unreachable(self.gateway, error) from error
            except httpx.TransportError as error:
                raise self._broken(request, error) from error
            else:
                wait_s = wait_refused_s(
                    Answer(response.status_code, b"", response.headers.get("retry-after", "")), tries
                )
                if wait_s is None:
                    return response
                response.close()
            time.sleep(wait_s)
