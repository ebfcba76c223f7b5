"""Collects what its owners have left behind, over every kind that the server serves. `owner_graph.py` decides.

Before anything is deleted because an owner is absent, the server itself is asked: a cache may lag behind a creation.
"""

import asyncio
import random
from collections import OrderedDict
from typing import Any

import structlog

from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.meta import Kind, OwnerReference, Resource
from hekla.api.pods import Pod
from hekla.controlplane.owner_graph import Item, OwnerGraph, decide, item_of
from hekla.kube.discovery import ServedKind, discover
from hekla.kube.errors import ApiError, KubeError, NotFoundError
from hekla.kube.events import SilentRecorder
from hekla.kube.execute import CommandError, Executor
from hekla.kube.informer import Informer, Informers
from hekla.kube.metadata_kinds import metadata_only
from hekla.kube.work_queue import WorkQueue

log = structlog.get_logger()

WORKERS = 8
REDISCOVER_S = 30.0
SETTLE_S = 0.2
"""How long after a change of definitions their kinds are looked for: the server needs a moment to serve them."""

MAX_ABSENT = 50_000
"""Owners known to be gone; a uid never comes back, so remembering saves questions."""

NOT_WATCHED = frozenset({"events", "events.events.k8s.io"})
"""Many, short-lived, and never owned."""


class GarbageCollector:
    """Watches the metadata of everything, and deletes what nobody owns any more."""

    def __init__(self, informers: Informers, *, dice: random.Random | None = None) -> None:
        self._informers = informers
        self._client = informers.client
        self._executor = Executor(informers.client, SilentRecorder())
        self._graph = OwnerGraph()
        self._queue = WorkQueue(dice=dice)
        self._watched: dict[Kind, Informer[Any]] = {}
        self._served: dict[tuple[str, str], Kind] = {}
        self._absent: OrderedDict[str, None] = OrderedDict()
        self._rediscover = asyncio.Event()

    async def run(self) -> None:
        """Collect until cancelled."""
        definitions = self._informers.of(CustomResourceDefinition)
        definitions.add_handler(lambda old, new: self._rediscover.set())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_watching())
                for number in range(WORKERS):
                    tasks.create_task(self._work(), name=f"garbage {number}")
        finally:
            self._queue.close()

    async def _keep_watching(self) -> None:
        while True:
            try:
                self._watch(await discover(self._client))
            except KubeError as error:
                log.warning("kinds not discovered", why=str(error))
            try:
                async with asyncio.timeout(REDISCOVER_S):
                    await self._rediscover.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._rediscover.clear()

    def _watch(self, served: list[ServedKind]) -> None:
        wanted = {
            one.kind for one in served if one.can("list", "watch", "delete") and one.kind.resource not in NOT_WATCHED
        }
        self._served = {(one.kind.group, one.kind.kind): one.kind for one in served}
        for kind in wanted - self._watched.keys():
            informer = self._informers.of(_watched_as(kind))
            informer.add_handler(self._changed)
            self._watched[kind] = informer
        for kind in self._watched.keys() - wanted:
            informer = self._watched.pop(kind)
            self._informers.stop(_watched_as(kind))
            for obj in list(informer.cache):
                self._changed(obj, None)

    def _changed(self, old: Resource | None, new: Resource | None) -> None:
        if new is not None:
            look = self._graph.put(item_of(new))
        else:
            assert old is not None, "an event has an old or a new object"
            look = self._graph.remove(old.metadata.uid)
        for uid in look:
            self._queue.add(("", uid))

    async def _work(self) -> None:
        while (key := await self._queue.get()) is not None:
            try:
                await self._look_at(key[1])
                self._queue.succeeded(key)
            except (CommandError, KubeError) as error:
                wait_s = self._queue.add_failed(key)
                log.debug(
                    "not collected yet", uid=key[1], why=str(error.__cause__ or error), retry_in_s=round(wait_s, 3)
                )
            finally:
                self._queue.done(key)

    async def _look_at(self, uid: str) -> None:
        item = self._graph.get(uid)
        if item is None:
            self._queue.forget(("", uid))
            return
        if not item.is_leaving:
            for owner in item.owners:
                await self._ask_for(item, owner)
        commands = list(decide(item, self._graph, lambda _, owner: owner.uid in self._absent))
        if commands:
            log.debug("collecting", kind=item.kind.resource, namespace=item.namespace, name=item.name)
            await self._executor.run(commands)

    async def _ask_for(self, item: Item, owner: OwnerReference) -> None:
        """Find out whether an owner that is not in the graph exists; what is surely gone is remembered."""
        if owner.uid in self._absent or self._graph.get(owner.uid) is not None:
            return
        group = owner.api_version.rpartition("/")[0]
        kind = self._served.get((group, owner.kind))
        if kind is None:
            # A kind that is not served may come back with its definition; nothing is deleted on a guess.
            return
        namespace = item.namespace if kind.is_namespaced else ""
        try:
            found = await self._client.get_document(kind, owner.name, namespace)
            is_absent = found["metadata"].get("uid") != owner.uid
        except NotFoundError:
            is_absent = True
        except ApiError as error:
            log.warning("owner not looked up", kind=owner.kind, name=owner.name, why=str(error))
            raise
        if is_absent:
            self._absent[owner.uid] = None
            if len(self._absent) > MAX_ABSENT:
                self._absent.popitem(last=False)


def _watched_as(kind: Kind) -> type[Resource]:
    """The class by which a kind is watched: pods by the one that all controllers share, for there are many of them."""
    return Pod if kind.resource == Pod.kind_info.resource else metadata_only(kind)
