"""The half of a store that lives on the event loop: who wins, what is durable, who is told.

A write is decided here, waits in a queue, and is handed on in batches by `_commit`, which `memory_store.py` and
`sqlite_store.py` implement. One batch is under way at a time and the next one fills up meanwhile: that is the group
commit. When a batch fails, it and everything queued behind it is undone, because later writes were decided on top of
it; revisions that were given out are not given out again.
"""

import asyncio
import heapq
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from copy import copy

import structlog

from hekla.apiserver.change_window import ChangeWindow, WindowLimits
from hekla.apiserver.early_telling import Early
from hekla.apiserver.object_table import ObjectTable, overlaid
from hekla.apiserver.store import (
    Change,
    EarlyListener,
    Key,
    OnChanges,
    Render,
    RevisionMismatchError,
    StoreBusyError,
    StoreClosedError,
    Stored,
    StoreError,
    Subscription,
    UndoneError,
)

log = structlog.get_logger(__name__)

# A batch of 8 MB takes about 100 ms to write on a slow disk; a longer one would show in everybody's p99.
BATCH_WRITES, BATCH_BYTES = 4096, 8 << 20
PENDING_BYTES = 256 << 20
UNDONE_RANGES = 1000

LAST_CALL_S = 0.02
"""A batch waits so long at most for what its creations make an early listener write. It takes the listener three turns of the
loop, each of 5 ms where very many write at once."""


class _Write:
    """A decided change and the caller that waits for it."""

    __slots__ = ("change", "done")

    def __init__(self, change: Change, done: "asyncio.Future[None]") -> None:
        self.change, self.done = change, done


class _Subscription:
    """One callback's registration."""

    def __init__(self, members: "dict[_Subscription, OnChanges]", callback: OnChanges) -> None:
        self._members = members
        members[self] = callback

    def close(self) -> None:
        """Stop; the callback is not called again."""
        self._members.pop(self, None)


