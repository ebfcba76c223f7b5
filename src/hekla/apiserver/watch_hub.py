"""Fans durable changes out to watchers: each event is encoded once per representation, each batch written once.

    hub = WatchHub(store)
    watch = hub.watch(WatchRequest(resource="pods", encode=json_event, since=4711, namespace="ml"), sink)

A watch is *live* or *behind*. Live ones that ask for the same thing form a cohort, which shares frames and the bytes
joined of them; a cohort is found by resource, namespace and one pinned field, so that ten thousand idle watches cost
nothing when something else changes. One that is behind (it resumes, it wants the initial state, or its reader is slow)
is fed from the store's window at the reader's pace, at most `HIGH_WATER_BYTES` ahead of it: what a slow reader has not
read waits in the one shared window and not once per reader. When the window moves on past it, it is told that its
revision is gone and closed; when it reads nothing at all for `STALLED_S`, it is cut off.

`watch_cohorts.py` groups the live ones; `handlers_watch.py` turns HTTP requests into watches.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from hekla.apiserver.store import Change, CompactedError, Store, Stored, Subscription
from hekla.apiserver.watch_cohorts import Channel, Encode, Matches, event_of
from hekla.wire.messages import Sink

log = structlog.get_logger(__name__)

HIGH_WATER_BYTES = 1 << 20
CHUNK_EVENTS = 256
POLL_S = 0.02
STALLED_S = 60.0
BOOKMARK_S = 60
BOOKMARK_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchRequest:
    """What somebody wants to see. Equal `encode` and `matches` are shared, so hand in the same ones where you can."""

    resource: str
    encode: Encode
    """(type, object, revision) to a whole frame. `revision` is the event's; it differs from the object's own only when
    an object ceases to match: then its former state is shown, which should carry the event's revision."""

    since: int | None = None
    """The revision after which to begin; None: now."""

    namespace: str = ""
    field: tuple[str, str] | None = None
    """One field pinned to a value (`metadata.name`, `spec.nodeName`): only such objects, found through an index."""

    matches: Matches | None = None
    """Any further condition on an object; None: none."""

    has_initial: bool = False
    """First an ADDED for every object there is now; `since` is ignored."""

    initial_end: Callable[[int], bytes] | None = None
    """The frame behind the initial objects, from the revision they are at (`k8s.io/initial-events-end`)."""

    bookmark: Callable[[int], bytes] | None = None
    """From a revision to a bookmark's frame; None: no bookmarks."""

    gone: Callable[[CompactedError], bytes] | None = None
    """The last frame for one who fell behind too far (an ERROR with a Status 410)."""

    def wants(self, stored: Stored) -> bool:
        """Whether an object of the resource and namespace is selected."""
        if self.field is not None and stored.fields.get(self.field[0], "") != self.field[1]:
            return False
        return self.matches is None or self.matches(stored)


class Watch:
    """One watcher. Made by `WatchHub.watch`."""

    __slots__ = ("_hub", "cursor", "initial", "is_closed", "last_buffered", "last_moved_s", "request", "sink")

    def __init__(self, hub: "WatchHub", request: WatchRequest, sink: Sink, cursor: int) -> None:
        self._hub, self.request, self.sink = hub, request, sink
        self.cursor = cursor  # while behind: everything up to here has been sent
        self.initial: Iterator[Stored] | None = None
        self.is_closed = False
        self.last_buffered, self.last_moved_s = 0, 0.0

    @property
    def progress(self) -> int:
        """The revision up to which everything has been sent: what a bookmark may say."""
        return self._hub.progress_of(self)

    def close(self) -> None:
        """Stop watching; ends the response in good order (a time limit, a shutdown)."""
        if self._hub.drop(self):
            self.sink.close()


