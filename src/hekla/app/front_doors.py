"""Where clients of models and of sandboxes come in, open before anybody serves there: who comes early waits instead of being refused.

The kernel keeps connections until the feature behind a door has started, seconds after `hekla up` said that it is ready.
"""

import errno
import secrets
import socket
from collections.abc import Mapping

from hekla.app.agents_keeping import made_once, new_keys
from hekla.app.data_directory import DataDirectory
from hekla.app.settings import Settings

HOST = "127.0.0.1"
BACKLOG = 4096
"""As many as router and gateway let wait themselves."""


def open_doors(settings: Settings, directory: DataDirectory) -> dict[str, socket.socket]:
    """A door for each feature that has one and is not left out; where it is and the key to it are written down.

    Raises OSError.
    """
    doors: dict[str, socket.socket] = {}
    for file in (directory.router_url, directory.agents_url):
        file.unlink(missing_ok=True)  # of a life that was killed
    if "router" not in settings.without:
        made_once(directory.router_keys, _new_router_keys)
        doors["router"] = open_door(settings.router_port)
        directory.publish_router(url_of(doors["router"]))
    if "agents" not in settings.without:
        made_once(directory.agents_key, new_keys)
        doors["agents"] = open_door(settings.agents_port)
        directory.publish_agents(url_of(doors["agents"]))
    return doors


def close_doors(doors: Mapping[str, socket.socket], directory: DataDirectory) -> None:
    """Nobody comes in any more, and nobody is told where."""
    for door in doors.values():
        door.close()
    for file in (directory.router_url, directory.agents_url):
        file.unlink(missing_ok=True)


def open_door(port: int) -> socket.socket:
    """Listen on loopback; on another port where this one is taken. Raises OSError."""
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        door.setblocking(False)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(door, port)
        door.listen(BACKLOG)
    except OSError:
        door.close()
        raise
    return door


def url_of(door: socket.socket) -> str:
    """Where clients find it."""
    return f"http://{HOST}:{door.getsockname()[1]}"


def _bind(door: socket.socket, port: int) -> None:
    try:
        door.bind((HOST, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
        door.bind((HOST, 0))


def _new_router_keys() -> bytes:
    """A list of API keys with one, the administrator's: loopback is open to every user of the machine."""
    return f"admin: sk-hekla-{secrets.token_hex(24)}\n".encode()
