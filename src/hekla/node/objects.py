"""What pods refer to, out of the informers' caches: config maps, secrets, services, claims, names, tokens.

A cache may be a moment behind a pod that names an object made just before it; so what is missing there is asked of the
API server itself before anybody is told that it does not exist.

Guests, nodes in a cluster of somebody else, follow their own pods and Node objects and the Services alone; what pods refer to is asked
for when it is wanted: nobody there should have every Secret of the cluster in his memory, or the right to.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from hekla.api.core import ConfigMap, Secret, Service
from hekla.api.discovery import EndpointSlice
from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim
from hekla.kube.client import Client
from hekla.kube.errors import ApiError, NotFoundError
from hekla.kube.informer import Informer, Informers
from hekla.node.addresses import LoopbackAddresses
from hekla.node.names import NameTable
from hekla.node.references import CONFIG_MAP, SECRET, Lookup, references_of
from hekla.node.volumes import Tokens

T = TypeVar("T", bound=Resource)

TOKEN_S = 3607
"""How long a mounted token lives; refreshed when four fifths have passed."""

SECRET_S = 5.0
"""How long a Secret that a guest asked for is believed: an egress broker asks with every request that it adds one to."""
MOST_SECRETS = 1_000

TokenSource = Callable[[Pod, str, int], Awaitable[str]]
"""A token for a pod's service account: pod, audience (or ""), seconds."""


