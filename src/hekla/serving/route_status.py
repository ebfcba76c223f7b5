"""Reconciles the statuses of ModelRoutes and ModelServers, which Kthena leaves empty: a route to nothing says so.

ModelRoute    Accepted            its rules can take requests, a Gateway that it names lets it in, and no older route takes them all
              ResolvedRefs        what its targets name exists, and so do the Gateways that it names
              AdaptersResolved    no adapter is another route's model, only where it has adapters
ModelServer   Ready               an engine, or a pair of engines, takes requests
both          AnnotationsRead     no annotation for the router is misspelt or unreadable, a pod's included; only where there are any
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain

from hekla.api.core import Namespace, Pod
from hekla.api.foreign import Gateway, GatewayClass
from hekla.api.foreign.references import ParentReference
from hekla.api.kthena import ExternalModelProvider, ModelRoute, ModelServer
from hekla.api.kthena.server import PdGroup
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.serving.conditions import Observation, as_documents, conditions
from hekla.serving.router.annotations import OF_A_POD, OF_A_SERVER, Unread, has_ours, unknown, unreadable
from hekla.serving.router.attachment import (
    allows_namespace,
    doors,
    is_gateway,
    is_served,
    names_door,
    names_gateway,
)  # fmt: skip
from hekla.serving.router.backends import is_ready, selects
from hekla.serving.router.routes import Route, compile_route

Reference = tuple[int, type[ModelServer] | type[ExternalModelProvider], str]
"""The number of a rule, and what one of its targets names."""


def _targets_of(route: ModelRoute, *, idle: bool | None = None) -> Iterator[Reference]:
    """What a route names; with `idle`, only what no request goes to as its weight is 0, or only the rest."""
    for number, rule in enumerate(route.spec.rules):
        for one in rule.target_models:
            if idle is not None and idle != (one.weight == 0):
                continue
            if one.model_server_name:
                yield number, ModelServer, one.model_server_name
            elif one.external_model_provider_name:
                yield number, ExternalModelProvider, one.external_model_provider_name


def _names(route: ModelRoute) -> set[str]:
    return {route.spec.model_name, *route.spec.lora_adapters} - {""}


def _routes_to(target: ModelServer | ExternalModelProvider, world: World) -> Iterator[tuple[str, str]]:
    meta = target.metadata
    for route in world.list(ModelRoute, meta.namespace):
        if any((kind, name) == (type(target), meta.name) for _, kind, name in _targets_of(route)):
            yield meta.namespace, route.metadata.name


def _rivals(route: ModelRoute, world: World) -> Iterator[tuple[str, str]]:
    """Routes that share a name with one that changed."""
    for other in world.list(ModelRoute):
        if _names(other) & _names(route):
            yield other.metadata.namespace, other.metadata.name


def _routes_of_gateway(gateway: Gateway, world: World) -> Iterator[tuple[str, str]]:
    for route in world.list(ModelRoute):
        if any(names_gateway(one, route.metadata.namespace, gateway) for one in route.spec.parent_refs):
            yield route.metadata.namespace, route.metadata.name


def _routes_of_class(one: GatewayClass, world: World) -> Iterator[tuple[str, str]]:
    for gateway in world.list(Gateway):
        if gateway.spec.gateway_class_name == one.metadata.name:
            yield from _routes_of_gateway(gateway, world)


def _routes_let_in(namespace: Namespace, world: World) -> Iterator[tuple[str, str]]:
    """Gateways may let routes in by the labels of their namespace."""
    for route in world.list(ModelRoute, namespace.metadata.name):
        if route.spec.parent_refs:
            yield route.metadata.namespace, route.metadata.name


@reconciler(
    ModelRoute,
    reads=(ModelServer, ExternalModelProvider, Gateway, GatewayClass, Namespace),
    finds={
        ModelServer: _routes_to, ExternalModelProvider: _routes_to, ModelRoute: _rivals, Gateway: _routes_of_gateway,
        GatewayClass: _routes_of_class, Namespace: _routes_let_in,
    },
)  # fmt: skip
def reconcile_model_route_status(route: ModelRoute, world: World, now: datetime) -> Iterator[Command]:
    """Say what a route comes to."""
    if route.metadata.deletion_timestamp is not None:
        return
    others = (one for one in world.list(ModelRoute) if one.metadata.uid != route.metadata.uid)
    rivals = [one for one in others if not any(_kept_out(one, parent, world) for parent in one.spec.parent_refs)]
    observed = [_accepted(route, rivals, world), _resolved(route, world)]
    if route.spec.lora_adapters:
        observed.append(_adapters(route, rivals))
    observed += _annotations(unknown(route.metadata.annotations, ()), is_there=has_ours(route.metadata.annotations))
    told = conditions(route.status.conditions, observed, route.metadata.generation, now)
    if told != as_documents(route.status.conditions):
        status = {"observedGeneration": route.metadata.generation, "conditions": told}
        yield SetStatus(target_of(route), status)


def _accepted(route: ModelRoute, rivals: list[ModelRoute], world: World) -> Observation:
    compiled = compile_route(route)
    for number, rule in enumerate(compiled.rules):
        if not rule.ceilings:
            said = f"rule {number} sends nothing anywhere: the weights of its targets sum to zero; give one of them a weight"
            return Observation("Accepted", False, "NoWeight", said)
    if not compiled.rules:
        return Observation("Accepted", False, "NoRules", "the route has no rules, so it takes no request; give it one")
    kept_out = [_kept_out(route, one, world) for one in route.spec.parent_refs]
    if kept_out and None not in kept_out:
        return next(one for one in kept_out if one is not None)
    older = next((one for one in sorted(map(compile_route, rivals)) if _takes_all(one, compiled)), None)
    if older is not None:
        said = f'route "{older.key}" is older and takes every request for this route\'s names; delete one of the two'
        return Observation("Accepted", False, "OlderRouteWins", said)
    return Observation(
        "Accepted", True, "Accepted", f"requests{_by_gateways(route)} are routed by this route{_shadowed(compiled)}"
    )


def _by_gateways(route: ModelRoute) -> str:
    """A route that names Gateways takes nothing that comes by another way."""
    own = route.metadata.namespace
    named = [f"{one.namespace or own}/{one.name}" for one in route.spec.parent_refs]
    return f" that come by Gateway {' or '.join(named)}, and no others," if named else ""


def _kept_out(route: ModelRoute, reference: ParentReference, world: World) -> Observation | None:
    """Why a parent lets no request come to the route; None: it does, or is not there, which `ResolvedRefs` tells."""
    own = route.metadata.namespace
    if not is_gateway(reference):
        said = f'the route names {reference.kind} "{reference.name}", and requests come by Gateways alone; name one, or none'
        return Observation("Accepted", False, "NoMatchingParent", said)
    where = f"{reference.namespace or own}/{reference.name}"
    gateway = world.get(Gateway, reference.namespace or own, reference.name)
    if gateway is None:
        return None
    if not is_served(gateway, world.get(GatewayClass, "", gateway.spec.gateway_class_name)):
        said = f'Gateway "{where}" has the class "{gateway.spec.gateway_class_name}", which the router does not serve'
        return Observation("Accepted", False, "NoMatchingParent", said)
    named = [door for door in doors([gateway]) if names_door(reference, own, door)]
    if not named:
        there = ", ".join(f"{one.name} (port {one.port})" for one in gateway.spec.listeners)
        said = f'Gateway "{where}" has no listener of the sectionName and port that the route names; it has {there or "none"}'
        return Observation("Accepted", False, "NoMatchingParent", said)
    namespaces = {one.metadata.name: one for one in world.list(Namespace)}
    if not any(allows_namespace(door, own, namespaces) for door in named):
        said = f'no listener of Gateway "{where}" lets routes of namespace "{own}" in; see its allowedRoutes'
        return Observation("Accepted", False, "NotAllowedByListeners", said)
    return None


def _shadowed(compiled: Route) -> str:
    """The rules behind one that takes everything."""
    first = next((number for number, rule in enumerate(compiled.rules) if rule.is_open), len(compiled.rules))
    behind = range(first + 1, len(compiled.rules))
    if not behind:
        return ""
    told = f"rule {behind[0]} is" if len(behind) == 1 else f"rules {behind[0]} to {behind[-1]} are"
    return f"; {told} never asked, as rule {first} takes every request: put what has conditions first"


def _goes_before(older: Route, route: Route) -> bool:
    """Whether it leaves nothing of the names that both have."""
    is_open = any(rule.ceilings and rule.is_open for rule in older.rules)
    return is_open and older < route and _comes_wherever(older, route)


def _comes_wherever(older: Route, route: Route) -> bool:
    """Whether an older route is asked wherever the other one is; one that names no Gateway is asked at all of its namespace, too."""
    parents = _doors(route)
    if not older.source.spec.parent_refs:
        return all(namespace == older.namespace for namespace, *_ in parents)
    return bool(parents) and parents <= _doors(older)


def _doors(route: Route) -> set[tuple[str, str, str, int]]:
    named = route.source.spec.parent_refs
    return {(one.namespace or route.namespace, one.name, one.section_name or "", one.port or 0) for one in named}


def _takes_all(older: Route, route: Route) -> bool:
    if not _goes_before(older, route):
        return False
    model = route.source.spec.model_name
    return (not model or older.source.spec.model_name == model) and route.adapters <= older.adapters


def _resolved(route: ModelRoute, world: World) -> Observation:
    missing = (
        _missing_target(route, world, idle=False)
        or _missing_gateway(route, world)
        or _missing_target(route, world, idle=True)
    )
    if missing is not None:
        return missing
    return Observation("ResolvedRefs", True, "ResolvedRefs", "everything that the route names exists")


def _missing_target(route: ModelRoute, world: World, *, idle: bool) -> Observation | None:
    for number, kind, name in _targets_of(route, idle=idle):
        if world.get(kind, route.metadata.namespace, name) is None:
            noun, reason = ("ModelServer", "ModelServerNotFound")
            if kind is ExternalModelProvider:
                noun, reason = "ExternalModelProvider", "ExternalModelProviderNotFound"
            missing = f'{noun} "{route.metadata.namespace}/{name}", which does not exist'
            said = f"rule {number} sends requests to {missing}; create it or name another"
            if idle:
                said = (
                    f"rule {number} names {missing}, with weight 0, so no request goes there; take it out of the rule"
                )
            return Observation("ResolvedRefs", False, reason, said)
    return None


def _missing_gateway(route: ModelRoute, world: World) -> Observation | None:
    own = route.metadata.namespace
    for one in route.spec.parent_refs:
        if is_gateway(one) and world.get(Gateway, one.namespace or own, one.name) is None:
            said = f'requests are to come by Gateway "{one.namespace or own}/{one.name}", which does not exist'
            return Observation("ResolvedRefs", False, "GatewayNotFound", f"{said}; create it or name another")
    return None


def _adapters(route: ModelRoute, rivals: list[ModelRoute]) -> Observation:
    own = route.spec.model_name
    if own in route.spec.lora_adapters:
        said = f'adapter "{own}" is called like the route\'s own model, so requests for it go to the model; rename one of them'
        return Observation("AdaptersResolved", False, "CyclicAdapters", said)
    for other in rivals:
        model = other.spec.model_name
        if model and model in route.spec.lora_adapters:
            where = f'"{other.metadata.namespace}/{other.metadata.name}"'
            said = f'adapter "{model}" is the model of route {where}, which requests for it go to'
            if own and own in other.spec.lora_adapters:
                said += f', and this route\'s model "{own}" is an adapter there'
                return Observation("AdaptersResolved", False, "CyclicAdapters", f"{said}; rename one of them")
            return Observation("AdaptersResolved", False, "AdapterIsAModel", f"{said}; rename one of them")
    compiled = compile_route(route)
    for older in sorted(map(compile_route, rivals)):
        taken = sorted(compiled.adapters & older.adapters)
        if taken and _goes_before(older, compiled):
            said = (
                f'adapter "{taken[0]}" is also one of the older route "{older.key}", which takes every request for it'
            )
            return Observation("AdaptersResolved", False, "OlderRouteWins", f"{said}; rename one of them")
    return Observation("AdaptersResolved", True, "AdaptersResolved", "requests for every adapter come to this route")


def _servers_of(pod: Pod, world: World) -> Iterator[tuple[str, str]]:
    for server in world.list(ModelServer, pod.metadata.namespace):
        if selects(server.spec.workload_selector.match_labels, pod.metadata.labels):
            yield server.metadata.namespace, server.metadata.name


@reconciler(ModelServer, reads=(Pod,), finds={Pod: _servers_of})
def reconcile_model_server_status(server: ModelServer, world: World, now: datetime) -> Iterator[Command]:
    """Count a server's engines, and say whether any takes requests."""
    if server.metadata.deletion_timestamp is not None:
        return
    wanted = server.spec.workload_selector.match_labels
    matched = world.list(Pod, server.metadata.namespace, wanted) if wanted else []
    ready = [pod for pod in matched if is_ready(pod)]
    observed = [_server_ready(server, len(matched), ready), *_server_annotations(server, matched)]
    told = conditions(server.status.conditions, observed, server.metadata.generation, now)
    before = server.status
    if (told, before.matched_replicas, before.ready_replicas) != (
        as_documents(before.conditions),
        len(matched),
        len(ready),
    ):
        status = {
            "observedGeneration": server.metadata.generation,
            "matchedReplicas": len(matched),
            "readyReplicas": len(ready),
            "conditions": told,
        }
        yield SetStatus(target_of(server), status)


