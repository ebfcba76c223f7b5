"""Whole answers that the gateway writes itself, as bytes."""

from functools import lru_cache
from http import HTTPStatus

import msgspec

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS = frozenset({204, 304})

JSON = b"application/json"
_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=256)
def opening(status: int) -> bytes:
    """The status line."""
    return b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"Unknown"))


def whole(
    status: int,
    body: bytes = b"",
    *,
    content_type: bytes = JSON,
    lines: bytes = b"",
    keeps_alive: bool = True,
    is_head: bool = False,
) -> bytes:
    """An answer with its body; `lines` are further headers, each with its CRLF; to HEAD its head alone."""
    end = b"\r\n" if keeps_alive else b"connection: close\r\n\r\n"
    if status in _BODILESS:
        return opening(status) + lines + end
    framing = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))
    return opening(status) + framing + lines + end + (b"" if is_head else body)


def document(value: object) -> bytes:
    """A value as JSON."""
    return _encode(value)


def header_line(name: bytes, value: str) -> bytes:
    """One header; line breaks would be further headers, so they go."""
    clean = value.replace("\r", " ").replace("\n", " ").replace("\0", " ")
    return b"%b: %b\r\n" % (name, clean.encode("latin-1", "replace"))
