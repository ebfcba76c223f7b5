"""Kubernetes' channel protocols on WebSockets, without I/O: exec and attach (v4, v5), and the older port-forward.

Each message begins with a byte that names its channel. Version 5 adds channel 255, by which a side says that it sends
no more on another one: without it, `kubectl cp` and `cat | kubectl exec -i` could not tell the end of their input.
What goes over the error channel at the end (a Status as JSON) is the API server's to word. Port-forward of today's
kubectl is SPDY in a WebSocket instead: see `spdy_session.py`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from hekla.wire.errors import ProtocolViolationError

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
"""Subprotocols of exec and attach; SPDY negotiates V4 in the header `x-stream-protocol-version`."""

PORT_FORWARD_TUNNEL = "SPDY/3.1+portforward.k8s.io"
"""Subprotocol of a WebSocket that carries SPDY frames for port-forward; `portforward.k8s.io` is agreed on inside."""

PORT_FORWARD = "portforward.k8s.io"
STREAM_PROTOCOL_HEADER = "x-stream-protocol-version"


class Channel(IntEnum):
    """What a message belongs to: the first three are file descriptors."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


@dataclass(frozen=True, slots=True)
class ChannelData:
    """Bytes on one channel."""

    channel: Channel
    data: bytes


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """The peer sends no more on a channel (v5)."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Resized:
    """The peer's terminal has a new size."""

    width: int
    height: int


ChannelEvent = ChannelData | ChannelClosed | Resized


def choose(offered: Iterable[str]) -> str:
    """The best subprotocol that both sides speak; empty if there is none, which is to be refused with 400."""
    names = set(offered)
    return next((name for name in (V5, V4) if name in names), "")


def encode(channel: Channel, data: bytes) -> bytes:
    """A message of one channel."""
    return channel.to_bytes(1, "big") + data


def encode_close(channel: Channel) -> bytes:
    """The message that ends a channel; of v5 only."""
    return bytes((Channel.CLOSE, channel))


def encode_resize(width: int, height: int) -> bytes:
    """The message that tells a terminal's size."""
    return encode(Channel.RESIZE, json.dumps({"Width": width, "Height": height}, separators=(",", ":")).encode())


def decode(message: bytes | str, protocol: str) -> ChannelEvent | None:
    """What a message says; None for an empty one, which some clients send to see whether the connection holds."""
    if isinstance(message, str):
        message = message.encode()
    if not message:
        return None
    channel = _channel(message[0])
    if channel is Channel.CLOSE:
        return _closed(message, protocol)
    return _resized(message[1:]) if channel is Channel.RESIZE else ChannelData(channel, message[1:])


def _channel(number: int) -> Channel:
    try:
        return Channel(number)
    except ValueError:
        raise ProtocolViolationError(f"there is no channel {number}; use 0 to 4, or 255 to close one") from None


def _closed(message: bytes, protocol: str) -> ChannelClosed:
    if protocol != V5 or len(message) != 2:
        raise ProtocolViolationError(
            f"a message that closes a channel is not understood in {protocol or 'no protocol'}"
        )
    return ChannelClosed(_channel(message[1]))


def _resized(payload: bytes) -> Resized:
    try:
        size = json.loads(payload)
        width, height = size["Width"], size["Height"]
    except (ValueError, KeyError, TypeError):
        width = height = -1
    if not isinstance(width, int) or not isinstance(height, int) or not (0 <= width < 65536 and 0 <= height < 65536):
        raise ProtocolViolationError('a terminal\'s size is not {"Width": 0 to 65535, "Height": 0 to 65535}')
    return Resized(width, height)


@dataclass(frozen=True, slots=True)
class PortData:
    """Bytes for or from one forwarded port, on its data or its error channel."""

    port: int
    data: bytes
    is_error: bool = False


def port_number(text: str) -> int:
    """The port that a client names; 0, which is none, for anything else."""
    return number if len(text) <= 5 and text.isascii() and text.isdigit() and (number := int(text)) < 65536 else 0


class PortChannels:
    """Port-forward on channels, as the Python client speaks it: ports in the query, channels 2n and 2n+1 for the n-th.

    The server opens by sending each channel its port, low byte first; `greetings` are those messages.
    """

    def __init__(self, ports: Iterable[int]) -> None:
        self._ports = tuple(ports)
        if not 0 < len(self._ports) <= 100 or not all(0 < port < 65536 for port in self._ports):
            raise ProtocolViolationError("name 1 to 100 ports, each 1 to 65535, in the query: ?ports=80")
        if len(set(self._ports)) < len(self._ports):
            raise ProtocolViolationError("name each port once in the query: ?ports=80,8080")

    def greetings(self) -> list[bytes]:
        """The messages with which a server begins."""
        numbers = [port.to_bytes(2, "little") for port in self._ports]
        return [bytes((2 * at + side,)) + number for at, number in enumerate(numbers) for side in (0, 1)]

    def encode(self, piece: PortData) -> bytes:
        """A message."""
        return bytes((2 * self._ports.index(piece.port) + piece.is_error,)) + piece.data

    def decode(self, message: bytes | str) -> PortData | None:
        """What a message says; None for an empty one."""
        if isinstance(message, str):
            message = message.encode()
        if not message:
            return None
        if message[0] >= 2 * len(self._ports):
            raise ProtocolViolationError(f"channel {message[0]} belongs to no forwarded port")
        return PortData(self._ports[message[0] // 2], message[1:], bool(message[0] % 2))