def _server_ready(server: ModelServer, matched: int, ready: list[Pod]) -> Observation:
    pairs = server.spec.workload_selector.pd_group
    if not matched:
        labels = ", ".join(f"{name}={value}" for name, value in server.spec.workload_selector.match_labels.items())
        return Observation(
            "Ready", False, "NoPods", f"no pod of the namespace has the labels {labels or '(none given)'}"
        )
    if not ready:
        return Observation("Ready", False, "NoReadyPods", "no pod that the selector finds is ready")
    if pairs is not None and not _paired(pairs, ready):
        said = f'no value of label "{pairs.group_key}" has both a ready prefill pod and a ready decode pod'
        return Observation("Ready", False, "NoPairs", said)
    return Observation("Ready", True, "EnginesReady", "engines take requests")


def _server_annotations(server: ModelServer, matched: Sequence[Pod]) -> list[Observation]:
    """Of the server and of its pods, of which no webhook has looked at any."""
    own = server.metadata.annotations
    telling = sorted((pod for pod in matched if has_ours(pod.metadata.annotations)), key=lambda pod: pod.metadata.name)
    unread = chain(
        unreadable(own, OF_A_SERVER),
        unknown(own, OF_A_SERVER),
        (_of_pod(one, pod) for pod in telling for one in unreadable(pod.metadata.annotations, OF_A_POD)),
        (_of_pod(one, pod) for pod in telling for one in unknown(pod.metadata.annotations, OF_A_POD)),
    )
    return _annotations(unread, is_there=bool(telling) or has_ours(own))


def _of_pod(one: Unread, pod: Pod) -> Unread:
    return replace(one, why=f'{one.why}; it stands on pod "{pod.metadata.name}"')


def _annotations(unread: Iterator[Unread], *, is_there: bool) -> list[Observation]:
    """The first that changes nothing, and how many more there are."""
    first = next(unread, None)
    if first is None:
        said = "every annotation for the router can be read"
        return [Observation("AnnotationsRead", True, "AnnotationsRead", said)] if is_there else []
    more = sum(1 for _ in unread)
    reason = "UnreadableAnnotation" if first.is_known else "UnknownAnnotation"
    return [
        Observation("AnnotationsRead", False, reason, first.sentence + (f" (and {more} more such)" if more else ""))
    ]


def _paired(pairs: PdGroup, ready: list[Pod]) -> bool:
    def groups(wanted: dict[str, str]) -> set[str]:
        found = (pod.metadata.labels for pod in ready if selects(wanted, pod.metadata.labels))
        return {labels[pairs.group_key] for labels in found if pairs.group_key in labels}

    return bool(groups(pairs.prefill_labels) & groups(pairs.decode_labels))
