"""Moves `spec.replicas` of pools that size themselves: hears of every start, asks `sizing.py` each second, patches what changed.

A SandboxWarmPool sizes itself by annotations (`hekla.api.agents.names`): POOL_POLICY says how, POOL_BOUNDS between which numbers,
POOL_COLD_SHARE with which share of cold starts, POOL_P99_START how long 99 of 100 starts may take (`slo.py`). A start is a Sandbox that leaves its pool, or one that is made cold from the pool's
template; who claims does not matter, and nothing has to be told to anybody.
"""

import asyncio
import re
from dataclasses import dataclass, field

import numpy as np
import structlog

from hekla.api.agents import Sandbox, SandboxWarmPool, names
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.commands import Event, target_of
from hekla.kube.errors import KubeError
from hekla.kube.events import EventRecorder
from hekla.kube.informer import Informers
from hekla.sandbox.observing import is_true
from hekla.sandbox.owning import controller_of
from hekla.sandbox.pools.sizing import BURSTS, Adaptive, Histogram, Sizing
from hekla.sandbox.pools.slo import ANY, ColdStarts

log = structlog.get_logger(__name__)

PERIOD_S = 1.0
LEAD_S = 1.0
"""How long a new member takes until it can be claimed, as pools are sized for. A pool that is mostly full may wait longer (`GIVES_WAY_S`)."""

SHRINK_EVERY_S = 5.0
"""Growing cannot wait; shrinking is done in steps, so that quiet pools write little."""

MOST_COMING = 10_000
"""Cold starts under way that are timed; more at once are not."""

_BOUNDS = re.compile(r"^(\d{1,4})-(\d{1,4})$", re.ASCII)
Key = tuple[str, str]


class PolicyError(Exception):
    """The annotations of a pool make no sense; the sentence names the one."""


@dataclass(frozen=True)
class Policy:
    """How a pool sizes itself."""

    kind: str
    least: int
    most: int
    max_cold_share: float | None
    p99_start_ms: float | None = None

    def sizing(self) -> Sizing:
        """A fresh memory."""
        if self.kind == "adaptive":
            return Adaptive(pools=1, lead_s=LEAD_S)
        return Histogram(pools=1, lead_s=LEAD_S, max_cold_share=self.max_cold_share)


def policy_of(pool: SandboxWarmPool) -> Policy | None:
    """What the annotations of a pool say; None for a fixed one. Raises `PolicyError`."""
    said = pool.metadata.annotations
    kind = said.get(names.POOL_POLICY, "fixed")
    if kind == "fixed":
        return None
    if kind not in ("adaptive", "histogram"):
        raise PolicyError(f"annotation {names.POOL_POLICY} is {kind!r}: say fixed, adaptive or histogram")
    bounds = said.get(names.POOL_BOUNDS, f"0-{BURSTS[-1]}")
    found = _BOUNDS.match(bounds)
    if found is None or int(found[1]) > int(found[2]):
        raise PolicyError(f"annotation {names.POOL_BOUNDS} is {bounds!r}: say the least and the most, such as 0-50")
    share, p99_ms = _cold_share(said.get(names.POOL_COLD_SHARE)), _milliseconds(said.get(names.POOL_P99_START))
    for name, promised in ((names.POOL_COLD_SHARE, share), (names.POOL_P99_START, p99_ms)):
        if promised is not None and kind != "histogram":
            raise PolicyError(f"annotation {name} is kept by {names.POOL_POLICY} histogram alone, and that is {kind!r}")
    return Policy(kind, int(found[1]), int(found[2]), share, p99_ms)


def _milliseconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found <= 3_600_000:
        raise PolicyError(
            f"annotation {names.POOL_P99_START} is {text!r}: say milliseconds from 1 to 3600000, such as 50"
        )
    return found


def _cold_share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.001 <= share <= 0.999:
        raise PolicyError(
            f"annotation {names.POOL_COLD_SHARE} is {text!r}: say a share from 0.001 to 0.999, such as 0.05"
        )
    return share


@dataclass
class _Pool:
    policy: Policy
    sizing: Sizing
    starts: int = 0
    cold: int = 0
    shrunk_at_s: float = field(default=-1e9)
    cold_starts: ColdStarts = field(default_factory=ColdStarts)
    coming: dict[str, float] = field(default_factory=dict)
    """Sandboxes of its template that are being made, by uid: when each was seen first."""

    def wanted(self, now_s: float) -> int:
        """How many should wait. Where a cold start is as quick as was promised, that is nobody."""
        policy, needs_some = self.policy, True
        if policy.p99_start_ms is not None and isinstance(self.sizing, Histogram):
            share = self.cold_starts.share_for(policy.p99_start_ms)
            needs_some = share < ANY or policy.max_cold_share is not None
            self.sizing.aim(share if policy.max_cold_share is None else min(share, policy.max_cold_share))
        size = int(self.sizing.wanted(now_s)[0]) if needs_some else 0
        return min(max(size, policy.least), policy.most)


