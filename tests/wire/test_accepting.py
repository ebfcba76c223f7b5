"""A port lets everybody in who waits, and goes on whatever becomes of one of them."""

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Coroutine
from typing import Any

import pytest
import structlog
import uvloop

from hekla.wire import accepting
from hekla.wire.accepting import Port

HOST = "127.0.0.1"


class Echo(asyncio.Protocol):
    """Says what it is told."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story

    uvloop.run(bounded())


def connected(port: int, count: int) -> list[socket.socket]:
    """The kernel lets them in; they wait for us."""
    return [socket.create_connection((HOST, port)) for _ in range(count)]


async def echoed(one: socket.socket) -> bytes:
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(one, b"hello")
    return await loop.sock_recv(one, 100)


def test_all_who_wait_are_let_in_within_one_turn_of_the_loop() -> None:
    """libuv lets in one a turn: of 32 who asked for much at once the last waited 250 ms."""

    async def story() -> None:
        turn, let_in = 0, list[tuple[int, socket.socket]]()

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        def welcome(one: socket.socket) -> bool:
            let_in.append((turn, one))
            return True

        loop, port = asyncio.get_running_loop(), Port(Echo, welcome=welcome)
        clients = connected(await port.open(HOST, 0, backlog=64), 32)
        count()
        while len(let_in) < len(clients):
            await asyncio.sleep(0)
        assert len({when for when, _ in let_in}) == 1
        port.close()
        for one in [*clients, *(one for _, one in let_in)]:
            one.close()

    run(story())


def test_more_than_are_let_in_at_once_are_let_in_later() -> None:
    async def story() -> None:
        let_in = list[socket.socket]()
        port = Port(Echo, welcome=lambda one: let_in.append(one) is None)
        count = accepting._MOST_AT_ONCE + 10
        clients = connected(await port.open(HOST, 0, backlog=2 * count), count)
        while len(let_in) < count:
            await asyncio.sleep(0)
        port.close()
        for one in [*clients, *let_in]:
            one.close()

    run(story())


def test_who_is_not_welcomed_is_served_by_a_protocol() -> None:
    async def story() -> None:
        port = Port(Echo, welcome=lambda one: False)
        for one in connected(await port.open(HOST, 0, backlog=8), 3):
            assert await echoed(one) == b"hello"
            one.close()
        port.close()

    run(story())


def test_a_port_that_is_closed_lets_nobody_in_and_keeps_who_is_in() -> None:
    async def story() -> None:
        port = Port(Echo)
        number = await port.open(HOST, 0, backlog=8)
        [one] = connected(number, 1)
        assert await echoed(one) == b"hello"
        port.close()
        with pytest.raises(ConnectionRefusedError):
            connected(number, 1)
        assert await echoed(one) == b"hello"
        one.close()

    run(story())


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open() -> None:
    async def story() -> None:
        first, second = Port(Echo), Port(Echo)
        number = await first.open(HOST, 0, backlog=8)
        with pytest.raises(OSError, match="in use"):
            await second.open(HOST, number, backlog=8)
        assert not second._listening
        first.close()

    run(story())


def test_processes_share_a_port_if_both_say_so() -> None:
    async def story() -> None:
        first, second = Port(Echo), Port(Echo)
        number = await first.open(HOST, 0, backlog=8, shares_port=True)
        assert await second.open(HOST, number, backlog=8, shares_port=True) == number
        first.close()
        second.close()

    run(story())


def test_where_no_descriptor_is_left_who_waits_is_let_in_once_there_is_one() -> None:
    """The port is ready all the time meanwhile: looked at in each turn, it would take the core."""

    async def story() -> None:
        port = Port(Echo)
        number = await port.open(HOST, 0, backlog=8)
        [one] = connected(number, 1)
        [listening] = port._listening
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with structlog.testing.capture_logs() as told:
                port._let_in(listening)
                port._paused[listening].cancel()
                port._let_in(listening)
            assert [each["event"] for each in told] == ["connections wait"]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        port._paused[listening].cancel()
        port._go_on(listening)
        assert await echoed(one) == b"hello"
        one.close()
        port.close()

    run(story())


@pytest.mark.parametrize("refusal", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_family_that_the_kernel_lacks_is_left_out_while_another_listens(
    monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """A kernel without IPv6 whose `localhost` also stands for ::1."""

    async def story() -> None:
        loop, real = asyncio.get_running_loop(), accepting._listening
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, 0)),
        ]

        async def resolved(*_: object, **__: object) -> list[Any]:
            return found

        def listening(family: int, address: Any, backlog: int, *, shares_port: bool) -> socket.socket:
            if family == socket.AF_INET6:
                raise OSError(refusal, os.strerror(refusal))
            return real(family, address, backlog, shares_port=shares_port)

        monkeypatch.setattr(loop, "getaddrinfo", resolved, raising=False)
        monkeypatch.setattr(accepting, "_listening", listening)
        port = Port(Echo)
        (one,) = connected(await port.open("localhost", 0, backlog=8), 1)
        assert await echoed(one) == b"hello"
        one.close()
        port.close()
        del found[1]
        with pytest.raises(OSError, match=os.strerror(refusal)):
            await port.open("localhost", 0, backlog=8)

    run(story())
