"""What a client that forwards ports may get wrong: it is told so, and nothing is kept for it."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, cast

import pytest

from hekla.node.port_forward import MAX_CONNECTIONS, forward_over_spdy
from hekla.wire.channels import PortChannels, port_number
from hekla.wire.errors import ProtocolViolationError
from hekla.wire.spdy_session import SpdySession


class Stream:
    """One that a client opened, and what became of it."""

    def __init__(self, kind: str, port: str, number: int = 0) -> None:
        self.headers = {"streamtype": kind, "port": port, "requestid": str(number)}
        self.sent = b""
        self.is_reset = False

    async def send(self, piece: bytes) -> None:
        self.sent += piece

    async def close(self) -> None:
        pass

    async def reset(self) -> None:
        self.is_reset = True


class Session:
    """A client that opens some streams, lets the other side work, and goes away."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = list(streams)

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        pass

    async def accept(self) -> Stream | None:
        if self._streams:
            return self._streams.pop(0)
        for _ in range(10):
            await asyncio.sleep(0)
        return None


def served(*streams: Stream) -> list[int]:
    """The ports to which connections were asked for."""
    asked: list[int] = []

    async def connect(port: int) -> Any:
        asked.append(port)
        raise ConnectionRefusedError("nobody listens")

    asyncio.run(forward_over_spdy(cast(SpdySession, Session(streams)), connect))
    return asked


@pytest.mark.parametrize("port", ["", "0", "65536", "99999999999", "-1", "²", "http"])
def test_what_is_no_port_is_told_on_the_error_stream(port: str) -> None:
    error, data = Stream("error", port), Stream("data", port)
    assert served(error, data) == []
    assert error.sent.decode() == f"error forwarding port {port} to pod: a port is a number from 1 to 65535"
    assert data.is_reset


def test_a_port_that_nobody_listens_on_is_asked_for() -> None:
    error, data = Stream("error", "65535"), Stream("data", "65535")
    assert served(error, data) == [65535]
    assert error.sent == b"error forwarding port 65535 to pod: nobody listens"


def test_error_streams_without_a_connection_are_bounded() -> None:
    streams = [Stream("error", "80", number) for number in range(MAX_CONNECTIONS + 2)]
    served(*streams)
    assert [stream.is_reset for stream in streams] == [False] * MAX_CONNECTIONS + [True] * 2


def test_a_port_named_twice_is_refused() -> None:
    with pytest.raises(ProtocolViolationError, match="name each port once"):
        PortChannels([80, 81, 80])
    with pytest.raises(ProtocolViolationError, match="each 1 to 65535"):
        PortChannels([port_number("0x50")])
