"""Chunked bodies on a connection: what a producer writes becomes chunks, and what a slow reader leaves is counted.

`PushSink` is the `Sink` that a pushed response is given. It never blocks and never raises; `connection.py` owns the
transport and tells the sink when the connection has gone.
"""

from collections.abc import Callable
from typing import Protocol

from hekla.wire.heads import LAST_CHUNK, chunk


class Writable(Protocol):
    """The part of an asyncio transport that a sink uses."""

    def write(self, data: bytes) -> None:
        """Queue bytes for the peer."""

    def get_write_buffer_size(self) -> int:
        """Bytes queued and not yet with the kernel."""

    def abort(self) -> None:
        """Drop the connection at once."""

    def is_closing(self) -> bool:
        """Whether the transport takes no more."""


class _LastFrame:
    """The frame made last: watchers of one event are written the same bytes object one after the other."""

    data: bytes = b""
    frame: bytes = b""


class PushSink:
    """A pushed response on one connection."""

    __slots__ = ("_bound", "_callbacks", "_chunked", "_on_end", "_open", "_transport", "sent")

    def __init__(self, transport: Writable, *, chunked: bool, bound: int, on_end: Callable[[bool], None]) -> None:
        self._transport = transport
        self._chunked = chunked
        self._bound = bound
        self._on_end = on_end
        self._callbacks: list[Callable[[], None]] = []
        self._open = True
        self.sent = 0

    def write(self, data: bytes) -> None:
        """Send one piece, unless the response has ended; cut a reader who left more than the bound."""
        if not self._open or not data:
            return
        transport = self._transport
        transport.write(self._frame(data) if self._chunked else data)
        self.sent += len(data)
        if transport.get_write_buffer_size() > self._bound:
            self.abort()

    @staticmethod
    def _frame(data: bytes) -> bytes:
        if data is not _LastFrame.data:
            _LastFrame.data, _LastFrame.frame = data, chunk(data)
        return _LastFrame.frame

    def close(self) -> None:
        """End the response in good order."""
        if self._open:
            if self._chunked:
                self._transport.write(LAST_CHUNK)
            on_end = self._on_end
            self.ended()
            on_end(True)

    def abort(self) -> None:
        """Cut the connection."""
        if self._open:
            on_end = self._on_end
            self._transport.abort()
            self.ended()
            on_end(False)

    @property
    def buffered(self) -> int:
        """Bytes accepted and not yet handed to the kernel."""
        return self._transport.get_write_buffer_size() if self._open else 0

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when the response has ended, at once if it has already."""
        if self._open:
            self._callbacks.append(callback)
        else:
            callback()

    def ended(self) -> None:
        """Called when nothing more can be written, whoever ended it; later calls do nothing."""
        if self._open:
            self._open = False
            self._on_end = _to_nobody  # who is told keeps this sink, and would be kept by it
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()


def _to_nobody(_in_order: bool) -> None:
    """Whom a sink tells that has ended."""
