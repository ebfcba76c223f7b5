"""Writes the head of a response and of a request: status line, headers, framing.

Pure functions over bytes. What a status and a content type look like is remembered, since servers say the same few
hundred openings over and over; `connection.py` and `client_connection.py` put the result on the socket.
"""

from functools import lru_cache
from http import HTTPStatus

from hekla.wire.messages import HeaderList

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_FORBIDDEN = frozenset("\r\n\0")

BODILESS = frozenset({204, 304})
"""Statuses that never have a body (1xx beside them)."""

LAST_CHUNK = b"0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


@lru_cache(maxsize=1024)
def opening(status: int, content_type: str) -> bytes:
    """The status line and the content type: all that most responses say beside their length."""
    line = f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n"
    if content_type and status not in BODILESS:
        line += header_line("content-type", content_type)
    return line.encode("latin-1")


def header_line(name: str, value: str) -> str:
    """One header; refuses line breaks, by which a value could pose as further headers or as a body."""
    if not _FORBIDDEN.isdisjoint(name) or not _FORBIDDEN.isdisjoint(value):
        raise ValueError(f"header {name!r} holds a line break or NUL; remove it")
    return f"{name}: {value}\r\n"


def may_be_told(secret: str) -> bool:
    """Whether a key or a token can stand in a header. Who reads one asks first, and can say where it stood: what is told of a header
    that cannot be written may hold the whole of it.
    """
    return secret.isascii() and secret.isprintable()


def header_lines(headers: HeaderList) -> bytes:
    """Headers as they go on the wire."""
    return "".join([header_line(name, value) for name, value in headers]).encode("latin-1")


@lru_cache(maxsize=1024)
def request_line(method: str, host: str) -> tuple[bytes, bytes]:
    """What stands before and behind the target of a request."""
    if not method.isascii() or not method.isalpha():
        raise ValueError(f"method {method!r} is not a word of ASCII letters")
    return f"{method} ".encode(), (" HTTP/1.1\r\n" + header_line("host", host)).encode("ascii")


def target_bytes(target: str) -> bytes:
    """A request target as bytes; refuses what would end the request line early."""
    encoded = target.encode("ascii", "strict") if target.isascii() else target.encode()
    if b" " in encoded or b"\r" in encoded or b"\n" in encoded:
        raise ValueError(f"target {target[:200]!r} holds white space; percent-encode it")
    return encoded


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body; the piece must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client's Accept-Encoding allows gzip."""
    for item in accept_encoding.split(","):
        coding, _, parameters = item.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return not _is_zero(parameters)
    return False


def _is_zero(parameters: str) -> bool:
    name, _, value = parameters.replace(" ", "").partition("=")
    return name.lower() == "q" and not value.strip("0.")
