"""Writes into resource claims which devices they have before their pods are bound, and unsays it where a bind has failed.

The node's drivers go by what a claim's status says, and so does everybody who looks for a free device. What is said there
for a pod that got no node would keep devices from all others: nobody else takes it back while the pod waits. (kube-scheduler
takes back the pod's name at once, and the devices when a pod is next in want of them.)
"""

import asyncio
from weakref import WeakValueDictionary

import structlog

from hekla.api.devices import ResourceClaim
from hekla.api.pods import Pod
from hekla.dialects.device_allocation import (
    MOST_CONSUMERS,
    agrees,
    finalizer_patch,
    reserved_for,
    status_patch,
    unguarded_patch,
    unreserved_patch,
)
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.pod_devices import claim_ids
from hekla.kube.client import Client
from hekla.kube.errors import ApiError, ConflictError, NotFoundError, TransportError
from hekla.placement.model import Task

log = structlog.get_logger()

ATTEMPTS = 5
"""How often a claim that others write at the same time is read again."""

MOST_UNSAID = 4096
"""Claims of which it is remembered that what we know of them may be older than what we wrote."""


class DeviceClaims:
    """The claims of pods that are being bound."""

    def __init__(self, client: Client, feed: ClusterFeed) -> None:
        self._client = client
        self._feed = feed
        self._writing: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Claims that are being written: pods that share one take turns, as all change one list."""

        self._unsaid: dict[tuple[str, str], None] = {}
        """Claims that we took something back from; the watch may still be on its way."""

    async def allocate(self, pod: Pod, task: Task) -> None:
        """Have every claim of a pod say which devices it has, and that the pod uses it; NotFoundError if none are left."""
        for claim in claim_ids(pod):
            async with self._turn(claim):
                await self._allocate(pod, task, *claim)

    async def take_back(self, pod: Pod) -> None:
        """Have no claim say that it is used by a pod, nor that it has devices where nobody else uses it.

        Whether the pod was bound after all is asked first: an answer may have been lost, and its containers may run.
        """
        claims = list(claim_ids(pod))
        try:
            if not claims or await self._may_be_bound(pod):
                return
            for claim in claims:
                async with self._turn(claim):
                    await self._take_back(pod, *claim)
        except (ApiError, TransportError) as error:
            _tell(pod, str(error))

    def _turn(self, claim: tuple[str, str]) -> asyncio.Lock:
        return self._writing.setdefault(claim, asyncio.Lock())  # gone with the last who waits for it

    async def _allocate(self, pod: Pod, task: Task, namespace: str, name: str) -> None:
        feed, claim = self._feed, self._feed.resource_claim(namespace, name)
        if (namespace, name) in self._unsaid:
            claim = await self._client.get(ResourceClaim, name, namespace)
            self._unsaid.pop((namespace, name), None)
        # A claim that others wrote into may have had the task read anew, after which it is another.
        grants = feed.cluster.tasks.get(task.uid, task).granted.get(f"{namespace}/{name}")
        reach = feed.cluster.tallies.inventory.reach_of(grants or ())
        for _ in range(ATTEMPTS):
            if claim is None or not grants or not agrees(claim, grants):
                raise NotFoundError(404, "NotFound", f'no devices are left for resourceclaim "{name}"')
            if reserved_for(claim, pod):
                return
            if len(claim.status.reserved_for) >= MOST_CONSUMERS:
                raise NotFoundError(404, "NotFound", f'resourceclaim "{name}" is used by {MOST_CONSUMERS} pods already')
            try:
                if (guarded := finalizer_patch(claim)) is not None:
                    claim = await self._client.patch(ResourceClaim, name, guarded, namespace)
                patch = status_patch(claim, pod, grants, reach, feed)
                await self._client.patch(ResourceClaim, name, patch, namespace, subresource="status")
                return
            except ConflictError:  # pods of a gang that share it write at the same time
                claim = await self._client.get(ResourceClaim, name, namespace)
        raise ConflictError(409, "Conflict", _keeps_changing(name))

    async def _take_back(self, pod: Pod, namespace: str, name: str) -> None:
        for _ in range(ATTEMPTS):
            try:
                claim = await self._client.get(ResourceClaim, name, namespace)
                if reserved_for(claim, pod):
                    patch = unreserved_patch(claim, pod)
                    claim = await self._client.patch(ResourceClaim, name, patch, namespace, subresource="status")
                    self._note_unsaid((namespace, name))
                # Also where the pod is not in it: an earlier turn may have got as far as that, or `allocate` no farther than
                # the finalizer, which would keep the claim for ever. Whoever is about to give it devices conflicts and asks again.
                if (unguarded := unguarded_patch(claim)) is not None:
                    await self._client.patch(ResourceClaim, name, unguarded, namespace)
                return
            except NotFoundError:
                return
            except ConflictError:
                continue
        _tell(pod, _keeps_changing(name))  # the pod's other claims can be taken back all the same

    def _note_unsaid(self, claim: tuple[str, str]) -> None:
        while len(self._unsaid) >= MOST_UNSAID:
            del self._unsaid[next(iter(self._unsaid))]
        self._unsaid[claim] = None

    async def _may_be_bound(self, pod: Pod) -> bool:
        meta = pod.metadata
        try:
            current = await self._client.get(Pod, meta.name, meta.namespace)
        except NotFoundError:
            return False
        return current.metadata.uid == meta.uid and bool(current.spec.node_name)


def _keeps_changing(name: str) -> str:
    return f'resourceclaim "{name}" keeps changing'


def _tell(pod: Pod, error: str) -> None:
    log.warning("devices not taken back", pod=f"{pod.metadata.namespace}/{pod.metadata.name}", error=error)
