"""What happened in the sandbox and what its commands said, for whoever looks later: bounded, in memory, the newest kept.

Only the end of each piece of output is kept, and nothing of terminals, where people type what is nobody's business.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

MOST_ENTRIES = 1000
LONGEST = 2000
"""Bytes of one piece of output that are kept, from its end."""


@dataclass
class Entry:
    """One thing that happened."""

    at: float
    """Seconds since 1970."""
    level: str
    """`info`, or `error` for what was said on stderr."""
    message: bytes
    fields: dict[str, str]


class Journal:
    """The newest entries, the oldest first."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=MOST_ENTRIES)

    def said(self, stream: str, data: bytes, pid: int) -> None:
        """A command, or a cell (0), wrote something."""
        level = "error" if stream == "stderr" else "info"
        self._entries.append(Entry(time.time(), level, data[-LONGEST:], {"stream": stream, "pid": str(pid)}))

    def happened(self, message: str, **fields: str) -> None:
        """A command began or ended."""
        self._entries.append(Entry(time.time(), "info", message.encode("utf-8", "replace")[:LONGEST], fields))

    def lines(self) -> list[dict[str, object]]:
        """One document a line, the newest MOST_ENTRIES of them."""
        told: list[dict[str, object]] = []
        for one in reversed(self._entries):
            for line in reversed(one.message.decode("utf-8", "replace").splitlines()):
                told.append({"at": one.at, "level": one.level, "message": line, "fields": one.fields})
            if len(told) >= MOST_ENTRIES:
                break
        return told[MOST_ENTRIES - 1 :: -1] if len(told) > MOST_ENTRIES else told[::-1]
