"""Runs a program as a client would, in a sandbox that is nobody's yet: the first one of its owner then takes what a second one does.

A daemon is born with all of its memory shared, and Python writes to whatever it uses: 300 pages are copied for a first program, 2 to 3 ms.
Copied here, while nobody waits. What is rehearsed has a daemon object of its own, so nothing of it is remembered: no command, no journal.

A claim and its first token copy 115 more, 1.2 ms and half a MiB: rehearsed after that, or as soon as a gateway asks for it, of the few that
it gives away next (`gateway/heads.py`). The key is made for that, and nobody else is told.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import secrets
import socket
import time
from typing import TYPE_CHECKING

from hekla.sandbox.daemon.http import HttpServer
from hekla.sandbox.daemon.server import Daemon
from hekla.sandbox.daemon.tokens import OWN

if TYPE_CHECKING:
    from hekla.sandbox.daemon.nursery import Nursery
    from hekla.sandbox.daemon.server import Options

PATIENCE_S = 1.0
"""It takes 5 ms."""
WANTED_AT = "/rehearsal"
"""Where a gateway asks for the second part, of a sandbox that is nobody's."""
_BODY = json.dumps({"command": ["true"]}).encode()
_REQUEST = (
    b"POST /api/execute HTTP/1.1\r\nhost: sandbox\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
_SIGNED = b"GET /api/rehearsal HTTP/1.1\r\nhost: sandbox\r\nconnection: close\r\nauthorization: Bearer %b\r\n\r\n"
"""There is nothing at that path."""
_NAME = "rehearsal"
_PUBLIC_KEY = """-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAvsOLXsRVTKHfb3/6+UjP
2Giu9+d6CAk2hWhwWxzZXVvMw3XY3BRU9Kh0CspOUi5filC4sRtMBVZngCbvudGi
bSfeBiR7bswD44Bfsea2+kkzQvCWWucU9h/o0VcLTcm/l8DjvTJmXIGXWl9IUXbj
FFJ7jQWed6/uBVft9KI/qznv7bAlXDkRl/b5F5a8NAtmr7w+cEtWdaUjR5k48CmF
4wu55ixa8yfPw+qbn9DnnMij/uKc6gmp2ylTHK5DSgW6eXKsY8e/WDtEKmcyHjDV
sHP9Uaq2ZNu0EXT7Ulv9yat3EZ+Oq/BXkCE6MtviP16nX9uGDbNjxrklXHkREzWQ
PwIDAQAB
-----END PUBLIC KEY-----
"""
"""Is read as a claim's is; its other half was never kept."""


async def rehearse(options: Options, nursery: Nursery) -> None:
    """It reaps all children meanwhile, and nobody else may start any. Whatever comes of it, the sandbox does without."""
    daemon = Daemon(options, nursery)
    daemon.processes.begin()
    try:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(_asked(HttpServer(daemon.handle, daemon.worded), _REQUEST), PATIENCE_S)
    finally:
        daemon.processes.kill_all()


async def rehearse_claim(options: Options, nursery: Nursery) -> None:
    """Take a claim and a request with its token; nothing is started, so whatever runs here goes on beside it."""
    daemon, key = Daemon(options, nursery), secrets.token_hex(32)
    daemon.claimed({"public_key": _PUBLIC_KEY, "audience": _NAME, "session": _NAME, "token_key": key})
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        request = _SIGNED % _token(key)
        await asyncio.wait_for(_asked(HttpServer(daemon.handle, daemon.worded), request), PATIENCE_S)


def _token(key: str) -> bytes:
    """As a gateway signs one with the secret of a claim."""
    body = {"aud": _NAME, "session_id": _NAME, "iat": int(time.time()), "exp": int(time.time()) + 60}
    signed = b".".join(map(_encoded, (json.dumps({"alg": OWN}).encode(), json.dumps(body).encode())))
    return signed + b"." + _encoded(hmac.digest(key.encode(), signed, "sha256"))


def _encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


async def _asked(server: HttpServer, request: bytes) -> None:
    loop = asyncio.get_running_loop()
    client, its = socket.socketpair()
    with client:
        client.setblocking(False)
        await loop.connect_accepted_socket(server.protocol, its)
        await loop.sock_sendall(client, request)
        while await loop.sock_recv(client, 4096):
            continue