class PoolSizer:
    """The loop."""

    def __init__(self, informers: Informers, *, clock: Clock | None = None, period_s: float = PERIOD_S) -> None:
        self._clock = clock or SystemClock()
        self._client, self._period_s = informers.client, period_s
        self._pools, self._sandboxes = informers.of(SandboxWarmPool), informers.of(Sandbox)
        self._events = EventRecorder(informers.client, self._clock, component="sandbox-pool-sizer")
        self._known: dict[Key, _Pool] = {}
        self._complained: dict[Key, str] = {}
        self._listens = False

    async def run(self) -> None:
        """Look each second until cancelled."""
        await self._pools.synced()
        await self._sandboxes.synced()
        self._sandboxes.add_handler(self._on_sandbox)
        self._listens = True
        recorder = asyncio.create_task(self._events.run(), name="pool sizer events")
        try:
            while True:
                await self.look()
                await asyncio.sleep(self._period_s)
        finally:
            self._sandboxes.remove_handler(self._on_sandbox)
            recorder.cancel()

    def _on_sandbox(self, old: Sandbox | None, new: Sandbox | None) -> None:
        if not self._listens:
            return
        if new is None or new.metadata.deletion_timestamp is not None:
            self._forget_cold(new or old)
            return
        self._time_cold(new)
        after = controller_of(new)
        if old is None:
            if new.metadata.labels.get(names.LAUNCH_TYPE) == "cold":
                self._count_cold(new)
            elif after is not None and (its := self._known.get((new.metadata.namespace, after.name))) is not None:
                self._begin(its, new)
            return
        before = controller_of(old)
        if before is not None and before.kind == SandboxWarmPool.kind_info.kind and before != after:
            known = self._known.get((new.metadata.namespace, before.name))
            if known is not None:
                known.starts += 1

    def _count_cold(self, sandbox: Sandbox) -> None:
        template = sandbox.metadata.annotations.get(names.TEMPLATE_REF)
        for (namespace, name), known in self._known.items():
            pool = self._pools.cache.get(namespace, name) if namespace == sandbox.metadata.namespace else None
            if pool is not None and pool.spec.template_ref.name == template:
                known.starts += 1
                known.cold += 1
                self._begin(known, sandbox)

    def _begin(self, known: _Pool, sandbox: Sandbox) -> None:
        """Time it: a member is made as a cold start is, so that both say how long one takes."""
        if len(known.coming) < MOST_COMING:
            known.coming[sandbox.metadata.uid] = self._clock.elapsed_s()

    def _time_cold(self, sandbox: Sandbox) -> None:
        """How long it took, if it was heard of from the first to the last."""
        if not is_true(sandbox.status.conditions, "Ready"):
            return
        for known in self._known.values():
            if (began_s := known.coming.pop(sandbox.metadata.uid, None)) is not None:
                known.cold_starts.see((self._clock.elapsed_s() - began_s) * 1e3)

    def _forget_cold(self, sandbox: Sandbox | None) -> None:
        for known in self._known.values():
            known.coming.pop(sandbox.metadata.uid if sandbox is not None else "", None)

    async def look(self) -> None:
        """Learn from what was heard, and bring every pool to the size that is wanted of it."""
        now_s = self._clock.elapsed_s()
        there = set()
        for pool in self._pools.cache.list():
            key = (pool.metadata.namespace, pool.metadata.name)
            policy = self._policy(pool, key)
            if policy is None or pool.metadata.deletion_timestamp is not None:
                continue
            there.add(key)
            known = self._known.get(key)
            if known is None or known.policy != policy:
                known = self._known[key] = _Pool(policy, policy.sizing())
            if known.starts:
                known.sizing.see(now_s, np.array([known.starts]), np.array([known.cold]))
                known.starts = known.cold = 0
            await self._resize(pool, known, known.wanted(now_s), now_s)
        for key in self._known.keys() - there:
            del self._known[key]

    def _policy(self, pool: SandboxWarmPool, key: Key) -> Policy | None:
        try:
            policy = policy_of(pool)
        except PolicyError as error:
            if self._complained.get(key) != str(error):
                self._complained[key] = str(error)
                message = f"{error}; its size stays as it is"
                self._events.record(Event(target_of(pool), "InvalidPolicy", message, type="Warning"))
            return None
        self._complained.pop(key, None)
        return policy

    async def _resize(self, pool: SandboxWarmPool, known: _Pool, size: int, now_s: float) -> None:
        there = 1 if pool.spec.replicas is None else pool.spec.replicas
        if size == there:
            return
        if size < there:
            if now_s - known.shrunk_at_s < SHRINK_EVERY_S:
                return
            known.shrunk_at_s = now_s
        meta = pool.metadata
        try:
            await self._client.patch(SandboxWarmPool, meta.name, {"spec": {"replicas": size}}, meta.namespace)
        except KubeError as error:
            log.warning("pool could not be sized", pool=meta.name, namespace=meta.namespace, size=size, why=str(error))
