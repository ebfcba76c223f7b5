"""Asks containers how they are, and runs their hooks: exec, HTTP, TCP, gRPC, sleep.

`pod_lifecycle.py` decides when to ask and what the answers mean.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hekla.api.containers import (
    Container,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    LifecycleHandler,
    Probe,
    SleepAction,
    TCPSocketAction,
)
from hekla.api.scalars import IntOrString
from hekla.lib.digits import whole_number
from hekla.node.http_get import HttpGetError, http_get, url_of
from hekla.node.reaching import Place
from hekla.node.runtimes import ExecError, ExecSession

MAX_OUTPUT = 10 * 1024
MAX_FRAME = 10 * 1024
VERSION = "1.36"
"""Whose kubelet's name servers read."""
HOOK_TIMEOUT_S = 60.0

Exec = Callable[[Sequence[str]], Awaitable[ExecSession]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a question was answered well, and what was said."""

    is_healthy: bool
    message: str = ""
    has_warning: bool = False
    """Healthy, and yet its owner should read the message: a redirect leads to another host."""


class Asked(Protocol):
    """What a probe and a hook have in common."""

    @property
    def exec(self) -> ExecAction | None:
        """A command."""

    @property
    def tcp_socket(self) -> TCPSocketAction | None:
        """A connection."""


async def ask(probe: Probe, container: Container, place: Place, exec: Exec) -> Answer:
    """One probe, within its own time limit."""
    timeout_s = probe.timeout_seconds or 1
    try:
        async with asyncio.timeout(timeout_s):
            if probe.grpc is not None:
                return await _grpc(probe.grpc, place)
            if probe.http_get is not None:
                return await _http(probe.http_get, container, place)
            return await _act(probe, container, place, exec)
    except TimeoutError:
        return Answer(False, _late(probe, container, place, timeout_s))


def _late(probe: Probe, container: Container, place: Place, timeout_s: int) -> str:
    """In the kubelet's words, by which people look for it."""
    if probe.exec is not None:
        return f'command timed out: "{" ".join(probe.exec.command)}" timed out after {timeout_s}s'
    if probe.http_get is not None:
        url = _url(probe.http_get, container, place)
        return f'Get "{url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
    if probe.tcp_socket is not None:
        host = probe.tcp_socket.host or place.pod_ip
        return f"dial tcp {host}:{port_of(probe.tcp_socket.port, container)}: i/o timeout"
    return f"timeout: health rpc did not complete within {timeout_s}s"


async def run_hook(
    handler: LifecycleHandler, container: Container, place: Place, exec: Exec, *, within_s: float
) -> Answer:
    """A postStart or preStop hook."""
    try:
        async with asyncio.timeout(within_s):
            if handler.sleep is not None:
                return await _sleep(handler.sleep)
            if handler.http_get is not None:
                return await _http_hook(handler.http_get, container, place)
            return await _act(handler, container, place, exec)
    except TimeoutError:
        return Answer(False, f"did not end within {within_s:g} s")


async def _act(asked: Asked, container: Container, place: Place, exec: Exec) -> Answer:
    if asked.exec is not None:
        return await _exec(asked.exec, exec)
    if asked.tcp_socket is not None:
        host = asked.tcp_socket.host or place.pod_ip
        return await _tcp(place, host, port_of(asked.tcp_socket.port, container))
    return Answer(False, "names no action that this node knows")


async def _sleep(action: SleepAction) -> Answer:
    await asyncio.sleep(action.seconds)
    return Answer(True)


async def _exec(action: ExecAction, exec: Exec) -> Answer:
    try:
        session = await exec(action.command)
    except ExecError as refusal:
        return Answer(False, str(refusal))
    try:
        output = b""
        while piece := (await session.read())[1]:
            output = (output + piece)[:MAX_OUTPUT]
        code = await session.wait()
    finally:
        await session.close()
    return Answer(code == 0, output.decode("utf-8", "replace"))


async def _tcp(place: Place, host: str, port: int) -> Answer:
    try:
        _, writer = await place.open(host, port)
    except (OSError, ValueError) as problem:  # a label of 64 letters, or none, is a ValueError of the name's encoding
        return Answer(False, f"dial tcp {host}:{port}: {_why(problem)}")
    writer.close()
    return Answer(True)


async def _http(action: HTTPGetAction, container: Container, place: Place) -> Answer:
    url = _url(action, container, place)
    try:
        reply = await http_get(url, action.http_headers, place, agent=f"kube-probe/{VERSION}")
    except HttpGetError as problem:
        return Answer(False, str(problem))
    if 200 <= reply.status < 300:
        return Answer(True, reply.body)
    if 300 <= reply.status < 400:
        return Answer(True, f"Probe terminated redirects, Response body: {reply.body}", has_warning=True)
    return Answer(False, f"HTTP probe failed with statuscode: {reply.status}")


async def _http_hook(action: HTTPGetAction, container: Container, place: Place) -> Answer:
    """Any answer will do, whatever its status; and a server that speaks no TLS is asked without."""
    url, agent = _url(action, container, place), f"kube-lifecycle/{VERSION}"
    try:
        await http_get(url, action.http_headers, place, agent=agent)
    except HttpGetError as problem:
        if not problem.speaks_plainly:
            return Answer(False, str(problem))
        headers = [each for each in action.http_headers if each.name.lower() != "authorization"]
        try:
            await http_get(f"http:{url.partition(':')[2]}", headers, place, agent=agent)
        except HttpGetError:
            return Answer(False, str(problem))
    return Answer(True)


def _url(action: HTTPGetAction, container: Container, place: Place) -> str:
    return url_of(action.scheme, action.host or place.pod_ip, port_of(action.port, container), action.path)


def port_of(port: IntOrString | None, container: Container) -> int:
    """A port by number, or by the name that the container gives it; 0 if there is none."""
    if isinstance(port, int):
        return port
    named = {each.name: each.container_port for each in container.ports}
    text = port or ""
    number = whole_number(text)
    return named.get(text, 0) if number is None else number


async def _grpc(action: GRPCAction, place: Place) -> Answer:
    """grpc.health.v1.Health/Check over plain HTTP/2, written out: one call is a dozen frames."""
    pod_ip = place.pod_ip
    try:
        reader, writer = await place.open(pod_ip, action.port)
    except OSError as problem:
        return Answer(False, f"dial tcp {pod_ip}:{action.port}: {_why(problem)}")
    try:
        writer.write(_grpc_request(action.service, f"{pod_ip}:{action.port}"))
        status = await _grpc_status(reader, writer)
        return Answer(status == 1, "" if status == 1 else f"service is not serving (status {status})")
    except (OSError, asyncio.IncompleteReadError):
        return Answer(False, "the connection broke")
    finally:
        writer.close()


def _grpc_request(service: str, authority: str) -> bytes:
    def header(name: str, value: str) -> bytes:
        return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()

    block = b"".join(
        header(*pair)
        for pair in ((":method", "POST"), (":scheme", "http"), (":path", "/grpc.health.v1.Health/Check"),
                     (":authority", authority[:120]), ("content-type", "application/grpc"), ("te", "trailers"))
    )  # fmt: skip
    name = service.encode()[:120]
    message = b"\x0a" + bytes([len(name)]) + name if name else b""
    body = b"\x00" + struct.pack(">I", len(message)) + message
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + _frame(4, 0, 0, b"") + _frame(1, 4, 1, block) + _frame(0, 1, 1, body)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


async def _grpc_status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """The serving status of the first data frame; 0 (unknown) if the call ends without one."""
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(min(int.from_bytes(head[:3], "big"), MAX_FRAME))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFF_FFFF
        if kind == 4 and not flags & 1:
            writer.write(_frame(4, 1, 0, b""))
        elif kind == 0 and stream == 1 and len(payload) >= 7 and payload[5] == 0x08:
            return payload[6]
        elif kind in (3, 7) or (stream == 1 and flags & 1):
            return 0


def _why(problem: Exception) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "connect: connection refused"
    return str(getattr(problem, "strerror", "") or problem)
