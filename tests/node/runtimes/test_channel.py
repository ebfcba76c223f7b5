"""The control socket of a sandbox, from both ends: a message that comes while it is asked how much waits is read whole."""

import asyncio
import json
import socket
from collections.abc import Callable

import pytest

from hekla.node.runtimes.sandbox import channel
from hekla.node.runtimes.sandbox.channel import Channel, SandboxGoneError
from hekla.sandbox.daemon import parked


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is in it happens right after the kernel has said that nothing waits, once."""
    happening: list[Callable[[], object]] = []
    asked = channel.fcntl.ioctl

    def ioctl(sock: socket.socket, request: int, room: bytes) -> bytes:
        told = asked(sock, request, room)
        if told == bytes(4) and happening:
            happening.pop()()
        return told

    monkeypatch.setattr(channel.fcntl, "ioctl", ioctl)
    return happening


def opened() -> tuple[Channel, socket.socket, list[str]]:
    """The node's end, the daemon's, and the events that the node hears."""
    heard: list[str] = []
    node = Channel(lambda message: heard.append(message["event"]))
    inside, node.childs = node.childs, None
    assert inside is not None
    return node, inside, heard


def test_an_answer_that_comes_as_the_node_looks_whether_more_waits_is_not_cut(late: list[Callable[[], object]]) -> None:
    """It had met room for one byte; the kernel threw the rest away, and who asked heard after 30 s that the sandbox had ended."""

    async def story() -> None:
        node, inside, heard = opened()
        asking = asyncio.ensure_future(node.ask("ping"))
        await asyncio.sleep(0)
        number = json.loads(inside.recv(1000))["n"]
        late.append(lambda: inside.send(json.dumps({"n": number, "is": "whole"}).encode()))
        inside.send(b'{"event": "before"}')
        answer, _ = await asking
        assert (answer["is"], heard) == ("whole", ["before"])
        node.close()
        inside.close()

    asyncio.run(story())


def test_the_end_is_heard_where_nothing_waits() -> None:
    async def story() -> None:
        node, inside, _ = opened()
        inside.close()
        with pytest.raises(SandboxGoneError):
            await node.ask("ping")
        node.catch_up()
        with pytest.raises(SandboxGoneError, match="has ended"):
            await node.ask("ping")

    asyncio.run(story())


def test_an_order_that_comes_as_the_daemon_looks_what_waits_is_not_cut(late: list[Callable[[], object]]) -> None:
    node, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with node, daemon:
        daemon.setblocking(False)
        with pytest.raises(BlockingIOError):
            parked._waiting(daemon)
        late.append(lambda: node.send(b'{"op": "claim"}'))
        assert daemon.recv(parked._waiting(daemon)) == b'{"op": "claim"}'
        node.close()
        assert daemon.recv(parked._waiting(daemon)) == b""
