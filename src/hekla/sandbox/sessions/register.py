"""The rows of sessions in memory, in front of the store: found without waiting, counted by owner, busy or not.

`desk.py` is its only writer. Where the store is shared, a row that was read more than a second ago is read again before it is believed.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from hekla.sandbox.sessions.lifecycle import BEING_MADE, Event, IllegalEventError, State, after
from hekla.sandbox.sessions.records import Session
from hekla.sandbox.sessions.store import SessionStore, StoreUnavailableError

BELIEVED_S = 1.0


class ChangedMeanwhileError(Exception):
    """Somebody else wrote the row first."""


class Entry:
    """One session, as this gateway sees it."""

    __slots__ = ("acting", "busy", "made", "read_s", "row", "used_s", "was_used")

    def __init__(self, row: Session, now: float) -> None:
        self.row = row
        self.read_s = now
        self.used_s = max(row.touched_s, row.created_s)
        """When it was used last."""
        self.was_used = False
        """Whether `used_s` is newer than what is written down."""
        self.busy = 0
        """Requests under way."""
        self.acting = asyncio.Lock()
        """Held by who changes its state."""
        self.made = asyncio.Event()
        """Set unless it is being made: whoever wants something of it waits for that."""


class Register:
    """All sessions that this gateway knows."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._entries: dict[str, Entry] = {}
        self._live: dict[str, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        """Every entry."""
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)

    @property
    def live(self) -> dict[str, int]:
        """Live sessions by owner."""
        return self._live

    def known(self, session: str) -> Entry | None:
        """The entry of that id, as last read."""
        return self._entries.get(session)

    def is_fresh(self, entry: Entry, now: float) -> bool:
        """Whether it can be believed without reading it again."""
        return not self._store.is_shared or now - entry.read_s < BELIEVED_S

    async def find(self, session: str, now: float) -> Entry | None:
        """The entry of that id, from the store if it is not known, or old."""
        entry = self._entries.get(session)
        if entry is not None and self.is_fresh(entry, now):
            return entry
        row = await self._store.get(session) if entry is not None or self._store.is_shared else None
        if row is None:
            self._forget(session)
            return None
        return self._seen(row, now)

    async def read_all(self, now: float) -> None:
        """Bring it to what the store holds."""
        rows = await self._store.all()
        for session in self._entries.keys() - {row.id for row in rows}:
            self._forget(session)
        for row in rows:
            self._seen(row, now)

    async def create(self, row: Session, now: float) -> Entry:
        """Write a new row."""
        if not await self._store.create(row):
            raise ChangedMeanwhileError(row.id)
        return self._seen(row, now)

    async def write(self, entry: Entry, now: float, *events: Event, **changed: Any) -> None:
        """Write a row anew, after events or without one; IllegalEventError, ChangedMeanwhileError, StoreUnavailableError."""
        row = entry.row
        state = row.state
        for event in events:
            state = after(state, event)
        changed["touched_s"] = max(entry.used_s, row.touched_s)
        try:
            written = await self._store.update(msgspec.structs.replace(row, state=state, **changed))
        except StoreUnavailableError:  # it may be written all the same: the disk or the answer failed after it
            with contextlib.suppress(StoreUnavailableError):
                await self.read_again(row.id, now)
            raise
        if written is None:
            await self.read_again(row.id, now)
            raise ChangedMeanwhileError(row.id)
        self._seen(written, now)

    async def read_again(self, session: str, now: float) -> None:
        """Bring one row to what the store holds: somebody else has changed it, or may have."""
        current = await self._store.get(session)
        if current is None:
            self._forget(session)
        else:
            self._seen(current, now)

    async def remove(self, entry: Entry) -> None:
        """Remove a row whose session is gone."""
        if after(entry.row.state, Event.REMOVED) is not State.GONE:
            raise IllegalEventError(entry.row.state, Event.REMOVED)
        await self._store.delete(entry.row.id)
        self._forget(entry.row.id)

    async def write_uses(self) -> None:
        """Write down when sessions were used."""
        used = {entry.row.id: entry.used_s for entry in self if entry.was_used}
        if used:
            await self._store.touch(used)
            for session in used:
                if (entry := self._entries.get(session)) is not None:
                    entry.was_used = False

    def _seen(self, row: Session, now: float) -> Entry:
        entry = self._entries.get(row.id)
        if entry is None:
            entry = self._entries[row.id] = Entry(row, now)
            self._count(row, 1)
        else:
            self._count(entry.row, -1)
            self._count(row, 1)
            entry.row, entry.read_s = row, now
            entry.used_s = max(entry.used_s, row.touched_s)
        if row.state in BEING_MADE:
            entry.made.clear()
        else:
            entry.made.set()
        return entry

    def _forget(self, session: str) -> None:
        entry = self._entries.pop(session, None)
        if entry is not None:
            entry.made.set()  # there is nothing to wait for any more
            self._count(entry.row, -1)

    def _count(self, row: Session, change: int) -> None:
        if not row.is_live:
            return
        left = self._live.get(row.owner, 0) + change
        if left:
            self._live[row.owner] = left
        else:
            self._live.pop(row.owner, None)
