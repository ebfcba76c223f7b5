"""A whole data plane on real sockets in one loop: scripted engines, a router over a plain desk, and raw clients.

Nothing waits for time: every read waits for bytes or for the end of the connection, for as long as a busy machine needs.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from hekla.serving.router.house import House
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane import layout
from hekla.serving.router.lane.lane import Lane
from hekla.serving.router.lots import Lot
from hekla.serving.router.plan import Guard, Usage
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.engines import Pools
from hekla.serving.router.proxy.listener import Listener
from hekla.serving.router.reception import Document, Reception
from hekla.testing.desk import Engine, PlainDesk
from serving.router import intolane

PATIENCE_S = 60.0
KERNEL: Kernel | None = None
"""The fixture `lane` puts it here: data planes and routers then have the fast lane, and clients' connections begin in it."""

plain = pytest.mark.parametrize("lane", [False], indirect=True, ids=["plain"])
"""Of a test that puts a mistake into the desk, which the lane does not ask."""


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    uvloop.run(bounded())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


@dataclass
class Asked:
    """A request as an engine got it."""

    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}

    @property
    def line(self) -> str:
        return self.head.decode("latin-1").split("\r\n")[0]

    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class ScriptedEngine:
    """An engine that answers by a script; `gone` is set when a client's connection ended."""

    def __init__(self, script: Script, name: str) -> None:
        self.script = script
        self.name = name
        self.asked: list[Asked] = []
        self.connections = 0
        self.open = 0
        self.gone = asyncio.Event()
        self.early: Script | None = None
        """Says what it says as soon as it has read a head, and ends the connection; None: the script is asked, for whole requests."""
        self.port = 0
        self.tls: ssl.SSLContext | None = None

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 27, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                asked = Asked(head[:-4], b"")
                if self.early is not None:
                    await self.early(asked, writer)
                    break
                asked.body = await reader.readexactly(int(asked.headers.get("content-length", "0")))
                self.asked.append(asked)
                await self.script(asked, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            self.gone.set()
            writer.close()

    @property
    def engine(self) -> Engine:
        return Engine(self.name, "127.0.0.1", self.port, is_tls=self.tls is not None)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    head: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]


class Client:
    """A client that writes what it is told, byte by byte if need be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes, *, is_head: bool = False) -> Answer:
        await self.send(data)
        return await self.answer(is_head=is_head)

    async def answer(self, *, is_head: bool = False) -> Answer:
        head = await self.head()
        if is_head or head.status in (204, 304) or head.status < 200:
            return head
        if head.headers.get("transfer-encoding") == "chunked":
            while (piece := await self.chunk()) is not None:
                head.body += piece
        elif "content-length" in head.headers:
            head.body = await self.reader.readexactly(int(head.headers["content-length"]))
        else:
            head.body = await self.reader.read()
        return head

    async def head(self) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(first.split()[1]), headers, b"", head)

    async def chunk(self) -> bytes | None:
        """The next chunk; None at the last."""
        size = int((await self.reader.readline()).strip() or b"0", 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2] if size else None

    async def closed(self) -> bytes:
        """What comes until the router closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    def leave(self) -> None:
        self.writer.transport.abort()


def singly(lot: Lot) -> list[Any]:
    """The requests of a lot one by one, as an `exchange.Exchange` tells of itself."""
    told = []
    for number in range(len(lot)):
        kind, counted = lot.kinds[lot.kind[number]], bool(lot.is_counted[number])
        started = float(lot.started_at[number])
        told.append(
            SimpleNamespace(
                **{name: getattr(kind, name) for name in kind.__struct_fields__},
                usage_told=Usage(int(lot.input_tokens[number]), int(lot.output_tokens[number])) if counted else None,
                input_tokens=int(lot.input_tokens[number]),
                events=int(lot.events[number]),
                request_id=b"%b-%x" % (lot.id_prefix, int(lot.request[number])),
                started_at=started,
                planned_at=started,
                first_byte_at=float(lot.first_byte_at[number]),
                ended_at=float(lot.ended_at[number]),
            )
        )
    return told


