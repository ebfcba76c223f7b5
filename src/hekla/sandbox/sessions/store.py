"""Where sessions are written down. `sqlite_store.py` is for one gateway, `redis_store.py` for several; one conformance suite holds for all.

A row is made once (`create`), and written over only by who has seen it as it stands (`update` compares revisions), so that two
gateways that act on one session cannot both believe that they did.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from hekla.sandbox.sessions.records import Session, Snapshot


class StoreUnavailableError(Exception):
    """The store does not answer; the sentence says which, and why."""


class SessionStore(Protocol):
    """Rows of sessions and of snapshots. All methods raise StoreUnavailableError."""

    is_shared: bool
    """Whether others write to it, so that what was read grows old."""

    async def create(self, session: Session) -> bool:
        """Write a new row; False: there is one of that id."""

    async def get(self, session: str) -> Session | None:
        """The row of that id."""

    async def update(self, session: Session) -> Session | None:
        """Write over the row whose revision is this one's; the row as it then stands, or None: it changed or went meanwhile."""

    async def touch(self, used: Mapping[str, float]) -> None:
        """When sessions were used last; unknown ids are passed over."""

    async def delete(self, session: str) -> bool:
        """Remove the row; False: there was none."""

    async def all(self) -> list[Session]:
        """Every row."""

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot down."""

    async def snapshots(self) -> list[Snapshot]:
        """Every snapshot."""

    async def delete_snapshot(self, snapshot: str) -> bool:
        """Remove it; False: there was none."""

    async def ping(self) -> None:
        """Return if it answers."""

    async def close(self) -> None:
        """Let go of it."""


class MemoryStore:
    """Rows that end with the process."""

    is_shared = False

    def __init__(self) -> None:
        self._rows: dict[str, Session] = {}
        self._snapshots: dict[str, Snapshot] = {}

    async def create(self, session: Session) -> bool:
        """Write a new row."""
        if session.id in self._rows:
            return False
        self._rows[session.id] = session
        return True

    async def get(self, session: str) -> Session | None:
        """The row of that id."""
        return self._rows.get(session)

    async def update(self, session: Session) -> Session | None:
        """Write over the row whose revision is this one's."""
        found = self._rows.get(session.id)
        if found is None or found.revision != session.revision:
            return None
        written = msgspec.structs.replace(session, revision=session.revision + 1)
        self._rows[session.id] = written
        return written

    async def touch(self, used: Mapping[str, float]) -> None:
        """When sessions were used last."""
        for session, when in used.items():
            if (found := self._rows.get(session)) is not None:
                self._rows[session] = msgspec.structs.replace(found, touched_s=max(found.touched_s, when))

    async def delete(self, session: str) -> bool:
        """Remove the row."""
        return self._rows.pop(session, None) is not None

    async def all(self) -> list[Session]:
        """Every row."""
        return list(self._rows.values())

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot down."""
        self._snapshots[snapshot.id] = snapshot

    async def snapshots(self) -> list[Snapshot]:
        """Every snapshot."""
        return list(self._snapshots.values())

    async def delete_snapshot(self, snapshot: str) -> bool:
        """Remove it."""
        return self._snapshots.pop(snapshot, None) is not None

    async def ping(self) -> None:
        """It is here."""

    async def close(self) -> None:
        """Nothing to let go of."""
