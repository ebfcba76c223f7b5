"""The router of the embedded platform: on loopback, for the models that run here; `hekla status` shows where."""

import errno
import os
import secrets

from hekla.app.data_directory import DataDirectory
from hekla.kube.informer import Informers
from hekla.serving.router.running import Router
from hekla.serving.router.settings import RouterSettings, from_environment

HOST = "127.0.0.1"
DRAIN_S = 2.0
KEY_PREFIX = "sk-hekla-"


async def run_embedded_router(directory: DataDirectory, port: int, informers: Informers) -> None:
    """Route until cancelled; where it listens is written down meanwhile."""
    _make_key(directory)
    router = await _listening(directory, port, informers)
    directory.router_url.write_text(f"http://{HOST}:{router.port}\n")
    directory.router_debug.write_text(f"http://{HOST}:{router.debug_port}\n")
    try:
        await router.run()
    finally:
        directory.router_url.unlink(missing_ok=True)
        directory.router_debug.unlink(missing_ok=True)


def _make_key(directory: DataDirectory) -> None:
    """A key for whoever owns the directory, unless there are keys: loopback is open to every user of the machine."""
    try:
        descriptor = os.open(directory.router_keys, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(f"admin: {KEY_PREFIX}{secrets.token_hex(24)}\n")


async def _listening(directory: DataDirectory, port: int, informers: Informers) -> Router:
    """A router on the wished port, or on any if it is taken."""
    router = Router(_settings(directory, port), informers)
    try:
        await router.listen()
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
        router = Router(_settings(directory, 0), informers)
        await router.listen()
    return router


def _settings(directory: DataDirectory, port: int) -> RouterSettings:
    told = from_environment(os.environ) | {
        "host": HOST,
        "port": port,
        "metrics_port": -1,
        "debug_port": 0,
        "expose_metrics_on_router_port": True,
        "configuration_file": str(directory.root / "routerConfiguration.yaml"),
        "access_log_output": str(directory.access_log),
        "api_keys_file": str(directory.router_keys),
        "drain_timeout_s": DRAIN_S,
    }
    return RouterSettings(**told)  # type: ignore[arg-type] # fields by name, each of its type
