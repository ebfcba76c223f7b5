"""What the scheduler must not forget when it is started anew, and no other object says: one ConfigMap, in which each scheduler of a namespace writes a key of its own.

    precedence    who made way for whom, and when: without it two jobs could change places at every restart
    letIn         jobs that entered since room was to be kept for them (`placement/admitted_demand.py`)
    due           when plug-ins that work once in a period last did

Times are of the day, for the clock of cycles starts anew with the process. The memory is written soon after it has changed, and
before pods are evicted: so whoever made way is remembered, whenever the process ends. Promises are in the pods
(`nominatedNodeName`), past use is in the queues, cool-downs follow from the pods' own times.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec
import structlog

from hekla.api.core import ConfigMap
from hekla.api.meta import Document
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from hekla.placement.cluster import Cluster

log = structlog.get_logger()

NAME, KEY = "hekla-scheduler-memory", "memory"
VERSION = 1
MOST_PAIRS = 5_000
"""Of who made way for whom, the newest: half of what a ConfigMap may hold."""

PAUSE_S, PATIENCE_S = 1.0, 5.0
"""Shortest time between two writes, and how long evictions wait for one."""


class PrecedencePair(msgspec.Struct, frozen=True, rename={"first": "for"}):
    """One made way for another."""

    uid: str
    first: str
    at: float


class Memory(msgspec.Struct, frozen=True, rename="camel"):
    """The document."""

    version: int = VERSION
    precedence: list[PrecedencePair] = []
    let_in: list[str] = []
    due: dict[str, float] = {}


def memory_of(cluster: Cluster, now: float, wall_s: float) -> Memory:
    """What there is to remember, at a time by the clock of cycles and by that of the day."""
    pairs = sorted(cluster.precedence.pairs(), key=lambda pair: -pair[2])[:MOST_PAIRS]
    return Memory(
        precedence=[PrecedencePair(uid=uid, first=first, at=round(wall_s - (now - at), 3)) for uid, first, at in sorted(pairs)],
        let_in=sorted(cluster.let_in), due=dict(sorted(cluster.last_due.items())),
    )  # fmt: skip


def recall(cluster: Cluster, memory: Memory, now: float, wall_s: float) -> None:
    """Let a cluster that has just begun know what another process knew. What would close a ring is left out: who writes a
    ring by hand asks for evictions without end.
    """  # fmt: skip
    for pair in sorted(memory.precedence, key=lambda pair: pair.at):
        if pair.uid != pair.first and pair.uid not in cluster.precedence.before(pair.first):
            cluster.precedence.note(pair.first, pair.uid, now - max(wall_s - pair.at, 0.0))
    cluster.precedence.world_changed()
    cluster.let_in |= set(memory.let_in)
    cluster.last_due.update({name: at for name, at in memory.due.items() if at <= wall_s})


def fingerprint(cluster: Cluster) -> Hashable:
    """Changes whenever there is something new to remember; cheap, for every cycle asks."""
    return cluster.precedence.changes, frozenset(cluster.let_in), tuple(cluster.last_due.items())


class MemoryKeeper:
    """Reads the ConfigMap at the start and writes it from then on."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        *,
        cluster: Cluster,
        times: Callable[[], tuple[float, float]],
        key: str = KEY,
    ) -> None:
        """`times` tells the time by the clock of cycles and by that of the day."""
        self._client, self._namespace, self._key = client, namespace, key
        self._cluster, self._times = cluster, times
        self._written = fingerprint(cluster)
        self._has_news = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._fault = ""

    async def recall(self) -> None:
        """Take in what is written; a memory that cannot be read is told and left behind.

        Who has no key yet is given what lies under `memory`, for every scheduler wrote there once, and writes its own after the first cycle.
        """
        try:
            data = (await self._client.get(ConfigMap, NAME, self._namespace)).data
            text = data.get(self._key, data.get(KEY, "{}"))
            recall(self._cluster, msgspec.json.decode(text, type=Memory), *self._times())
            if self._key not in data:
                return
        except NotFoundError:
            return
        except (KubeError, msgspec.DecodeError) as error:
            log.warning("scheduler memory not read", configmap=f"{self._namespace}/{NAME}", error=str(error))
        self._written = fingerprint(self._cluster)

    def look(self) -> None:
        """After a cycle: is there news?"""
        if fingerprint(self._cluster) != self._written:
            self._has_news.set()

    async def run(self) -> None:
        """Write what is new, until cancelled."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            await self.keep()
            await asyncio.sleep(PAUSE_S)
            self.look()

    async def keep(self) -> None:
        """Write now what is not written yet; gives up after a while, for what is remembered is worth no standstill."""
        async with self._one_at_a_time:
            before = fingerprint(self._cluster)
            if before == self._written:
                return
            text = msgspec.json.encode(memory_of(self._cluster, *self._times())).decode()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._write({self._key: text})
            except (KubeError, TimeoutError) as error:
                self._tell(str(error) or f"no answer within {PATIENCE_S:g} s")
            else:
                self._fault, self._written = "", before

    async def _write(self, data: Mapping[str, Any]) -> None:
        document: Document = {"data": dict(data)}
        try:
            await self._client.patch(ConfigMap, NAME, document, self._namespace)
        except NotFoundError:
            metadata = {"name": NAME, "namespace": self._namespace}
            try:
                await self._client.create(ConfigMap, {"metadata": metadata, **document}, self._namespace)
            except AlreadyExistsError:
                await self._client.patch(ConfigMap, NAME, document, self._namespace)

    def _tell(self, fault: str) -> None:
        if fault != self._fault:
            log.warning("scheduler memory not written", configmap=f"{self._namespace}/{NAME}", error=fault)
        self._fault = fault
