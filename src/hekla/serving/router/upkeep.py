"""What a router writes into the cluster: statuses of external providers, and the GatewayClass and Gateway that it begins with.

Every replica does, and all write the same: a status is written only where it says something else.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from hekla.api.foreign import Gateway, GatewayClass
from hekla.api.kthena import ExternalModelProvider
from hekla.api.meta import Document, Resource
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import AlreadyExistsError, KubeError
from hekla.serving.provider_status import provider_status
from hekla.serving.router.attachment import CLASS_NAME, CONTROLLER_NAME
from hekla.serving.router.world import World

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
"""How often changed providers are looked at."""
AGAIN_S: Final = 10.0
"""How often the first Gateway is tried again: its kinds may be installed later, or never."""
DEFAULT_GATEWAY: Final = "default"


class Upkeep:
    """One router's writing."""

    def __init__(self, client: ApiClient, world: World, *, wall: Callable[[], datetime]) -> None:
        self._client = client
        self._world = world
        self._wall = wall
        self._version = -1
        self._looks_to_wait = 0
        self._gateway_refused = ""
        self.gateway: tuple[str, int] | None = None
        """Namespace and port of the Gateway that is made where there is none; None: none is, or it is there."""

    async def run(self) -> None:
        """Write what changed, for as long as the router runs."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Write the statuses of providers that say something else; what cannot be written is tried at the next change."""
        self._looks_to_wait = max(0, self._looks_to_wait - 1)
        if self.gateway is not None and not self._looks_to_wait:
            if await self._make_gateway(*self.gateway):
                self.gateway = None
            self._looks_to_wait = round(AGAIN_S / LOOK_S)
        if self._version == self._world.version:
            return
        self._version = self._world.version
        for provider in tuple(self._world.providers.values()):
            status = provider_status(provider, self._wall())
            if status is not None:
                meta = provider.source.metadata
                await self._write(meta.namespace, meta.name, status)

    async def _write(self, namespace: str, name: str, status: Document) -> None:
        try:
            await self._client.patch_document(
                ExternalModelProvider.kind_info, name, {"status": status}, namespace, subresource="status"
            )
        except KubeError as error:
            log.warning(
                "status not written", kind="ExternalModelProvider", namespace=namespace, name=name, why=str(error)
            )

    async def _make_gateway(self, namespace: str, port: int) -> bool:
        """The class that this router serves, and a Gateway on the router's own port; what is there already stays. Of a class of
        another controller no Gateway is made: that one would serve it.
        """
        known = self._world.gateway_classes.get(CLASS_NAME)
        if known is not None and known.spec.controller_name != CONTROLLER_NAME:
            self._refused(GatewayClass, f'"{CLASS_NAME}" is a class of the controller "{known.spec.controller_name}"')
            return False
        for kind, document in default_gateway(namespace, port):
            where = namespace if kind.kind_info.is_namespaced else ""
            try:
                await self._client.create_document(kind.kind_info, document, where)
            except AlreadyExistsError:
                continue
            except KubeError as error:
                self._refused(kind, str(error))
                return False
        return True

    def _refused(self, kind: type[Resource], why: str) -> None:
        if why != self._gateway_refused:
            self._gateway_refused = why
            log.warning("default gateway not made", kind=kind.kind_info.kind, why=why, again_s=AGAIN_S)


def default_gateway(namespace: str, port: int) -> list[tuple[type[Resource], Document]]:
    """The class and the Gateway `default`, which takes routes of all namespaces."""
    listener = {
        "name": DEFAULT_GATEWAY,
        "port": port,
        "protocol": "HTTP",
        "allowedRoutes": {"namespaces": {"from": "All"}},
    }
    gateway = {
        "metadata": {"name": DEFAULT_GATEWAY, "namespace": namespace},
        "spec": {"gatewayClassName": CLASS_NAME, "listeners": [listener]},
    }
    of_class = {"metadata": {"name": CLASS_NAME}, "spec": {"controllerName": CONTROLLER_NAME}}
    return [(GatewayClass, of_class), (Gateway, gateway)]
