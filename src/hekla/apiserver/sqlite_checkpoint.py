"""Folds the write-ahead log into the database, in a thread and a connection of its own, off the writer's path.

A passive checkpoint disturbs nobody but cannot start the log anew while the writer is busy, and the file would grow
without end; so when it is large, one that holds the writer for a moment follows, and when the writer rests, the file
is cut to nothing.
"""

import threading

import structlog

from hekla.apiserver.sqlite_driver import Connection, SqliteError
from hekla.apiserver.sqlite_files import PAGE_BYTES, StoreFiles

log = structlog.get_logger(__name__)

PAUSE_S = 0.25
IDLE_S = 2.0
LARGE_WAL_BYTES = 64 << 20
RETRY_S = 5.0


class Checkpointer:
    """The thread. `note_commit` wakes it; `stop` ends it."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._connection: Connection = files.connect()
        self._dirty, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="hekla-checkpoint", daemon=True)
        self._thread.start()

    def note_commit(self) -> None:
        """Something was written."""
        if not self._dirty.is_set():
            self._dirty.set()

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stopped.set()
        self._dirty.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._dirty.wait()
            while not self._stopped.wait(PAUSE_S) and self._work():
                pass

    def _work(self) -> bool:
        """One round; False when all is folded in and there is nothing to wait for."""
        try:
            return self._round()
        except SqliteError as error:
            log.warning("checkpoint failed", path=str(self._files.path), error=str(error), retry_s=RETRY_S)
            self._stopped.wait(RETRY_S)
            return True

    def _round(self) -> bool:
        self._dirty.clear()
        frames = int(self._connection.run("pragma wal_checkpoint(passive)")[0][1])
        if frames * PAGE_BYTES > LARGE_WAL_BYTES:
            # the file keeps its size, and writing over it is cheaper than growing it; it is cut when the writer rests
            self._connection.run("pragma wal_checkpoint(restart)")
        if self._dirty.wait(IDLE_S):
            return True
        self._connection.run("pragma wal_checkpoint(truncate)")
        return False
