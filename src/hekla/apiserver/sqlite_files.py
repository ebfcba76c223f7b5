"""The store's files: who may use a data directory, which version wrote it, whether it is whole.

    DIR/store.db       the log table and a few facts (`meta`); `store.db-wal` and `-shm` beside it while it is open
    DIR/store.lock     locked by the process that works here, whose id it holds

Everything that can be wrong with a directory is found here, at the start, and said in a sentence that names the path
and what to do. `sqlite_store.py` goes on with the open files.
"""

import fcntl
import os
from pathlib import Path

from hekla.apiserver.sqlite_driver import Code, Connection, Driver, SqliteError
from hekla.apiserver.store import (
    GENESIS,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreOpenError,
    StorePermissionError,
    StoreVersionError,
)

SCHEMA_VERSION = 1
PAGE_BYTES = 4096  # a pod of 4 kB and its key take 4.6 kB on disk; at 8192 they took 8.2, no faster

TABLES = (
    "create table meta(name text primary key, value integer not null) without rowid",
    # the body comes last: a scan for keys then need not follow the overflow pages
    "create table log(rv integer primary key, resource text not null, namespace text not null, name text not null,"
    " created integer not null, is_deletion integer not null, crc integer not null,"
    " selectors blob not null, managed blob not null, body blob not null)",
)
# autocheckpoint off: in the writer it made p99 70 to 110 ms (specs/performance.md 6.3); `sqlite_checkpoint.py` does it
PRAGMAS = (
    f"page_size={PAGE_BYTES}",
    "journal_mode=wal",
    "synchronous=full",
    "wal_autocheckpoint=0",
    "cache_size=-16384",
    "temp_store=memory",
)


class StoreFiles:
    """A data directory that this process holds: open, checked, with its tables."""

    def __init__(self, directory: Path, driver: Driver) -> None:
        self.directory, self.path, self._driver = directory, directory / "store.db", driver
        self._lock = _lock(directory)
        try:
            _create_private(self.path)
            self.writer = self._connected()
        except BaseException:  # whatever it was goes on up; the lock must not stay
            os.close(self._lock)
            raise
        try:
            self._check()
        except BaseException:  # likewise, and the connection neither
            self.close(is_clean=False)
            raise

    def connect(self) -> Connection:
        """One more connection, set up as all of them are."""
        connection = self._driver(self.path)
        try:
            for pragma in PRAGMAS:
                connection.run(f"pragma {pragma}")
        except SqliteError:
            connection.close()
            raise
        return connection

    def meta(self, name: str) -> int:
        """A remembered fact."""
        rows = self.writer.run("select value from meta where name = ?", (name,))
        return int(rows[0][0]) if rows else 0

    def set_meta(self, name: str, value: int) -> None:
        """Remember a fact, in the running transaction if there is one."""
        self.writer.run(
            "insert into meta values(?, ?) on conflict(name) do update set value = excluded.value", (name, value)
        )

    def reopen_writer(self) -> None:
        """Begin anew after an I/O error, whose connection is not to be trusted."""
        self.writer.close()
        self.writer = self.connect()

    def close(self, *, is_clean: bool) -> None:
        """Fold the write-ahead log into the database, note that the end was good, and let go of the directory."""
        try:
            if is_clean:
                self.set_meta("is_clean", 1)
                self.writer.run("pragma wal_checkpoint(truncate)")
        finally:
            self.writer.close()
            os.close(self._lock)

    def sentence(self, error: SqliteError) -> StoreError:
        """What an error while opening or reading means to the one who can mend it."""
        return _meaning(self.path, error)

    def _connected(self) -> Connection:
        try:
            return self.connect()
        except SqliteError as error:
            raise _meaning(self.path, error) from error

    def _check(self) -> None:
        try:
            self._check_schema()
            self._check_pages()
            self.set_meta("is_clean", 0)
        except SqliteError as error:
            raise _meaning(self.path, error) from error

    def _check_schema(self) -> None:
        tables = {str(row[0]) for row in self.writer.run("select name from sqlite_schema where type = 'table'")}
        if not tables:
            self._create_tables()
            return
        version = self.meta("schema") if "meta" in tables else 0
        if version > SCHEMA_VERSION:
            raise StoreVersionError(
                f"{self.path} was written by a newer Hekla (data version {version}, this one knows {SCHEMA_VERSION}); "
                "upgrade hekla, or choose another --data-dir"
            )
        if "log" not in tables:
            raise StoreCorruptError(f"{self.path} is a database, but not one of Hekla's; choose another --data-dir")

    def _create_tables(self) -> None:
        self.writer.run("begin immediate")
        for table in TABLES:
            self.writer.run(table)
        for name, value in (("schema", SCHEMA_VERSION), ("compacted", GENESIS), ("is_clean", 1)):
            self.set_meta(name, value)
        self.writer.run("commit")

    def _check_pages(self) -> None:
        if self.meta("is_clean"):
            return
        found = str(self.writer.run("pragma quick_check(1)")[0][0])
        if found != "ok":
            raise damaged(self.path, found)


def damaged(path: Path, detail: str) -> StoreCorruptError:
    """The data is not what was written."""
    return StoreCorruptError(
        f"{path} is damaged ({' '.join(detail.split())}); restore it from a copy, or move it away to start empty"
    )


def _create_private(path: Path) -> None:
    # Secrets are in it. SQLite gives the files beside it the same mode.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _unusable(path, error) from error


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(directory / "store.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreLockedError(
            f"{directory} is in use by process {holder or 'unknown'}; stop it (hekla down --data-dir {directory}) "
            "or choose another --data-dir",
            int(holder) if holder.isdigit() else 0,
        ) from error
    except OSError as error:  # a file system without locks
        os.close(descriptor)
        raise _unusable(directory, error) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def _unusable(path: Path, error: OSError) -> StoreOpenError:
    if isinstance(error, PermissionError):
        return StorePermissionError(
            f"{path} may not be written by user {os.getuid()}; change its owner or mode, or choose another --data-dir"
        )
    return StoreOpenError(f"{path} cannot be used: {error.strerror}; choose another --data-dir")


def _meaning(path: Path, error: SqliteError) -> StoreError:
    if error.code in (Code.CORRUPT, Code.NOTADB):
        return damaged(path, str(error))
    if error.code in (Code.PERM, Code.READONLY, Code.CANTOPEN):
        return StorePermissionError(
            f"{path} may not be read and written by user {os.getuid()} ({error}); change its owner or mode, "
            "or choose another --data-dir"
        )
    return StoreOpenError(f"{path} cannot be opened ({error}); free space on its disk or choose another --data-dir")
