"""The router of the embedded platform: on loopback, for the models that run here; `hekla status` shows where.

Its door is open before it starts (`front_doors.py`).
"""

import os
import socket

from hekla.app.data_directory import DataDirectory
from hekla.app.front_doors import HOST
from hekla.kube.informer import Informers
from hekla.serving.router.running import Router
from hekla.serving.router.settings import RouterSettings, from_environment

DRAIN_S = 2.0


async def run_embedded_router(directory: DataDirectory, door: socket.socket, informers: Informers) -> None:
    """Route until cancelled whoever comes by a door that is open already."""
    router = Router(_settings(directory), informers)
    await router.listen(door)
    directory.router_debug.write_text(f"http://{HOST}:{router.debug_port}\n")
    try:
        await router.run()
    finally:
        directory.router_debug.unlink(missing_ok=True)


def _settings(directory: DataDirectory) -> RouterSettings:
    told = from_environment(os.environ) | {
        "host": HOST,
        "metrics_port": -1,
        "debug_port": 0,
        "expose_metrics_on_router_port": True,
        "configuration_file": str(directory.root / "routerConfiguration.yaml"),
        "access_log_output": str(directory.access_log),
        "api_keys_file": str(directory.router_keys),
        "drain_timeout_s": DRAIN_S,
    }
    return RouterSettings(**told)  # type: ignore[arg-type] # fields by name, each of its type
