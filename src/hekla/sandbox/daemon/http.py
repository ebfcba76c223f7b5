"""An HTTP/1.1 server of the standard library: bounded heads and bodies, streamed answers with backpressure, and news of clients who leave.

`dialects` decide what is answered; `server.py` puts them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

MOST_HEAD = 64 * 1024
MOST_LINES = 128
PIECE = 64 * 1024
HEAD_TIMEOUT_S = 30.0
"""From a connection's first byte of a request to the end of its head."""
IDLE_TIMEOUT_S = 300.0
MOST_CONNECTIONS = 512
AFTER_REFUSAL_S = 2.0
"""So long a client that was answered may go on sending what nobody wants. Not only so much: with 3 MB to come it met a reset, and no sentence."""

REASONS = {
    100: "Continue", 200: "OK", 201: "Created", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 409: "Conflict", 413: "Content Too Large",
    429: "Too Many Requests", 431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
    503: "Service Unavailable", 504: "Gateway Timeout", 507: "Insufficient Storage",
}  # fmt: skip
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class HttpError(Exception):
    """A request that is answered with a status and a sentence; a dialect words it in its own way."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        """A dialect's own word for it, where it has one."""


class Request:
    """One request; its body is read by whoever wants it, once."""

    def __init__(
        self, method: str, target: str, headers: dict[str, str], body: Body, gone: asyncio.Future[None]
    ) -> None:
        path, _, query = target.partition("?")
        self.method = method
        self.target = target
        self.raw_path = path
        self.path = unquote_to_bytes(path).decode("utf-8", "surrogateescape")
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        self.headers = headers
        """Names in lower case."""
        self.body = body
        self.gone = gone
        """Done when the client left."""

    async def json(self, most: int = 32 * 1024 * 1024) -> dict[str, Any]:
        """The body as a JSON object."""
        return document_of(await self.body.read(most), "body")


