"""The fast lane for tests: a router with it or without it over the same engines, and the bare code over pairs of sockets in guarded memory."""

import asyncio
import ctypes
import importlib.util
import mmap
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hekla.api.core import Pod
from hekla.serving.router.kernel import loading
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane.slabs import Slabs
from serving.router import proxykit as kit
from serving.router.test_running import READY, Routed, engine_script, eventually, routed

Story = Callable[[Routed, kit.Client], Awaitable[Any]]

LEFT_OUT = ("timestamp", "request_id", "selected_pod")
"""Of the access log's fields: what differs between any two runs."""


def compiled() -> Kernel:
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    found = asyncio.run(loading.load(niceness=0))
    assert found is not None, "the log says why"
    if found.lane is None:
        pytest.skip("the fast lane is not for this processor")
    return found


@asynccontextmanager
async def laned(
    tmp_path: Path, kernel: Kernel, *scripts: kit.Script, has_lane: bool = True, **settings: Any
) -> AsyncIterator[Routed]:
    """One ModelServer over an engine for each script, chosen among in machine code; with the lane or without."""
    async with routed(tmp_path, kit.whole(), drain_timeout_s=3.0, **settings) as it:
        first = it.engines[0]
        first.script = _scraped(scripts[0])
        servers = []
        for number, script in enumerate(scripts[1:], 2):
            more = kit.ScriptedEngine(_scraped(script), f"engine-{number}")
            host = f"127.0.0.{number}"
            servers.append(await asyncio.start_server(more._connected, host, first.port, limit=1 << 27))
            it.engines.append(more)
            labels = {"app": f"port-{first.port}"}
            made = {"metadata": {"name": f"more-{number}", "namespace": "ml", "labels": labels}, "spec": {"containers": [{"name": "e", "image": "x"}]}}  # fmt: skip
            await it.client.create(Pod, made)
            await it.client.request(
                "PATCH", f"/api/v1/namespaces/ml/pods/more-{number}/status", {"status": {**READY, "podIP": host}},
                content_type="application/merge-patch+json",
            )  # fmt: skip
        await eventually(lambda: len(it.router.fleet.by_name) == len(scripts))
        for pool in it.router.world.pools():
            pool.use(kernel)
        it.router.upgrading._kernel = kernel
        if has_lane:
            it.router.open_lane(kernel)
        try:
            yield it
        finally:
            for one in servers:
                one.close()


def _scraped(script: kit.Script) -> kit.Script:
    """The script, and the pages that the router looks at by itself."""
    pages = engine_script(b"")

    async def both(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        await (pages if asked.line.startswith("GET") else script)(asked, writer)

    return both


def both(
    tmp_path: Path,
    kernel: Kernel,
    story: Story,
    *scripts: kit.Script,
    taken: int | None = None,
    ask: bytes | None = None,
    **settings: Any,
) -> Any:
    """Tell a story with the lane and without, and hold both to the same outcome; `taken` is how many requests the lane took whole."""
    outcomes = []
    for has_lane in (True, False):
        folder = tmp_path / f"{has_lane}"
        folder.mkdir()

        async def tell(folder: Path = folder, has_lane: bool = has_lane) -> None:
            async with laned(folder, kernel, *scripts_of(scripts), has_lane=has_lane, **settings) as it:
                client = await it.connect()
                await entered(it, client, ask)
                said = await story(it, client)
                await eventually(
                    lambda: not it.router.house.under_way and not any(n for *_, n in it.router.house.beside())
                )
                log = sorted(await told(it), key=str)
                outcomes.append((said, sorted(posted(it), key=str), log, counted(it)))
                if has_lane and taken is not None:
                    assert it.router.lane is not None
                    assert it.router.lane.taken == taken

        kit.run(tell())
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def scripts_of(scripts: tuple[Any, ...]) -> tuple[kit.Script, ...]:
    """Scripts that count are made anew for each run."""
    return tuple(one() if getattr(one, "is_maker", False) else one for one in scripts)


def maker(make: Callable[[], kit.Script]) -> Any:
    make.is_maker = True  # type: ignore[attr-defined]
    return make


def shown(answer: kit.Answer) -> tuple[int, bytes]:
    return answer.status, answer.head.partition(b"\r\nx-request-id")[0] + answer.body


async def entered(it: Routed, client: kit.Client, ask: bytes | None = None) -> None:
    """Ask until the client's connection is in the lane and the lane knows its way; where there is no lane, as often."""
    for _ in range(4):
        assert (await client.ask(ask or kit.chat())).status == 200
        for _ in range(3):
            await asyncio.sleep(0)
    lane = it.router.lane
    if lane is not None:
        await eventually(lambda: lane.connections > 0)


def posted(it: Routed) -> list[tuple[str, dict[str, str], bytes]]:
    """What engines were asked by clients, but for who chose the request's id."""
    return [
        (one.line, {name: value for name, value in one.headers.items() if name != "x-request-id"}, one.body)
        for engine in it.engines
        for one in engine.asked
        if not one.line.startswith("GET")
    ]


async def told(it: Routed) -> list[dict[str, Any]]:
    """The access log, without times."""
    lines = await it.logged()
    return [
        {name: value for name, value in line.items() if name not in LEFT_OUT and not name.startswith("duration")}
        for line in lines
    ]


def counted(it: Routed) -> list[str]:
    """The metrics' page, without what depends on time or on chance."""
    page = it.router.metrics.text(it.router.house).decode().splitlines()
    names = (
        "kthena_router_requests_total", "kthena_router_tokens_total", "kthena_router_active", "hekla_router_attempts",
        "kthena_router_rate_limit", "hekla_router_engine_in_flight", "hekla_router_engine_prefill_tokens",
        "kthena_router_prefix_cache_match_ratio_count", "kthena_router_request_duration_seconds_count",
        "kthena_router_request_prefill_duration_seconds_count", "hekla_router_unreadable",
        "hekla_router_time_to_first_token_seconds_count", "hekla_router_inter_token_latency_seconds_count",
    )  # fmt: skip
    return sorted(line for line in page if line.startswith(names))


class GuardedSlabs(Slabs):
    """Each array ends at a page that nobody may touch, and begins behind one: a byte too far ends the process."""

    def _put(self, which: Any, array: Any) -> Any:
        page = mmap.PAGESIZE
        room = -(-array.nbytes // page) * page
        memory = mmap.mmap(-1, room + 2 * page)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (begin, begin + page + room):
            assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        flush = np.frombuffer(memory, np.uint8, array.nbytes, page + room - array.nbytes)
        guarded = flush.view(array.dtype).reshape(array.shape)
        guarded[:] = array
        return super()._put(which, guarded)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection on this host: a test's, and the lane's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        its, _ = server.accept()
    its.setblocking(False)
    mine.settimeout(kit.PATIENCE_S)
    return mine, its
