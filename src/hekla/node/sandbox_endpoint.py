"""Serves the node's contract for sandboxes over HTTP: bodies and paths of `api/agents/node_contract.py`, and the ports inside, whatever is spoken there."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from hekla.api.agents.node_contract import (
    TUNNEL,
    CheckpointOrder,
    Child,
    Claim,
    EgressOrder,
    ForkOrder,
    StillnessOrder,
)
from hekla.lib.digits import whole_number
from hekla.node.pod_proxy import HOP_BY_HOP
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.sandbox_desk import SandboxDesk
from hekla.wire.client import HttpClient
from hekla.wire.errors import UpgradeRefusedError, WireError
from hekla.wire.messages import AcceptWebSocket, Answer, Duplex, Request, Response, SwitchProtocol, WebSocket

T = TypeVar("T")

NODE_TOKEN = "x-hekla-node-token"
"""The caller's token for the node, where `authorization` is meant for the server inside; it never reaches it."""
_TUNNEL_BYTES = 64 * 1024
REASONS = {
    404: "NotFound",
    409: "Conflict",
    412: "PreconditionFailed",
    413: "TooLarge",
    422: "Invalid",
    502: "BadGateway",
    503: "ServiceUnavailable",
}


class SandboxEndpoint:
    """`/sandboxes/...` and `/checkpoints/...`; who asks was found to be allowed."""

    def __init__(self, desk: SandboxDesk) -> None:
        self._desk = desk
        self._client = HttpClient(dial=self._dial)

    async def close(self) -> None:
        """Release the connections into sandboxes."""
        await self._client.close()

    async def handle(self, request: Request) -> Answer:
        """Answer one request."""
        try:
            return await self._answer(request)
        except SandboxError as refusal:
            return _status(refusal.code, str(refusal))
        except msgspec.DecodeError as problem:
            return _status(422, f"the body makes no sense: {problem}")

    async def _answer(self, request: Request) -> Answer:
        # split before decoding: an encoded slash belongs to its name, and no pod has one in it
        kind, *parts = request.target.partition("?")[0].lstrip("/").split("/")
        if kind == "checkpoints" and len(parts) == 1:
            return self._of_checkpoint(request.method, unquote(parts[0]))
        if kind != "sandboxes" or len(parts) < 2:
            raise SandboxError(404, f"there is nothing at {request.path[:200]}")
        namespace, pod, *rest = parts
        if rest[:1] == ["ports"] and len(rest) == 2 and request.headers.get("upgrade", "").lower() == TUNNEL:
            return await self._tunnel(namespace, pod, rest[1])
        if rest[:1] == ["ports"] and len(rest) >= 2:
            return await self.pass_on(namespace, pod, rest[1], "/".join(rest[2:]), request)
        action = "/".join(rest)
        if request.method == "GET" and action in ("", "usage"):
            return _json(await self._desk.usage(namespace, pod) if action else self._desk.state(namespace, pod))
        if request.method != "POST":
            raise SandboxError(404, f"there is nothing for {request.method} at {request.path[:200]}")
        return _json(await self._act(action, namespace, pod, request.body))

    def _act(self, action: str, namespace: str, pod: str, body: bytes) -> Awaitable[object]:
        desk = self._desk
        if action == "claim":
            return desk.claim(namespace, pod, msgspec.json.decode(body, type=Claim))
        if action == "freeze":
            return desk.freeze(namespace, pod, _order(body))
        if action == "thaw":
            return desk.thaw(namespace, pod, _order(body))
        if action == "checkpoint":
            return desk.checkpoint(namespace, pod, msgspec.json.decode(body, type=CheckpointOrder))
        if action == "fork":
            named: asyncio.Future[list[Child]] = asyncio.get_running_loop().create_future()
            named.set_result(msgspec.json.decode(body, type=ForkOrder).children)  # whoever asks over HTTP knows them
            return desk.fork(namespace, pod, named)
        if action == "egress":
            return desk.restrict(namespace, pod, msgspec.json.decode(body, type=EgressOrder).allow)
        raise SandboxError(
            404,
            f'a sandbox has no "{action[:60]}"; it has claim, freeze, thaw, checkpoint, fork, egress, usage and ports',
        )

    def _of_checkpoint(self, method: str, checkpoint: str) -> Response:
        if method == "GET":
            return _json(self._desk.find_checkpoint(checkpoint))
        if method == "DELETE":
            self._desk.drop_checkpoint(checkpoint)
            return Response(204, b"")
        raise SandboxError(404, f"there is nothing for {method} at a checkpoint")

    async def _tunnel(self, namespace: str, pod: str, port: str) -> SwitchProtocol:
        """The connection becomes one to a server inside; whoever listens there sees the caller's bytes and nothing of ours."""
        self._check_way(namespace, pod, port)
        inside = await self._desk.dial(namespace, pod, int(port))
        opened = asyncio.open_unix_connection if inside.family == socket.AF_UNIX else asyncio.open_connection
        reader, writer = await opened(sock=inside)
        return SwitchProtocol(TUNNEL, lambda outer: _join(outer, reader, writer))

    def _check_way(self, namespace: str, pod: str, port: str) -> None:
        number = whole_number(port)
        if number is None or number > 65535:
            raise SandboxError(422, f'"{port[:20]}" is no port')
        if self._desk.state(namespace, pod).is_frozen:  # or there is none: that is a refusal too
            raise SandboxError(409, f'sandbox "{pod}" is frozen; thaw it first')

    async def pass_on(self, namespace: str, pod: str, port: str, path: str, request: Request) -> Answer:
        """A request to a server inside, and its answer as it comes."""
        self._check_way(namespace, pod, port)
        query = f"?{request.raw_query}" if request.raw_query else ""
        # the origin names the sandbox, so that connections are kept apart; `_dial` reads it back
        url = f"http://{port}.{pod}.{namespace}.sandbox/{path}{query}"
        theirs = (
            {"content-type", "authorization"}
            if NODE_TOKEN in request.headers or request.peer.is_local
            else {"content-type"}
        )
        dropped = (HOP_BY_HOP - theirs) | {NODE_TOKEN}
        headers = tuple((name, value) for name, value in request.headers.items() if name not in dropped)
        if "host" in request.headers:
            headers = (*headers, ("x-forwarded-host", request.headers["host"]))
        if request.headers.get("upgrade", "").lower() == "websocket":
            return await self._websocket(url, headers, request)
        stack = AsyncExitStack()
        try:
            answer = await stack.enter_async_context(
                self._client.stream(request.method, url, headers=headers, body=request.body)
            )
        except WireError as problem:
            await stack.aclose()
            raise SandboxError(502, f"the server on port {port} of the sandbox did not answer: {problem}") from None

        async def body() -> AsyncIterator[bytes]:
            async with stack:
                async for piece in answer:
                    yield piece

        kept = tuple((name, value) for name, value in answer.headers if name.lower() not in HOP_BY_HOP)
        return Response(answer.status, body(), answer.content_type, kept)

    async def _websocket(self, url: str, headers: tuple[tuple[str, str], ...], request: Request) -> Answer:
        offered = tuple(
            word.strip() for word in request.headers.get("sec-websocket-protocol", "").split(",") if word.strip()
        )
        kept = tuple(pair for pair in headers if not pair[0].startswith("sec-websocket-"))
        try:
            inner = await self._client.websocket(url, kept, offered)
        except UpgradeRefusedError as refusal:
            raise SandboxError(502, f"the server in the sandbox takes no WebSocket: {refusal}") from None
        except WireError as problem:
            raise SandboxError(502, f"the server in the sandbox did not answer: {problem}") from None
        return AcceptWebSocket(lambda outer: _relay(outer, inner), inner.subprotocol)

    async def _dial(self, host: str, port: int) -> socket.socket:
        number, _, rest = host.partition(".")
        pod, namespace, _ = rest.rsplit(".", 2)
        try:
            return await self._desk.dial(namespace, pod, int(number))
        except SandboxError as refusal:
            raise ConnectionRefusedError(str(refusal)) from refusal


