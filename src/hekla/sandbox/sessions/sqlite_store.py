"""Sessions in a SQLite file: for the one gateway of an embedded platform.

Rows are written on the event loop: 40 us each, where a thread of its own would cost two changes of threads. WAL with
synchronous=NORMAL survives kill -9 of the process, not a power cut, which ends every sandbox anyway. What a power cut
does not end is on disk before it is told: snapshots, and sessions that are paused with their files alone. That wait, and
the folding of the write-ahead log, are another thread's.

A session that has only just been asked for is written with its first change, which names its sandbox. Nobody else reads this
file, and who finds a sandbox of a session without a row after a crash gives it back: that is what would become of it with one.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec

from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.records import Session, Snapshot
from hekla.sandbox.sessions.store import StoreUnavailableError

FOLD_AFTER = 2000
"""Writes between two foldings of the log: a few megabytes."""

_PRAGMAS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA wal_autocheckpoint=0")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, revision INTEGER NOT NULL, touched REAL NOT NULL, row BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshot (id TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID;
"""
_encode = msgspec.json.Encoder().encode
_session = msgspec.json.Decoder(Session).decode
_snapshot = msgspec.json.Decoder(Snapshot).decode


class SqliteSessions:
    """A `SessionStore` in one file."""

    is_shared = False

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        try:
            self._file = apsw.Connection(self._path)
            self._file.set_busy_timeout(5000)
            for pragma in _PRAGMAS:
                # One by one and to the end: apsw stops at the first row, and of three in one text the first alone was done,
                # so that each row of a session held up the event loop until the disk had it
                self._file.execute(pragma).fetchall()
            self._file.execute(_SCHEMA)
        except apsw.Error as error:
            raise StoreUnavailableError(f"{self._path} cannot be opened: {error}") from error
        self._begun: dict[str, Session] = {}
        """Sessions that have only just been asked for, by id."""
        self._writes = 0
        self._folding: asyncio.Future[None] | None = None

    async def create(self, session: Session) -> bool:
        """Write a new row, or keep it for its first change."""
        if await self.get(session.id) is not None:
            return False
        if session.state is State.CREATING:
            self._begun[session.id] = session
        else:
            self._insert(session)
        return True

    def _insert(self, session: Session) -> None:
        self._do(
            "INSERT INTO session VALUES (?, ?, ?, ?)", session.id, session.revision, session.touched_s, _encode(session)
        )

    async def get(self, session: str) -> Session | None:
        """The row of that id."""
        if (begun := self._begun.get(session)) is not None:
            return begun
        rows = self._ask("SELECT row, revision, touched FROM session WHERE id = ?", session)
        return _read(rows[0]) if rows else None

    async def update(self, session: Session) -> Session | None:
        """Write over the row whose revision is this one's."""
        written = msgspec.structs.replace(session, revision=session.revision + 1)
        begun = self._begun.get(session.id)
        if begun is not None and begun.revision == session.revision:
            self._insert(written)
            del self._begun[session.id]
        elif not self._overwrite(session.revision, written):
            return None
        if written.state is State.PAUSED and written.checkpoint:
            await self._on_disk()
        return written

    def _overwrite(self, revision: int, written: Session) -> bool:
        self._do(
            "UPDATE session SET revision = ?, touched = max(touched, ?), row = ? WHERE id = ? AND revision = ?",
            written.revision, written.touched_s, _encode(written), written.id, revision,
        )  # fmt: skip
        return bool(self._file.changes())

    async def touch(self, used: Mapping[str, float]) -> None:
        """When sessions were used last."""
        with self._file:
            for session, when in used.items():
                if (begun := self._begun.get(session)) is not None:
                    self._begun[session] = msgspec.structs.replace(begun, touched_s=max(begun.touched_s, when))
                    continue
                self._do("UPDATE session SET touched = max(touched, ?) WHERE id = ?", when, session)

    async def delete(self, session: str) -> bool:
        """Remove the row."""
        if self._begun.pop(session, None) is not None:
            return True
        self._do("DELETE FROM session WHERE id = ?", session)
        return bool(self._file.changes())

    async def all(self) -> list[Session]:
        """Every row."""
        rows = self._ask("SELECT row, revision, touched FROM session")
        return [*map(_read, rows), *self._begun.values()]

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot down; one that cannot be kept is not listed either."""
        self._do("INSERT OR REPLACE INTO snapshot VALUES (?, ?)", snapshot.id, _encode(snapshot))
        try:
            await self._on_disk()
        except StoreUnavailableError:
            self._do("DELETE FROM snapshot WHERE id = ?", snapshot.id)
            raise

    async def snapshots(self) -> list[Snapshot]:
        """Every snapshot."""
        return [_snapshot(row) for (row,) in self._ask("SELECT row FROM snapshot")]

    async def delete_snapshot(self, snapshot: str) -> bool:
        """Remove it."""
        self._do("DELETE FROM snapshot WHERE id = ?", snapshot)
        return bool(self._file.changes())

    async def ping(self) -> None:
        """Return if it answers."""
        self._ask("SELECT 1")

    async def close(self) -> None:
        """Fold the log away and close the file."""
        if self._folding is not None:
            await asyncio.wait([self._folding])
        self._file.close()

    async def _on_disk(self) -> None:
        """Return once what was written survives a power cut."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, _synced, f"{self._path}-wal")
        except OSError as error:
            raise StoreUnavailableError(f"{self._path}: {error}") from error

    def _do(self, statement: str, *values: Any) -> None:
        try:
            self._file.execute(statement, values)
        except apsw.Error as error:
            raise StoreUnavailableError(f"{self._path}: {error}") from error
        self._writes += 1
        if self._writes >= FOLD_AFTER and (self._folding is None or self._folding.done()):
            self._writes = 0
            self._folding = asyncio.get_running_loop().run_in_executor(None, _fold, self._path)

    def _ask(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return list(self._file.execute(question, values))
        except apsw.Error as error:
            raise StoreUnavailableError(f"{self._path}: {error}") from error


def _read(row: tuple[Any, ...]) -> Session:
    text, revision, touched = row
    return msgspec.structs.replace(_session(text), revision=revision, touched_s=touched)


def _synced(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _fold(path: str) -> None:
    file = apsw.Connection(path)
    try:
        file.set_busy_timeout(5000)
        file.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    finally:
        file.close()