@dataclass
class Plane:
    """One running data plane."""

    desk: PlainDesk
    house: House
    listener: Listener
    pools: Pools
    port: int
    engines: list[ScriptedEngine]
    clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        if self.lane is not None:
            await intolane.put_in(self.lane, self.listener.doorway, client.reader, client.writer, chat())
        return client

    async def ask(self, data: bytes) -> Answer:
        return await (await self.client()).ask(data)

    @property
    def over(self) -> list[Any]:
        if self.lane is not None:
            self.lane.fold()
        return [*self.house.ledger, *(one for lot in self.house.lots for one in singly(lot))]

    def later(self, seconds: float) -> None:
        """Time passes: clocks jump, and everything that waits is looked at."""
        self.clock.ahead += seconds
        self.listener.tick()

    async def out_of_lane(self) -> float:
        """Whoever sends slowly is given to Python, which keeps the time of such; how much time passed for that."""
        lane, passed_s = self.lane, 0.0
        if lane is not None:
            await until(lambda: bool((lane.slabs.clients[:, layout.Client.PHASE] == layout.Phase.PARTIAL).any()))
            passed_s = float(lane.slabs.doubles[layout.State.PARTIAL_S]) + 0.5
            self.later(passed_s)
        return passed_s

    clock: Any = None
    lane: Lane | None = None


class JumpingClock:
    """The loop's time, ahead by what a test wants."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time = loop.time
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._time() + self.ahead


@asynccontextmanager
async def plane(
    *scripts: Script,
    bounds: Bounds | None = None,
    guards: tuple[Guard, ...] = (),
    documents: dict[str, Document] | None = None,
    head_timeout_s: float = 0.0,
    desk: Callable[[list[Engine]], Any] | None = None,
    engine_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    engine_ca_file: str = "",
) -> AsyncIterator[Plane]:
    engines = [ScriptedEngine(script, f"engine-{number}") for number, script in enumerate(scripts)]
    for one in engines:
        one.tls = engine_tls
    servers = [await one.serve() for one in engines]
    clock = JumpingClock(asyncio.get_running_loop())
    bounds = bounds or Bounds()
    pools = Pools(bounds, engine_ca_file)
    targets = [one.engine for one in engines]
    made = _desk(desk, targets, head_timeout_s)
    house = House(made, pools, bounds, guards=guards, clock=clock)
    listener = Listener(Reception(house, documents or {}), bounds, pools, clock=clock)
    port = await listener.listen("default", "127.0.0.1", 0, tls=client_tls)
    running = Plane(made, house, listener, pools, port, engines, clock=clock)
    if KERNEL is not None and KERNEL.lane is not None:
        running.lane = Lane(KERNEL.lane, house, listener.doorway, lambda slabs: intolane.PlaneWays(slabs, house, made))
        running.lane.begin()
        house.has_lane, house.beside = True, running.lane.under_way
    try:
        yield running
    finally:
        for client in running.clients:
            client.leave()
        listener.stop()
        if running.lane is not None:
            running.lane.close()
        for server in servers:
            server.close()


def _desk(desk: Callable[[list[Engine]], Any] | None, targets: list[Engine], head_timeout_s: float) -> Any:
    if desk is not None:
        if KERNEL is not None:
            pytest.skip("the test has a desk of its own, of which the lane knows nothing")
        return desk(targets)
    if KERNEL is not None:
        return intolane.LanedDesk(targets, KERNEL, head_timeout_s)
    made = PlainDesk({"m": targets}, head_timeout_s)
    made._turn = len(targets) - 1  # the first engine is asked first
    return made


def chat(*, stream: bool = False, headers: str = "", close: bool = False, text: str = "hello", **fields: Any) -> bytes:
    """A chat request."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    if stream:
        body["stream"] = True
    return request(json.dumps(body).encode(), headers=headers + ("Connection: close\r\n" if close else ""))


def request(body: bytes, *, headers: str = "", path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: router\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
DOCUMENT = json.dumps({"id": "x", "choices": [{"message": {"content": "hi"}}], "usage": USAGE}).encode()


def whole(body: bytes = DOCUMENT, status: int = 200, extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


USAGE_EVENT = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def stream(*events: bytes) -> bytes:
    return STREAM_HEAD + b"".join(map(chunk, events)) + LAST


def unnamed(answer: bytes) -> bytes:
    """An answer without the name of its request, which the router adds."""
    return re.sub(rb"x-request-id: [^\r]*\r\n", b"", answer, count=1)


def says(*answers: bytes) -> Script:
    """Answers one request after the other with these; the last is repeated."""
    left = list(answers)

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])

    return script


def says_and_closes(answer: bytes) -> Script:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return script


async def says_nothing(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Until the router gives up."""
