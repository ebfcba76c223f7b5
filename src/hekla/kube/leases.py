"""Chooses one leader among candidates by a Lease object, so that two controllers never act at the same time.

    leads      while (time since the last renewal was *asked for*) < RENEW_DEADLINE
    may take   once the record has not changed, as seen by the candidate's own clock, for the record's duration

The deadline is shorter than the duration, and both are measured on clocks that only move forward: so the old leader
has stopped before a new one can begin, whatever the wall clocks say and however slow the server is.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from hekla.api.meta import Document
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import Clock, SystemClock, rfc3339_micro
from hekla.kube.errors import AlreadyExistsError, ConflictError, KubeError, NotFoundError

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class LeaseTimes:
    """How long leadership lasts; client-go's defaults."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    """How often a candidate asks, and a leader whose renewal failed."""
    renew_s: float = 2.0
    """How often a leader renews: each is a write for good in the cluster's store."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_s <= self.renew_s < self.renew_deadline_s < self.duration_s:
            raise ValueError(
                f"a lease needs retry <= renewal < renew deadline < duration, not "
                f"{self.retry_s} s, {self.renew_s} s, {self.renew_deadline_s} s and {self.duration_s} s"
            )


def _no_remark(lease: Document) -> Mapping[str, str]:
    return {}


class LeaderElector:
    """One candidate for one lease."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        annotations: Mapping[str, str] | None = None,
        remark: Callable[[Document], Mapping[str, str]] = _no_remark,
        times: LeaseTimes | None = None,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        """`annotations` are what the lease says of whoever holds it; `remark`, what is wrong with waiting behind its holder."""
        self._remark = remark
        self._client = client
        self._annotations = dict(annotations or {})
        self._namespace, self._name, self.identity = namespace, name, identity
        self._times = times or LeaseTimes()
        self._clock = clock or SystemClock()
        self._dice = dice or random.Random()
        self._observed: Document = {}
        self._observed_at_s = 0.0
        self._leads_until_s = float("-inf")
        self._waits_behind = ""
        self.trouble = ""
        """Why the lease could not even be asked for at the last try; empty if it could."""

    @property
    def is_leader(self) -> bool:
        """Whether we may act at this very moment; ask again before each act that must not be done twice."""
        return self._clock.elapsed_s() < self._leads_until_s

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `lead` while we hold it, cancel it when we lose it, and wait again."""
        while True:
            await self.term(lead)

    async def term(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `lead` while we hold it, and return once it has ended or the lease was lost."""
        await self._acquire()
        self._waits_behind = ""
        log.info("leads", lease=self._name, identity=self.identity)
        await self._lead(lead)
        log.warning("leads no more", lease=self._name, identity=self.identity)

    async def release(self) -> None:
        """Give the lease back so that the next one need not wait."""
        if not self.is_leader:
            return
        self._leads_until_s = float("-inf")
        spec = {**self._observed.get("spec", {}), "holderIdentity": "", "leaseDurationSeconds": 1}
        await self._write(spec)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        work = asyncio.ensure_future(lead())
        renewing = asyncio.create_task(self._renew_until_lost(), name=f"lease {self._name}")
        try:
            await asyncio.wait([work, renewing], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            work.cancel()
            renewing.cancel()
            await asyncio.gather(work, renewing, return_exceptions=True)
            await self._give_back()

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(self._times.retry_s):
                await self.release()
        except (KubeError, TimeoutError) as error:
            log.debug("lease not released", lease=self._name, why=str(error))

    async def _acquire(self) -> None:
        while not await self._try_once():
            await asyncio.sleep(self._times.retry_s * self._dice.uniform(1.0, 1.2))

    async def _renew_until_lost(self) -> None:
        pause_s = self._times.renew_s
        while self.is_leader:
            await asyncio.sleep(min(pause_s, self._left_s()))
            if self.is_leader:
                pause_s = self._times.renew_s if await self._try_once() else self._times.retry_s

    def _left_s(self) -> float:
        return max(0.0, self._leads_until_s - self._clock.elapsed_s())

    async def _try_once(self) -> bool:
        """One attempt to take or renew; a failure changes nothing about how long we still lead."""
        asked_at_s = self._clock.elapsed_s()
        # An answer that comes later than the deadline would be worthless.
        patience_s = self._left_s() if self.is_leader else self._times.renew_deadline_s
        try:
            async with asyncio.timeout(patience_s):
                taken = await self._take_or_renew(asked_at_s)
        except (KubeError, TimeoutError) as error:
            self._complain(str(error) or f"no answer within {patience_s:g} s")
            return False
        self.trouble = ""
        if taken:
            # Counted from before the request: the server may have taken its time.
            self._leads_until_s = asked_at_s + self._times.renew_deadline_s
        elif self.is_leader:
            self._leads_until_s = float("-inf")
        return taken and self.is_leader

    def _complain(self, why: str) -> None:
        """Say once what stands in the way: a candidate without rights would wait for ever without a word."""
        if why != self.trouble:
            self.trouble = why
            log.warning("lease not taken", lease=f"{self._namespace}/{self._name}", identity=self.identity, why=why)

    def _tell_who_leads(self, holder: str) -> None:
        """Say once behind whom we wait: a replica that does nothing and says nothing would look broken."""
        if holder != self._waits_behind:
            self._waits_behind = holder
            remark = self._remark(self._observed)
            say = log.warning if remark else log.info
            say("waits for the lease", lease=self._name, identity=self.identity, held_by=holder, **remark)

    async def _take_or_renew(self, now_s: float) -> bool:
        if self.is_leader and await self._write(self._record(self._observed.get("spec", {}))):
            return True  # what was written last is what is there: nothing need be read
        await self._observe(now_s)
        if not self._observed:
            return await self._create()
        spec = self._observed.get("spec", {})
        if spec.get("holderIdentity") not in ("", None, self.identity) and not self._has_expired(spec, now_s):
            self._tell_who_leads(spec["holderIdentity"])
            return False
        if spec.get("holderIdentity") == self.identity and not self.is_leader and not self._has_expired(spec, now_s):
            # Our name, but from before we lost it or restarted: another with the same name might live. It renews, or expires.
            return False
        return await self._write(self._record(spec))

    def _has_expired(self, spec: Document, now_s: float) -> bool:
        duration_s = float(spec.get("leaseDurationSeconds") or self._times.duration_s)
        return now_s >= self._observed_at_s + duration_s

    async def _observe(self, now_s: float) -> None:
        try:
            found = await self._client.request("GET", self._path)
        except NotFoundError:
            found = {}
        if _version(found) != _version(self._observed):
            self._observed_at_s = now_s
        self._observed = found

    async def _create(self) -> bool:
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace, "annotations": self._annotations},
            "spec": self._record({}),
        }
        try:
            self._observed = await self._client.request("POST", self._path.rpartition("/")[0], document)
        except AlreadyExistsError:
            return False
        self._observed_at_s = self._clock.elapsed_s()
        return True

    async def _write(self, spec: Document) -> bool:
        version = _version(self._observed)
        patch = {"metadata": {"resourceVersion": version, "annotations": self._annotations}, "spec": spec}
        try:
            self._observed = await self._client.request(
                "PATCH", self._path, patch, content_type="application/merge-patch+json"
            )
        except (ConflictError, NotFoundError):
            return False
        self._observed_at_s = self._clock.elapsed_s()
        return True

    def _record(self, before: Document) -> Document:
        now = rfc3339_micro(self._clock.now())
        is_ours = before.get("holderIdentity") == self.identity
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._times.duration_s),
            "acquireTime": before.get("acquireTime") if is_ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_ours or not before else transitions + 1,
        }

    @property
    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases/{self._name}"


def _version(lease: Document) -> Any:
    return lease.get("metadata", {}).get("resourceVersion")
