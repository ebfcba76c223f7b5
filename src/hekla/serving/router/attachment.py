"""Which routes belong to which listeners of which Gateways: classes, parent references, allowed namespaces, hostnames. Pure.

`gateway.py` routes by it, `hekla.serving.gateway_status` tells of it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hekla.api.core import Namespace
from hekla.api.foreign import Gateway, GatewayClass
from hekla.api.foreign.gateway import Listener
from hekla.api.foreign.references import GROUP, ParentReference
from hekla.api.selectors import LabelSelector

CLASS_NAME: Final = "kthena-router"
"""The GatewayClass that a router makes, as Kthena's does."""
CONTROLLER_NAME: Final = "volcano.sh/kthena-router"
"""Who serves classes and writes statuses, as Kthena calls itself."""
HTTP: Final = "HTTP"
HTTPS: Final = "HTTPS"


@dataclass(frozen=True, slots=True, eq=False)
class Door:
    """One listener of one Gateway that is ours."""

    gateway: Gateway
    listener: Listener

    @property
    def gateway_key(self) -> str:
        """`namespace/name` of the Gateway."""
        return f"{self.gateway.metadata.namespace}/{self.gateway.metadata.name}"

    @property
    def hostname(self) -> str:
        """The host that it is for; empty: all."""
        return self.listener.hostname or ""

    @property
    def is_tls(self) -> bool:
        """Whether clients must speak HTTPS."""
        return self.listener.protocol == HTTPS


def is_served(gateway: Gateway, found: GatewayClass | None) -> bool:
    """Whether a Gateway is ours, by its class as found: whose controller that names. Where it is not there (it was deleted, or may
    not be read) its name decides, as with Kthena.
    """
    name = gateway.spec.gateway_class_name
    return found.spec.controller_name == CONTROLLER_NAME if found is not None else name == CLASS_NAME


def doors(gateways: Iterable[Gateway]) -> Iterator[Door]:
    """The listeners of our Gateways that can be served, of the oldest Gateway first."""
    for gateway in sorted(gateways, key=age):
        for listener in gateway.spec.listeners:
            is_passed_through = listener.tls is not None and listener.tls.mode == "Passthrough"
            if listener.protocol == HTTP or (listener.protocol == HTTPS and not is_passed_through):
                yield Door(gateway, listener)


def age(gateway: Gateway) -> tuple[str, str, str]:
    """Older first; equals by name."""
    meta = gateway.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name


def is_gateway(reference: ParentReference) -> bool:
    """Whether a parent is a Gateway at all."""
    return reference.kind == "Gateway" and reference.group == GROUP


def names_gateway(reference: ParentReference, namespace: str, gateway: Gateway) -> bool:
    """Whether a route of this namespace names this Gateway."""
    meta = gateway.metadata
    where = reference.namespace or namespace
    return is_gateway(reference) and (where, reference.name) == (meta.namespace, meta.name)


def names_door(reference: ParentReference, namespace: str, door: Door) -> bool:
    """Whether a route of this namespace names this listener, by itself or with all of its Gateway."""
    listener = door.listener
    return (
        names_gateway(reference, namespace, door.gateway)
        and reference.section_name in (None, listener.name)
        and reference.port in (None, listener.port)
    )


def allows_namespace(door: Door, namespace: str, namespaces: Mapping[str, Namespace]) -> bool:
    """Whether routes of a namespace may come in."""
    allowed = door.listener.allowed_routes.namespaces
    match allowed.from_:
        case "All":
            return True
        case "Selector":
            known = namespaces.get(namespace)
            return (
                known is not None and allowed.selector is not None and selects(allowed.selector, known.metadata.labels)
            )
        case "None":
            return False
        case _:
            return namespace == door.gateway.metadata.namespace


def allows_kind(door: Door, kind: str) -> bool:
    """Whether routes of a kind of the Gateway API may come in."""
    kinds = door.listener.allowed_routes.kinds
    return not kinds or any((one.group, one.kind) == (GROUP, kind) for one in kinds)


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """A Kubernetes label selector; an empty one takes all."""
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    for one in selector.match_expressions:
        has, value = one.key in labels, labels.get(one.key, "")
        holds = {
            "In": has and value in one.values,
            "NotIn": not has or value not in one.values,
            "Exists": has,
            "DoesNotExist": not has,
        }.get(one.operator, False)
        if not holds:
            return False
    return True


def host_fits(pattern: str, host: str) -> bool:
    """Whether a host is of this hostname; `*.a.b` takes `x.a.b` and `y.x.a.b` but not `a.b`, and nothing said takes all."""
    if not pattern:
        return True
    return host.endswith(pattern[1:]) and host != pattern[2:] if pattern.startswith("*.") else host == pattern


def host_rank(pattern: str) -> tuple[int, int]:
    """How specific a hostname is; greater is more so."""
    if not pattern:
        return 0, 0
    return (1, len(pattern)) if pattern.startswith("*.") else (2, len(pattern))


def common_hosts(listener: str, routes: Iterable[str]) -> list[str]:
    """The hostnames that a listener and a route have in common: of two that overlap the more specific one."""
    wanted = list(routes)
    if not wanted:
        return [listener]
    found = []
    for one in wanted:
        if not listener or host_fits(listener, one) or listener == one or _is_within(one, listener):
            found.append(one)
        elif host_fits(one, listener) or _is_within(listener, one):
            found.append(listener)
    return found


def _is_within(inner: str, outer: str) -> bool:
    return inner.startswith("*.") and outer.startswith("*.") and inner.endswith(outer[1:])
