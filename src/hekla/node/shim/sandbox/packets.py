"""Messages between node, supervisor and zygote: one JSON object each, kept whole by the socket, with descriptors beside it. Standard library only."""

import json
import socket
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

LONGEST = 200 * 1024
"""An ordinary user's socket takes 208 KiB at a time."""
MOST_DESCRIPTORS = 8


class TooLongError(ValueError):
    """A message that no socket would take."""


def encode(message: Message) -> bytes:
    """One message as it is sent; raises TooLongError."""
    return bounded(json.dumps(message).encode())


def bounded(data: bytes) -> bytes:
    """The same bytes; raises TooLongError."""
    if len(data) > LONGEST:
        raise TooLongError(f"a message of {len(data)} bytes; {LONGEST} is the most")
    return data


def send(sock: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send one, whole or not at all; raises OSError (BlockingIOError where the socket does not block)."""
    send_encoded(sock, encode(message), descriptors)


def send_encoded(sock: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """The same, of what `encode` made."""
    socket.send_fds(sock, [data], list(descriptors))


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """The next one; None: the other end has gone. Raises BlockingIOError where the socket does not block."""
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, LONGEST, MOST_DESCRIPTORS)
    except BlockingIOError:
        raise
    except OSError:
        return None
    if not data:
        return None
    return json.loads(data), descriptors
