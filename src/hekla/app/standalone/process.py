"""One process of `hekla run`: connects, answers for its health, runs components, and ends in good order on a signal.

Nothing that a cluster lacks at the moment ends it: an API server that is away, kinds that are not installed yet, rights
that are not granted are told in the log and by /readyz, and tried again.
"""

import asyncio
import os
import signal
from collections.abc import Callable

import structlog
import uvloop

from hekla.app.logging import configure_logging
from hekla.app.standalone.agents_settings import AgentsSettings
from hekla.app.standalone.components import RUNNING
from hekla.app.standalone.health import Health
from hekla.app.standalone.node_settings import NodeSettings
from hekla.app.standalone.office import Office
from hekla.app.standalone.settings import StandaloneSettings, host_and_port
from hekla.kube.kubeconfig import Connection, in_cluster_connection, load_kubeconfig
from hekla.wire.open_files import raise_open_files
from hekla.wire.server import Server

log = structlog.get_logger(__name__)

HEALTH_STOP_S = 1.0


class StandaloneError(Exception):
    """The process could not start, or a part of it died; the sentence is for the operator."""


def run_standalone(
    settings: StandaloneSettings,
    ready: Callable[[str], None],
    *,
    agents: AgentsSettings | None = None,
    node: NodeSettings | None = None,
) -> None:
    """Run until SIGINT or SIGTERM; `ready` is told where health is answered."""
    configure_logging(settings.log_level)
    raise_open_files()
    connection = connection_of(settings.kubeconfig)
    office = Office(settings, connection, Health(), agents, node)
    uvloop.run(_serve(office, ready))


def connection_of(kubeconfig: str) -> Connection:
    """The file that was named; in a pod its service account; else what kubectl would take. Raises KubeconfigError."""
    if kubeconfig:
        return load_kubeconfig(kubeconfig).connection()
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        return in_cluster_connection()
    return load_kubeconfig().connection()


async def _serve(office: Office, ready: Callable[[str], None]) -> None:
    settings, health, server = office.settings, office.health, Server()
    _listen_for_signals(office.stopping)
    host, port = host_and_port("--metrics-address", settings.metrics_address)
    try:
        await server.start(health.answer, host=host, port=port)
    except OSError as error:
        why = error.strerror or str(error)
        raise StandaloneError(f"--metrics-address {settings.metrics_address} cannot be listened on: {why}") from None
    try:
        log.info(
            "runs", components=",".join(settings.components), server=office.connection.server, identity=office.identity
        )
        ready(f"http://{host}:{server.port}")
        await _run_components(office)
        log.info("ended", components=",".join(settings.components))
    finally:
        await server.stop(HEALTH_STOP_S)


async def _run_components(office: Office) -> None:
    failed: tuple[Exception, ...] = ()
    try:
        async with asyncio.TaskGroup() as tasks:
            for name in office.settings.components:
                tasks.create_task(_run_one(office, name), name=name)
    except* StandaloneError as failures:
        failed = failures.exceptions
    if failed:  # raised in there, it would be a group of errors up to Python 3.11.3
        raise StandaloneError("; ".join(str(one) for one in failed))


async def _run_one(office: Office, name: str) -> None:
    try:
        await RUNNING[name](office)
    except asyncio.CancelledError:
        raise
    except OSError as error:
        raise StandaloneError(f"{name}: {error.strerror or error}") from None
    except Exception as error:  # the process boundary: whatever it was, the operator reads one sentence
        log.exception("component died", component=name)
        raise StandaloneError(f"{name} died ({_first(error)}); the log says more") from error


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _listen_for_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def heard() -> None:
        if stopping.is_set():
            os._exit(130)  # asked twice: whatever was under way is safe to repeat
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
