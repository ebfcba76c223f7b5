"""Writes events about objects, so that `kubectl describe` tells what happened.

One Event object per (object, part of it, type, reason, message, teller), counted: its name is made from these, so that even another
process counts on instead of starting anew. It says when it happened, however late it is written. An object that provokes ever new messages is held to a few a minute. Events never
compete with the work that they tell of: while their owner is busy they are written in a small share of the time.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from hekla.api.meta import Document
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import Clock, rfc3339
from hekla.kube.commands import Event
from hekla.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from hekla.kube.rate_limit import TokenBucket

log = structlog.get_logger()

MAX_PENDING = 16_384
AT_ONCE = 16
"""Events that are written together, so that they share a commit."""

REST_PER_WRITE, CROWDED_REST_PER_WRITE = 9.0, 3.0
"""While the owner is busy, how long to rest for every second of writing; less once half of what may wait does."""
LONGEST_REST_S = 30.0
"""However long a write took: a server that answers late would otherwise hear of nothing for many minutes."""

MAX_REMEMBERED = 4096
BURST = 25
REFILL_S = 300.0
"""An object may have 25 new events at once, then one in five minutes: client-go's figures."""

GIVES_WAY_S = 0.05
"""So long the first events wait while the owner is busy: of a fork of eight 44 would be written before its copies are there."""

MAX_MESSAGE = 1024
"""Kubernetes refuses longer messages."""


@dataclass(slots=True)
class _Known:
    name: str
    count: int


@dataclass(slots=True)
class _Waiting:
    """An event that is to be written, and how often it has happened since."""

    event: Event
    component: str
    first_s: float
    last_s: float
    """By the clock that nobody sets."""
    times: int = 1


