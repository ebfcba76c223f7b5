"""Many streams over one: frames of messages and bytes, both ways, with a window for each stream so that none holds up the others.

A stream has a *source*, a descriptor whose bytes go to the other side, a *sink*, where its bytes go, or both. The node and the bridge inside a
sandbox run the same code over a pipe, a socket or a port of a virtual machine.

    kind (1 byte) | stream (4 bytes) | length (4 bytes) | content
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import struct
import termios
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE, DATA, END, CREDIT, STOP, OPEN, SIZE = range(1, 8)
_HEAD = struct.Struct(">BII")
_COUNT = struct.Struct(">I")
_SIZE = struct.Struct(">HH")

WINDOW = 256 * 1024
"""Bytes of one stream on their way; more waits at its source."""
PIECE = 32 * 1024
BACKLOG = 1024 * 1024
"""Bytes that wait for a slow link, then sources wait; messages never do."""
LONGEST = 4 * 1024 * 1024
LAST_WORDS = 1024 * 1024
"""What a command that has ended may leave in its pipe: the largest pipe that Linux makes by itself."""


class Stream:
    """One stream's ends on this side."""

    __slots__ = ("credit", "ended", "id", "inbox", "is_read", "is_written", "on_idle", "on_over", "sink", "source")

    def __init__(self, number: int, source: int, sink: int) -> None:
        self.id, self.source, self.sink = number, source, sink
        self.credit = WINDOW
        self.inbox: deque[bytes] = deque()
        self.ended = False
        """The other side sends no more."""
        self.is_read = source < 0
        """Nothing more comes from our source."""
        self.is_written = sink < 0
        """Nothing more goes to our sink."""
        self.on_idle: list[Callable[[], None]] = []
        """Called once all that came is written."""
        self.on_over: list[Callable[[], None]] = []
        """Called once both ways are through."""


