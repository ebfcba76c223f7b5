"""Two ways to speak to SQLite, apsw and the standard library, behind one small protocol.

apsw brings a newer SQLite and is 3 to 25 % faster; the standard module is always there. `sqlite_store.py` takes apsw
when it can be imported. Both raise `SqliteError` with SQLite's own result code, so that nobody else reads messages.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

try:
    import apsw
except ImportError:  # pragma: no cover  the standard library's twin then serves
    apsw = None  # type: ignore[assignment]  # the absent module is asked for below

Row = tuple[Any, ...]
BUSY_TIMEOUT_MS = 30_000


class Code(IntEnum):
    """SQLite's primary result codes that somebody acts on."""

    PERM = 3
    BUSY = 5
    READONLY = 8
    IOERR = 10
    CORRUPT = 11
    FULL = 13
    CANTOPEN = 14
    NOTADB = 26


class SqliteError(Exception):
    """SQLite said no; `code` is its primary result code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code & 0xFF


class Connection(Protocol):
    """One connection in autocommit mode; used by one thread at a time."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement and return its rows."""

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each row of values."""

    def scan(self, sql: str) -> Iterator[Row]:
        """Execute one query and return its rows one by one."""

    def close(self) -> None:
        """Close; a second call does nothing."""


Driver = Callable[[Path], Connection]
"""Opens a connection to a file."""


class StandardConnection:
    """The standard library's sqlite3."""

    def __init__(self, path: Path) -> None:
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1000
            )
        except sqlite3.Error as error:
            raise _from_standard(error) from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement and return its rows."""
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise _from_standard(error) from error

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each row of values."""
        try:
            self._connection.executemany(sql, rows)
        except sqlite3.Error as error:
            raise _from_standard(error) from error

    def scan(self, sql: str) -> Iterator[Row]:
        """Execute one query and return its rows one by one."""
        try:
            yield from self._connection.execute(sql)
        except sqlite3.Error as error:
            raise _from_standard(error) from error

    def close(self) -> None:
        """Close."""
        self._connection.close()


class ApswConnection:
    """apsw, with the SQLite of its wheel."""

    def __init__(self, path: Path) -> None:
        try:
            self._connection = apsw.Connection(str(path))
            self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        except apsw.Error as error:
            raise _from_apsw(error) from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement and return its rows."""
        try:
            return self._connection.execute(sql, values).fetchall()
        except apsw.Error as error:
            raise _from_apsw(error) from error

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each row of values."""
        try:
            for _ in self._connection.executemany(sql, rows):
                pass
        except apsw.Error as error:
            raise _from_apsw(error) from error

    def scan(self, sql: str) -> Iterator[Row]:
        """Execute one query and return its rows one by one."""
        try:
            yield from self._connection.execute(sql)
        except apsw.Error as error:
            raise _from_apsw(error) from error

    def close(self) -> None:
        """Close."""
        self._connection.close()


def best_driver() -> Driver:
    """Apsw if it can be imported, the standard library otherwise."""
    return ApswConnection if apsw is not None else StandardConnection


def _from_standard(error: sqlite3.Error) -> SqliteError:
    return SqliteError(str(error), getattr(error, "sqlite_errorcode", 1))


def _from_apsw(error: "apsw.Error") -> SqliteError:
    return SqliteError(str(error), getattr(error, "result", 1))
