"""A sandbox's log: what its container wrote, which the node keeps, and what its commands said and became, which its daemon remembers.

A session that sleeps is not woken for its log: it has what its container wrote.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from hekla.sandbox.gateway.asking import ask_daemon
from hekla.sandbox.gateway.documents import NO_DOCUMENT
from hekla.sandbox.gateway.front import House
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session

log = structlog.get_logger(__name__)

MOST_LINES: Final = 1000
PATIENCE_S: Final = 5.0
"""How long a daemon is waited for: what its container wrote is told without it, too."""
_MOST_BYTES: Final = 8 * 1024 * 1024
_LATEST_S: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""Later than any time that a client can be told: an entry that says so is no daemon's of ours."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line."""

    at_ms: int
    """Milliseconds since 1970."""
    message: str
    level: str = "info"
    fields: dict[str, str] = field(default_factory=dict)


class _Entry(msgspec.Struct):
    at: float
    level: str
    message: str
    fields: dict[str, str]


_decode = msgspec.json.Decoder(list[_Entry]).decode


async def logs_of(house: House, session: Session) -> list[LogLine]:
    """Its newest lines, the oldest first."""
    lines = [line for text in (await house.desk.logs(session, MOST_LINES)).splitlines() if (line := _written(text))]
    if session.state is State.RUNNING:
        lines += await _remembered(house, session)
    return sorted(lines, key=lambda line: line.at_ms)


def _written(text: str) -> LogLine | None:
    stamp, _, message = text.partition(" ")
    try:
        return LogLine(int(datetime.fromisoformat(stamp).timestamp() * 1000), message)
    except ValueError:
        return None


async def _remembered(house: House, session: Session) -> list[LogLine]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            told = await ask_daemon(house, session, "GET", "/journal", most=_MOST_BYTES)
        entries: list[_Entry] = _decode(told.body) if told.status == 200 else []
    except (RefusedError, TimeoutError, *NO_DOCUMENT) as error:  # an agent's own server, perhaps: it has no journal
        log.info("a sandbox told no journal", session=session.id, why=f"{type(error).__name__}: {error}"[:256])
        return []
    return [
        LogLine(int(one.at * 1000), one.message, one.level, one.fields) for one in entries if 0 <= one.at < _LATEST_S
    ]
