"""The objects that routing looks at, kept as a table: told of each change, it changes what the change touches and no more.

`discovery.py` tells it of objects; `director.py` and `gateway.py` ask it. Written and read by one loop.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from hekla.api.core import Namespace, Pod, Secret
from hekla.api.foreign import Gateway, GatewayClass, HttpRoute, InferencePool, ReferenceGrant
from hekla.api.kthena import ExternalModelProvider, ModelRoute, ModelServer, labels
from hekla.api.meta import Resource
from hekla.serving.router.attachment import is_served
from hekla.serving.router.backends import (
    Backend,
    MakePool,
    Traits,
    endpoints_of,
    is_ready,
    selects,
    traits_of_pool,
    traits_of_server,
)  # fmt: skip
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.plan import Refusal, Waiting
from hekla.serving.router.pool import Pool
from hekla.serving.router.providers import Provider
from hekla.serving.router.question import Question
from hekla.serving.router.routes import RouteTable

T = TypeVar("T")

KINDS: Final[tuple[type[Resource], ...]] = (ModelRoute, ModelServer, ExternalModelProvider, Secret, Pod)
"""The kinds that it must be told of."""
GATEWAY_KINDS: Final[tuple[type[Resource], ...]] = (
    Gateway, GatewayClass, HttpRoute, InferencePool, Namespace, ReferenceGrant,
)  # fmt: skip
"""Those that it must be told of where the Gateway API is on."""
STICKY_S: Final = 300
"""How long a session stays with its engine where a ModelServer does not say."""
SECRET_SELECTOR: Final = f"{labels.PROVIDER_CREDENTIAL}=true"
"""The only secrets that it may be told of."""


class World:
    """Routes, backends, providers and pods as they are now."""

    def __init__(self, fleet: Fleet, make_pool: MakePool) -> None:
        self.fleet = fleet
        self.routes = RouteTable()
        self.servers: dict[str, Backend] = {}
        self.inference_pools: dict[str, Backend] = {}
        self.providers: dict[str, Provider] = {}
        self.gateways: dict[str, Gateway] = {}
        self.gateway_classes: dict[str, GatewayClass] = {}
        self.http_routes: dict[str, HttpRoute] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.grants: dict[str, ReferenceGrant] = {}
        self.certificates: dict[str, Secret] = {}
        """Secrets with certificates, for listeners that speak HTTPS."""
        self.version = 0
        """Counts changes of everything but pods: what was derived from routes is stale when it moved."""
        self.on_join: Callable[[Backend, Endpoint], None] = lambda backend, endpoint: None
        self.on_leave: Callable[[Backend, Endpoint], None] = lambda backend, endpoint: None
        """Told of engines that come and go: who reads their metrics wants to know."""
        self.on_empty: Callable[[Backend], Refusal | Waiting | None] = lambda backend: None
        """Asked of a request whose backend has no engines: it may be held until there is one."""
        self.tokenizer = ""
        """Who turns text into tokens where a ModelServer does not say."""
        self.on_text: Callable[[Backend, Question], Waiting | None] = lambda backend, question: None
        """Asked once of each request whose text is to be turned into tokens; it may wait a moment for them."""
        self._make_pool = make_pool
        self._pods: dict[str, Pod] = {}
        self._secrets: dict[str, Secret] = {}
        self._pods_by_label: dict[tuple[str, str, str], set[str]] = {}
        self._backends_by_label: dict[tuple[str, str, str], set[Backend]] = {}
        self._held: dict[Endpoint, int] = {}

    def note(self, old: Resource | None, new: Resource | None) -> None:
        """An object changed: `old` is None for a new one, `new` for one that is gone."""
        told = new if new is not None else old
        assert told is not None, "a change has an object"
        key = f"{told.metadata.namespace}/{told.metadata.name}" if told.metadata.namespace else told.metadata.name
        if isinstance(told, Pod):
            self._note_pod(key, told if new is not None else None)
            return
        if old is not None and new is not None and _says_the_same(old, new):
            # a status was written, perhaps by us: nothing that was derived from the object is stale
            if isinstance(new, ExternalModelProvider) and key in self.providers:
                self.providers[key].source = new
            return
        self.version += 1
        is_there = new is not None
        match told:
            case ModelRoute():
                self.routes.put(told) if is_there else self.routes.drop(key)
            case ModelServer():
                self._note_backend(self.servers, key, traits_of_server(told) if is_there else None)
            case InferencePool():
                self._note_backend(self.inference_pools, key, traits_of_pool(told) if is_there else None)
            case ExternalModelProvider() | Secret():
                self._note_provider(key, told, is_there)
            case Gateway():
                _put(self.gateways, key, told if is_there else None)
            case GatewayClass():
                _put(self.gateway_classes, key, told if is_there else None)
            case HttpRoute():
                _put(self.http_routes, key, told if is_there else None)
            case Namespace():
                _put(self.namespaces, key, told if is_there else None)
            case ReferenceGrant():
                _put(self.grants, key, told if is_there else None)
            case _:
                raise AssertionError(f"the world has no place for a {type(told).__name__}")

    def note_certificate(self, old: Secret | None, new: Secret | None) -> None:
        """A Secret of the type of certificates changed; the others' way is `note`."""
        told = new if new is not None else old
        assert told is not None, "a change has an object"
        self.version += 1
        _put(self.certificates, f"{told.metadata.namespace}/{told.metadata.name}", new)

    def our_gateways(self) -> list[Gateway]:
        """Those of classes that are ours."""
        classes = self.gateway_classes
        return [one for one in self.gateways.values() if is_served(one, classes.get(one.spec.gateway_class_name))]

    def backends(self) -> Iterator[Backend]:
        """All of them."""
        yield from self.servers.values()
        yield from self.inference_pools.values()

    def pools(self) -> Iterator[Pool]:
        """The pools of all backends: to give them another policy, or to draw their load."""
        for backend in self.backends():
            yield backend.decode
            if backend.traits.pd is not None:
                yield backend.prefill

    def models(self) -> list[str]:
        """The names that clients may ask for."""
        return self.routes.names()

    def _note_provider(self, key: str, told: Resource, is_there: bool) -> None:
        if isinstance(told, ExternalModelProvider):
            _put(self.providers, key, Provider.of(told, self._secrets) if is_there else None)
            return
        assert isinstance(told, Secret), "the other kind that providers stand on"
        is_usable = is_there and told.metadata.labels.get(labels.PROVIDER_CREDENTIAL) == "true"
        _put(self._secrets, key, told if is_usable else None)
        for name, provider in self.providers.items():
            if provider.secret_key == key:
                self.providers[name] = Provider.of(provider.source, self._secrets)

    def _note_backend(self, table: dict[str, Backend], key: str, traits: Traits | None) -> None:
        known = table.get(key)
        if traits is None:
            if known is not None:
                del table[key]
                self._unlist(known)
            return
        if known is not None and known.traits == traits:
            return
        if known is None:
            known = table[key] = Backend(traits, self._make_pool(traits.books), self._make_pool(f"{key}/prefill"))
        else:
            self._unlist(known)
            known.traits = traits
        if traits.sticky is not None:
            known.decode.sessions.ttl_s = float(traits.sticky.session_affinity_seconds or STICKY_S)
        if traits.match_labels:
            self._backends_by_label.setdefault(_mark(key, traits), set()).add(known)
            for pod_key in sorted(self._pods_by_label.get(_mark(key, traits), ())):
                self._join(known, pod_key, self._pods[pod_key])

    def _unlist(self, backend: Backend) -> None:
        """Take all pods out, and the backend out of the index."""
        for pod_key in list(backend.matched):
            self._leave(backend, pod_key)
            backend.matched.discard(pod_key)
            backend.unplaced.discard(pod_key)
        if backend.traits.match_labels:
            mark = _mark(backend.traits.key, backend.traits)
            self._backends_by_label[mark].discard(backend)
            if not self._backends_by_label[mark]:
                del self._backends_by_label[mark]

    def _note_pod(self, key: str, pod: Pod | None) -> None:
        before = self._pods.get(key)
        is_indexed = before is not None and pod is not None and before.metadata.labels == pod.metadata.labels
        if is_indexed and not self._backends_by_label:
            _put(self._pods, key, pod)  # nobody asks for pods: a cluster of training jobs binds thousands a second
            return
        old_marks, new_marks = set(_marks(before)), set(_marks(pod))
        for mark in old_marks - new_marks:
            self._pods_by_label[mark].discard(key)
            if not self._pods_by_label[mark]:
                del self._pods_by_label[mark]
        for mark in new_marks - old_marks:
            self._pods_by_label.setdefault(mark, set()).add(key)
        _put(self._pods, key, pod)
        touched = {one for mark in old_marks | new_marks for one in self._backends_by_label.get(mark, ())}
        for backend in sorted(touched, key=lambda one: one.traits.key):
            self._join(backend, key, pod)

    def _join(self, backend: Backend, key: str, pod: Pod | None) -> None:
        """Bring one pod's part in one backend up to date."""
        is_matched = pod is not None and selects(backend.traits.match_labels, pod.metadata.labels)
        backend.matched.add(key) if is_matched else backend.matched.discard(key)
        is_unplaced = pod is not None and is_matched and pod.status.phase == "Pending" and not pod.spec.node_name
        backend.unplaced.add(key) if is_unplaced else backend.unplaced.discard(key)
        brought = endpoints_of(pod, backend) if pod is not None and is_matched and is_ready(pod) else []
        kept = [self._joined(backend, pool, endpoint) for pool, endpoint in brought]
        self._leave(backend, key, besides=kept)
        if kept:
            backend.joined[key] = kept

    def _joined(self, backend: Backend, pool: Pool, endpoint: Endpoint) -> tuple[Pool, Endpoint]:
        known = self.fleet.by_name.get(f"{endpoint.namespace}/{endpoint.name}")
        if known is not None and known.port != endpoint.port and self._is_held_elsewhere(known, backend):
            # two backends speak to two ports of one pod: two engines
            endpoint.name = f"{endpoint.name}:{endpoint.port}"
        is_new = not any(endpoint.name == one.name for one in pool.members)
        one = pool.join(endpoint)
        if is_new:
            self._held[one] = self._held.get(one, 0) + 1
            self.on_join(backend, one)
        return pool, one

    def _is_held_elsewhere(self, endpoint: Endpoint, backend: Backend) -> bool:
        own = sum(one is endpoint for held in backend.joined.values() for _, one in held)
        return self._held.get(endpoint, 0) > own

    def _leave(self, backend: Backend, key: str, besides: Iterable[tuple[Pool, Endpoint]] = ()) -> None:
        stays = list(besides)
        for pool, endpoint in backend.joined.pop(key, ()):
            if any(pool is p and endpoint is e for p, e in stays):
                continue
            pool.leave(endpoint)
            self.on_leave(backend, endpoint)
            self._held[endpoint] -= 1
            if not self._held[endpoint]:
                del self._held[endpoint]
                self.fleet.remove(endpoint)


def _says_the_same(old: Resource, new: Resource) -> bool:
    """Whether two versions of an object differ in nothing that routing looks at."""
    before, after = old.metadata, new.metadata
    return (
        (before.uid, before.labels, before.annotations) == (after.uid, after.labels, after.annotations)
        and getattr(old, "spec", None) == getattr(new, "spec", None)
        and getattr(old, "data", None) == getattr(new, "data", None)
    )


def _mark(key: str, traits: Traits) -> tuple[str, str, str]:
    """One of the labels that a backend asks for: its pods are among those that have it."""
    label = min(traits.match_labels.items())
    return key.partition("/")[0], *label


def _marks(pod: Pod | None) -> Iterator[tuple[str, str, str]]:
    if pod is not None:
        for name, value in pod.metadata.labels.items():
            yield pod.metadata.namespace, name, value


def _put(table: dict[str, T], key: str, value: T | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
