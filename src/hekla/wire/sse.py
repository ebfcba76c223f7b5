"""Server-sent events, without I/O: an encoder, and a parser that takes the stream in any pieces.

OpenAI's streaming answers are such events; the router counts and forwards them, the client reads them.
"""

from dataclasses import dataclass

from hekla.wire.errors import ReplyTooLargeError

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event."""

    data: str
    event: str = "message"
    id: str = ""
    """The last id seen in the stream, which a client sends back as `last-event-id`."""

    retry_ms: int | None = None


def encode(data: str, event: str = "", id: str = "") -> bytes:
    """One event as it goes on the wire; line breaks in `data` become further data lines."""
    if "\n" in event + id or "\r" in event + id or "\0" in id:
        raise ValueError("the name and the id of an event must not hold line breaks or NUL")
    lines = [f"event: {event}"] if event else []
    if id:
        lines.append(f"id: {id}")
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return "\n".join([*lines, "", ""]).encode()


def comment(text: str = "") -> bytes:
    """A line that means nothing and keeps the connection alive."""
    return f": {text}\n\n".encode()


class EventParser:
    """Takes a stream piece by piece and returns the events that are whole."""

    def __init__(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        """`max_bytes` bounds one event; beyond it `ReplyTooLargeError`."""
        self._max_bytes = max_bytes
        self._buffer = b""
        self._is_begun = False
        self._last_id = ""
        self._clear()

    def _clear(self) -> None:
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        self._retry_ms: int | None = None

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Take a piece; an event that the stream breaks off in is dropped, as the standard asks."""
        buffer = self._buffer + piece
        if not self._is_begun:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._buffer = buffer
                return []
            self._is_begun = True
            buffer = buffer.removeprefix(_BOM)
        lines, self._buffer = _whole_lines(buffer)
        if self._size + len(self._buffer) > self._max_bytes:
            raise ReplyTooLargeError(f"a server-sent event is larger than {self._max_bytes} bytes")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        match name:
            case b"data":
                self._add_data(text)
            case b"event":
                self._event = text
            case b"id" if "\0" not in text:
                self._last_id = text
            case b"retry" if text.isascii() and text.isdigit() and len(text) < 16:
                self._retry_ms = int(text)
        return None

    def _add_data(self, text: str) -> None:
        self._size += len(text) + 1
        if self._size > self._max_bytes:
            raise ReplyTooLargeError(f"a server-sent event is larger than {self._max_bytes} bytes")
        self._data.append(text)

    def _dispatch(self) -> ServerSentEvent | None:
        event = None
        if self._data:
            event = ServerSentEvent("\n".join(self._data), self._event or "message", self._last_id, self._retry_ms)
        self._clear()
        return event


def _whole_lines(buffer: bytes) -> tuple[list[bytes], bytes]:
    """Lines end with LF, CR or CR LF; a CR at the very end may be half of a CR LF, so it waits."""
    held = b"\r" if buffer.endswith(b"\r") else b""
    if held:
        buffer = buffer[:-1]
    if b"\r" in buffer:
        buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    *lines, rest = buffer.split(b"\n")
    return lines, rest + held
