"""Reconciles the statuses of the Gateway API's objects where they are ours: classes, Gateways, HTTPRoutes, InferencePools.

Other controllers' parts of a status are left alone. `router/attachment.py` says what belongs to what.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.core import Namespace
from hekla.api.foreign import Gateway, GatewayClass, HttpRoute, InferencePool, ReferenceGrant
from hekla.api.foreign.gateway import BackendRef, HttpRouteRule, RouteParentStatus
from hekla.api.foreign.inference import PoolParentStatus
from hekla.api.foreign.references import GROUP, ParentReference
from hekla.api.kthena import ModelRoute
from hekla.api.meta import Document, Resource
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.serving.conditions import Observation, as_documents, conditions
from hekla.serving.listener_status import CertificateSecret, listener_said
from hekla.serving.router.attachment import (
    CONTROLLER_NAME,
    Door,
    allows_kind,
    allows_namespace,
    common_hosts,
    doors,
    is_gateway,
    is_served,
    names_door,
    names_gateway,
)  # fmt: skip
from hekla.serving.router.http_routes import filter_complaint, is_attached, pool_of, reference_complaint
from hekla.serving.router.listeners import certificates_of, clashes

KINDS = [
    {"group": GROUP, "kind": "HTTPRoute"},
    {"group": "networking.serving.volcano.sh", "kind": "ModelRoute"},
]


@reconciler(GatewayClass)
def reconcile_gateway_class(one: GatewayClass, world: World, now: datetime) -> Iterator[Command]:
    """Accept the classes that name our controller, however they are called."""
    if one.spec.controller_name != CONTROLLER_NAME:
        return
    observed = [Observation("Accepted", True, "Accepted", "Gateways of this class are served by the router")]
    told = conditions(one.status.conditions, observed, one.metadata.generation, now)
    if told != as_documents(one.status.conditions):
        yield SetStatus(target_of(one), {"conditions": told})


def _gateways(route: HttpRoute | ModelRoute) -> Iterator[tuple[str, str]]:
    for reference in route.spec.parent_refs:
        if is_gateway(reference):
            yield reference.namespace or route.metadata.namespace, reference.name


def _gateways_beside(gateway: Gateway, world: World) -> Iterator[tuple[str, str]]:
    for other in world.list(Gateway):
        yield other.metadata.namespace, other.metadata.name


def _is_ours(gateway: Gateway, world: World) -> bool:
    return is_served(gateway, world.get(GatewayClass, "", gateway.spec.gateway_class_name))


def _gateways_of_class(one: GatewayClass, world: World) -> Iterator[tuple[str, str]]:
    """All of them: one that is ours now may come before others at a port."""
    for gateway in world.list(Gateway):
        yield gateway.metadata.namespace, gateway.metadata.name


def _gateways_showing(secret: Resource, world: World) -> Iterator[tuple[str, str]]:
    key = f"{secret.metadata.namespace}/{secret.metadata.name}"
    for one in world.list(Gateway):
        if any(reference.key == key for listener in one.spec.listeners for reference in certificates_of(one, listener)):
            yield one.metadata.namespace, one.metadata.name


def _gateways_granted(grant: ReferenceGrant, world: World) -> Iterator[tuple[str, str]]:
    for who in grant.spec.from_:
        for one in world.list(Gateway, who.namespace or "") if who.kind == "Gateway" else ():
            yield one.metadata.namespace, one.metadata.name


def _gateways_letting_in(namespace: Namespace, world: World) -> Iterator[tuple[str, str]]:
    """A listener may let routes in by the labels of their namespace."""
    own = namespace.metadata.name
    routes: list[HttpRoute | ModelRoute] = [*world.list(HttpRoute, own), *world.list(ModelRoute, own)]
    for route in routes:
        yield from _gateways(route)


@reconciler(
    Gateway,
    reads=(GatewayClass, HttpRoute, ModelRoute, Namespace, CertificateSecret, ReferenceGrant),
    wakes={HttpRoute: _gateways, ModelRoute: _gateways},
    finds={
        Gateway: _gateways_beside, GatewayClass: _gateways_of_class, CertificateSecret: _gateways_showing,
        ReferenceGrant: _gateways_granted, Namespace: _gateways_letting_in,
    },
)  # fmt: skip
def reconcile_gateway(gateway: Gateway, world: World, now: datetime) -> Iterator[Command]:
    """Say which listeners of a Gateway are served, and how many routes each has."""
    if not _is_ours(gateway, world) or gateway.metadata.deletion_timestamp is not None:
        return
    generation = gateway.metadata.generation
    served = {door.listener.name: door for door in doors([gateway])}
    late = clashes(one for one in world.list(Gateway) if _is_ours(one, world))
    me = f"{gateway.metadata.namespace}/{gateway.metadata.name}"
    before = {one.name: one for one in gateway.status.listeners}
    listeners: list[Document] = []
    for listener in gateway.spec.listeners:
        observed = listener_said(gateway, listener, late.get((me, listener.name)), world)
        known = before[listener.name].conditions if listener.name in before else []
        door = served.get(listener.name)
        listeners.append(
            {
                "name": listener.name,
                "supportedKinds": KINDS if door is not None else [],
                "attachedRoutes": _attached(door, world) if door is not None else 0,
                "conditions": conditions(known, observed, generation, now),
            }
        )
    told = conditions(gateway.status.conditions, _gateway(listeners), generation, now)
    status: Document = {"conditions": told, "listeners": listeners}
    if status != _gateway_status(gateway):
        yield SetStatus(target_of(gateway), status)


def _attached(door: Door, world: World) -> int:
    namespaces = {one.metadata.name: one for one in world.list(Namespace)}
    routes = sum(is_attached(route, door, namespaces) for route in world.list(HttpRoute))
    return routes + sum(
        any(names_door(one, route.metadata.namespace, door) for one in route.spec.parent_refs)
        and allows_namespace(door, route.metadata.namespace, namespaces)
        for route in world.list(ModelRoute)
    )


def _gateway(listeners: Sequence[Document]) -> list[Observation]:
    refused = [
        one["name"]
        for one in listeners
        if any(said["type"] == "Programmed" and said["status"] == "False" for said in one["conditions"])
    ]
    if len(refused) == len(listeners):
        said = f"no listener can be served: {', '.join(refused)}"
        return [
            Observation("Accepted", False, "ListenersNotValid", said),
            Observation("Programmed", False, "Invalid", said),
        ]
    reason, said = "Accepted", "the Gateway is served by the router"
    if refused:
        reason, said = "ListenersNotValid", f"these listeners cannot be served: {', '.join(refused)}"
    return [
        Observation("Accepted", True, reason, said),
        Observation("Programmed", True, "Programmed", "the router listens"),
    ]


def _gateway_status(gateway: Gateway) -> Document:
    return {
        "conditions": as_documents(gateway.status.conditions),
        "listeners": [
            {
                "name": one.name,
                "supportedKinds": [{"group": kind.group, "kind": kind.kind} for kind in one.supported_kinds],
                "attachedRoutes": one.attached_routes,
                "conditions": as_documents(one.conditions),
            }
            for one in gateway.status.listeners
        ],
    }


def _routes_of_gateway(gateway: Gateway, world: World) -> Iterator[tuple[str, str]]:
    for route in world.list(HttpRoute):
        if any(names_gateway(one, route.metadata.namespace, gateway) for one in route.spec.parent_refs):
            yield route.metadata.namespace, route.metadata.name


def _routes_of_class(one: GatewayClass, world: World) -> Iterator[tuple[str, str]]:
    for gateway in world.list(Gateway):
        if gateway.spec.gateway_class_name == one.metadata.name:
            yield from _routes_of_gateway(gateway, world)


def _routes_to_pool(pool: InferencePool, world: World) -> Iterator[tuple[str, str]]:
    for route in world.list(HttpRoute):
        if (pool.metadata.namespace, pool.metadata.name) in _pools(route):
            yield route.metadata.namespace, route.metadata.name


def _routes_of_grant(grant: ReferenceGrant, world: World) -> Iterator[tuple[str, str]]:
    for one in grant.spec.from_:
        for route in world.list(HttpRoute, one.namespace or "") if one.kind == "HTTPRoute" else ():
            yield route.metadata.namespace, route.metadata.name


def _routes_let_in(namespace: Namespace, world: World) -> Iterator[tuple[str, str]]:
    for route in world.list(HttpRoute, namespace.metadata.name):
        yield route.metadata.namespace, route.metadata.name


def _pools(route: HttpRoute) -> set[tuple[str, str]]:
    references = [one for rule in route.spec.rules for one in rule.backend_refs if one.kind == "InferencePool"]
    return {(one.namespace or route.metadata.namespace, one.name) for one in references}


@reconciler(
    HttpRoute,
    reads=(Gateway, GatewayClass, InferencePool, Namespace, ReferenceGrant),
    finds={
        Gateway: _routes_of_gateway, GatewayClass: _routes_of_class, InferencePool: _routes_to_pool,
        ReferenceGrant: _routes_of_grant, Namespace: _routes_let_in,
    },
)  # fmt: skip
def reconcile_http_route(route: HttpRoute, world: World, now: datetime) -> Iterator[Command]:
    """Say which of our Gateways took a route, and whether its backends exist."""
    if route.metadata.deletion_timestamp is not None:
        return
    namespaces = {one.metadata.name: one for one in world.list(Namespace)}
    ours = {f"{one.metadata.namespace}/{one.metadata.name}": one for one in world.list(Gateway)}
    others = [one for one in route.status.parents if one.controller_name != CONTROLLER_NAME]
    before = [one for one in route.status.parents if one.controller_name == CONTROLLER_NAME]
    told: list[Document] = []
    for reference in route.spec.parent_refs:
        gateway = ours.get(f"{reference.namespace or route.metadata.namespace}/{reference.name}")
        if not is_gateway(reference) or gateway is None or not _is_ours(gateway, world):
            continue
        known = next((one.conditions for one in before if one.parent_ref == reference), [])
        observed = [_route_accepted(route, reference, gateway, namespaces), _route_resolved(route, world)]
        told.append(
            {
                "parentRef": _reference(reference),
                "controllerName": CONTROLLER_NAME,
                "conditions": conditions(known, observed, route.metadata.generation, now),
            }
        )
    if told != [_parent(one) for one in before]:
        yield SetStatus(target_of(route), {"parents": [*map(_parent, others), *told]})


def _route_accepted(
    route: HttpRoute, reference: ParentReference, gateway: Gateway, namespaces: dict[str, Namespace]
) -> Observation:
    where = route.metadata.namespace
    named = [door for door in doors([gateway]) if names_door(reference, where, door)]
    if not named:
        said = "the Gateway has no listener of this name and port that is served"
        return Observation("Accepted", False, "NoMatchingParent", said)
    allowed = [one for one in named if allows_kind(one, "HTTPRoute") and allows_namespace(one, where, namespaces)]
    if not allowed:
        said = f'no listener lets HTTPRoutes of namespace "{where}" in; see its allowedRoutes'
        return Observation("Accepted", False, "NotAllowedByListeners", said)
    if not any(common_hosts(one.hostname, route.spec.hostnames) for one in allowed):
        said = "the route's hostnames and the listeners' have none in common"
        return Observation("Accepted", False, "NoMatchingListenerHostname", said)
    for number, rule in enumerate(route.spec.rules):
        if said := _unserved(rule):
            return Observation("Accepted", False, "UnsupportedValue", f"rule {number}: {said}")
    return Observation("Accepted", True, "Accepted", "the route is served")


def _unserved(rule: HttpRouteRule) -> str:
    filters = (*rule.filters, *(one for backend in rule.backend_refs for one in backend.filters))
    return next((said for one in filters if (said := filter_complaint(one))), "")


def _route_resolved(route: HttpRoute, world: World) -> Observation:
    where = route.metadata.namespace
    for number, rule in enumerate(route.spec.rules):
        for backend in rule.backend_refs:
            reason, said = _backend_complaint(backend, where, world)
            if said:
                return Observation("ResolvedRefs", False, reason, f"rule {number}: {said}")
    return Observation("ResolvedRefs", True, "ResolvedRefs", "everything that the route names exists")


def _backend_complaint(backend: BackendRef, namespace: str, world: World) -> tuple[str, str]:
    """A reason of the Gateway API and a sentence; both empty if the backend can be gone to."""
    to = pool_of(backend, namespace)
    if said := reference_complaint(backend, namespace, world.list(ReferenceGrant, to.namespace)):
        return (
            "RefNotPermitted" if backend.kind == "InferencePool" and to.namespace != namespace else "InvalidKind",
            said,
        )
    if world.get(InferencePool, to.namespace, to.name) is None:
        return "BackendNotFound", f'InferencePool "{to.key}" does not exist'
    return "", ""


def _pools_of(route: HttpRoute) -> Iterator[tuple[str, str]]:
    yield from sorted(_pools(route))


def _pools_of_class(one: GatewayClass, world: World) -> Iterator[tuple[str, str]]:
    for pool in world.list(InferencePool):
        yield pool.metadata.namespace, pool.metadata.name


def _pools_granted(grant: ReferenceGrant, world: World) -> Iterator[tuple[str, str]]:
    for pool in world.list(InferencePool, grant.metadata.namespace):
        yield pool.metadata.namespace, pool.metadata.name


@reconciler(
    InferencePool,
    reads=(HttpRoute, Gateway, GatewayClass, ReferenceGrant),
    wakes={HttpRoute: _pools_of},
    finds={GatewayClass: _pools_of_class, ReferenceGrant: _pools_granted},
)
def reconcile_inference_pool(pool: InferencePool, world: World, now: datetime) -> Iterator[Command]:
    """Say which of our Gateways send requests to a pool; the router picks endpoints itself."""
    if pool.metadata.deletion_timestamp is not None:
        return
    before = [one for one in pool.status.parents if one.controller_name == CONTROLLER_NAME]
    others = [one for one in pool.status.parents if one.controller_name != CONTROLLER_NAME]
    told: list[Document] = []
    for gateway in world.list(Gateway):
        if not _is_ours(gateway, world) or not _is_sent_to(pool, gateway, world):
            continue
        meta = gateway.metadata
        reference = ParentReference(name=meta.name, namespace=meta.namespace)
        known = next((one.conditions for one in before if one.parent_ref == reference), [])
        observed = [
            Observation("Accepted", True, "Accepted", "an HTTPRoute of the Gateway sends requests to the pool"),
            Observation("ResolvedRefs", True, "ResolvedRefs", "the router picks endpoints itself"),
        ]
        told.append(
            {
                "parentRef": _reference(reference),
                "controllerName": CONTROLLER_NAME,
                "conditions": conditions(known, observed, pool.metadata.generation, now),
            }
        )
    if told != [_parent(one) for one in before]:
        yield SetStatus(target_of(pool), {"parents": [*map(_parent, others), *told]})


def _is_sent_to(pool: InferencePool, gateway: Gateway, world: World) -> bool:
    return any(
        any(names_gateway(one, route.metadata.namespace, gateway) for one in route.spec.parent_refs)
        and any(
            (to := pool_of(backend, route.metadata.namespace)).key == f"{pool.metadata.namespace}/{pool.metadata.name}"
            and not reference_complaint(backend, route.metadata.namespace, world.list(ReferenceGrant, to.namespace))
            for rule in route.spec.rules
            for backend in rule.backend_refs
        )
        for route in world.list(HttpRoute)
    )


def _reference(one: ParentReference) -> Document:
    written = {
        "group": one.group,
        "kind": one.kind,
        "name": one.name,
        "namespace": one.namespace,
        "port": one.port,
        "sectionName": one.section_name,
    }
    return {name: value for name, value in written.items() if value is not None}


def _parent(one: RouteParentStatus | PoolParentStatus) -> Document:
    return {
        "parentRef": _reference(one.parent_ref),
        "controllerName": one.controller_name,
        "conditions": as_documents(one.conditions),
    }