class WatchHub:
    """All watches on one store. Used on its event loop only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channels: dict[str, tuple[Channel[Watch], Subscription]] = {}
        self._behind: dict[Watch, None] = {}
        self._poll: asyncio.TimerHandle | None = None
        self._bookmarks: deque[Watch] = deque()
        self._bookmark_timer: asyncio.TimerHandle | None = None
        self._count = 0

    @property
    def count(self) -> int:
        """How many watches there are."""
        return self._count

    def watch(self, request: WatchRequest, sink: Sink) -> Watch:
        """Begin to write events into a sink; raises CompactedError if `since` is too old, before anything is written."""
        store = self._store
        since = store.revision if request.since is None or request.has_initial else request.since
        if since < store.oldest:
            raise CompactedError(since, store.oldest)
        watch = Watch(self, request, sink, since)
        if request.has_initial:
            watch.initial = iter(store.list_durable(request.resource, request.namespace))
        self._count += 1
        self._behind[watch] = None
        self._feed(watch)
        if request.bookmark is not None and not watch.is_closed:
            self._bookmarks.append(watch)
            self._plan_bookmarks()
        sink.on_close(lambda: self._ended(watch))
        return watch

    def close(self) -> None:
        """End all watches in good order: their clients reconnect and resume."""
        for watch in [*self._behind, *(one for channel, _ in self._channels.values() for one in channel.members())]:
            watch.close()
        for timer in (self._poll, self._bookmark_timer):
            if timer is not None:
                timer.cancel()
        self._bookmarks.clear()

    def close_resource(self, resource: str) -> None:
        """End the watches of a resource that is served no more, in good order."""
        live = self._channels[resource][0].members() if resource in self._channels else ()
        for watch in [*(one for one in self._behind if one.request.resource == resource), *live]:
            watch.close()

    def resources(self) -> list[str]:
        """What is being watched."""
        return list({*self._channels, *(watch.request.resource for watch in self._behind)})

    def progress_of(self, watch: Watch) -> int:
        """See `Watch.progress`."""
        return watch.cursor if watch in self._behind else max(self._store.revision, watch.cursor)

    def _ended(self, watch: Watch) -> None:
        self.drop(watch)

    def drop(self, watch: Watch) -> bool:
        """Forget a watch without touching its sink; False if it was forgotten already."""
        if watch.is_closed:
            return False
        watch.is_closed = True
        watch.initial = None
        self._count -= 1
        if watch in self._behind:
            del self._behind[watch]
        else:
            self._leave(watch)
        return True

    # ---- live

    def _join(self, watch: Watch) -> None:
        request = watch.request
        if request.resource not in self._channels:
            channel: Channel[Watch] = Channel()
            subscription = self._store.subscribe(lambda some: self._dispatch(channel, some), resource=request.resource)
            self._channels[request.resource] = channel, subscription
        ahead = watch.cursor if watch.cursor > self._store.revision else 0
        kind = request.encode, request.matches, ahead
        self._channels[request.resource][0].add(watch, request.namespace, request.field, kind)

    def _leave(self, watch: Watch) -> None:
        channel, subscription = self._channels[watch.request.resource]
        channel.remove(watch)
        if channel.is_empty:
            subscription.close()
            del self._channels[watch.request.resource]

    def _dispatch(self, channel: Channel[Watch], changes: Sequence[Change]) -> None:
        sent = channel.dispatch(changes)
        for watch in sent.broken:
            self._cut(watch)
        for blob, watches in sent.blobs:
            for watch in watches:
                if watch.is_closed:
                    continue
                if watch.sink.buffered > HIGH_WATER_BYTES:
                    self._fall_behind(watch, changes[0].revision - 1)
                else:
                    watch.sink.write(blob)

    def _fall_behind(self, watch: Watch, cursor: int) -> None:
        self._leave(watch)
        watch.cursor = max(watch.cursor, cursor)
        watch.last_buffered, watch.last_moved_s = watch.sink.buffered, asyncio.get_running_loop().time()
        self._behind[watch] = None
        self._plan_poll()

    # ---- behind

    def _feed(self, watch: Watch) -> None:
        """Send as much as the reader takes; make it live once it has everything."""
        try:
            while not watch.is_closed and watch.sink.buffered <= HIGH_WATER_BYTES:
                if not self._send_initial(watch) and not self._send_past(watch) and not watch.is_closed:
                    del self._behind[watch]
                    self._join(watch)
                    return
        except CompactedError as error:
            self._say_gone(watch, error)
        except Exception:  # a task boundary: an encoder's or a selector's mistake ends this watch and no other
            log.exception("watch failed", resource=watch.request.resource)
            self._cut(watch)
        if not watch.is_closed:
            watch.last_buffered, watch.last_moved_s = watch.sink.buffered, asyncio.get_running_loop().time()
            self._plan_poll()

    def _send_initial(self, watch: Watch) -> bool:
        """The next objects of the initial state; False if there are none."""
        if watch.initial is None:
            return False
        request = watch.request
        some = list(islice(watch.initial, CHUNK_EVENTS))
        frames = [request.encode("ADDED", stored, stored.revision) for stored in some if request.wants(stored)]
        if not some:
            watch.initial = None
            frames = [request.initial_end(watch.cursor)] if request.initial_end else []
        _write(watch.sink, frames)
        return True

    def _send_past(self, watch: Watch) -> bool:
        """The next changes out of the window; False if there are none."""
        request = watch.request
        past = self._store.changes(request.resource, watch.cursor)
        some = past[:CHUNK_EVENTS]
        if not some:
            return False
        _write(watch.sink, _frames_of(request, some))
        watch.cursor = some[-1].revision
        return len(some) < len(past)

    def _say_gone(self, watch: Watch, error: CompactedError) -> None:
        log.info("watch fell behind", resource=watch.request.resource, revision=error.wanted, oldest=error.oldest)
        if watch.request.gone is not None:
            watch.sink.write(watch.request.gone(error))
        watch.close()

    def _cut(self, watch: Watch) -> None:
        self.drop(watch)
        watch.sink.abort()

    def _plan_poll(self) -> None:
        if self._poll is None and self._behind:
            pause_s = POLL_S + 2e-5 * len(self._behind)  # a look costs 1 us: at most a twentieth of the loop's time
            self._poll = asyncio.get_running_loop().call_later(pause_s, self._poll_behind)

    def _poll_behind(self) -> None:
        self._poll = None
        now_s = asyncio.get_running_loop().time()
        for watch in list(self._behind):
            buffered = watch.sink.buffered
            if buffered <= HIGH_WATER_BYTES:
                self._feed(watch)
            elif buffered < watch.last_buffered:
                watch.last_buffered, watch.last_moved_s = buffered, now_s
            elif now_s - watch.last_moved_s > STALLED_S:
                log.info("watch cut off", resource=watch.request.resource, buffered=buffered, stalled_s=STALLED_S)
                self._cut(watch)
        self._plan_poll()

    # ---- bookmarks

    def _plan_bookmarks(self) -> None:
        if self._bookmark_timer is None and self._bookmarks:
            self._bookmark_timer = asyncio.get_running_loop().call_later(BOOKMARK_PAUSE_S, self._send_bookmarks)

    def _send_bookmarks(self) -> None:
        """Once a second to one sixtieth of those who want them, so that no second has to write them all."""
        self._bookmark_timer = None
        for _ in range(-(-len(self._bookmarks) // BOOKMARK_S)):
            watch = self._bookmarks.popleft()
            if watch.is_closed:
                continue
            self._bookmarks.append(watch)
            if watch not in self._behind and watch.request.bookmark is not None:
                watch.sink.write(watch.request.bookmark(watch.progress))
        self._plan_bookmarks()


def _frames_of(request: WatchRequest, changes: Iterable[Change]) -> Iterator[bytes]:
    for change in changes:
        if request.namespace and change.key.namespace != request.namespace:
            continue
        event = event_of(change, request.wants)
        if event is not None:
            yield request.encode(*event, change.revision)


def _write(sink: Sink, frames: Iterable[bytes]) -> None:
    blob = b"".join(frames)
    if blob:
        sink.write(blob)
