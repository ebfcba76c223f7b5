"""Keeps a cache of a kind true: list once, then watch, for as long as the process lives.

No event is lost or repeated, whatever breaks: a broken watch resumes after the last revision seen; where the server no
longer has that revision (410), or lost it, the kind is listed anew and only the differences are told. `runtime.py`
stands on this; `cache.py` holds the objects.
"""

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from itertools import islice
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import structlog

from hekla.api.meta import Resource
from hekla.kube.api_client import INITIAL_EVENTS_END, ApiClient
from hekla.kube.cache import Cache, ObjectKey, key_of
from hekla.kube.client import EventType, WatchEvent
from hekla.kube.errors import ApiError, GoneError, NotFoundError, TransportError
from hekla.kube.reach import Reach

T = TypeVar("T", bound=Resource)
log = structlog.get_logger()

Handler = Callable[[T | None, T | None], None]
"""Told (old, new): old None for a new object, new None for one that is gone. Must not block."""

WATCH_S = (300, 600)
"""The server is asked to end a watch after a time in this range, so that load spreads over its replicas."""

GRACE_S = 30
"""A watch that is silent for this much longer than asked is dead (a half-open connection)."""

BACKOFF_S = (0.1, 30.0)
"""First and longest wait after a failure."""

DOUBT_S = 60.0
"""After how long what a broken watch has missed has been told: twice the longest wait."""


EVENTS_IN_A_ROW = 64
"""Events handled before the loop gets its turn."""

TOLD_IN_A_ROW = 512
"""Objects that a new handler is told of before the loop gets its turn: some 20 ms."""


