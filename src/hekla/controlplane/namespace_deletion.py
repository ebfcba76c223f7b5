"""Ends a namespace: deletes everything in it, of whatever kind, and then lets it go.

Pods go first, so that what they use is still there while they stop. What remains (finalizers) is said in conditions.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import structlog

from hekla.api.core import Namespace
from hekla.api.meta import Document, Kind
from hekla.controlplane.statuses import conditions_of, new_condition
from hekla.kube.cache import ObjectKey, key_of
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.discovery import ServedKind, discover
from hekla.kube.errors import ConflictError, KubeError, NotFoundError
from hekla.kube.informer import Informers
from hekla.kube.work_queue import WorkQueue

log = structlog.get_logger()

WORKERS = 4
FINALIZER = "kubernetes"
LOOK_AGAIN_S = 0.5
LONGEST_LOOK_S = 15.0


@dataclass
class Remains:
    """What is still in a namespace."""

    counts: dict[str, int] = field(default_factory=dict)
    finalizers: dict[str, int] = field(default_factory=dict)

    def add(self, kind: Kind, items: list[Document]) -> None:
        """Count the objects of a kind and the finalizers that hold them."""
        if items:
            self.counts[kind.resource] = len(items)
        for item in items:
            for finalizer in item["metadata"].get("finalizers") or ():
                self.finalizers[finalizer] = self.finalizers.get(finalizer, 0) + 1


class NamespaceDeletion:
    """Takes terminating namespaces apart."""

    def __init__(self, informers: Informers, *, clock: Clock | None = None, dice: random.Random | None = None) -> None:
        self._informers = informers
        self._client = informers.client
        self._clock = clock or SystemClock()
        self._queue = WorkQueue(dice=dice)
        self._looks: dict[ObjectKey, int] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        informer = self._informers.of(Namespace)
        informer.add_handler(self._changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(WORKERS):
                    tasks.create_task(self._work(), name=f"namespace deletion {number}")
        finally:
            informer.remove_handler(self._changed)
            self._queue.close()

    def _changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and new.metadata.deletion_timestamp:
            self._queue.add(key_of(new))

    async def _work(self) -> None:
        while (key := await self._queue.get()) is not None:
            try:
                await self._take_apart(key)
                self._queue.succeeded(key)
            except KubeError as error:
                wait_s = self._queue.add_failed(key)
                log.info("namespace not emptied yet", name=key[1], why=str(error), retry_in_s=round(wait_s, 3))
            finally:
                self._queue.done(key)

    async def _take_apart(self, key: ObjectKey) -> None:
        name = key[1]
        try:
            namespace = await self._client.get_document(Namespace.kind_info, name)
        except NotFoundError:
            self._looks.pop(key, None)
            return
        if not namespace["metadata"].get("deletionTimestamp") or FINALIZER not in namespace["spec"].get(
            "finalizers", ()
        ):
            return
        remains = await self._delete_all(name)
        if remains.counts:
            await self._say_what_remains(name, remains)
            looks = self._looks[key] = self._looks.get(key, 0) + 1
            self._queue.add_after(key, min(LONGEST_LOOK_S, LOOK_AGAIN_S * 1.5**looks))
            return
        await self._let_go(namespace)
        self._looks.pop(key, None)

    async def _delete_all(self, name: str) -> Remains:
        kinds = [one for one in await discover(self._client) if one.kind.is_namespaced and one.can("list", "delete")]
        pods = [one for one in kinds if one.kind.resource == "pods"]
        remains = await self._delete_kinds(name, pods)
        if remains.counts:
            return remains
        return await self._delete_kinds(name, [one for one in kinds if one not in pods])

    async def _delete_kinds(self, name: str, kinds: list[ServedKind]) -> Remains:
        remains = Remains()
        for served in kinds:
            page = await self._client.list_documents(served.kind, name)
            if not page.items:
                continue
            await self._delete_kind(served, name, page.items)
            left = await self._client.list_documents(served.kind, name)
            remains.add(served.kind, left.items)
        return remains

    async def _delete_kind(self, served: ServedKind, name: str, items: list[Document]) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if served.can("deletecollection"):
            await self._client.request("DELETE", served.kind.path(name), options)
            return
        for item in items:
            try:
                await self._client.delete_document(
                    served.kind, item["metadata"]["name"], name, propagation="Background"
                )
            except NotFoundError:
                continue

    async def _say_what_remains(self, name: str, remains: Remains) -> None:
        """Conditions, in Kubernetes' words, so that `kubectl describe` says what a namespace waits for."""
        current = await self._client.get(Namespace, name)
        old, now = conditions_of(current), self._clock.now()
        content = ", ".join(f"{kind} has {count} resource instances" for kind, count in sorted(remains.counts.items()))
        held = ", ".join(f"{one} in {count} resource instances" for one, count in sorted(remains.finalizers.items()))
        said: dict[str, tuple[str, str, str]] = {
            "NamespaceContentRemaining": ("True", "SomeResourcesRemain", f"Some resources are remaining: {content}"),
            "NamespaceFinalizersRemaining": (
                ("True", "SomeFinalizersRemain", f"Some content in the namespace has finalizers remaining: {held}")
                if held
                else ("False", "ContentHasNoFinalizers", "All content-preserving finalizers finished")
            ),
        }
        wanted = [new_condition(kind, *words, now, old.get(kind)) for kind, words in said.items()]
        if [old.get(one["type"]) for one in wanted] != wanted:
            patch: dict[str, Any] = {"status": {"conditions": wanted}}
            await self._client.patch(Namespace, name, patch, subresource="status")

    async def _let_go(self, namespace: Document) -> None:
        rest = [one for one in namespace["spec"].get("finalizers", ()) if one != FINALIZER]
        body = {**namespace, "spec": {**namespace["spec"], "finalizers": rest}}
        name = namespace["metadata"]["name"]
        try:
            await self._client.request("PUT", f"/api/v1/namespaces/{name}/finalize", body)
        except (ConflictError, NotFoundError) as error:
            log.debug("namespace changed meanwhile", name=name, why=str(error))
            self._queue.add_after(("", name), LOOK_AGAIN_S)
