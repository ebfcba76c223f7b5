"""Writes onto a ModelServing without replicas that requests for it wait: the autoscaler sees it and wakes the model.

The shell of `holding.py`. What cannot be written is tried again at the next look; the requests wait meanwhile.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from hekla.api.kthena import ModelServing, labels
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import KubeError
from hekla.kube.timestamps import rfc3339
from hekla.serving.router.holding import Holding

LOOK_S: Final = 0.1
AGAIN_S: Final = 10.0
"""How often the wish is written anew while requests wait for a model without replicas."""
KEEP_S: Final = 60.0
"""How often while they wait for one that is on its way, so that it is not given up where it waits for room."""

log = structlog.get_logger(__name__)


class Waking:
    """One router's wishes."""

    def __init__(
        self, client: ApiClient, holding: Holding, *, now: Callable[[], float], wall: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._holding = holding
        self._now = now
        self._wall = wall
        self._written: dict[str, float] = {}

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """End what waited too long, and write the wishes that are due."""
        self._holding.tick()
        wanted = {f"{one.metadata.namespace}/{one.metadata.name}": one for one in self._holding.wanted()}
        self._written = {key: at for key, at in self._written.items() if key in wanted}
        for key, serving in wanted.items():
            again_s = AGAIN_S if serving.spec.replicas == 0 else KEEP_S
            if self._now() - self._written.get(key, float("-inf")) >= again_s and await self._write(serving):
                self._written[key] = self._now()

    async def _write(self, serving: ModelServing) -> bool:
        meta = serving.metadata
        patch = {"metadata": {"annotations": {labels.WANTED_AT: rfc3339(self._wall())}}}
        try:
            await self._client.patch(ModelServing, meta.name, patch, meta.namespace)
        except KubeError as error:
            log.warning("model not woken", name=meta.name, namespace=meta.namespace, why=str(error))
            return False
        log.info("model wanted", name=meta.name, namespace=meta.namespace)
        return True
