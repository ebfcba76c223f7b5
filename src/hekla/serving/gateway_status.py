"""Reconciles the statuses of the Gateway API's objects where they are ours: classes, Gateways, HTTPRoutes, InferencePools.

Other controllers' parts of a status are left alone. `router/attachment.py` says what belongs to what.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.core import Namespace
from hekla.api.foreign import Gateway, GatewayClass, HttpRoute, InferencePool
from hekla.api.foreign.gateway import HttpRouteRule, RouteParentStatus
from hekla.api.foreign.inference import PoolParentStatus
from hekla.api.foreign.references import GROUP, ParentReference
from hekla.api.kthena import ModelRoute
from hekla.api.meta import Document
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.serving.conditions import Observation, as_documents, conditions
from hekla.serving.router.attachment import (
    CLASS_NAME,
    CONTROLLER_NAME,
    HTTP,
    Door,
    allows_kind,
    allows_namespace,
    common_hosts,
    doors,
    is_gateway,
    names_door,
    names_gateway,
)  # fmt: skip
from hekla.serving.router.http_routes import filter_complaint, is_attached, reference_complaint

KINDS = [
    {"group": GROUP, "kind": "HTTPRoute"},
    {"group": "networking.serving.volcano.sh", "kind": "ModelRoute"},
]


@reconciler(GatewayClass)
def reconcile_gateway_class(one: GatewayClass, world: World, now: datetime) -> Iterator[Command]:
    """Accept our class."""
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


@reconciler(
    Gateway,
    reads=(HttpRoute, ModelRoute, Namespace),
    wakes={HttpRoute: _gateways, ModelRoute: _gateways},
    finds={Gateway: _gateways_beside},
)
def reconcile_gateway(gateway: Gateway, world: World, now: datetime) -> Iterator[Command]:
    """Say which listeners of a Gateway are served, and how many routes each has."""
    if gateway.spec.gateway_class_name != CLASS_NAME or gateway.metadata.deletion_timestamp is not None:
        return
    generation = gateway.metadata.generation
    served = {door.listener.name: door for door in doors([gateway])}
    clashes = _clashes(gateway, world)
    before = {one.name: one for one in gateway.status.listeners}
    listeners: list[Document] = []
    for listener in gateway.spec.listeners:
        observed = _listener(listener.protocol, clashes.get(listener.name, ""))
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


def _listener(protocol: str, clash: str) -> list[Observation]:
    if protocol != HTTP:
        said = f"listeners of protocol {protocol} are not served, only {HTTP} is"
        return [
            Observation("Accepted", False, "UnsupportedProtocol", said),
            Observation("Programmed", False, "Invalid", said),
            Observation("ResolvedRefs", True, "ResolvedRefs", "the listener refers to nothing"),
            Observation("Conflicted", False, "NoConflicts", "no other listener is in its way"),
        ]
    return [
        Observation(
            "Accepted", not clash, "HostnameConflict" if clash else "Accepted", clash or "the listener is served"
        ),
        Observation("Programmed", not clash, "Invalid" if clash else "Programmed", clash or "the router listens"),
        Observation("ResolvedRefs", True, "ResolvedRefs", "the listener refers to nothing"),
        Observation(
            "Conflicted",
            bool(clash),
            "HostnameConflict" if clash else "NoConflicts",
            clash or "no other listener is in its way",
        ),
    ]


def _clashes(gateway: Gateway, world: World) -> dict[str, str]:
    """Listeners whose port and hostname another one had first."""
    first: dict[tuple[int, str], Door] = {}
    found: dict[str, str] = {}
    for door in doors(world.list(Gateway)):
        place = (door.listener.port, door.hostname)
        holder = first.setdefault(place, door)
        if holder is not door and door.gateway.metadata.uid == gateway.metadata.uid:
            host = f' of host "{door.hostname}"' if door.hostname else ""
            found[door.listener.name] = (
                f'listener "{holder.listener.name}" of Gateway "{holder.gateway_key}" has port {door.listener.port}{host} already'
            )
    return found


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
        if any(said["type"] == "Accepted" and said["status"] == "False" for said in one["conditions"])
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


def _routes_to_pool(pool: InferencePool, world: World) -> Iterator[tuple[str, str]]:
    for route in world.list(HttpRoute, pool.metadata.namespace):
        if pool.metadata.name in _pools(route):
            yield route.metadata.namespace, route.metadata.name


def _pools(route: HttpRoute) -> set[str]:
    return {one.name for rule in route.spec.rules for one in rule.backend_refs if one.kind == "InferencePool"}


@reconciler(
    HttpRoute,
    reads=(Gateway, InferencePool, Namespace),
    finds={Gateway: _routes_of_gateway, InferencePool: _routes_to_pool},
)
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
        if not is_gateway(reference) or gateway is None or gateway.spec.gateway_class_name != CLASS_NAME:
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
        said = "the Gateway has no HTTP listener of this name and port"
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
            said = reference_complaint(backend, where)
            if said:
                is_elsewhere = backend.kind == "InferencePool" and backend.namespace not in (None, where)
                reason = "RefNotPermitted" if is_elsewhere else "InvalidKind"
                return Observation("ResolvedRefs", False, reason, f"rule {number}: {said}")
            if world.get(InferencePool, where, backend.name) is None:
                said = f'rule {number}: InferencePool "{where}/{backend.name}" does not exist'
                return Observation("ResolvedRefs", False, "BackendNotFound", said)
    return Observation("ResolvedRefs", True, "ResolvedRefs", "everything that the route names exists")


def _pools_of(route: HttpRoute) -> Iterator[tuple[str, str]]:
    yield from ((route.metadata.namespace, name) for name in sorted(_pools(route)))


@reconciler(InferencePool, reads=(HttpRoute, Gateway), wakes={HttpRoute: _pools_of})
def reconcile_inference_pool(pool: InferencePool, world: World, now: datetime) -> Iterator[Command]:
    """Say which of our Gateways send requests to a pool; the router picks endpoints itself."""
    if pool.metadata.deletion_timestamp is not None:
        return
    before = [one for one in pool.status.parents if one.controller_name == CONTROLLER_NAME]
    others = [one for one in pool.status.parents if one.controller_name != CONTROLLER_NAME]
    told: list[Document] = []
    for gateway in world.list(Gateway):
        if gateway.spec.gateway_class_name != CLASS_NAME or not _is_sent_to(pool, gateway, world):
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
    where = pool.metadata.namespace
    return any(
        pool.metadata.name in _pools(route)
        and any(names_gateway(one, where, gateway) for one in route.spec.parent_refs)
        for route in world.list(HttpRoute, where)
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