class Objects:
    """Reads for pods."""

    def __init__(
        self,
        informers: Informers,
        client: Client,
        addresses: LoopbackAddresses,
        *,
        token_source: TokenSource | None,
        api_address: tuple[str, int],
        guests: Sequence[str] = (),
    ) -> None:
        """`guests` are the names of our nodes, where we are guests; none: the cluster is ours, and we follow it all."""
        self._client, self._addresses = client, addresses
        self._token_source = token_source or self._request_token
        self._api_address = api_address
        self.is_guest = bool(guests)
        """Whether what pods refer to is asked for, and not followed."""
        shelves = _OfGuests(informers, guests) if guests else informers
        self.pods = shelves.of(Pod)
        self.services = shelves.of(Service)
        self.slices = shelves.of(EndpointSlice)
        self.config_maps = shelves.of(ConfigMap)
        self.secrets = shelves.of(Secret)
        self.claims = shelves.of(PersistentVolumeClaim)
        self.volumes = shelves.of(PersistentVolume)
        self.nodes = shelves.of(Node)
        self._names: NameTable | None = None
        self._tokens: dict[tuple[str, str, str], tuple[float, str]] = {}
        self._asked_secrets: dict[tuple[str, str], tuple[float, asyncio.Task[Secret | None]]] = {}

    async def synced(self) -> None:
        """Wait until every cache has been filled."""
        own: tuple[Informer[Any], ...] = (self.services, self.nodes, self.pods)
        referred: tuple[Informer[Any], ...] = (
            self.slices, self.config_maps, self.secrets, self.claims, self.volumes,
        )  # fmt: skip
        for informer in own if self.is_guest else (*referred, *own):
            await informer.synced()

    def labels_of_node(self, name: str) -> dict[str, str]:
        """What the node is labelled with by now: people label nodes, and the scheduler heeds it."""
        node = self.nodes.cache.get("", name)
        return {} if node is None else node.metadata.labels

    def names(self) -> NameTable:
        """Who is called what now; computed when it is first asked for after a change."""
        if self._names is None:
            self._names = NameTable.of(
                self.services.cache, self.pods.cache, self.slices.cache, self._addresses.by_pod()
            )
        return self._names

    def names_changed(self) -> None:
        """Compute the names anew when they are next asked for."""
        self._names = None

    async def lookup(self, pod: Pod) -> Lookup:
        """What this pod may refer to."""
        namespace = pod.metadata.namespace
        config_maps: dict[str, ConfigMap] = {}
        secrets: dict[str, Secret] = {}
        for kind, name in references_of(pod):
            if kind == CONFIG_MAP:
                await self._find(ConfigMap, namespace, name, self.config_maps.cache.get(namespace, name), config_maps)
            elif kind == SECRET:
                await self._find(Secret, namespace, name, self.secrets.cache.get(namespace, name), secrets)
        host, port = self._api_address
        services = () if pod.spec.enable_service_links is False else tuple(self.services.cache.list(namespace))
        return Lookup(config_maps=config_maps, secrets=secrets, services=services, api_host=host, api_port=port)

    async def _find(self, kind: type[T], namespace: str, name: str, cached: T | None, into: dict[str, T]) -> None:
        if cached is None:
            try:
                cached = await self._client.get(kind, name, namespace)
            except NotFoundError:
                return
        into[name] = cached

    async def secret(self, namespace: str, name: str) -> Secret | None:
        """One Secret as it is now, or was 5 s ago; None if there is none, or we may not see it. Raises KubeError."""
        if not self.is_guest:
            return self.secrets.cache.get(namespace, name)
        key, now = (namespace, name), asyncio.get_running_loop().time()
        until, asked = self._asked_secrets.get(key, (0.0, None))
        if asked is None or until <= now or (asked.done() and (asked.cancelled() or asked.exception() is not None)):
            asked = asyncio.create_task(self._ask_secret(namespace, name))
            self._asked_secrets.pop(key, None)
            self._asked_secrets[key] = now + SECRET_S, asked
            while len(self._asked_secrets) > MOST_SECRETS:
                self._asked_secrets.pop(next(iter(self._asked_secrets)))
        return await asyncio.shield(asked)  # others wait for the same answer

    async def _ask_secret(self, namespace: str, name: str) -> Secret | None:
        try:
            return await self._client.get(Secret, name, namespace)
        except ApiError as refusal:
            if refusal.code in (403, 404):
                return None
            raise

    async def volumes_of_claims(self, pod: Pod) -> Mapping[str, PersistentVolume | None]:
        """The volume that is bound to each claim of a pod; None: not yet."""
        return {claim: await self._volume_of_claim(pod.metadata.namespace, claim) for claim in claims_of(pod)}

    async def _volume_of_claim(self, namespace: str, claim: str) -> PersistentVolume | None:
        if not self.is_guest:
            known = self.claims.cache.get(namespace, claim)
            is_bound = known is not None and known.status.phase == "Bound"
            return self.volumes.cache.get("", known.spec.volume_name) if known is not None and is_bound else None
        try:
            found = await self._client.get(PersistentVolumeClaim, claim, namespace)
            return (
                await self._client.get(PersistentVolume, found.spec.volume_name)
                if found.status.phase == "Bound"
                else None
            )
        except NotFoundError:
            return None

    async def tokens(self, pod: Pod) -> Tokens:
        """The service-account tokens that the pod's projected volumes want."""
        wanted = [
            (volume.name, source.service_account_token)
            for volume in pod.spec.volumes
            for source in (volume.projected.sources if volume.projected else ())
            if source.service_account_token is not None
        ]
        return {
            (name, token.path): await self._token(pod, token.audience, token.expiration_seconds or TOKEN_S)
            for name, token in wanted
        }

    async def _token(self, pod: Pod, audience: str, lifetime_s: int) -> str:
        key = (pod.metadata.uid, audience, str(lifetime_s))
        now = asyncio.get_running_loop().time()
        made_at, token = self._tokens.get(key, (float("-inf"), ""))
        if now - made_at > 0.8 * lifetime_s:
            token = await self._token_source(pod, audience, lifetime_s)
            self._tokens[key] = (now, token)
        return token

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        for key in [key for key in self._tokens if key[0] == pod_uid]:
            del self._tokens[key]

    async def _request_token(self, pod: Pod, audience: str, lifetime_s: int) -> str:
        """Ask the API server; one that serves no tokens leaves the file empty."""
        account = pod.spec.service_account_name or "default"
        namespace = pod.metadata.namespace
        spec = {
            "expirationSeconds": lifetime_s,
            "audiences": [audience] if audience else [],
            "boundObjectRef": {
                "apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid,
            },
        }  # fmt: skip
        document = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        try:
            answer = await self._client.request("POST", path, document)
        except ApiError as refusal:
            if refusal.code in (404, 405):
                return ""
            raise
        return str(answer.get("status", {}).get("token", ""))


class _OfGuests:
    """Informers of what guests follow; of all else caches that stay empty, so that it is asked for."""

    def __init__(self, informers: Informers, names: Sequence[str]) -> None:
        self._informers = informers
        alone = names[0] if len(names) == 1 else ""
        # as a kubelet asks, and as an API server lets a node ask; many share one watch of all that is bound
        self._selectors: Mapping[type[Resource], str] = {
            Pod: f"spec.nodeName={alone}" if alone else "spec.nodeName!=",
            Node: f"metadata.name={alone}" if alone else "",
            Service: "",
        }

    def of(self, kind: type[T]) -> Informer[T]:
        """The informer of a kind."""
        selector = self._selectors.get(kind)
        if selector is None:
            return Informer(self._informers.client, kind)
        return self._informers.of(kind, field_selector=selector)


def claims_of(pod: Pod) -> Iterator[str]:
    """The claims that the pod's volumes name, or stand for."""
    for volume in pod.spec.volumes:
        if volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"
        elif volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
