"""One process of `hekla run router`: connects to a cluster, routes, and drains on a signal.

Every replica routes; there is no lease. The router itself is in `serving/router/running.py`.
"""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import uvloop

from hekla.app.logging import configure_logging
from hekla.app.standalone.process import StandaloneError, connection_of
from hekla.kube.api_client import USER_AGENT, ApiClient
from hekla.kube.informer import Informers
from hekla.kube.kubeconfig import Connection
from hekla.serving.router.authentication import ApiKeyError
from hekla.serving.router.configuration import ConfigurationError
from hekla.serving.router.running import Router
from hekla.serving.router.settings import RouterSettings, from_environment
from hekla.serving.router.variables import VariableError
from hekla.wire.open_files import raise_open_files

MOST_PROCESSES = 256


class RouterSettingsError(Exception):
    """What the router was told cannot be; the sentence says what would do."""


def router_settings(flags: Mapping[str, Any], environment: Mapping[str, str]) -> RouterSettings:
    """Settings of flags that were given and of the environment; raises RouterSettingsError."""
    try:
        settings = RouterSettings(**{**from_environment(environment), **flags})
    except VariableError as error:
        raise RouterSettingsError(str(error)) from None
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise RouterSettingsError("--tls-cert and --tls-key go together; give both or neither")
    for name, least in (("port", 0), ("metrics_port", -1), ("debug_port", -1)):
        if not least <= (port := getattr(settings, name)) <= 65_535:
            none = "; -1 is none" if least < 0 else ""
            raise RouterSettingsError(f"--{name.replace('_', '-')} is {port}; a port lies between 0 and 65535{none}")
    if not 1 <= settings.processes <= MOST_PROCESSES:
        raise RouterSettingsError(f"--processes {settings.processes} must be 1 to {MOST_PROCESSES}")
    return settings


def run_router(
    settings: RouterSettings,
    kubeconfig: str,
    log_level: str,
    ready: Callable[[str], None],
    listening: Callable[[Router], None] = lambda _: None,
) -> None:
    """Run until SIGINT or SIGTERM and until what is under way has ended; `ready` is told where the router listens."""
    configure_logging(log_level)
    raise_open_files()
    connection = connection_of(kubeconfig)
    try:
        uvloop.run(_serve(settings, connection, ready, listening))
    except (ConfigurationError, ApiKeyError) as error:
        raise StandaloneError(f"router: {error}") from None
    except OSError as error:
        raise StandaloneError(
            f"router: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
        ) from None


async def _serve(
    settings: RouterSettings,
    connection: Connection,
    ready: Callable[[str], None],
    listening: Callable[[Router], None],
) -> None:
    client = ApiClient(connection.transport(), user_agent=f"{USER_AGENT} (router)")
    try:
        async with Informers(client) as informers:
            router = Router(settings, informers)
            await router.listen()
            _listen_for_signals(router)
            scheme = "https" if settings.tls_cert else "http"
            gc.collect()
            gc.freeze()  # what is here now stays; requests make few cycles, so that it need not be looked at often
            gc.set_threshold(50_000, 20, 50)
            ready(f"{scheme}://{settings.host}:{router.port}")
            listening(router)
            await router.run()
    finally:
        await client.close()


def _listen_for_signals(router: Router) -> None:
    loop = asyncio.get_running_loop()
    is_told = False

    def heard() -> None:
        nonlocal is_told
        if is_told:
            os._exit(130)  # asked twice: clients see their streams end
        is_told = True
        router.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
