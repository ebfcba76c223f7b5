"""Follows the chunked framing of a body through the pieces in which it arrives, to know where it ends; no I/O.

Bytes that pass through untouched are only counted past; where the payload itself is wanted (a request's body, a stream
for a client of HTTP/1.0, a stream with an event to leave out) the same walk collects it.
"""

import re

_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})(?:[ \t]*;[^\r\n\0]{0,1024})?\r\n")
_MAY_BE_SIZE = re.compile(rb"[0-9a-fA-F]{0,12}(?:[ \t]*;[^\r\n\0]{0,1024})?\r?\Z")
_TRAILERS = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*\r\n)*\r\n")
_TRAILERS_BYTES = 8 * 1024

LAST_CHUNK = b"0\r\n\r\n"


class BrokenChunksError(Exception):
    """The framing is wrong; whatever follows cannot be read."""


def chunk(payload: bytes) -> bytes:
    """One chunk; the payload must not be empty."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class _Openings(dict[int, tuple[bytes, ...]]):
    """By the length of a whole chunk with its framing: what it begins with, in small and in large digits; () where no chunk is so long."""

    _MOST = 1 << 16

    def __missing__(self, length: int) -> tuple[bytes, ...]:
        found: tuple[bytes, ...] = ()
        for digits in range(1, 8):
            size = length - digits - 4
            if size > 0 and len(b"%x" % size) == digits:
                found = tuple({b"%x\r\n" % size, b"%X\r\n" % size})
        if length <= self._MOST:
            self[length] = found
        return found


OPENINGS = _Openings()
"""Most pieces of a stream are one whole chunk: `data.startswith(OPENINGS[len(data)])` and CRLF at its end say so in 0.2 us."""


class Chunks:
    """One chunked body under way."""

    __slots__ = ("_left", "_partial", "size")

    def __init__(self) -> None:
        self._left = 0
        """Of the chunk under way, with the CRLF that ends it."""
        self._partial = b""
        """The beginning of a size line, or of the trailers, that is not whole yet."""
        self.size = 0
        """Payload so far."""

    @property
    def is_between(self) -> bool:
        """Whether what came so far ends with a whole chunk, so that another could be put in."""
        return not self._left and not self._partial

    def feed(self, data: bytes, into: list[bytes] | None = None) -> int:
        """Where the body ends in `data`; -1: it goes on. Payload is appended to `into`. Raises BrokenChunksError."""
        skipped = 0
        if self._partial:
            skipped = len(self._partial)
            data, self._partial = self._partial + data, b""
        count, position = len(data), self._left
        if position:
            self._finish_chunk(data, position, into)
        while position < count:
            match = _SIZE.match(data, position)
            if match is None:
                return self._keep(data, position)
            begin, size = match.end(), int(match[1], 16)
            if not size:
                end = self._trailers(data, position, begin)
                return end - skipped if end >= 0 else -1
            self.size += size
            position = begin + size + 2
            if position <= count:
                if data[position - 2 : position] != b"\r\n":
                    raise BrokenChunksError("a chunk is longer than it says")
                if into is not None:
                    into.append(data[begin : position - 2])
            else:
                self._begin_chunk(data, begin, begin + size, into)
        self._left = position - count
        return -1

    def _finish_chunk(self, data: bytes, end: int, into: list[bytes] | None) -> None:
        """The rest of a chunk that began in an earlier piece, `end` bytes with its CRLF."""
        first, last = max(end - 2, 0), min(end, len(data))
        if first < last and data[first:last] != b"\r\n"[first - end + 2 : last - end + 2]:
            raise BrokenChunksError("a chunk is longer than it says")
        if into is not None and end > 2:
            into.append(data[: end - 2])

    def _begin_chunk(self, data: bytes, begin: int, end: int, into: list[bytes] | None) -> None:
        """The beginning of a chunk whose end comes later; perhaps only half of its CRLF is missing."""
        if len(data) > end and data[end:] != b"\r":
            raise BrokenChunksError("a chunk is longer than it says")
        if into is not None and begin < len(data):
            into.append(data[begin:end])

    def _keep(self, data: bytes, position: int) -> int:
        if not _MAY_BE_SIZE.match(data, position):
            raise BrokenChunksError("a chunk does not begin with its size")
        self._left, self._partial = 0, data[position:]
        return -1

    def _trailers(self, data: bytes, position: int, begin: int) -> int:
        self._left = 0
        match = _TRAILERS.match(data, begin)
        if match is not None:
            return match.end()
        if b"\r\n\r\n" in data[begin:] or len(data) - begin > _TRAILERS_BYTES:
            raise BrokenChunksError("the trailers of a chunked body are wrong or too long")
        self._partial = data[position:]
        return -1
