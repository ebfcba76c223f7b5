"""Reads requests out of a stream of bytes: no sockets, no clock, so that any split of the bytes can be tried.

llhttp (through httptools) does the parsing, in its strict mode: conflicting lengths, folded headers, bare line feeds
and odd chunk sizes are errors there. What it leaves open is decided here: size limits, repeated hosts, transfer codings
other than chunked, and upgrades that carry a body. `connection.py` feeds it and answers what it delivers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

import httptools

from hekla.wire.errors import RefusedError
from hekla.wire.header_names import KNOWN, header_name
from hekla.wire.limits import Limits
from hekla.wire.messages import Peer, Request


class Part(IntEnum):
    """Where in a request the bytes so far end."""

    BETWEEN = 0
    HEAD = 1
    BODY = 2


@dataclass(slots=True)
class Incoming:
    """A whole request, and what its framing says about the connection."""

    request: Request
    keep_alive: bool
    is_http10: bool
    wants_upgrade: bool


Deliver = Callable[[Incoming], None]


class RequestReader:
    """Turns bytes into requests, one `deliver` each, in order.

    After a request that wants another protocol the reader stops and keeps what follows in `tail`; the connection
    either takes those bytes for the new protocol or calls `restart` because the upgrade was not taken up.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_continue",
        "_count",
        "_deliver",
        "_fed",
        "_header_bytes",
        "_headers",
        "_is_http10",
        "_keep_alive",
        "_length",
        "_limits",
        "_method",
        "_parser",
        "_peer",
        "_replaying",
        "_size",
        "_upgrade",
        "_url",
        "delivered",
        "halted",
        "part",
        "tail",
    )

    def __init__(self, limits: Limits, peer: Peer, deliver: Deliver, expect_continue: Callable[[], None]) -> None:
        self._limits = limits
        self._peer = peer
        self._deliver = deliver
        self._continue = expect_continue
        self._replaying = False
        self.part = Part.BETWEEN
        self.delivered = 0
        self.halted = False
        self.tail = b""
        self._begin()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Take bytes as they came; raises `RefusedError` for what cannot be answered by a handler."""
        while data and not self.halted:
            data = self._feed_once(data)
        if self.halted:
            self.tail += data

    def restart(self) -> None:
        """Go on with HTTP after an upgrade that was not taken up."""
        tail, self.tail, self.halted = self.tail, b"", False
        self._parser = httptools.HttpRequestParser(self)
        self.feed(tail)

    def close(self) -> None:
        """Read no more, and let go of whom it tells: otherwise each would keep the other until a collection of garbage."""
        self._deliver = self._continue = _to_nobody
        self._parser = None

    def _feed_once(self, data: bytes) -> bytes:
        """Parse, and return what is left over because the parser was replaced."""
        parser = self._parser
        if parser is None:
            return b""
        begun, delivered = self.part is not Part.BETWEEN, self.delivered
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._leave_parser(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__  # what one of the callbacks raised
            if isinstance(cause, RefusedError):
                raise cause from None
            raise RefusedError(400, f"the request is not valid HTTP/1.1: {error}") from None
        if begun and self.delivered == delivered:
            self._bound_unfinished(len(data))
        return b""

    def _bound_unfinished(self, size: int) -> None:
        """Bound what is neither body nor whole header: llhttp collects an unfinished header without a callback."""
        self._fed += size
        limits = self._limits
        # eightfold: a body in chunks of one byte has six bytes of framing for each
        if self._fed > limits.header_bytes + limits.url_bytes + 8 * self._size:
            _refuse(431, f"the headers are larger than {limits.header_bytes} bytes")

    def _leave_parser(self, rest: bytes) -> bytes:
        if self._length == 0 and not self._chunked:
            self.halted = True
            return rest
        # llhttp skips the body of a request that asks for an upgrade. Such bodies come from clients that offer h2c,
        # which we do not speak: the body is read by a fresh parser from a head that asks for no upgrade.
        self._replaying = True
        self._upgrade = False
        self._parser = httptools.HttpRequestParser(self)
        framing = b"transfer-encoding: chunked" if self._chunked else b"content-length: %d" % self._length
        return b"%b / HTTP/1.1\r\n%b\r\n\r\n" % (self._method.encode(), framing) + rest

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._fed = 0
        self._count = 0
        self._body: list[bytes] = []
        self._size = 0
        self._length = 0
        self._chunked = False
        self._upgrade = False
        self._method = ""
        self._keep_alive = True
        self._is_http10 = False

    # What the parser calls, in the order of a request.

    def on_message_begin(self) -> None:
        """A request begins."""
        if not self._replaying:
            self._begin()
            self.part = Part.HEAD

    def on_url(self, piece: bytes) -> None:
        """A part of the request target."""
        if self._replaying:
            return
        self._url = self._url + piece if self._url else piece
        if len(self._url) > self._limits.url_bytes:
            _refuse(414, f"the request target is longer than {self._limits.url_bytes} bytes")

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        """One header line, or a trailer, which is counted and dropped: it must not pose as a header."""
        if self._replaying and self.part is Part.HEAD:
            return
        self._count += 1
        self._header_bytes += len(raw_name) + len(raw_value)
        if self._header_bytes > self._limits.header_bytes:
            _refuse(431, f"the headers are larger than {self._limits.header_bytes} bytes")
        if self._count > self._limits.header_count:
            _refuse(431, f"the request has more than {self._limits.header_count} headers")
        if self.part is Part.HEAD:
            self._keep_header(KNOWN.get(raw_name) or header_name(raw_name), raw_value.decode("latin-1"))

    def _keep_header(self, name: str, value: str) -> None:
        headers = self._headers
        if name not in headers:
            headers[name] = value
        elif name in ("host", "content-type", "authorization"):
            _refuse(400, f"the header {name} is given twice")
        else:
            headers[name] = f"{headers[name]}, {value}"

    def on_headers_complete(self) -> None:
        """The head is whole: everything that can be refused without the body is refused here."""
        self.part = Part.BODY
        if self._replaying:
            return
        parser, headers = self._parser, self._headers
        assert parser is not None, "it is the parser that calls"
        self._method = _METHODS.get(raw := parser.get_method()) or raw.decode("ascii")
        self._keep_alive = parser.should_keep_alive()
        self._upgrade = parser.should_upgrade()
        self._is_http10 = parser.get_http_version() != "1.1"
        if "host" not in headers and not self._is_http10:
            _refuse(400, "the request has no host header")
        if self._method == "CONNECT":
            _refuse(501, "CONNECT is not served here")
        if "content-length" in headers:
            self._check_length(headers["content-length"])
        if "transfer-encoding" in headers:
            self._check_coding(headers["transfer-encoding"])
        if "expect" in headers:
            self._check_expectation(headers["expect"])

    def _check_length(self, text: str) -> None:
        self._length = int(text)  # digits only: llhttp saw to that
        if self._length > self._limits.body_bytes:
            _refuse(413, f"the body of {self._length} bytes is over the limit of {self._limits.body_bytes}")

    def _check_coding(self, coding: str) -> None:
        self._chunked = True
        if coding.strip().lower() != "chunked" or self._is_http10:
            _refuse(501, f"the transfer coding {coding[:100]!r} is not served here; use chunked")

    def _check_expectation(self, expectation: str) -> None:
        if expectation.lower() != "100-continue":
            _refuse(417, f"the expectation {expectation[:100]!r} cannot be met")
        if (self._length or self._chunked) and not self._is_http10:
            self._continue()

    def on_body(self, piece: bytes) -> None:
        """A part of the body; its size is checked before it is kept."""
        self._size += len(piece)
        if self._size > self._limits.body_bytes:
            _refuse(413, f"the body is over the limit of {self._limits.body_bytes} bytes")
        self._body.append(piece)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._upgrade and (self._length or self._chunked):
            return  # its body is still to come: see _leave_parser
        body = self._body
        request = Request(
            self._method,
            _origin_form(self._url.decode("latin-1")),
            self._headers,
            body[0] if len(body) == 1 else b"".join(body),
            self._peer,
        )
        self.part = Part.BETWEEN
        self._replaying = False
        self.delivered += 1
        self._body = []
        self._deliver(Incoming(request, self._keep_alive, self._is_http10, self._upgrade))


def _to_nobody(*_: object) -> None:
    """Whom a closed reader tells."""


def _refuse(status: int, sentence: str) -> NoReturn:
    """End the parse: httptools hands the error of a callback back from `feed_data`."""
    raise RefusedError(status, sentence)


_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}


def _origin_form(target: str) -> str:
    """A proxy's `http://host/path` as `/path`."""
    if target.startswith("/") or "://" not in target:
        return target
    path = target.partition("://")[2].partition("/")[2]
    return f"/{path}"