async def _join(outer: Duplex, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes both ways until either side ends: TLS has no half-closed connections, so neither have we."""

    async def inwards() -> None:
        while data := await outer.receive():
            writer.write(data)
            await writer.drain()

    async def outwards() -> None:
        while data := await reader.read(_TUNNEL_BYTES):
            await outer.send(data)

    ways = [asyncio.ensure_future(inwards()), asyncio.ensure_future(outwards())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
        with contextlib.suppress(WireError, OSError):
            await outer.close()


async def _relay(outer: WebSocket, inner: WebSocket) -> None:
    """Messages both ways until either side closes."""

    async def copy(source: WebSocket, sink: WebSocket) -> None:
        while (message := await source.receive()) is not None:
            await sink.send(message)

    ways = [asyncio.ensure_future(copy(outer, inner)), asyncio.ensure_future(copy(inner, outer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for side in (outer, inner):
            with contextlib.suppress(WireError):
                await side.close()


def _order(body: bytes) -> int:
    """The number of an order to freeze or to thaw; one without a body has none."""
    return msgspec.json.decode(body, type=StillnessOrder).order if body else 0


def _json(value: object) -> Response:
    return Response(200, msgspec.json.encode(value))


def _status(code: int, message: str) -> Response:
    status = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": REASONS.get(code, "InternalError"), "code": code,
    }  # fmt: skip
    return Response(code, json.dumps(status).encode())
