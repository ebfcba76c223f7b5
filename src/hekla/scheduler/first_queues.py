"""The two queues that Volcano's scheduler makes as it starts: `root`, which lends nothing back, and the default.

They are made again when they are gone: who applies Volcano's kinds anew, after deleting them with all their objects, would else have no
queue until the scheduler is started again.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import structlog

from hekla.api.volcano.scheduling import Queue
from hekla.kube.client import Client
from hekla.kube.errors import AlreadyExistsError, ApiError, NotFoundError, TransportError
from hekla.kube.informer import Informer
from hekla.placement.cluster import ROOT_QUEUE

log = structlog.get_logger()

RETRY_S = 1.0


class FirstQueues:
    """The queues that are there before anybody makes one."""

    def __init__(self, client: Client, default_queue: str) -> None:
        self._client, self._default = client, default_queue

    async def make(self) -> None:
        """Make those that are missing; tried until they are there."""
        for document in self._documents():
            await self._make(document)

    async def keep(self, informer: Informer[Queue]) -> None:
        """Make those again that go, until cancelled."""
        names, gone = {one["metadata"]["name"] for one in self._documents()}, asyncio.Event()

        def on_queue(old: Queue | None, new: Queue | None) -> None:
            if new is None and old is not None and old.metadata.name in names:
                log.warning("queue is gone and made again", queue=old.metadata.name)
                gone.set()

        await informer.synced()
        informer.add_handler(on_queue)
        while True:
            await gone.wait()
            gone.clear()
            await self.make()

    def _documents(self) -> Iterator[dict[str, Any]]:
        for name, is_reclaimable in ((ROOT_QUEUE, False), (self._default, True)):
            spec: dict[str, Any] = {"weight": 1, "reclaimable": is_reclaimable}
            if name != ROOT_QUEUE:
                spec["parent"] = ROOT_QUEUE
            yield {"metadata": {"name": name}, "spec": spec}

    async def _make(self, document: dict[str, Any]) -> None:
        told = ""
        while True:
            try:
                if await self._has_queue(document["metadata"]["name"]):
                    return
                await self._client.create(Queue, document)
                return
            except AlreadyExistsError:
                return
            except (ApiError, TransportError) as error:
                # Volcano's kinds may be installed a moment after us, and its webhooks answer a moment after us.
                if told != (told := str(error)):
                    log.warning("queue not made", queue=document["metadata"]["name"], error=told)
                await asyncio.sleep(RETRY_S)

    async def _has_queue(self, name: str) -> bool:
        """Asked first: a creation goes through webhooks, and a scheduler that starts must not wait for them in vain."""
        try:
            await self._client.get(Queue, name)
        except NotFoundError:
            return False
        return True
