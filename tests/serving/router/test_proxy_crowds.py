"""Ten thousand connections that do nothing: each has a deadline, and nobody's costs another's."""

from typing import Any

from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.clients import ClientConnection, Doorway, Phase


class Transport:
    """A socket that never sends."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, **limits: Any) -> None: ...

    def pause_reading(self) -> None: ...


class Nobody:
    """A front that is never asked."""

    def receive(self, *request: object) -> None:
        raise AssertionError("nothing was sent")

    def refused(self, *refused: object) -> None: ...


def test_ten_thousand_idle_connections_are_closed_when_their_time_is_over() -> None:
    doorway = Doorway(Nobody(), Bounds())
    crowd = []
    for _ in range(10_000):
        one = ClientConnection(doorway)
        one.connection_made(Transport())  # type: ignore[arg-type]
        crowd.append(one)
    assert len(doorway.connections) == 10_000
    doorway.now = 100.0
    for one in crowd[:10]:
        one.data_received(b"POST /v1/chat")  # these have begun, and have less time
    for one in crowd:
        one.tick(131.0)
    assert [one.phase for one in crowd[:10]] == [Phase.LINGER] * 10
    assert b" 408 " in crowd[0].transport.written  # type: ignore[attr-defined]
    assert not crowd[10].transport.is_closing()
    for one in crowd:
        one.tick(181.0)
    assert all(one.transport.is_closing() for one in crowd[10:])


def test_beyond_the_bound_a_connection_is_told_so_and_let_go() -> None:
    doorway = Doorway(Nobody(), Bounds(connections=10_000))
    for _ in range(10_000):
        ClientConnection(doorway).connection_made(Transport())  # type: ignore[arg-type]
    late, transport = ClientConnection(doorway), Transport()
    late.connection_made(transport)  # type: ignore[arg-type]
    assert b" 503 " in transport.written
    doorway.now = 3.0
    late.tick(3.0)
    assert transport.is_closed
    late.connection_lost(None)
    assert len(doorway.connections) == 10_000