def document_of(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object that bytes are; nothing is an empty one. Text in it can be written down: half a surrogate pair cannot."""
    try:
        # `json` reads bytes in other encodings, too, and halves of pairs as they are
        document = json.loads(data.decode("utf-8-sig") or "{}", parse_constant=_no_constant)
        if b"\\ud" in data or b"\\uD" in data:
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise HttpError(
            400, f"the {what} is not UTF-8: {error.reason} at byte {error.start}", "invalid_argument"
        ) from error
    except UnicodeEncodeError as error:
        raise HttpError(400, f"the {what} has half a surrogate pair in it", "invalid_argument") from error
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the {what} is not JSON: {error}", "invalid_argument") from error
    if not isinstance(document, dict):
        raise HttpError(400, f"the {what} must be a JSON object", "invalid_argument")
    return document


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


class Body:
    """A request's body as it comes."""

    def __init__(self, reader: asyncio.StreamReader, length: int | None, proceed: Callable[[], None]) -> None:
        self._reader = reader
        self._length = length
        """None: chunked."""
        self._proceed = proceed
        self._left = length or 0
        self._is_over = length == 0

    @property
    def is_over(self) -> bool:
        """Whether all of it was read."""
        return self._is_over

    async def read(self, most: int) -> bytes:
        """All of it; more than `most` bytes are refused."""
        if self._length is not None and self._length > most:
            raise HttpError(413, f"the body has {self._length} bytes; at most {most} are taken", "resource_exhausted")
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > most:
                raise HttpError(413, f"the body has more than {most} bytes", "resource_exhausted")
            pieces.append(piece)
        return b"".join(pieces)

    async def pieces(self, *, is_wanted: bool = True) -> AsyncIterator[bytes]:
        """Piece by piece. One who waits to be asked for it is, unless he was answered already."""
        if is_wanted:
            self._proceed()
        while not self._is_over:
            if self._length is None and not self._left:
                self._left = await self._next_chunk()
                if not self._left:
                    self._is_over = True
                    return
            piece = await self._reader.read(min(PIECE, self._left))
            if not piece:
                raise HttpError(400, "the body ended early", "invalid_argument")
            self._left -= len(piece)
            if not self._left:
                if self._length is None:
                    await self._end_of_line()
                else:
                    self._is_over = True
            yield piece

    async def _next_chunk(self) -> int:
        line = await _line(self._reader)
        size = line.partition(b";")[0].strip()
        if not size or len(size) > 15 or not all(one in b"0123456789abcdefABCDEF" for one in size):
            raise HttpError(400, "a chunk's size is no hexadecimal number", "invalid_argument")
        length = int(size, 16)
        if not length:
            for _ in range(MOST_LINES):
                if not await _line(self._reader):
                    return 0
            raise HttpError(431, "too many trailers")
        return length

    async def _end_of_line(self) -> None:
        if await self._reader.readexactly(2) != b"\r\n":
            raise HttpError(400, "a chunk is longer than it says", "invalid_argument")


class Answer:
    """Where a dialect answers: whole, or piece by piece."""

    def __init__(self, writer: asyncio.StreamWriter, *, is_head: bool, keeps: bool) -> None:
        self._writer = writer
        self._is_head = is_head
        self.keeps = keeps
        self.is_begun = False
        self._is_chunked = False

    async def whole(
        self, status: int, body: bytes = b"", content_type: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """The whole answer."""
        head = {"content-length": str(len(body)), **(headers or {})}
        if status == 204:
            del head["content-length"]
        self._head(status, content_type, head)
        if not self._is_head and body:
            self._writer.write(body)
        await self._writer.drain()

    async def json(self, status: int, document: object) -> None:
        """A JSON document."""
        await self.whole(status, json.dumps(document).encode(), "application/json")

    async def begin(self, status: int, content_type: str, headers: dict[str, str] | None = None) -> None:
        """Begin an answer whose length is not known."""
        self._is_chunked = True
        self._head(status, content_type, {"transfer-encoding": "chunked", **(headers or {})})
        await self._writer.drain()

    async def piece(self, data: bytes) -> None:
        """The next piece; waits while the client is behind."""
        if data and not self._is_head:
            self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await self._writer.drain()

    async def end(self) -> None:
        """No more pieces."""
        if self._is_chunked and not self._is_head:
            self._writer.write(b"0\r\n\r\n")
            await self._writer.drain()

    def proceed(self) -> None:
        """100 Continue."""
        self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        assert not self.is_begun, "one answer to a request"
        self.is_begun = True
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
        if content_type:
            lines.append(f"content-type: {content_type}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"connection: {'keep-alive' if self.keeps else 'close'}")
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace"))


def file_name(path: str) -> str:
    """The last part of a path as a header may have it between quotes: a name in a sandbox can hold line ends."""
    return "".join(one if " " <= one < "\x7f" and one not in '"\\' else "_" for one in path.rpartition("/")[2])


class _Connection(asyncio.StreamReaderProtocol):
    """Tells whoever answers that the client left."""

    gone: asyncio.Future[None]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:
        if not self.gone.done():
            self.gone.set_result(None)
        return super().eof_received()


class HttpServer:
    """Serves one handler on any number of listeners."""

    def __init__(
        self,
        handle: Callable[[Request, Answer], Awaitable[None]],
        worded: Callable[[Request | None, HttpError], object],
    ) -> None:
        """`worded` makes a document of an error that no dialect worded itself."""
        self._handle = handle
        self._worded = worded
        self._open = 0

    def protocol(self) -> asyncio.StreamReaderProtocol:
        """For `loop.create_server` and `create_unix_server`."""
        loop = asyncio.get_running_loop()
        protocol = _Connection(asyncio.StreamReader(limit=MOST_HEAD, loop=loop), self._serve, loop=loop)
        protocol.gone = loop.create_future()
        return protocol

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = writer.transport.get_protocol()
        assert isinstance(protocol, _Connection)
        self._open += 1
        try:
            while self._open <= MOST_CONNECTIONS and await self._one(reader, writer, protocol.gone):
                continue
        except (
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.TimeoutError,
        ):  # the client is gone, or says nothing
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Future[None]
    ) -> bool:
        """Serve one request; whether another may come on the connection."""
        answer = Answer(writer, is_head=False, keeps=False)
        request: Request | None = None
        try:
            with _patience(writer, IDLE_TIMEOUT_S):
                first = await reader.read(1)
            if not first:
                return False
            with _patience(writer, HEAD_TIMEOUT_S):
                asked, answer = await _request(first, reader, writer, gone)
            request = asked
            await self._handle(asked, answer)
            if not answer.is_begun:
                raise HttpError(404, f"there is nothing at {asked.path}", "not_found")
            await answer.end()
            if answer.keeps and not asked.body.is_over:  # nobody wanted it, and the head promised another request
                await _let_finish(asked.body)
        except HttpError as error:
            if answer.is_begun:
                return False
            answer.keeps = False
            await answer.json(error.status, self._worded(request, error))
            if request is not None:
                await _let_finish(request.body)
            return False
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - a client whose connection closes is told that there is no sandbox
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
            if not answer.is_begun:
                answer.keeps = False
                await answer.json(500, self._worded(request, HttpError(500, "internal server error", "internal")))
            return False
        return answer.keeps and asked.body.is_over


@contextlib.contextmanager
def _patience(writer: asyncio.StreamWriter, seconds: float) -> Iterator[None]:
    """Drop who says nothing for so long. `wait_for` would make a task of what is waited for, twice a request."""
    dropping = asyncio.get_running_loop().call_later(seconds, writer.transport.abort)
    try:
        yield
    finally:
        dropping.cancel()


async def _let_finish(body: Body) -> None:
    """Read on for a moment, so that a client that is still sending reads our answer and not a reset."""

    async def drop() -> None:
        async for _ in body.pieces(is_wanted=False):
            continue

    with contextlib.suppress(HttpError, asyncio.TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        await asyncio.wait_for(drop(), AFTER_REFUSAL_S)


async def _request(
    first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Future[None]
) -> tuple[Request, Answer]:
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise HttpError(431, f"the head has more than {MOST_HEAD} bytes") from error
    lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, version = _request_line(lines[0])
    headers = _headers(lines[1:])
    keeps = headers.get("connection", "").lower() != "close" and version == "HTTP/1.1"
    answer = Answer(writer, is_head=method == "HEAD", keeps=keeps)
    proceed = answer.proceed if headers.get("expect", "").lower() == "100-continue" else lambda: None
    return Request(method, target, headers, Body(reader, _length(headers), proceed), gone), answer


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if (
        len(parts) != 3
        or parts[2] not in ("HTTP/1.1", "HTTP/1.0")
        or not set(parts[0]) <= _TOKEN
        or not parts[1].startswith("/")
    ):
        raise HttpError(400, "the request line is not one of HTTP/1.1")
    return parts[0], parts[1], parts[2]


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > MOST_LINES:
        raise HttpError(431, f"the head has more than {MOST_LINES} lines")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or not set(name) <= _TOKEN or "\r" in value or "\n" in value or "\0" in value:
            raise HttpError(400, "a header line is malformed")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and name in ("content-length", "transfer-encoding", "host", "authorization"):
            raise HttpError(400, f"the header {name} came twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _length(headers: dict[str, str]) -> int | None:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise HttpError(400, "a body is chunked or has a length, not both and nothing else")
        return None
    if length is None:
        return 0
    if not length.isdigit() or not length.isascii() or len(length) > 15:
        raise HttpError(400, "content-length is no number")
    return int(length)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\r\n"))[:-2]
    except asyncio.LimitOverrunError as error:
        raise HttpError(400, "a line of the body is too long", "invalid_argument") from error
