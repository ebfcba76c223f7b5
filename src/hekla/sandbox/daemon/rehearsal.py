"""Runs a program as a client would, in a sandbox that is nobody's yet: the first one of its owner then takes what a second one does.

A daemon is born with all of its memory shared, and Python writes to whatever it uses: 300 pages are copied for a first program, 2 to 3 ms.
Copied here, while nobody waits. What is rehearsed has a daemon object of its own, so nothing of it is remembered: no command, no journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import TYPE_CHECKING

from hekla.sandbox.daemon.http import HttpServer
from hekla.sandbox.daemon.server import Daemon

if TYPE_CHECKING:
    from hekla.sandbox.daemon.nursery import Nursery
    from hekla.sandbox.daemon.server import Options

PATIENCE_S = 1.0
"""It takes 5 ms."""
_BODY = json.dumps({"command": ["/bin/true"]}).encode()
_REQUEST = (
    b"POST /api/execute HTTP/1.1\r\nhost: sandbox\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


async def rehearse(options: Options, nursery: Nursery) -> None:
    """It reaps all children meanwhile, and nobody else may start any. Whatever comes of it, the sandbox does without."""
    daemon = Daemon(options, nursery)
    daemon.processes.begin()
    try:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(_asked(HttpServer(daemon.handle, daemon.worded)), PATIENCE_S)
    finally:
        daemon.processes.kill_all()


async def _asked(server: HttpServer) -> None:
    loop = asyncio.get_running_loop()
    client, its = socket.socketpair()
    with client:
        client.setblocking(False)
        await loop.connect_accepted_socket(server.protocol, its)
        await loop.sock_sendall(client, _REQUEST)
        while await loop.sock_recv(client, 4096):
            continue
