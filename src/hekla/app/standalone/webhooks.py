"""The webhooks as a server: TLS by certificates of our own, one path for each rule, a cache of what rules look at.

The cache may be a moment behind: a Job that names a queue made in the same second must not be refused. So a refusal
that looked at the cluster is decided once more by what the API server says now; an acceptance is not.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from prometheus_client import Counter

from hekla.api.core import ConfigMap, Namespace
from hekla.api.meta import Document, Resource
from hekla.api.volcano import Queue
from hekla.apiserver.webhook_rule import WebhookRule
from hekla.app.standalone.certificate_keeper import CertificateKeeper
from hekla.app.standalone.office import Office
from hekla.app.standalone.reviews import ReviewError, answered, rules_by_path
from hekla.app.standalone.settings import WEBHOOKS, StandaloneSettings, host_and_port
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import KubeError
from hekla.kube.informer import Informers
from hekla.wire.limits import Limits
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server
from hekla.workloads.admission_resource_groups import CONFIG_MAP

log = structlog.get_logger(__name__)

READ_KINDS: tuple[type[Resource], ...] = (Queue, Namespace)
"""What rules may look at. Of other kinds they find nothing: who owns a plain pod is the controllers' to look at, which
mark the pod a moment later, and following every ReplicaSet of a cluster for it is a right that is not worth its price.
"""

THE_MAP = f"metadata.name={CONFIG_MAP}"
"""The one ConfigMap that is looked at: that of the resource groups."""

LIMITS = Limits(connections=1000, body_bytes=8 * 1024 * 1024)
"""A review holds an object of 1.5 MiB at most, and its former self."""

LEAVE_S = 5.0
"""How long a replica that is told to end answers on. API servers hear a moment later than it that its endpoint is gone, and what they
send there meanwhile is a Job refused: of 800 that were made while one of two replicas ended, 7 were.
"""

STOP_GRACE_S = 5.0
REVIEWS = Counter("hekla_webhook_reviews_total", "Reviews answered, by path and outcome.", ["path", "outcome"])


async def serve_webhooks(office: Office) -> None:
    """Answer reviews until it is time to go."""
    client = office.client(WEBHOOKS)
    keeper = CertificateKeeper(client, office.settings.namespace)
    try:
        async with Informers(client) as informers:
            reader = CachedReader(informers, office.settings.namespace)
            desk = WebhookDesk(reader, client, office.settings)
            office.health.checks[WEBHOOKS] = lambda: keeper.trouble or reader.complaint()
            async with asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(keeper.run(), name="certificates")
                await office.until_stopped(keeper.has_certificate.wait())
                if keeper.has_certificate.is_set():
                    await _answer(office, keeper, desk)
                keeping.cancel()
    finally:
        office.health.checks.pop(WEBHOOKS, None)
        await client.close()


async def _answer(office: Office, keeper: CertificateKeeper, desk: "WebhookDesk") -> None:
    server = Server()
    host, port = host_and_port("--webhook-address", office.settings.webhook_address)
    await server.start(desk.answer, host=host, port=port, ssl_context=keeper.context, limits=LIMITS)
    log.info("webhooks answer", address=f"https://{host}:{server.port}", paths=len(rules_by_path()))
    try:
        await office.stopping.wait()
        office.health.checks[WEBHOOKS] = lambda: "told to end"
        server.take_leave()
        await asyncio.sleep(LEAVE_S)
    finally:
        await server.stop(STOP_GRACE_S)


class WebhookDesk:
    """Answers reviews by the rules."""

    def __init__(self, reader: "CachedReader", client: ApiClient, settings: StandaloneSettings) -> None:
        self._reader, self._client, self._namespace = reader, client, settings.namespace
        self._rules = rules_by_path(settings.namespace, settings.ours)
        for path in self._rules:
            REVIEWS.labels(path, "unreadable")  # told from the start: an alert looks for an increase

    async def answer(self, request: Request) -> Response:
        """One review, or what is wrong with it."""
        rule = self._rules.get(request.path)
        if rule is None:
            return _text(404, f"no webhook answers at {request.path}; there are: {', '.join(sorted(self._rules))}")
        if request.method != "POST":
            return _text(405, "a review is sent by POST")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _text(415, "a review is sent as application/json")
        try:
            review = await self._decided(rule, request.body)
        except ReviewError as error:
            REVIEWS.labels(request.path, "unreadable").inc()
            return _text(400, str(error))
        REVIEWS.labels(request.path, "allowed" if review["response"]["allowed"] else "denied").inc()
        return Response(200, msgspec.json.encode(review), "application/json")

    async def _decided(self, rule: WebhookRule, body: bytes) -> Document:
        if not self._reader.is_complete:
            return answered(rule, body, await self._present())
        glance = Glance(self._reader)
        review = answered(rule, body, glance)
        if review["response"]["allowed"] or not glance.has_looked:
            return review
        return answered(rule, body, await self._present())

    async def _present(self) -> "Snapshot":
        """What the API server says now; the cache, where it says nothing."""
        kinds: tuple[type[Resource], ...] = (*READ_KINDS, ConfigMap)
        one_map = self._client.list_documents(ConfigMap.kind_info, self._namespace, field_selector=THE_MAP)
        try:
            pages = await asyncio.gather(*(self._client.list_documents(kind.kind_info) for kind in READ_KINDS), one_map)
        except KubeError as error:
            log.warning("decided by the cache", why=str(error))
            return Snapshot({kind.kind_info.resource: self._reader.list(kind.kind_info.resource) for kind in kinds})
        return Snapshot({kind.kind_info.resource: page.items for kind, page in zip(kinds, pages, strict=True)})


class CachedReader:
    """The cluster as informers show it."""

    def __init__(self, informers: Informers, namespace: str) -> None:
        self._informers: dict[str, Any] = {kind.kind_info.resource: informers.of(kind) for kind in READ_KINDS}
        one_map = informers.of(ConfigMap, namespace=namespace, field_selector=THE_MAP)
        self._informers[ConfigMap.kind_info.resource] = one_map

    @property
    def is_complete(self) -> bool:
        """Whether every cache has been filled."""
        return all(one.is_synced for one in self._informers.values())

    def complaint(self) -> str:
        """What cannot be read; empty if nothing."""
        missing = {name: one.trouble or "being read" for name, one in self._informers.items() if not one.is_synced}
        return "; ".join(f"{name}: {why}" for name, why in missing.items())

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        """One object's document."""
        informer = self._informers.get(resource)
        found = informer.cache.get(namespace, name) if informer is not None else None
        return None if found is None else _document(found)

    def list(self, resource: str, namespace: str = "") -> Sequence[Document]:
        """All objects of a resource."""
        informer = self._informers.get(resource)
        return [_document(one) for one in informer.cache.list(namespace)] if informer is not None else []


class Glance:
    """A reader that remembers whether anybody looked."""

    def __init__(self, inner: CachedReader) -> None:
        self._inner = inner
        self.has_looked = False

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        """One object's document."""
        self.has_looked = True
        return self._inner.get(resource, namespace, name)

    def list(self, resource: str, namespace: str = "") -> Sequence[Document]:
        """All objects of a resource."""
        self.has_looked = True
        return self._inner.list(resource, namespace)


class Snapshot:
    """The cluster as it was at one moment."""

    def __init__(self, documents: dict[str, Sequence[Document]]) -> None:
        self._documents = documents

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        """One object's document."""
        found = (one for one in self.list(resource, namespace) if one["metadata"]["name"] == name)
        return next(found, None)

    def list(self, resource: str, namespace: str = "") -> Sequence[Document]:
        """All objects of a resource."""
        every = self._documents.get(resource, ())
        return [one for one in every if not namespace or one["metadata"].get("namespace") == namespace]


def _document(obj: Resource) -> Document:
    found: Document = msgspec.to_builtins(obj)
    return found


def _text(status: int, sentence: str) -> Response:
    return Response(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8")