class Informer(Generic[T]):
    """A cache of one kind (perhaps of one namespace or selector) and those who want to hear of changes."""

    def __init__(
        self,
        client: ApiClient,
        kind: type[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        dice: random.Random | None = None,
        reach: Reach | None = None,
    ) -> None:
        self.kind = kind
        self.cache: Cache[T] = Cache()
        self.resource_version = ""
        """The revision up to which the cache is known to be true; "" makes the next round list."""

        self.trouble = ""
        """Why the server refuses to tell of this kind; empty while it does not."""

        self.is_forbidden = False
        """Whether that is because who asks has no right to it."""

        self.refusals = 0
        """How often in a row the server has said that who asks is nobody it knows (401), or has no right (403)."""

        self._client = client
        self._namespace = namespace
        self._selectors: dict[str, Any] = {"label_selector": label_selector, "field_selector": field_selector}
        self._dice = dice or random.Random()
        self._reach = reach or Reach()
        self._breaks = 0
        """How often in a row the server could not be reached; 0 once it has said something."""
        self._broke_at_s = float("-inf")
        self._answered = asyncio.Event()
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._known = asyncio.Event()
        self._uses_watch_list = client.prefers_watch_list
        self._seen = 0
        self._seen_waiters: list[tuple[int, int, Callable[[], None]]] = []
        self._gone_waiters: dict[tuple[ObjectKey, str], list[Callable[[], None]]] = {}
        self._waiter_count = 0

    @property
    def is_synced(self) -> bool:
        """Whether the cache has been filled."""
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait until the cache has been filled."""
        await self._synced.wait()

    @property
    def is_known(self) -> bool:
        """Whether the cache has been filled, or the server has said that it has no such kind: then there are none of it yet."""
        return self._known.is_set()

    async def known(self) -> None:
        """Wait until `is_known`."""
        await self._known.wait()

    @property
    def is_doubtful(self) -> bool:
        """Whether the server could not be reached a moment ago: what happened meanwhile may not be cached yet."""
        return asyncio.get_running_loop().time() - self._broke_at_s < DOUBT_S

    def forget_revision(self) -> None:
        """List anew with the next `run`, which alone may follow."""
        self.resource_version = ""
        self._answered.clear()

    async def answered(self) -> None:
        """Wait until the server has told of everything, or refused to, since the revision was forgotten last."""
        await self._answered.wait()

    def add_handler(self, handler: Handler[T]) -> None:
        """Tell `handler` of every change from now on, and first of every object that is there already."""
        for obj in list(self.cache):
            _tell(handler, None, obj)
        self._handlers.append(handler)

    async def follow(self, handler: Handler[T], of_many: Callable[[Sequence[T]], None] | None = None) -> None:
        """The same for many objects: other tasks have their turns meanwhile, and no handler hears of an object twice.

        `of_many`, if there is one, is told of those that are there already, some hundred at a time.
        """
        untold = dict.fromkeys(map(key_of, self.cache))

        def told_in_time(old: T | None, new: T | None) -> None:
            obj = new if new is not None else old
            assert obj is not None, "an event has an old or a new object"
            if key_of(obj) not in untold:
                _tell(handler, old, new)
            elif new is None:
                del untold[key_of(obj)]

        self._handlers.append(told_in_time)
        while untold:
            keys = list(islice(untold, TOLD_IN_A_ROW))
            for key in keys:
                del untold[key]
            _tell_of_many(handler, of_many, [cast(T, self.cache.get(*key)) for key in keys])
            await asyncio.sleep(0)
        self._handlers[self._handlers.index(told_in_time)] = handler

    def remove_handler(self, handler: Handler[T]) -> None:
        """Stop telling."""
        self._handlers.remove(handler)

    def remove_handlers(self) -> None:
        """Tell nobody any more: whoever listened and waited is done."""
        self._handlers.clear()
        self._seen_waiters.clear()
        self._gone_waiters.clear()

    def when_seen(self, revision: int, callback: Callable[[], None]) -> None:
        """Call back once the cache is at least as new as `revision`; at once if it already is."""
        if self._seen >= revision:
            callback()
            return
        self._waiter_count += 1
        heapq.heappush(self._seen_waiters, (revision, self._waiter_count, callback))

    def when_gone(self, key: ObjectKey, uid: str, callback: Callable[[], None]) -> None:
        """Call back once no object with that uid is in the cache, or it is marked as leaving."""
        obj = self.cache.get(*key)
        if obj is None or obj.metadata.uid != uid or obj.metadata.deletion_timestamp:
            callback()
            return
        self._gone_waiters.setdefault((key, uid), []).append(callback)

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures, is_away = 0, False
        while True:
            before, begun_s = self.resource_version, asyncio.get_running_loop().time()
            try:
                if not self.resource_version:
                    await self._fill()
                    self.trouble, self.is_forbidden, self.refusals = "", False, 0
                await self._watch()
                self._note_word()
                # A server that ends every watch at once must not be asked in a tight loop.
                failures = 0 if self.resource_version != before else min(failures + 1, 4)
            except GoneError:
                self.resource_version = ""
            except TransportError as error:
                if not self._breaks and asyncio.get_running_loop().time() - begun_s > BACKOFF_S[1]:
                    failures = 0  # what held so long owes nothing to an outage before it: it is taken up again at once
                failures, is_away = failures + 1, True
                self._note_break(error, failures)
            except ApiError as error:
                # one that is back says for a moment that it still begins: what it was away for is no reason to ask it rarely
                failures, is_away = min(failures + 1, 3) if is_away else failures + 1, False
                self.resource_version = ""
                self._note_refusal(error, failures)
            if failures:
                await asyncio.sleep(self._pause_s(failures))

    def _note_break(self, error: TransportError, failures: int) -> None:
        self._breaks += 1
        self._broke_at_s = asyncio.get_running_loop().time()
        log.debug("watch broke", kind=self.kind.kind_info.resource, error=str(error), failures=failures)
        self._reach.lost(str(error), self._breaks)

    def _note_refusal(self, error: ApiError, failures: int) -> None:
        """Say once why a kind cannot be followed: one that is not installed may stay so for years."""
        self._note_word()
        self._answered.set()
        say = log.debug if str(error) == self.trouble else log.warning
        say("watch refused", kind=self.kind.kind_info.resource, error=str(error), failures=failures)
        self.trouble, self.is_forbidden = str(error), error.code == 403
        self.refusals = self.refusals + 1 if error.code in (401, 403) else 0
        if isinstance(error, NotFoundError):
            # a server that still starts answers 503 for paths that it does not know yet: this one has no such kind
            self._known.set()

    def _note_word(self) -> None:
        """The server has said something."""
        self._breaks = 0
        self._reach.found()

    def _pause_s(self, failures: int) -> float:
        first_s, longest_s = BACKOFF_S
        return min(longest_s, first_s * 2.0 ** min(failures - 1, 16)) * self._dice.uniform(0.5, 1.0)

    async def _fill(self) -> None:
        """Bring the cache to the server's present, telling only what differs."""
        if self._uses_watch_list:
            try:
                await self._fill_by_watch()
                return
            except ApiError as error:
                if isinstance(error, GoneError) or error.code not in (400, 404, 422):
                    raise
                self._uses_watch_list = False
        page = await self._client.list(self.kind, self._namespace, **self._selectors)
        self._replace_all(page.items, page.resource_version)

    async def _fill_by_watch(self) -> None:
        """A streamed list: the server sends every object as an event, then a bookmark that says so."""
        objects: dict[ObjectKey, T] = {}
        events = self._client.watch(
            self.kind, self._namespace, resource_version="", send_initial_events=True, timeout_s=WATCH_S[1],
            **self._selectors,
        )  # fmt: skip
        async with aclosing(cast(Any, events)) as stream:
            async for event in stream:
                if event.type is EventType.BOOKMARK:
                    if event.object.metadata.annotations.get(INITIAL_EVENTS_END) == "true":
                        self._replace_all(list(objects.values()), event.resource_version)
                        return
                elif event.type is EventType.DELETED:
                    objects.pop(key_of(event.object), None)
                else:
                    objects[key_of(event.object)] = event.object
        raise TransportError("the server ended a streamed list before it was whole")

    def _replace_all(self, objects: list[T], resource_version: str) -> None:
        present = {key_of(obj) for obj in objects}
        for key in sorted(self.cache.keys() - present):
            self._remove(key)
        for obj in objects:
            # Not "newer": a server restored from a backup counts from an older revision.
            self._put(obj, is_listed=True)
        self._advance(resource_version)
        self._note_word()
        self._answered.set()
        self._synced.set()
        self._known.set()

    async def _watch(self) -> None:
        timeout_s = self._dice.randint(*WATCH_S)
        events = self._client.watch(
            self.kind, self._namespace, resource_version=self.resource_version, timeout_s=timeout_s, **self._selectors
        )
        try:
            async with asyncio.timeout(timeout_s + GRACE_S), aclosing(cast(Any, events)) as stream:
                await self._follow(stream)
        except TimeoutError:
            raise TransportError("the watch went silent") from None

    async def _follow(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        count = 0
        async for event in events:
            if self._breaks:
                self._note_word()
            if event.type is EventType.DELETED:
                self._remove(key_of(event.object), uid=event.object.metadata.uid)
            elif event.type is not EventType.BOOKMARK:
                self._put(event.object)
            self._advance(event.resource_version)
            count += 1
            if count % EVENTS_IN_A_ROW == 0:
                # What has arrived together never waits by itself, and would keep everybody else waiting.
                await asyncio.sleep(0)

    def _put(self, new: T, *, is_listed: bool = False) -> None:
        old = self.cache.get(*key_of(new))
        if old is not None and old.metadata.uid != new.metadata.uid:
            # Deleted and made anew while nobody looked: two different objects, so two events.
            self._remove(key_of(old))
            old = None
        if old is not None and not (_is_newer(new, old) or (is_listed and _differs(new, old))):
            return
        self.cache.put(new)
        if new.metadata.deletion_timestamp:
            self._release_gone(key_of(new), new.metadata.uid)
        self._tell_all(old, new)

    def _remove(self, key: ObjectKey, uid: str = "") -> None:
        old = self.cache.get(*key)
        if old is None or (uid and old.metadata.uid != uid):
            return
        self.cache.remove(key)
        self._release_gone(key, old.metadata.uid)
        self._tell_all(old, None)

    def _tell_all(self, old: T | None, new: T | None) -> None:
        for handler in list(self._handlers):
            _tell(handler, old, new)

    def _advance(self, resource_version: str) -> None:
        self.resource_version = resource_version
        self._seen = revision_number(resource_version) or self._seen
        while self._seen_waiters and self._seen_waiters[0][0] <= self._seen:
            heapq.heappop(self._seen_waiters)[2]()

    def _release_gone(self, key: ObjectKey, uid: str) -> None:
        for callback in self._gone_waiters.pop((key, uid), ()):
            callback()


Selection = tuple[type[Resource], str, str, str]
"""What an informer follows: a kind, and the namespace and selectors that choose among its objects."""


class Informers:
    """The informers of one client, one per kind and selection, shared by everybody who asks.

    Use it as an async context: informers start when first asked for and stop at the end.
    """

    def __init__(self, client: ApiClient, *, dice: random.Random | None = None) -> None:
        self.client = client
        self._dice = dice
        self._tasks = asyncio.TaskGroup()
        self._reach = Reach()
        self._running: dict[Selection, asyncio.Task[None]] = {}
        self._informers: dict[Selection, Informer[Any]] = {}

    async def __aenter__(self) -> "Informers":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._running.values():
            task.cancel()
        if error is None or isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, traceback)
        else:
            # The body's own error goes on as it is, not wrapped in a group.
            await self._tasks.__aexit__(None, None, None)

    def of(
        self, kind: type[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> Informer[T]:
        """The informer of a kind, started if it is new."""
        wanted = (kind, namespace, label_selector, field_selector)
        informer = self._informers.get(wanted)
        if informer is None:
            informer = Informer(
                self.client, kind, namespace=namespace, label_selector=label_selector, field_selector=field_selector,
                dice=self._dice, reach=self._reach,
            )  # fmt: skip
            self._informers[wanted] = informer
            self._start(wanted, informer)
        return informer

    def _start(self, wanted: Selection, informer: Informer[Any]) -> None:
        name = f"informer {wanted[0].kind_info.resource}"
        self._running[wanted] = self._tasks.create_task(informer.run(), name=name)

    def troubles(self) -> dict[type[Resource], str]:
        """The kinds whose caches have not been filled or are refused now, and why ("" while they are being read)."""
        return {one.kind: one.trouble for one in self._informers.values() if one.trouble or not one.is_synced}

    def stop(self, kind: type[Resource]) -> None:
        """Stop the informers of a kind that is no longer served."""
        for wanted in [wanted for wanted in self._informers if wanted[0] is kind]:
            del self._informers[wanted]
            self._running.pop(wanted).cancel()

    def remove_handlers(self) -> None:
        """Tell nobody any more; the caches stay, and stay true."""
        for informer in self._informers.values():
            informer.remove_handlers()

    async def current(self) -> None:
        """Wait until caches that may have missed something lately are filled anew, for who begins to act on them."""
        doubtful = {wanted: one for wanted, one in self._informers.items() if one.is_doubtful}
        for wanted, informer in doubtful.items():
            self._running.pop(wanted).cancel()
            informer.forget_revision()
            self._start(wanted, informer)
        for informer in doubtful.values():
            await informer.answered()

    async def synced(self) -> None:
        """Wait until every informer asked for so far has filled its cache."""
        for informer in list(self._informers.values()):
            await informer.synced()


def revision_number(resource_version: str) -> int:
    """A resourceVersion as the number it is on every server we know; 0 where it is none."""
    return int(resource_version) if resource_version.isdigit() else 0


def _is_newer(new: Resource, old: Resource) -> bool:
    before, after = old.metadata.resource_version, new.metadata.resource_version
    if before.isdigit() and after.isdigit():
        return int(after) > int(before)
    return after != before


def _differs(new: Resource, old: Resource) -> bool:
    return new.metadata.resource_version != old.metadata.resource_version


def _tell_of_many(handler: Handler[T], of_many: Callable[[Sequence[T]], None] | None, new: Sequence[T]) -> None:
    if of_many is not None:
        try:
            of_many(new)
        except Exception:  # told one by one, all but the one that breaks it are heard
            log.exception("handler of many failed", handler=repr(of_many))
        else:
            return
    for obj in new:
        _tell(handler, None, obj)


def _tell(handler: Handler[T], old: T | None, new: T | None) -> None:
    try:
        handler(old, new)
    except Exception:  # one listener's mistake must not stop the cache for all others
        log.exception("handler failed", handler=repr(handler))
