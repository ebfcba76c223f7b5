"""What gateways of sandboxes keep, embedded or by themselves: where sessions are written down, and secrets that are made once."""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from hekla.app.standalone.agents_settings import store_choice
from hekla.sandbox.gateway.guard import Guard, KeyFileError, read_keys
from hekla.sandbox.sessions.sqlite_store import SqliteSessions
from hekla.sandbox.sessions.store import SessionStore

log = structlog.get_logger(__name__)

KEYS_EVERY_S: Final = 2.0
"""How often the list of keys is looked at: so much later at most a new one opens, and one that was taken out does not."""
KEY_PREFIX = "e2b_"
"""Clients of E2B insist on it, and on hexadecimal digits behind it; others take any key."""


def session_store(path: Path, environment: Mapping[str, str]) -> SessionStore:
    """A file of our own; or the Redis or Valkey that several gateways share, named as AgentCube's programs name it."""
    chosen = store_choice(environment)
    if not chosen.kind:
        return SqliteSessions(path)
    from redis.asyncio import Redis

    from hekla.sandbox.sessions.redis_store import RedisSessions

    return RedisSessions(Redis.from_url(f"redis://{chosen.address}", password=chosen.password or None))


async def follow_keys(path: Path, guard: Guard) -> None:
    """Take the list of keys anew whenever its file changed; one that cannot be read leaves the last one in force, and is told of once."""
    seen: object = None
    while True:
        try:
            found = path.stat()
            now: object = found.st_ino, found.st_size, found.st_mtime_ns
            if now != seen:
                guard.set_keys(read_keys(path.read_text()))
        except (OSError, UnicodeDecodeError, KeyFileError) as error:
            now = str(error)
            if now != seen:
                log.warning("API keys were not taken", file=str(path), why=now)
        seen = now
        await asyncio.sleep(KEYS_EVERY_S)


def new_keys() -> bytes:
    """A list of API keys with one, the administrator's."""
    return f"admin: {KEY_PREFIX}{secrets.token_hex(20)}\n".encode()


def made_once(path: Path, make: Callable[[], bytes]) -> bytes:
    """A secret of whoever owns the directory, unless there is one: loopback is open to every user of the machine."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        file.write(make())
    return path.read_bytes()
