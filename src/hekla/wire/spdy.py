"""SPDY/3.1 framing, both sides, without I/O: what `kubectl port-forward` and older `kubectl exec` speak after an upgrade.

    connection = SpdyConnection()
    for event in connection.receive(data): ...
    connection.reply(stream_id); connection.send(stream_id, b"..."); transport.write(connection.take_output())

The Go library at the other end (spdystream) ignores windows: it never sends WINDOW_UPDATE, and a sender that honoured
the window of 64 KiB would stop for good. Flow control is therefore off unless asked for; `spdy_session.py` bounds what
lies unread by not reading the transport, which is what the Go side does too.
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from hekla.wire.errors import ProtocolViolationError
from hekla.wire.spdy_dictionary import DICTIONARY

Headers = dict[str, str]

_VERSION = 3
_FIN = 0x01
_HEADER_BYTES = 8
_INITIAL_WINDOW = 64 * 1024
_LARGEST_WINDOW = 2**31 - 1
_SETTING_INITIAL_WINDOW = 7
_PIECE = 32 * 1024  # of data per frame: what io.Copy uses, and small enough to interleave streams
_TWO_WORDS = struct.Struct(">II")
_CONTROL = struct.Struct(">HHI")


class FrameType(IntEnum):
    """Control frames."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class ResetStatus(IntEnum):
    """Why a stream was reset."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    UNSUPPORTED_VERSION = 4
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7
    STREAM_IN_USE = 8
    STREAM_ALREADY_CLOSED = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SpdyLimits:
    """Bounds of one connection."""

    frame_bytes: int = 1024 * 1024
    """One frame; beyond it the connection is given up."""

    header_block_bytes: int = 64 * 1024
    """One header block, uncompressed; beyond it the connection is given up."""

    streams: int = 1000
    """Open streams; one more is refused."""

    queued_bytes: int = 4 * 1024 * 1024
    """What may wait for a window, with flow control; beyond it `send` raises."""


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream; answer with `reply` or `reset`."""

    stream_id: int
    headers: Headers
    is_last: bool


@dataclass(frozen=True, slots=True)
class StreamReplied:
    """The peer accepted a stream of ours, or sent further headers."""

    stream_id: int
    headers: Headers
    is_last: bool


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Data on a stream; with `is_last` the peer sends no more on it."""

    stream_id: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer ended a stream at once, both ways."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class PongReceived:
    """The peer answered a ping of ours."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The peer takes no more streams."""

    last_stream_id: int
    status: int


SpdyEvent = StreamOpened | StreamReplied | DataReceived | StreamReset | PongReceived | GoneAway


@dataclass(slots=True)
class _Stream:
    send_window: int
    receive_window: int = _INITIAL_WINDOW
    is_local_open: bool = True
    is_remote_open: bool = True
    queue: deque[tuple[bytes, bool]] = field(default_factory=deque)


