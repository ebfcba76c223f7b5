"""Opens connections to engines for the fast lane: counted before they are begun, within the time that a connection may take."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from functools import partial

from hekla.serving.router.plan import Target
from hekla.serving.router.proxy.engines import Pools

Done = Callable[[socket.socket | None, str], bool]
"""Is given the connection, or None and why there is none; whether somebody has it, who gives its count back."""


async def connected(pools: Pools, target: Target, done: Done) -> None:
    """Open a connection to an engine, unless too many are open."""
    pool, make_room = pools.of(target), partial(pools.make_room, target.host, target.port)
    if not await pool.open.take(pool.bounds.engine_connections, make_room):
        done(None, f"{pool.open.count} connections to it are open already")
        return
    one: socket.socket | None = None
    try:
        one = await _opened(target, pool.bounds.connect_timeout_s)
    except (TimeoutError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        done(None, f"no connection to {target.host}:{target.port}: {why}")
    finally:
        if one is None:
            pool.open.give_back()
    if one is not None and not done(one, ""):
        pool.open.give_back()


async def _opened(target: Target, timeout_s: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(timeout_s):
            await _connect(one, target.host, target.port)
    except BaseException:
        one.close()
        raise
    return one


async def _connect(one: socket.socket, host: str, port: int) -> None:
    """As `loop.sock_connect`, which in uvloop has a thread look the address up, though an engine's is a number already."""
    loop = asyncio.get_running_loop()
    if not _is_number(one.family, host):
        await loop.sock_connect(one, (host, port))
        return
    failed = one.connect_ex((host, port))
    if failed == errno.EINPROGRESS:
        is_over = loop.create_future()
        loop.add_writer(one.fileno(), _tell, is_over)
        try:
            await is_over
        finally:
            loop.remove_writer(one.fileno())
        failed = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if failed:
        raise OSError(failed, os.strerror(failed))


def _tell(is_over: asyncio.Future[None]) -> None:
    if not is_over.done():
        is_over.set_result(None)


def _is_number(family: int, host: str) -> bool:
    try:
        socket.inet_pton(family, host)
    except OSError:
        return False
    return True