class RevisionLog(ABC):
    """A `Store` but for where batches are made durable."""

    def __init__(self, *, revision: int, oldest: int, limits: WindowLimits | None = None) -> None:
        self._table = ObjectTable()
        self._window = ChangeWindow(oldest, limits or WindowLimits())
        self._durable = self._taken = revision
        self._queue: deque[_Write] = deque()
        self._in_flight: list[_Write] = []
        self._pending_bytes = 0
        self._before: dict[Key, Stored | None] = {}  # durable state of keys with undecided fate
        self._undone: list[tuple[int, int]] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_count = 0
        self._subscribers: dict[str, dict[_Subscription, OnChanges]] = {}
        self._is_scheduled = self._is_closed = False
        self._pause: asyncio.TimerHandle | None = None  # in which the next batch waits for more
        self._early: Early | None = None

    # ---- where batches go

    @abstractmethod
    def _commit(self, changes: Sequence[Change]) -> None:
        """Make a batch durable, then call `_finished` on the event loop."""

    @abstractmethod
    def _forget(self, fallen: Sequence[Change]) -> None:
        """These changes can no longer be watched from; whoever keeps their former states may drop them."""

    # ---- reading

    @property
    def revision(self) -> int:
        """The newest durable revision."""
        return self._durable

    @property
    def decided(self) -> int:
        """The newest decided revision."""
        if self._queue:
            return self._queue[-1].change.revision
        return self._in_flight[-1].change.revision if self._in_flight else self._durable

    @property
    def oldest(self) -> int:
        """The oldest revision from which a watch can still start."""
        return self._window.oldest

    def get(self, key: Key) -> Stored | None:
        """The object as decided."""
        return self._table.get(key)

    def list(self, resource: str, namespace: str = "") -> Sequence[Stored]:
        """All objects as decided."""
        return self._table.list(resource, namespace)

    def get_durable(self, key: Key) -> Stored | None:
        """The object as it can no longer be lost."""
        return self._before[key] if key in self._before else self._table.get(key)

    def list_durable(self, resource: str, namespace: str = "") -> Sequence[Stored]:
        """All objects exactly as of `revision`."""
        listed = self._table.list(resource, namespace)
        instead = [item for item in self._before.items() if _is_in(item[0], resource, namespace)]
        return overlaid(listed, instead) if instead else listed

    def list_at(self, resource: str, namespace: str = "", *, revision: int) -> Sequence[Stored]:
        """All objects as of an older revision."""
        listed = self.list_durable(resource, namespace)
        later = [c for c in self._window.after(resource, revision) if _is_in(c.key, resource, namespace)]
        return overlaid(listed, [(change.key, change.previous) for change in reversed(later)]) if later else listed

    def count(self, resource: str) -> int:
        """How many objects there are."""
        return self._table.count(resource)

    def version_of(self, resource: str) -> int:
        """Another number after each write of a resource."""
        return self._table.version_of(resource)

    def resources(self) -> Sequence[str]:
        """The resources that have objects."""
        return self._table.resources()

    def changes(self, resource: str, after: int) -> Sequence[Change]:
        """Durable changes after a revision."""
        return self._window.after(resource, after)

    async def settled(self, revision: int) -> None:
        """Return when a revision is durable."""
        if any(low <= revision <= high for low, high in self._undone):
            raise UndoneError(revision)
        if revision <= self._durable:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter_count += 1
        heapq.heappush(self._waiters, (revision, self._waiter_count, waiter))
        await waiter

    # ---- writing

    async def put(
        self,
        key: Key,
        render: Render,
        *,
        expected: int | None,
        labels: dict[str, str],
        fields: dict[str, str] | None = None,
    ) -> Stored:
        """Write one object and return once it is durable."""
        stored, durable = self.put_soon(key, render, expected=expected, labels=labels, fields=fields)
        await durable
        return stored

    def put_soon(
        self,
        key: Key,
        render: Render,
        *,
        expected: int | None,
        labels: dict[str, str],
        fields: dict[str, str] | None = None,
    ) -> "tuple[Stored, asyncio.Future[None]]":
        """Decide a write; the object, and what is done when it is durable."""
        current = self._admit(key, expected)
        revision = self._taken + 1
        body, managed = render(revision)
        created = current.create_revision if current else revision
        stored = Stored(key, revision, created, body, managed, labels, _named(key) if fields is None else fields)
        return stored, self._decide(Change(revision, key, stored, current, None))

    async def delete(self, key: Key, render: Render, *, expected: int | None) -> Stored:
        """Remove one object."""
        current = self._admit(key, expected)
        if current is None:
            raise RevisionMismatchError(key, None)
        revision = self._taken + 1
        body, managed = render(revision)
        last = Stored(key, revision, current.create_revision, body, managed, current.labels, current.fields)
        await self._decide(Change(revision, key, None, current, last))
        return last

    def _admit(self, key: Key, expected: int | None) -> Stored | None:
        if self._is_closed:
            raise StoreClosedError("the store is closed; start the server again")
        if self._pending_bytes > PENDING_BYTES:
            raise StoreBusyError(f"{self._pending_bytes >> 20} MiB of writes wait for the disk; try again later")
        current = self._table.get(key)
        if expected is not None and expected != (current.revision if current else 0):
            raise RevisionMismatchError(key, current)
        return current

    def _decide(self, change: Change) -> "asyncio.Future[None]":
        assert change.revision == self._taken + 1, "render must not write"
        self._taken = change.revision
        self._before.setdefault(change.key, change.previous)
        self._table.set(change.key, change.current)
        write = _Write(change, asyncio.get_running_loop().create_future())
        self._queue.append(write)
        if self._early is not None:
            self._early.note(change)
        self._pending_bytes += _bytes(change)
        self._schedule()
        return write.done

    # ---- group commit

    def _schedule(self) -> None:
        if not self._queue or self._in_flight or (self._is_scheduled and self._pause is None):
            return
        loop = asyncio.get_running_loop()
        pause_s = self._pause_s(loop.time())
        if pause_s and not self._is_scheduled:
            self._pause = loop.call_later(pause_s, self._last_call)
        elif not pause_s:  # at the end of this turn of the loop, so that all who write in it share one commit
            self._end_pause()
            loop.call_soon(self._last_call)
        self._is_scheduled = True

    def _pause_s(self, now_s: float) -> float:
        """How long the next batch waits for more to share its commit; asked anew at each write that joins it.

        A store for which commits are cheap waits for nobody.
        """
        return 0.0

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _last_call(self) -> None:
        """Begin the batch, once the early listener has written what it makes of it into the same one."""
        self._pause = None
        answered = self._early.last_call(self._durable) if self._early is not None else None
        if answered is None:
            self._start()
            return
        timer = asyncio.get_running_loop().call_later(LAST_CALL_S, answered.cancel)

        def begin(_: "asyncio.Future[None]") -> None:
            timer.cancel()
            self._start()

        answered.add_done_callback(begin)

    def _start(self) -> None:
        self._is_scheduled = False
        size = 0
        while self._queue and len(self._in_flight) < BATCH_WRITES and size < BATCH_BYTES:
            write = self._queue.popleft()
            size += _bytes(write.change)
            self._in_flight.append(write)
        self._commit([write.change for write in self._in_flight])

    def _finished(self, error: StoreError | None) -> None:
        """What `_commit` calls, on the loop, when a batch is durable or has failed."""
        batch, self._in_flight = self._in_flight, []
        if error is None:
            self._make_durable(batch)
        else:
            self._undo(batch, error)
        self._schedule()

    def _make_durable(self, batch: Sequence[_Write]) -> None:
        changes = [write.change for write in batch]
        self._durable = changes[-1].revision
        self._pending_bytes -= sum(map(_bytes, changes))
        self._forget_before(changes)
        if self._early is not None:
            self._early.settle(self._durable)
        fallen = self._window.add(changes, time.monotonic())
        self._publish(changes)
        for write in batch:
            if not write.done.done():
                write.done.set_result(None)
        while self._waiters and self._waiters[0][0] <= self._durable:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)
        if fallen:
            self._forget(fallen)

    def _forget_before(self, changes: Sequence[Change]) -> None:
        later = {write.change.key for write in self._queue}
        for change in changes:
            if change.key in later:
                self._before[change.key] = change.current
            else:
                self._before.pop(change.key, None)

    def _undo(self, batch: Sequence[_Write], error: StoreError) -> None:
        writes = [*batch, *self._queue]
        self._queue.clear()
        self._pending_bytes = 0
        for key, stored in self._before.items():
            self._table.set(key, stored)
        self._before.clear()
        low, high = writes[0].change.revision, writes[-1].change.revision
        self._note_undone(low, high)
        if self._early is not None:
            self._early.undo(self._durable)
        for write in writes:
            if not write.done.done():
                write.done.set_exception(copy(error))
        self._refuse_waiters(low, high)
        log.warning("writes undone", count=len(writes), revision=self._durable, error=str(error))

    def _note_undone(self, low: int, high: int) -> None:
        if self._undone and self._undone[-1][1] == low - 1:
            low = self._undone.pop()[0]
        self._undone.append((low, high))
        del self._undone[:-UNDONE_RANGES]

    def _refuse_waiters(self, low: int, high: int) -> None:
        refused = [waiter for waiter in self._waiters if low <= waiter[0] <= high]
        self._waiters = [waiter for waiter in self._waiters if not low <= waiter[0] <= high]
        heapq.heapify(self._waiters)
        for revision, _, waiter in refused:
            if not waiter.done():
                waiter.set_exception(UndoneError(revision))

    # ---- telling

    def subscribe(self, callback: OnChanges, *, resource: str, since: int | None = None) -> Subscription:
        """Call back with durable changes, first those after `since`."""
        past = self._window.after(resource, since) if since is not None else ()
        ahead = since if since is not None and since > self._durable else 0
        told = _only_after(callback, ahead) if ahead else callback
        subscription = _Subscription(self._subscribers.setdefault(resource, {}), told)
        if past:
            callback(past)
        return subscription

    def listen_early(self, listener: EarlyListener, *, resource: str, after: Collection[str]) -> Subscription:
        """Have a listener hear of a resource's creations before they are durable."""
        assert self._early is None, "two listeners would need an order"
        self._early = Early(listener, resource, after, self._end_early)
        return self._early

    def _end_early(self, early: Early) -> None:
        if self._early is early:
            self._early = None

    def _publish(self, changes: Sequence[Change]) -> None:
        by_resource: dict[str, list[Change]] = {}
        for change in changes:
            by_resource.setdefault(change.key.resource, []).append(change)
        for resource, some in by_resource.items():
            self._tell(self._subscribers.get(resource, {}).values(), some)
        self._tell(self._subscribers.get("", {}).values(), changes)

    def _tell(self, callbacks: Iterable[OnChanges], changes: Sequence[Change]) -> None:
        for callback in list(callbacks):
            try:
                callback(changes)
            except Exception:  # a task boundary: one subscriber's mistake must not lose another's events or writes
                log.exception("subscriber failed", first=changes[0].revision, last=changes[-1].revision)

    # ---- the end

    async def _drain(self) -> None:
        """Take no more writes and return when those that were decided are durable or undone."""
        self._is_closed = True
        while self._queue or self._in_flight:
            last = (self._queue or self._in_flight)[-1]
            await asyncio.wait([last.done])
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(StoreClosedError("the store was closed while a reader waited"))
        self._waiters.clear()


def _only_after(callback: OnChanges, revision: int) -> OnChanges:
    """Skip what a subscriber says it has seen already, though it is not durable yet."""

    def told(changes: Sequence[Change]) -> None:
        newer = [change for change in changes if change.revision > revision]
        if newer:
            callback(newer)

    return told


def _is_in(key: Key, resource: str, namespace: str) -> bool:
    return key.resource == resource and (not namespace or key.namespace == namespace)


def _named(key: Key) -> dict[str, str]:
    names = {"metadata.name": key.name}
    return names | {"metadata.namespace": key.namespace} if key.namespace else names


def _bytes(change: Change) -> int:
    stored = change.current or change.last
    return stored.size if stored else 0