class SpdyConnection:
    """One side of a SPDY/3.1 connection: bytes in, events out; calls in, bytes out."""

    def __init__(
        self, *, is_client: bool = False, flow_control: bool = False, limits: SpdyLimits | None = None
    ) -> None:
        self._limits = limits or SpdyLimits()
        self._flow_control = flow_control
        self._buffer = bytearray()
        self._output = bytearray()
        self._streams: dict[int, _Stream] = {}
        self._next_id = 1 if is_client else 2
        self._next_ping = 1 if is_client else 2
        self._highest_remote = 0
        self._initial_window = _INITIAL_WINDOW
        self._session_window = _INITIAL_WINDOW
        self._session_received = _INITIAL_WINDOW
        self._queued = 0
        self._packer = zlib.compressobj(zdict=DICTIONARY)
        self._unpacker = zlib.decompressobj(zdict=DICTIONARY)
        self._is_broken = False

    @property
    def open_streams(self) -> int:
        """How many streams are open on either side."""
        return len(self._streams)

    # Incoming.

    def receive(self, data: bytes) -> list[SpdyEvent]:
        """Take bytes; returns what they mean. Raises `ProtocolViolationError` after which the connection is of no use."""
        if self._is_broken:
            raise ProtocolViolationError("the SPDY connection broke the protocol before; close it")
        self._buffer += data
        events: list[SpdyEvent] = []
        try:
            for head, length in self._frames():
                events.extend(self._frame(head, bytes(self._buffer[_HEADER_BYTES : _HEADER_BYTES + length])))
                del self._buffer[: _HEADER_BYTES + length]
        except ProtocolViolationError:
            self._is_broken = True
            self.go_away(status=1)
            raise
        return events

    def _frames(self) -> Iterator[tuple[bytes, int]]:
        """The whole frames in the buffer; the caller removes each."""
        while len(self._buffer) >= _HEADER_BYTES:
            length = int.from_bytes(self._buffer[5:8], "big")
            if length > self._limits.frame_bytes:
                raise ProtocolViolationError(
                    f"a SPDY frame of {length} bytes is over the limit of {self._limits.frame_bytes}"
                )
            if len(self._buffer) < _HEADER_BYTES + length:
                return
            yield bytes(self._buffer[:_HEADER_BYTES]), length

    def _frame(self, head: bytes, payload: bytes) -> Iterable[SpdyEvent]:
        if head[0] & 0x80:
            return self._control(head, payload)
        return self._data(int.from_bytes(head[:4], "big"), payload, bool(head[4] & _FIN))

    def _control(self, head: bytes, payload: bytes) -> Iterable[SpdyEvent]:
        version, number = int.from_bytes(head[:2], "big") & 0x7FFF, int.from_bytes(head[2:4], "big")
        if version != _VERSION:
            raise ProtocolViolationError(f"SPDY version {version} is not spoken here; use 3")
        is_last = bool(head[4] & _FIN)
        match number:
            case FrameType.SYN_STREAM:
                return self._opened(payload, is_last)
            case FrameType.SYN_REPLY | FrameType.HEADERS:
                return self._replied(payload, is_last)
            case FrameType.RST_STREAM:
                return self._was_reset(payload)
            case FrameType.SETTINGS:
                return self._settings(payload)
            case FrameType.PING:
                return self._pinged(payload)
            case FrameType.GOAWAY:
                return (GoneAway(*_two_words(payload, "GOAWAY")),)
            case FrameType.WINDOW_UPDATE:
                return self._window_update(*_two_words(payload, "WINDOW_UPDATE"))
        return ()  # unknown control frames are skipped, as the draft asks

    def _opened(self, payload: bytes, is_last: bool) -> Iterable[SpdyEvent]:
        if len(payload) < 10:
            raise ProtocolViolationError("a SYN_STREAM frame is too short")
        stream_id = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        headers = self._unpack(payload[10:])  # always: the compression has a state
        if stream_id % 2 == self._next_id % 2 or stream_id <= self._highest_remote:
            raise ProtocolViolationError(f"stream {stream_id} cannot be opened by this peer now")
        self._highest_remote = stream_id
        if len(self._streams) >= self._limits.streams:
            self._write_reset(stream_id, ResetStatus.REFUSED_STREAM)
            return ()
        self._streams[stream_id] = _Stream(self._initial_window, is_remote_open=not is_last)
        return (StreamOpened(stream_id, headers, is_last),)

    def _replied(self, payload: bytes, is_last: bool) -> Iterable[SpdyEvent]:
        if len(payload) < 4:
            raise ProtocolViolationError("a SYN_REPLY or HEADERS frame is too short")
        stream_id = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        headers = self._unpack(payload[4:])
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_remote_open:
            return ()
        self._half_closed(stream_id, stream, remote=is_last)
        return (StreamReplied(stream_id, headers, is_last),)

    def _was_reset(self, payload: bytes) -> Iterable[SpdyEvent]:
        stream_id, status = _two_words(payload, "RST_STREAM")
        return (StreamReset(stream_id, status),) if self._forget(stream_id) else ()

    def _settings(self, payload: bytes) -> Iterable[SpdyEvent]:
        count = int.from_bytes(payload[:4], "big")
        if len(payload) != 4 + 8 * count:
            raise ProtocolViolationError("a SETTINGS frame has the wrong length")
        for at in range(4, len(payload), 8):
            name, value = _TWO_WORDS.unpack_from(payload, at)
            if name & 0xFFFFFF == _SETTING_INITIAL_WINDOW and value <= _LARGEST_WINDOW:
                self._resize_windows(value)
        return ()

    def _pinged(self, payload: bytes) -> Iterable[SpdyEvent]:
        if len(payload) != 4:
            raise ProtocolViolationError("a PING frame has the wrong length")
        ping_id = int.from_bytes(payload, "big")
        if ping_id % 2 == self._next_ping % 2:
            return (PongReceived(ping_id),)
        self._write_control(FrameType.PING, payload)
        return ()

    def _data(self, stream_id: int, data: bytes, is_last: bool) -> Iterable[SpdyEvent]:
        if self._flow_control:
            self._charge_session(len(data))
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_remote_open:
            self._write_reset(stream_id, ResetStatus.INVALID_STREAM)
            self._credit(0, len(data))
            return ()
        if self._flow_control:
            stream.receive_window -= len(data)
            if stream.receive_window < 0:
                self.reset(stream_id, ResetStatus.FLOW_CONTROL_ERROR)
                self._credit(0, len(data))
                return (StreamReset(stream_id, ResetStatus.FLOW_CONTROL_ERROR),)
        self._half_closed(stream_id, stream, remote=is_last)
        return (DataReceived(stream_id, data, is_last),)

    # Outgoing.

    def take_output(self) -> bytes:
        """The bytes to send; each is handed out once."""
        output, self._output = bytes(self._output), bytearray()
        return output

    def open_stream(self, headers: Headers, *, is_last: bool = False) -> int:
        """Open a stream; returns its id."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self._streams[stream_id] = _Stream(self._initial_window, is_local_open=not is_last)
        head = _TWO_WORDS.pack(stream_id, 0) + b"\0\0"
        self._write_control(FrameType.SYN_STREAM, head + self._pack(headers), is_last)
        return stream_id

    def reply(self, stream_id: int, headers: Headers | None = None, *, is_last: bool = False) -> None:
        """Accept a stream that the peer opened."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._write_control(FrameType.SYN_REPLY, stream_id.to_bytes(4, "big") + self._pack(headers or {}), is_last)
        self._half_closed(stream_id, stream, local=is_last)

    def send(self, stream_id: int, data: bytes, *, is_last: bool = False) -> None:
        """Send data on a stream; nothing happens on one that has ended. With flow control, it may wait for the window."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_local_open:
            return
        stream.is_local_open = not is_last
        if self._queued + len(data) > self._limits.queued_bytes and self._flow_control:
            raise ProtocolViolationError(f"more than {self._limits.queued_bytes} bytes wait for the peer's window")
        stream.queue.append((data, is_last))
        self._queued += len(data)
        self._drain(stream_id, stream)

    def reset(self, stream_id: int, status: int = ResetStatus.CANCEL) -> None:
        """End a stream at once, both ways."""
        if self._forget(stream_id):
            self._write_reset(stream_id, status)

    def ping(self) -> int:
        """Ask for a sign of life."""
        ping_id, self._next_ping = self._next_ping, self._next_ping + 2
        self._write_control(FrameType.PING, ping_id.to_bytes(4, "big"))
        return ping_id

    def go_away(self, status: int = 0) -> None:
        """Say that no further stream will be taken."""
        self._write_control(FrameType.GOAWAY, _TWO_WORDS.pack(self._highest_remote, status))

    def consumed(self, stream_id: int, size: int) -> None:
        """Let the peer send that much more: call it when received data was used, if flow control is on."""
        self._credit(0, size)
        stream = self._streams.get(stream_id)
        if stream is not None and stream.is_remote_open:
            stream.receive_window += size
            self._credit(stream_id, size)

    # Windows.

    def _credit(self, stream_id: int, size: int) -> None:
        if not self._flow_control or not size:
            return
        if stream_id == 0:
            self._session_received += size
        self._write_control(FrameType.WINDOW_UPDATE, _TWO_WORDS.pack(stream_id, size))

    def _charge_session(self, size: int) -> None:
        self._session_received -= size
        if self._session_received < 0:
            raise ProtocolViolationError("the peer sent more than the session's window")

    def _window_update(self, stream_id: int, size: int) -> Iterable[SpdyEvent]:
        if not self._flow_control:
            return ()
        if stream_id == 0:
            self._session_window = min(self._session_window + size, _LARGEST_WINDOW)
        elif stream_id in self._streams:
            stream = self._streams[stream_id]
            stream.send_window = min(stream.send_window + size, _LARGEST_WINDOW)
        for each_id, each in tuple(self._streams.items()):
            self._drain(each_id, each)
        return ()

    def _resize_windows(self, size: int) -> None:
        change, self._initial_window = size - self._initial_window, size
        for stream_id, stream in tuple(self._streams.items()):
            stream.send_window += change
            self._drain(stream_id, stream)

    def _drain(self, stream_id: int, stream: _Stream) -> None:
        """Write what the windows let through."""
        while stream.queue:
            data, is_last = stream.queue[0]
            size = min(len(data), _PIECE)
            if self._flow_control:
                size = min(size, max(0, stream.send_window), self._session_window)
            if data and size <= 0:
                return
            stream.queue.popleft()
            if size < len(data):
                stream.queue.appendleft((data[size:], is_last))
            self._charge(stream, size)
            self._write_data(stream_id, data[:size], is_last and size == len(data))
        self._half_closed(stream_id, stream, local=not stream.is_local_open)

    def _charge(self, stream: _Stream, size: int) -> None:
        self._queued -= size
        if self._flow_control:
            stream.send_window -= size
            self._session_window -= size

    # Streams and frames.

    def _half_closed(self, stream_id: int, stream: _Stream, *, local: bool = False, remote: bool = False) -> None:
        stream.is_local_open &= not local
        stream.is_remote_open &= not remote
        if not stream.is_local_open and not stream.is_remote_open and not stream.queue:
            self._streams.pop(stream_id, None)

    def _forget(self, stream_id: int) -> bool:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._queued -= sum(len(data) for data, _ in stream.queue)
        return stream is not None

    def _write_reset(self, stream_id: int, status: int) -> None:
        self._write_control(FrameType.RST_STREAM, _TWO_WORDS.pack(stream_id, status))

    def _write_control(self, number: FrameType, payload: bytes, is_last: bool = False) -> None:
        self._output += _CONTROL.pack(0x8000 | _VERSION, number, (is_last * _FIN) << 24 | len(payload)) + payload

    def _write_data(self, stream_id: int, data: bytes, is_last: bool) -> None:
        self._output += _TWO_WORDS.pack(stream_id, (is_last * _FIN) << 24 | len(data)) + data

    def _pack(self, headers: Headers) -> bytes:
        parts = [len(headers).to_bytes(4, "big")]
        for name, value in headers.items():
            for text in (name.lower().encode("latin-1"), value.encode("latin-1")):
                parts += (len(text).to_bytes(4, "big"), text)
        return self._packer.compress(b"".join(parts)) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def _unpack(self, block: bytes) -> Headers:
        bound = self._limits.header_block_bytes
        try:
            plain = self._unpacker.decompress(block, bound)
        except zlib.error as error:
            raise ProtocolViolationError(f"a SPDY header block cannot be decompressed: {error}") from None
        if self._unpacker.unconsumed_tail:
            raise ProtocolViolationError(f"a SPDY header block is over the limit of {bound} bytes")
        return _headers_of(plain)


def _two_words(payload: bytes, frame: str) -> tuple[int, int]:
    if len(payload) != 8:
        raise ProtocolViolationError(f"a {frame} frame has the wrong length")
    first, second = _TWO_WORDS.unpack(payload)
    return first & 0x7FFFFFFF, second


def _headers_of(plain: bytes) -> Headers:
    """Names and values of a header block; several values of one name are joined by a NUL there, by a comma here."""
    texts: list[str] = []
    at = 4
    while at < len(plain):
        end = at + 4 + int.from_bytes(plain[at : at + 4], "big")
        if end > len(plain) or at + 4 > len(plain):
            raise ProtocolViolationError("a SPDY header block ends within a name or a value")
        texts.append(plain[at + 4 : end].decode("latin-1").replace("\0", ", "))
        at = end
    if len(plain) < 4 or len(texts) != 2 * int.from_bytes(plain[:4], "big"):
        raise ProtocolViolationError("a SPDY header block has another number of headers than it says")
    return dict(zip(texts[::2], texts[1::2], strict=True))
