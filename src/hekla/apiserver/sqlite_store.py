"""The durable store: a revision log on SQLite in WAL mode with synchronous=FULL, and its current state in memory.

`revision_log.py` decides on the event loop and collects batches; a writer thread commits each with one fsync;
`sqlite_checkpoint.py` folds the write-ahead log away; `sqlite_files.py` opens and checks the directory. A row goes
when the change that superseded it can no longer be watched from, so that the file holds the current objects and the
same recent past as memory does, and a watcher may resume across a restart.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import structlog

from hekla.apiserver.change_window import WindowLimits
from hekla.apiserver.revision_log import BATCH_BYTES, RevisionLog
from hekla.apiserver.sqlite_checkpoint import Checkpointer
from hekla.apiserver.sqlite_driver import Code, Driver, SqliteError, best_driver
from hekla.apiserver.sqlite_files import StoreFiles
from hekla.apiserver.sqlite_journal import ROWS_AT_ONCE, Batch, Journal
from hekla.apiserver.store import Change, StoreError, StoreFullError
from hekla.kube.collecting import without_collecting

log = structlog.get_logger(__name__)

GARBAGE_PER_BATCH = 512
GARBAGE_PAUSE_S = 0.25
LOADED_AT_ONCE = 1000

PAUSE_S = 0.001
"""The finest that uvloop's clock can tell."""
WRITES_PER_PAUSE = 4
"""A batch waits so much longer for each so many writes of the last one: who writes alone waits for nobody."""
LONGEST_PAUSE_S = 0.005
BUSY_S = 0.010
"""The last batch tells nothing any more when it has been over for so long."""


class SqliteStore(RevisionLog):
    """A `Store` in a directory. Opening reads all current objects; raises StoreOpenError if that cannot be."""

    def __init__(
        self, directory: Path | str, *, limits: WindowLimits | None = None, driver: Driver | None = None
    ) -> None:
        self._files = StoreFiles(Path(directory), driver or best_driver())
        self._journal = Journal(self._files)
        self._garbage: deque[tuple[int, int]] = deque()  # (revision of the change that fell out, row to delete)
        self._sweep: asyncio.TimerHandle | None = None
        self._jobs: queue.SimpleQueue[tuple[Batch, asyncio.AbstractEventLoop] | None] = queue.SimpleQueue()
        self._last_size, self._last_end_s = 0, 0.0
        self._compacted = self._files.meta("compacted")
        super().__init__(revision=self._compacted, oldest=self._compacted, limits=limits)
        try:
            with without_collecting():
                self._load()
            self._checkpointer = Checkpointer(self._files)
        except SqliteError as error:
            self._files.close(is_clean=False)
            raise self._files.sentence(error) from error
        except StoreError:
            self._files.close(is_clean=False)
            raise
        self._writer = threading.Thread(target=self._write_jobs, name="hekla-store", daemon=True)
        self._writer.start()

    @property
    def directory(self) -> Path:
        """Where the data is."""
        return self._files.directory

    async def close(self) -> None:
        """Finish what was decided, fold the write-ahead log away, and let go of the directory; twice is once."""
        if self._is_closed:
            return
        await self._drain()
        if self._sweep:
            self._sweep.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._shut)

    def _shut(self) -> None:
        self._jobs.put(None)
        self._writer.join()
        self._checkpointer.stop()
        try:
            self._journal.finish()
            self._files.close(is_clean=True)
        except SqliteError as error:
            # nothing is lost: the next start reads the write-ahead log and checks the pages
            log.warning("store not closed cleanly", path=str(self._files.path), error=str(error))

    # ---- reading it all back

    def _load(self) -> None:
        now_s, some = time.monotonic(), list[Change]()
        for stored, is_deletion in self._journal.read():
            current, last = (None, stored) if is_deletion else (stored, None)
            some.append(Change(stored.revision, stored.key, current, self._table.get(stored.key), last))
            self._table.set(stored.key, current)
            self._durable = max(self._durable, stored.revision)
            if len(some) >= LOADED_AT_ONCE:
                self._remember(some, now_s)
                some = []
        self._remember(some, now_s)
        self._taken = self._durable

    def _remember(self, changes: Sequence[Change], now_s: float) -> None:
        self._forget([change for change in changes if change.revision <= self._compacted])
        self._forget(self._window.add([change for change in changes if change.revision > self._compacted], now_s))

    # ---- writing

    def _pause_s(self, now_s: float) -> float:
        # A commit hands the interpreter over several times, whatever its size, and who writes at once must all wait for it.
        if self._is_crowd_whole() or now_s - self._last_end_s > BUSY_S:
            return 0.0
        return min(LONGEST_PAUSE_S, self._last_size // WRITES_PER_PAUSE * PAUSE_S)

    def _is_crowd_whole(self) -> bool:
        # As many as came last time are likely to be all that come: of 20 writers who each wait for their answer all have
        # written again by then, and waiting on held them at 3,100 writes a second instead of 18,500.
        return len(self._queue) >= min(self._last_size, ROWS_AT_ONCE) or self._pending_bytes >= BATCH_BYTES

    def _commit(self, changes: Sequence[Change]) -> None:
        # Rows are swept in pauses; only when they heap up do they ride with the writes.
        count = min(len(self._garbage), 2 * len(changes)) if len(self._garbage) > 20 * GARBAGE_PER_BATCH else 0
        self._submit(changes, count)

    def _submit(self, changes: Sequence[Change], garbage: int) -> None:
        swept = [self._garbage.popleft() for _ in range(garbage)]
        self._compacted = max([self._compacted, *(revision for revision, _ in swept)])
        self._jobs.put((Batch(changes, swept, self._compacted), asyncio.get_running_loop()))

    def _write_jobs(self) -> None:
        """The writer thread's life."""
        while (job := self._jobs.get()) is not None:
            batch, loop = job
            error = self._written(batch)
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it everybody who waited
                loop.call_soon_threadsafe(self._done, batch, error)

    def _written(self, batch: Batch) -> StoreError | None:
        try:
            self._journal.write(batch)
        except SqliteError as error:
            return self._refusal(error)
        except Exception as error:  # a task boundary: the thread must live and every writer be answered
            log.exception("writer failed")
            self._journal.distrust()
            return StoreError(f"{self._files.path} could not be written: {error}")
        self._checkpointer.note_commit()
        return None

    def _refusal(self, error: SqliteError) -> StoreFullError:
        what = "its disk is full" if error.code == Code.FULL else f"its disk refused: {error}"
        return StoreFullError(f"{self._files.path} could not be written, {what}; free space on it and try again")

    def _done(self, batch: Batch, error: StoreError | None) -> None:
        if error is not None and batch.garbage:
            self._garbage.extendleft(reversed(batch.garbage))
        if batch.changes:
            self._last_size = 0 if error else len(batch.changes)
            self._last_end_s = asyncio.get_running_loop().time()
            self._finished(error)
        self._plan_sweep()

    # ---- compaction

    def _forget(self, fallen: Sequence[Change]) -> None:
        for change in fallen:
            if change.previous is not None:
                self._garbage.append((change.revision, change.previous.revision))
            if change.current is None:
                self._garbage.append((change.revision, change.revision))

    def _plan_sweep(self) -> None:
        if self._garbage and self._sweep is None and not self._is_closed:
            self._sweep = asyncio.get_running_loop().call_later(GARBAGE_PAUSE_S, self._sweep_some)

    def _sweep_some(self) -> None:
        self._sweep = None
        if self._in_flight or self._queue:
            self._plan_sweep()
        elif not self._is_closed:
            self._submit((), min(len(self._garbage), GARBAGE_PER_BATCH))
