"""What a chat costs in the router's own code, part by part: Python's calls and instructions, which no load on the machine changes.

One router without sockets: clients and engines are transports in memory, everything between them is as it runs: head,
body, budgets, route, the default policy over eight engines, relay, metrics, access log. `serving_proxy` has the CPU of the
whole with the kernel's half; `tests/serving/router/test_budget.py` keeps these counts from growing unseen.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec

import hekla
from bench.report import Report
from hekla.api.core import Pod
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.serving.router.access_log import json_line
from hekla.serving.router.director import Director
from hekla.serving.router.endpoints import Fleet
from hekla.serving.router.house import House
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.kernel.loading import load
from hekla.serving.router.limits import Limits, limits_of
from hekla.serving.router.metrics import Metrics
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.clients import ClientConnection, Doorway
from hekla.serving.router.proxy.engines import EngineConnection, Pools
from hekla.serving.router.reception import Reception
from hekla.serving.router.recipes import DEFAULT
from hekla.serving.router.world import World

OURS = f"{Path(hekla.__file__).parent}/"
ENGINES, UNDER_WAY, CHUNKS = 8, 28, 50
ROUND = 256
PARTS = (
    ("decide: blocks and their table", ("prefix/",)),
    ("decide: choose an engine", ("policies/", "choosing.py")),
    ("decide: look, count and learn", ("pool.py", "endpoints.py", "pace.py", "reckoning.py")),
    ("route and plan", ("director.py", "local_plan.py", "backends.py", "world.py", "routes.py")),
    ("budgets", ("limits.py", "doors.py", "edge/")),
    ("take the request: head, body, question", ("clients.py", "reception.py", "reading.py", "request_headers.py", "raw_heads.py", "house.py")),
    ("send it, pass the answer on", ("errand.py", "engines.py", "relay.py", "usage.py", "chunks.py")),
    ("conduct and end it", ("exchange.py",)),
    ("metrics and access log", ("metrics.py", "access_log.py")),
)  # fmt: skip
"""Parts of the path by where their code stands."""


class Wire:
    """A transport in memory: what was written last, and where to say that something was."""

    def __init__(self, wrote: Callable[["Wire"], None] | None = None) -> None:
        self.last = b""
        self.connection: EngineConnection | None = None
        self._wrote = wrote

    def write(self, data: bytes) -> None:
        self.last = data
        if self._wrote is not None:
            self._wrote(self)

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        pass


class Rig:
    """A router between transports in memory, with as many chats under way as a busy one has."""

    def __init__(self, *, is_stream: bool = False, kernel: Kernel | None = None) -> None:
        asked = {"model": "m", "messages": [{"role": "system", "content": "You are a careful assistant. " * 120}, {"role": "user", "content": "hello"}]}  # fmt: skip
        body = json.dumps(asked | ({"stream": True} if is_stream else {})).encode()
        self._request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)  # fmt: skip
        self._answer = stream() if is_stream else [whole()]
        self._now = 0.0
        random_ = random.Random(1).random
        fleet = Fleet()
        world = World(fleet, lambda name: DEFAULT.pool(name, fleet, random_))
        for one in _objects():
            world.note(None, one)
        limits = Limits()
        limits.set_routes(limits_of(route.source for route in world.routes.by_key.values()), 0.0)
        bounds = Bounds()
        pools = Pools(bounds)
        self.house = House(Director(world, random_), pools, bounds, guards=[limits], clock=self._tick)
        self.metrics = Metrics()
        doorway = Doorway(Reception(self.house, {}), bounds)
        self._clients = deque(self._client(doorway) for _ in range(UNDER_WAY + 4))
        self.asked: deque[Wire] = deque()
        """Engines that owe an answer, the oldest first."""
        for backend in world.servers.values():
            for engine in backend.decode.members:
                self._connect(pools, engine)
        for pool in world.pools() if kernel is not None else ():
            pool.use(kernel)

    def chat(self) -> None:
        """One more comes in, and the one that waited longest is answered."""
        if len(self.asked) >= UNDER_WAY:
            self.answer()
        self._clients.rotate(-1)
        self._clients[0].data_received(self._request)

    def round(self) -> None:
        """Some chats, and what is written down of them."""
        for _ in range(ROUND):
            self.chat()
        self.books()

    def answer(self) -> None:
        """All pieces of one answer."""
        connection = self.asked.popleft().connection
        assert connection is not None
        for piece in self._answer:
            connection.data_received(piece)

    def books(self) -> list[str]:
        """Count and log what is over."""
        batch, self.house.ledger[:] = self.house.ledger[:], []
        rows = self.metrics.fold(batch, list)
        return [
            json_line(one, self.metrics.rows[row], "2026-01-01T00:00:00") for one, row in zip(batch, rows, strict=True)
        ]

    def _tick(self) -> float:
        self._now += 1e-5
        return self._now

    def _client(self, doorway: Doorway) -> ClientConnection:
        client = ClientConnection(doorway)
        client.connection_made(cast(asyncio.BaseTransport, Wire()))
        return client

    def _connect(self, pools: Pools, engine: Any) -> None:
        pool = pools.of(engine)
        for _ in range(UNDER_WAY + 1):
            connection = EngineConnection(pool)
            wire = Wire(self.asked.append)
            wire.connection = connection
            connection.connection_made(cast(asyncio.BaseTransport, wire))
            pool.idle.append(connection)


def whole() -> bytes:
    """An answer in one piece, as vLLM writes it."""
    usage = {"prompt_tokens": 900, "total_tokens": 930, "completion_tokens": 30}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a" * 120}, "finish_reason": "stop"}
    body = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}).encode()  # fmt: skip
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def stream() -> list[bytes]:
    """A head, chunks of one event each, the usage, the end."""
    event = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0, "delta": {"content": " token"}}]}  # fmt: skip
    usage = {"prompt_tokens": 900, "total_tokens": 950, "completion_tokens": 50}
    last = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage}
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *[_chunk(json.dumps(event))] * CHUNKS, _chunk(json.dumps(last)), _chunk("[DONE]"), b"0\r\n\r\n"]


def _chunk(event: str) -> bytes:
    data = b"data: %b\n\n" % event.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _objects() -> list[Any]:
    labels = {"app": "s"}
    spec = {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": labels}, "workloadPort": {"port": 8000}}
    limit = {"inputTokensPerUnit": 10**15, "outputTokensPerUnit": 10**15, "unit": "second"}
    rules = [{"name": "all", "targetModels": [{"modelServerName": "s"}]}]
    made: list[Any] = [
        msgspec.convert({"metadata": {"name": "s", "namespace": "ml"}, "spec": spec}, ModelServer),
        msgspec.convert({"metadata": {"name": "m", "namespace": "ml"}, "spec": {"modelName": "m", "rateLimit": limit, "rules": rules}}, ModelRoute),
    ]  # fmt: skip
    for number in range(ENGINES):
        status = {"phase": "Running", "podIP": f"10.0.0.{number + 1}", "conditions": [{"type": "Ready", "status": "True"}]}  # fmt: skip
        metadata = {"name": f"p{number}", "namespace": "ml", "labels": labels, "uid": f"{number}"}
        made.append(msgspec.convert({"metadata": metadata, "status": status}, Pod))
    return made


def counted(work: Callable[[], object], times: int) -> tuple[Counter[str], Counter[str]]:
    """Calls and instructions of hekla's code by part, for each of so many times."""
    calls: Counter[str] = Counter()
    instructions: Counter[str] = Counter()

    def entered(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        if not path.startswith(OURS):  # not "/hekla/": a checkout may be called so
            return None
        part = part_of(path)
        calls[part] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def stepped(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            instructions[part] += event == "opcode"
            return stepped

        return stepped

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        for _ in range(times):
            work()
    finally:
        sys.settrace(before)
    return calls, instructions


def part_of(path: str) -> str:
    return next((name for name, ends in PARTS if any(end in path for end in ends)), "else")


def warm(*, is_stream: bool, kernel: Kernel | None = None) -> Rig:
    """A rig in which all that is made once has been made."""
    rig = Rig(is_stream=is_stream, kernel=kernel)
    for _ in range(8 * UNDER_WAY):
        rig.chat()
    rig.books()
    return rig


def _timed(rigs: dict[str, Rig], times: int) -> dict[str, float]:
    """The least CPU per chat of many short runs in turn, in us: what it costs when nobody is in the way."""

    def once(rig: Rig) -> float:
        before = time.thread_time()
        rig.round()
        return (time.thread_time() - before) / ROUND * 1e6

    best = dict.fromkeys(rigs, float("inf"))
    for _ in range(times):
        for name, rig in rigs.items():
            best[name] = min(best[name], once(rig))
    return best


def run(report: Report) -> None:
    """What a chat costs in the router's own code: calls, instructions and CPU, without sockets."""
    kernel = asyncio.run(load(niceness=0))
    forms = {"chosen plainly": None} | ({"chosen in machine code": kernel} if kernel is not None else {})
    for name, is_stream in (("chat of 1k tokens", False), (f"its answer streamed in {CHUNKS} chunks", True)):
        for form, its in forms.items():
            calls, instructions = counted(warm(is_stream=is_stream, kernel=its).round, 1)
            for part in sorted(instructions, key=lambda part: -instructions[part]):
                report.add(f"{name}, {form}: {part}", instructions[part] / ROUND, "instructions", note=f"{calls[part] / ROUND:.1f} calls")  # fmt: skip
            report.add(f"{name}, {form}: all", instructions.total() / ROUND, "instructions", note=f"{calls.total() / ROUND:.1f} calls")  # fmt: skip
        rigs = {form: warm(is_stream=is_stream, kernel=its) for form, its in forms.items()}
        for form, best_us in _timed(rigs, report.scaled(100)).items():
            report.add(f"{name}, {form}: CPU without sockets, at best", best_us, "us")