class EventRecorder:
    """Takes events at once and writes them in the background. `run` does the writing."""

    def __init__(
        self, client: ApiClient, clock: Clock, *, component: str, is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_busy` says whether the owner has more urgent writes under way."""
        self._client = client
        self._clock = clock
        self._component = component
        self._is_busy = is_busy
        self._pending: OrderedDict[tuple[object, ...], _Waiting] = OrderedDict()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._limits: OrderedDict[str, TokenBucket] = OrderedDict()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.dropped = 0
        """Events not written because there were too many."""

    def record(self, event: Event, component: str = "") -> None:
        """Write this event soon; the same one again before that only counts."""
        same = _sameness(event, component := component or self._component)
        waiting, now_s = self._pending.get(same), self._clock.elapsed_s()
        if waiting is not None:
            waiting.times += 1
            waiting.last_s = now_s
            return
        if len(self._pending) >= MAX_PENDING:
            self._pending.popitem(last=False)
            self.dropped += 1
        self._pending[same] = _Waiting(event, component, now_s, now_s)
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_busy():
                await asyncio.sleep(GIVES_WAY_S)
            while self._pending:
                began_s = self._clock.elapsed_s()
                await asyncio.gather(*(self._write_or_log(one) for one in self._next()))
                if self._is_busy():
                    await asyncio.sleep(self._rest_s(self._clock.elapsed_s() - began_s))
            self._idle.set()

    async def written(self) -> None:
        """Wait until everything recorded so far has been written."""
        await self._idle.wait()

    def _next(self) -> list[_Waiting]:
        """The oldest of those that wait."""
        return [self._pending.popitem(last=False)[1] for _ in range(min(AT_ONCE, len(self._pending)))]

    def _rest_s(self, wrote_s: float) -> float:
        is_crowded = len(self._pending) > MAX_PENDING // 2
        return min(wrote_s * (CROWDED_REST_PER_WRITE if is_crowded else REST_PER_WRITE), LONGEST_REST_S)

    async def _write_or_log(self, told: _Waiting) -> None:
        event = told.event
        if not self._is_within_limit(event):
            self.dropped += 1
            return
        try:
            await self._write(told)
        except KubeError as error:
            # A namespace that is going away refuses new events; nobody misses them.
            log.debug("event not written", reason=event.reason, about=event.target.name, why=str(error))
        except Exception as error:  # the task boundary: a mistake with one event must not silence all others
            log.error("event not written", reason=event.reason, about=event.target.name, exc_info=error)

    def _is_within_limit(self, event: Event) -> bool:
        source = event.target.uid or f"{event.target.namespace}/{event.target.name}"
        limit = self._limits.setdefault(source, TokenBucket(1 / REFILL_S, BURST))
        self._limits.move_to_end(source)
        if len(self._limits) > MAX_REMEMBERED:
            self._limits.popitem(last=False)
        return limit.take(self._clock.elapsed_s())

    async def _write(self, told: _Waiting) -> None:
        event = told.event
        identity = _identity(event, told.component)
        known = self._known.get(identity)
        if known is not None:
            try:
                await self._count_on(told, known)
                self._remember(identity, known)
                return
            except NotFoundError:
                self._known.pop(identity, None)
        known = _Known(f"{event.target.name[:230].rstrip('-.')}.{identity}", 0)
        try:
            await self._create(told, known.name)
            known.count = told.times
        except AlreadyExistsError:
            stored = await self._client.request("GET", f"{_collection(event)}/{known.name}")
            known.count = int(stored.get("count") or 1)
            await self._count_on(told, known)
        self._remember(identity, known)

    def _remember(self, identity: str, known: _Known) -> None:
        """As the one told last; others may have pushed it out while it was written."""
        self._known[identity] = known
        self._known.move_to_end(identity)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    async def _create(self, told: _Waiting, name: str) -> None:
        event = told.event
        document: Document = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(event)},
            "involvedObject": _reference(event),
            "reason": event.reason,
            "message": event.message[:MAX_MESSAGE],
            "type": event.type,
            "source": {"component": told.component},
            "reportingComponent": told.component,
            "firstTimestamp": self._time_of(told.first_s),
            "lastTimestamp": self._time_of(told.last_s),
            "count": told.times,
        }
        await self._client.request("POST", _collection(event), document)

    async def _count_on(self, told: _Waiting, known: _Known) -> None:
        patch = {"count": known.count + told.times, "lastTimestamp": self._time_of(told.last_s)}
        path = f"{_collection(told.event)}/{known.name}"
        await self._client.request("PATCH", path, patch, content_type="application/merge-patch+json")
        known.count += told.times

    def _time_of(self, when_s: float) -> str:
        return rfc3339(self._clock.now() - timedelta(seconds=self._clock.elapsed_s() - when_s))


class SilentRecorder:
    """Takes events and forgets them."""

    def record(self, event: Event, component: str = "") -> None:
        """Do nothing."""


def _identity(event: Event, component: str) -> str:
    target = event.target
    whom = (target.kind.kind_info.resource, target.uid, target.namespace, target.name)
    part = (event.field_path,) if event.field_path else ()
    text = "\0".join((*whom, event.type, event.reason, event.message, component, *part))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sameness(event: Event, component: str) -> tuple[object, ...]:
    """What an event has in common with one that only counts: all but the target's revision.

    A flat tuple, because a dataclass in a dataclass takes 2 us to hash, three times for each pod that is bound.
    """
    target = event.target
    return (
        target.kind, target.namespace, target.name, target.uid, event.reason, event.message, event.type, component,
        event.field_path,
    )  # fmt: skip


def _namespace(event: Event) -> str:
    return event.target.namespace or "default"


def _collection(event: Event) -> str:
    return f"/api/v1/namespaces/{_namespace(event)}/events"


def _reference(event: Event) -> Document:
    target, info = event.target, event.target.kind.kind_info
    reference = {"apiVersion": info.api_version, "kind": info.kind, "name": target.name}
    if target.namespace:
        reference["namespace"] = target.namespace
    if target.uid:
        reference["uid"] = target.uid
    if event.field_path:
        reference["fieldPath"] = event.field_path
    return reference
