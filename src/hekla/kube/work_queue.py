"""Which objects to look at next: each at most once in the queue and never twice at the same time.

`runtime.py` puts keys in as watches tell of changes and hands them to its workers.
"""

import asyncio
import heapq
import random
import time
from bisect import bisect_right
from collections import OrderedDict

from hekla.kube.cache import ObjectKey
from hekla.kube.measured import Spread

BACKOFF_S = (0.005, 300.0)
"""First and longest wait after a failure, as controller-runtime has them."""

OUTAGE_S = 60.0
"""Longest wait after a failure that is nobody's fault but the server's, or its webhooks': it ends for all at once, and what was
made meanwhile should not wait five minutes more."""

BUCKETS_S = tuple(1e-8 * 10.0**n for n in range(12))
"""client-go's, for how long keys wait and are worked on."""


class WorkQueue:
    """Keys to reconcile, in order of arrival, deduplicated, with delays.

    At its bound it forgets keys and remembers that it did: `has_overflowed` tells the owner to look at everything
    again once the queue has drained.
    """

    def __init__(self, *, bound: int = 100_000, dice: random.Random | None = None) -> None:
        self._bound = bound
        self._dice = dice or random.Random()
        self._ready: OrderedDict[ObjectKey, float] = OrderedDict()
        """With the time at which each became ready; times here are the machine's, for they are only measured."""

        self._running: dict[ObjectKey, float] = {}
        """With the time at which each was handed out."""

        self._again: set[ObjectKey] = set()
        self._due: dict[ObjectKey, float] = {}
        self._delayed: list[tuple[float, ObjectKey]] = []
        self._failures: dict[ObjectKey, int] = {}
        self._getters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._refilled_up_to: ObjectKey = ("", "")
        self.has_overflowed = False
        self.is_closed = False
        self.adds = self.retries = 0
        self.waits, self.works = Spread(BUCKETS_S), Spread(BUCKETS_S)

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready and nobody works (what is delayed may still come)."""
        return not self._ready and not self._running

    def add(self, key: ObjectKey) -> None:
        """Look at this object soon."""
        if self.is_closed:
            return
        if key in self._running:
            self._again.add(key)
        elif key not in self._ready:
            if len(self._ready) >= self._bound:
                self.has_overflowed = True
                return
            self._ready[key] = time.monotonic()
            self.adds += 1
            self._wake()

    def add_after(self, key: ObjectKey, seconds: float) -> None:
        """Look at this object after a while; of two such wishes the earlier counts."""
        if seconds <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + seconds
        if due >= self._due.get(key, float("inf")) or self.is_closed:
            return
        self._due[key] = due
        heapq.heappush(self._delayed, (due, key))
        self._set_timer()

    def add_failed(self, key: ObjectKey, *, longest_s: float = BACKOFF_S[1]) -> float:
        """Look at this object again after a back-off that doubles with each failure; returns the wait."""
        self.retries += 1
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait_s = min(longest_s, BACKOFF_S[0] * 2.0 ** min(failures - 1, 20)) * self._dice.uniform(0.75, 1.25)
        self.add_after(key, wait_s)
        return wait_s

    def is_backing_off(self, key: ObjectKey) -> bool:
        """Whether an object that failed waits for its next try."""
        return key in self._failures and key in self._due

    def succeeded(self, key: ObjectKey) -> None:
        """Forget the failures of an object."""
        self._failures.pop(key, None)

    def forget(self, key: ObjectKey) -> None:
        """Forget everything about an object that is gone."""
        self.succeeded(key)
        self._due.pop(key, None)

    async def get(self) -> ObjectKey | None:
        """The next key, which is the caller's until `done`; None once the queue is closed."""
        while not self._ready:
            if self.is_closed:
                return None
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            finally:
                if getter in self._getters:
                    self._getters.remove(getter)
        key, since = self._ready.popitem(last=False)
        now = self._running[key] = time.monotonic()
        self.waits.add(now - since)
        if self._ready:
            self._wake()
        return key

    def done(self, key: ObjectKey) -> None:
        """The caller is through with this key; if it changed meanwhile it comes again."""
        since = self._running.pop(key, None)
        if since is not None:
            self.works.add(time.monotonic() - since)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def unfinished_s(self) -> list[float]:
        """For how long each key has been worked on that still is."""
        now = time.monotonic()
        return [now - since for since in self._running.values()]

    def refill(self, keys: set[ObjectKey]) -> None:
        """After an overflow, and once the queue has drained, look at everything, from where the last round ended."""
        if not self.has_overflowed or not self.is_idle:
            return
        self.has_overflowed = False
        ordered = sorted(keys)
        start = bisect_right(ordered, self._refilled_up_to)
        for key in ordered[start:] + ordered[:start]:
            self.add(key)
            if self.has_overflowed:
                return
            self._refilled_up_to = key

    def close(self) -> None:
        """Hand out nothing more; waiting getters get None."""
        self.is_closed = True
        self._ready.clear()
        if self._timer is not None:
            self._timer.cancel()
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.pop(0)
            if not getter.done():
                getter.set_result(None)
                return

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._delayed:
            self._timer = asyncio.get_running_loop().call_at(self._delayed[0][0], self._release_due)

    def _release_due(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._delayed and self._delayed[0][0] <= now:
            due, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._set_timer()
