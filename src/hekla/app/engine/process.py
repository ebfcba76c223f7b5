"""One `hekla engine` process: listens, serves, tells of its blocks, and ends in good order on a signal."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog
import uvloop
import zmq

from hekla.app.engine.api import EngineApi
from hekla.app.engine.kv_publisher import KvPublisher
from hekla.app.engine.metrics import EngineMetrics
from hekla.app.engine.settings import EngineSettings, EngineSettingsError
from hekla.app.engine.worker import Worker
from hekla.app.logging import configure_logging
from hekla.simulation.engine.engine import Engine
from hekla.simulation.engine.tokens import Scribe
from hekla.wire.limits import Limits
from hekla.wire.server import Server

log = structlog.get_logger(__name__)

LIMITS = Limits(body_bytes=256 * 1024 * 1024, gzip_over_bytes=0, send_timeout_s=600.0)


@dataclass(frozen=True)
class Addresses:
    """Where a running engine is reached."""

    port: int
    kv_events: str = ""
    kv_replays: str = ""


def run_engine(settings: EngineSettings, ready: Callable[[Addresses], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told where."""
    configure_logging(settings.log_level)
    uvloop.run(_serve(settings, ready))


async def _serve(settings: EngineSettings, ready: Callable[[Addresses], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with serving(settings) as addresses:
        ready(addresses)
        await stopping.wait()
        log.info("engine stops", grace_s=settings.grace_s)


@contextlib.asynccontextmanager
async def serving(settings: EngineSettings) -> AsyncIterator[Addresses]:
    """Serve an engine on the running loop, for as long as the block lasts."""
    publisher = KvPublisher(settings.kv_events) if settings.kv_events.is_on else None
    engine = Engine(settings.shape(), seed=settings.seed, writer=Scribe(), tells=publisher is not None)
    metrics = EngineMetrics(settings.names[0], max_loras=settings.max_loras if settings.enable_lora else None)

    def after_step() -> None:
        metrics.step(engine)
        if publisher is not None and engine.block_events:
            publisher.publish(engine.block_events)
            engine.block_events.clear()

    worker, server = Worker(engine, after_step), Server()
    api = EngineApi(settings, worker, metrics)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(worker.stop)
        if publisher is not None:
            await stack.enter_async_context(_publishing(publisher))
        await _listen(server, api, settings)
        # an answer that were ended now would look whole and lack its end: clients could not tell
        stack.push_async_callback(server.stop, settings.grace_s, ends_streams=False)
        api.listens_on(server.port)
        if settings.startup_s > 0:
            stack.callback(_start_late(api, settings.startup_s).cancel)
        log.info("engine serves", model=settings.names[0], port=server.port)
        yield Addresses(server.port, *((publisher.endpoint, publisher.replay_endpoint) if publisher else ()))


@contextlib.asynccontextmanager
async def _publishing(publisher: KvPublisher) -> AsyncIterator[None]:
    """Tell of blocks, and again to who missed some."""
    try:
        _bind(publisher)
        replays = asyncio.create_task(publisher.answer_replays())
        try:
            yield
        finally:
            replays.cancel()
            await asyncio.gather(replays, return_exceptions=True)
    finally:
        publisher.close()


def _bind(publisher: KvPublisher) -> None:
    try:
        publisher.bind()
    except zmq.ZMQError as error:
        raise EngineSettingsError(f"--kv-events-config: an endpoint cannot be listened on: {error}") from None


async def _listen(server: Server, api: EngineApi, settings: EngineSettings) -> None:
    try:
        await server.start(api.answer, host=settings.host, port=settings.port, limits=LIMITS)
    except OSError as error:
        why = error.strerror or str(error)
        raise EngineSettingsError(f"--port {settings.port} cannot be listened on: {why}") from None


def _start_late(api: EngineApi, startup_s: float) -> asyncio.TimerHandle:
    """Answer 503 for as long as a model would load."""
    api.is_ready = False

    def ready() -> None:
        api.is_ready = True

    return asyncio.get_running_loop().call_later(startup_s, ready)