class Mux:
    """One side of the link."""

    def __init__(
        self,
        reading: int,
        writing: int,
        *,
        on_message: Callable[[dict[str, Any]], None],
        on_open: Callable[[int, dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`reading` and `writing` may be one descriptor; both are made non-blocking and are ours from now on."""
        self._reading, self._writing = reading, writing
        self._on_message, self._on_open, self._on_lost = on_message, on_open, on_lost
        self._loop = asyncio.get_running_loop()
        self._inbox = bytearray()
        self._out: deque[bytes] = deque()
        self._out_size = 0
        self._is_writing = False
        self._is_held = self._is_held_once_flushed = False
        self._is_open = True
        self._is_quiet = False
        self.streams: dict[int, Stream] = {}
        for descriptor in {reading, writing}:
            os.set_blocking(descriptor, False)
        self._loop.add_reader(reading, self._hear)

    @property
    def is_open(self) -> bool:
        """Whether the other side is there."""
        return self._is_open

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message; it keeps its place among what was sent before."""
        self._send(MESSAGE, 0, json.dumps(message).encode("utf-8", "surrogatepass"))

    def open(self, number: int, told: dict[str, Any]) -> None:
        """Tell the other side of a stream that it does not expect."""
        self._send(OPEN, number, json.dumps(told).encode())

    def attach(self, number: int, *, source: int = -1, sink: int = -1) -> Stream:
        """Give a stream its ends on this side; they are ours from now on, and closed when both are through."""
        stream = self.streams[number] = Stream(number, source, sink)
        for descriptor in {source, sink} - {-1}:
            os.set_blocking(descriptor, False)
        self._watch(stream)
        return stream

    def resize(self, number: int, columns: int, rows: int) -> None:
        """The terminal at the other end of a stream has this size."""
        self._send(SIZE, number, _SIZE.pack(min(columns, 65535), min(rows, 65535)))

    def drain(self, number: int) -> None:
        """Send what lies in a source now, whatever its window: whoever wrote it has ended."""
        stream = self.streams.get(number)
        sent = 0
        while stream is not None and not stream.is_read and sent < LAST_WORDS:
            data = _read(stream.source)
            if not data:
                if data is not None:
                    self._source_over(stream)
                return
            sent += len(data)
            stream.credit -= len(data)
            self._send(DATA, stream.id, data)

    def when_written(self, number: int, call: Callable[[], None]) -> None:
        """Call once nothing that came for a stream waits to be written; at once, if so now."""
        stream = self.streams.get(number)
        if stream is None or not stream.inbox or stream.is_written:
            call()
        else:
            stream.on_idle.append(call)

    def hold(self, last: dict[str, Any]) -> None:
        """Send what waits and a last message, then nothing until `go_on`: the other side may be copied as it stands."""
        self._is_quiet = True
        for stream in self.streams.values():
            self._unwatch_source(stream)
        self.tell(last)
        self._is_held_once_flushed = True
        self._flush()

    def go_on(self) -> None:
        """After `hold`."""
        self._is_quiet = self._is_held = self._is_held_once_flushed = False
        for stream in list(self.streams.values()):
            self._watch(stream)
        self._flush()

    def forget_all(self) -> None:
        """Close every stream without a word, and send nothing of what waits: the other side has been replaced."""
        for stream in list(self.streams.values()):
            stream.is_read = stream.is_written = True
            self._settle(stream)
        self._out.clear()
        self._out_size = 0

    def close(self) -> None:
        """Close all ends and the link."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._reading)
        if self._is_writing:
            self._loop.remove_writer(self._writing)
        self.forget_all()
        for descriptor in {self._reading, self._writing}:
            os.close(descriptor)

    # the link

    def _send(self, kind: int, number: int, content: bytes = b"") -> None:
        if not self._is_open:
            return
        self._out.append(_HEAD.pack(kind, number, len(content)) + content)
        self._out_size += len(self._out[-1])
        self._flush()

    def _flush(self) -> None:
        if self._is_held:
            return
        try:
            while self._out:
                data = self._out[0]
                sent = os.write(self._writing, data)
                self._out_size -= sent
                if sent < len(data):
                    self._out[0] = data[sent:]
                else:
                    self._out.popleft()
        except BlockingIOError:
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._writing, self._flush)
            return
        except OSError:
            self._lose()
            return
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._writing)
            if not self._is_quiet:
                for stream in list(self.streams.values()):
                    self._watch(stream)
        self._is_held = self._is_held_once_flushed

    def _hear(self) -> None:
        try:
            data = os.read(self._reading, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        self._inbox += data
        while len(self._inbox) >= _HEAD.size and self._is_open:
            kind, number, length = _HEAD.unpack_from(self._inbox)
            if length > LONGEST:
                self._lose()
                return
            if len(self._inbox) < _HEAD.size + length:
                return
            content = bytes(self._inbox[_HEAD.size : _HEAD.size + length])
            del self._inbox[: _HEAD.size + length]
            try:
                self._take(kind, number, content)
            except (ValueError, struct.error):
                self._lose()  # what makes no sense comes from nobody we know
                return

    def _lose(self) -> None:
        if self._is_open:
            self.close()
            self._on_lost()

    def _take(self, kind: int, number: int, content: bytes) -> None:
        if kind == MESSAGE:
            self._on_message(json.loads(content))
            return
        if kind == OPEN:
            self._on_open(number, json.loads(content))
            return
        stream = self.streams.get(number)
        if stream is None:
            if kind == DATA:
                self._send(STOP, number)
        elif kind == DATA:
            self._came(stream, content)
        elif kind == END:
            stream.ended = True
            self._write(stream)
        elif kind == CREDIT:
            stream.credit += _COUNT.unpack(content)[0]
            self._watch(stream)
        elif kind == STOP:
            self._unwatch_source(stream)
            stream.is_read = True
            self._settle(stream)
        elif kind == SIZE and stream.source >= 0:
            columns, rows = _SIZE.unpack(content)
            with contextlib.suppress(OSError):
                fcntl.ioctl(stream.source, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # sources

    def _watch(self, stream: Stream) -> None:
        if stream.is_read or stream.credit <= 0 or self._is_quiet or self._out_size > BACKLOG:
            return
        try:
            self._loop.add_reader(stream.source, self._read_source, stream)
        except PermissionError:  # a file: it is always there to be read
            self._loop.call_soon(self._read_source, stream)

    def _unwatch_source(self, stream: Stream) -> None:
        if stream.source >= 0 and not stream.is_read:
            self._loop.remove_reader(stream.source)

    def _read_source(self, stream: Stream) -> None:
        if stream.is_read or stream.credit <= 0 or self._is_quiet:
            return
        data = _read(stream.source, min(PIECE, stream.credit))
        if data is None:
            return
        if not data:
            self._source_over(stream)
            return
        stream.credit -= len(data)
        self._send(DATA, stream.id, data)
        if stream.credit <= 0 or self._out_size > BACKLOG:
            self._unwatch_source(stream)
        elif stat.S_ISREG(os.fstat(stream.source).st_mode):
            self._watch(stream)

    def _source_over(self, stream: Stream) -> None:
        self._unwatch_source(stream)
        stream.is_read = True
        self._send(END, stream.id)
        self._settle(stream)

    # sinks

    def _came(self, stream: Stream, content: bytes) -> None:
        if stream.is_written:
            self._send(STOP, stream.id)
            return
        stream.inbox.append(content)
        self._write(stream)

    def _write(self, stream: Stream) -> None:
        written = 0
        try:
            while stream.inbox and not stream.is_written:
                count = os.write(stream.sink, stream.inbox[0])
                written += count
                if count < len(stream.inbox[0]):
                    stream.inbox[0] = stream.inbox[0][count:]
                else:
                    stream.inbox.popleft()
        except BlockingIOError:
            self._loop.add_writer(stream.sink, self._write, stream)
        except OSError:  # nobody reads it any more
            stream.inbox.clear()
            self._send(STOP, stream.id)
            self._sink_over(stream)
        if written:
            self._send(CREDIT, stream.id, _COUNT.pack(written))
        if not stream.inbox:
            self._all_written(stream)

    def _all_written(self, stream: Stream) -> None:
        if stream.sink >= 0 and not stream.is_written:
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_writer(stream.sink)
            if stream.ended:
                self._sink_over(stream)
        called, stream.on_idle = stream.on_idle, []
        for call in called:
            call()

    def _sink_over(self, stream: Stream) -> None:
        """Whoever reads from our sink sees its end, even where bytes still come from there."""
        if stream.is_written:
            return
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(stream.sink)
        stream.is_written = True
        if stream.sink == stream.source and not stream.is_read:
            _half_close(stream.sink)
        self._settle(stream)

    def _settle(self, stream: Stream) -> None:
        """Once both ways are through, close."""
        if not (stream.is_read and stream.is_written):
            return
        self.streams.pop(stream.id, None)
        for descriptor in {stream.source, stream.sink} - {-1}:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            os.close(descriptor)
        stream.source = stream.sink = -1
        stream.inbox.clear()
        for call in (*stream.on_idle, *stream.on_over):
            call()
        stream.on_idle, stream.on_over = [], []


def _half_close(descriptor: int) -> None:
    """No more goes to a connection; a terminal has no such thing."""
    copy = os.dup(descriptor)
    try:
        half = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return
    with contextlib.suppress(OSError), half:
        half.shutdown(socket.SHUT_WR)


def _read(descriptor: int, most: int = PIECE) -> bytes | None:
    """What is there; empty at the end, None if there is nothing yet."""
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        return None
    except OSError as problem:
        if problem.errno in (errno.EIO, errno.ECONNRESET):  # a terminal that nobody holds, a connection that was torn
            return b""
        raise
