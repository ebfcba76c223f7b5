"""Gateway API: GatewayClass, Gateway and HTTPRoute, as far as a router of models reads them.

On a cluster their definitions are the Gateway API project's; the embedded server serves these. `inference.py` has the pool
that rules point at.
"""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Int32, Limits
from hekla.api.foreign.references import (
    GroupName,
    KindName,
    NamespaceName,
    ObjectName,
    ParentReference,
    PortNumber,
    SectionName,
)  # fmt: skip
from hekla.api.meta import Column, Document, Resource, Scope, resource
from hekla.api.selectors import LabelSelector
from hekla.api.volcano.scheduling import SELECTOR
from hekla.api.volcano.topology import StrictCondition

API_VERSION = "gateway.networking.k8s.io/v1"
Hostname = Annotated[
    str,
    Limits(
        min_length=1,
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]


class GatewayClassSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Who serves Gateways of the class."""

    controller_name: Annotated[str, Limits(min_length=1, max_length=253), REQUIRED] = ""
    """Name of the controller, such as kthena.volcano.sh/router."""

    description: str = ""
    """What people should know of it."""


class GatewayClassStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """Whether the controller took the class."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Accepted."""


@resource(
    API_VERSION,
    plural="gatewayclasses",
    scope=Scope.CLUSTER,
    short=("gc",),
    categories=("gateway-api",),
    has_status=True,
    columns=(
        Column(name="Controller", json_path=".spec.controllerName"),
        Column(name="Accepted", json_path='.status.conditions[?(@.type=="Accepted")].status'),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class GatewayClass(Resource, kw_only=True, frozen=True, rename="camel"):
    """A kind of Gateway, and who serves it."""

    spec: Annotated[GatewayClassSpec, REQUIRED] = field(default_factory=GatewayClassSpec)
    """Who serves it."""

    status: GatewayClassStatus = field(default_factory=GatewayClassStatus)
    """Whether the controller took it."""


class RouteNamespaces(Struct, kw_only=True, frozen=True, rename={"from_": "from", "selector": "selector"}):
    """The namespaces that routes may come from."""

    from_: Annotated[str, Limits(enum=("All", "Selector", "Same", "None")), DEFAULTED] = "Same"
    """All, Same, None, or Selector."""

    selector: Annotated[LabelSelector | None, SELECTOR] = None
    """With Selector: labels of namespaces."""


class RouteGroupKind(Struct, kw_only=True, frozen=True, rename="camel"):
    """One kind of route."""

    group: Annotated[GroupName, DEFAULTED] = "gateway.networking.k8s.io"
    """Group of the kind."""

    kind: Annotated[KindName, REQUIRED] = ""
    """The kind."""


class AllowedRoutes(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which routes a listener takes."""

    namespaces: RouteNamespaces = field(default_factory=RouteNamespaces)
    """The namespaces that they may come from."""

    kinds: list[RouteGroupKind] = []
    """Their kinds; absent: all that the protocol can."""


class CertificateRef(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a certificate is."""

    group: Annotated[GroupName, DEFAULTED] = ""
    """Group of the object; empty is Kubernetes' own."""

    kind: Annotated[KindName, DEFAULTED] = "Secret"
    """Kind of the object: Secret."""

    name: Annotated[ObjectName, REQUIRED] = ""
    """Its name."""

    namespace: NamespaceName | None = None
    """Its namespace, which must grant the reference; the Gateway's own if absent."""


class ListenerTls(Struct, kw_only=True, frozen=True, rename="camel"):
    """How TLS is ended."""

    mode: Annotated[str, Limits(enum=("Terminate", "Passthrough")), DEFAULTED] = "Terminate"
    """Terminate: here; Passthrough is not served."""

    certificate_refs: Annotated[list[CertificateRef], Limits(max_items=64)] = []
    """What clients are shown: Secrets of type kubernetes.io/tls, of several kinds of keys the one that a client can use."""

    frontend_validation: Document | None = None
    """Not served: clients show no certificates."""

    options: dict[str, str] = {}
    """Not served."""


class Listener(Struct, kw_only=True, frozen=True, rename="camel"):
    """One port of a Gateway."""

    name: Annotated[SectionName, REQUIRED] = ""
    """Its name."""

    hostname: Hostname | None = None
    """The host that it is for, perhaps `*.` and more; absent: all."""

    port: Annotated[PortNumber, REQUIRED] = 0
    """The port that it listens on."""

    protocol: Annotated[str, Limits(min_length=1, max_length=255), REQUIRED] = ""
    """HTTP or HTTPS; others are not served."""

    tls: ListenerTls | None = None
    """How TLS is ended, of HTTPS."""

    allowed_routes: AllowedRoutes = field(default_factory=AllowedRoutes)
    """Which routes it takes."""


class GatewaySpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where requests come in."""

    gateway_class_name: Annotated[ObjectName, REQUIRED] = ""
    """The class, and with it who serves it."""

    listeners: Annotated[
        list[Listener], Limits(min_items=1, max_items=64, list_type="map", list_keys=("name",)), REQUIRED
    ] = []
    """The ports."""


class GatewayAddress(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a Gateway is reached."""

    type: Annotated[str, DEFAULTED] = "IPAddress"
    """IPAddress or Hostname."""

    value: Annotated[str, REQUIRED] = ""
    """The address."""


class ListenerStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How one listener fares."""

    name: Annotated[SectionName, REQUIRED] = ""
    """Its name."""

    supported_kinds: list[RouteGroupKind] = []
    """Kinds of routes that it takes."""

    attached_routes: Annotated[Int32, REQUIRED] = 0
    """How many routes it has."""

    conditions: Annotated[list[StrictCondition], CONDITIONS, REQUIRED] = []
    """Observations: Accepted, Programmed, ResolvedRefs, Conflicted."""


class GatewayStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How a Gateway fares."""

    addresses: list[GatewayAddress] = []
    """Where it is reached."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Accepted, Programmed."""

    listeners: Annotated[list[ListenerStatus], Limits(list_type="map", list_keys=("name",))] = []
    """How its listeners fare."""


@resource(
    API_VERSION,
    plural="gateways",
    short=("gtw",),
    categories=("gateway-api",),
    has_status=True,
    columns=(
        Column(name="Class", json_path=".spec.gatewayClassName"),
        Column(name="Address", json_path=".status.addresses[*].value"),
        Column(name="Programmed", json_path='.status.conditions[?(@.type=="Programmed")].status'),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class Gateway(Resource, kw_only=True, frozen=True, rename="camel"):
    """Where requests come in."""

    spec: Annotated[GatewaySpec, REQUIRED] = field(default_factory=GatewaySpec)
    """Its ports."""

    status: GatewayStatus = field(default_factory=GatewayStatus)
    """How it fares."""


class PathMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """Looks at the path."""

    type: Annotated[str, Limits(enum=("Exact", "PathPrefix", "RegularExpression")), DEFAULTED] = "PathPrefix"
    """How it looks; a prefix is taken by whole segments."""

    value: Annotated[str, Limits(max_length=1024), DEFAULTED] = "/"
    """What it looks for."""


class NamedMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """Looks at a header or a query parameter."""

    type: Annotated[str, Limits(enum=("Exact", "RegularExpression")), DEFAULTED] = "Exact"
    """How it looks."""

    name: Annotated[str, Limits(min_length=1, max_length=256), REQUIRED] = ""
    """Of which header or parameter."""

    value: Annotated[str, Limits(min_length=1, max_length=4096), REQUIRED] = ""
    """What it looks for."""


class RouteMatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """All of these must hold."""

    path: PathMatch = field(default_factory=PathMatch)
    """The path."""

    headers: Annotated[list[NamedMatch], Limits(max_items=16, list_type="map", list_keys=("name",))] = []
    """Headers."""

    query_params: Annotated[list[NamedMatch], Limits(max_items=16, list_type="map", list_keys=("name",))] = []
    """Query parameters."""

    method: str | None = None
    """The method."""


class PathModifier(Struct, kw_only=True, frozen=True, rename="camel"):
    """Another path."""

    type: Annotated[str, Limits(enum=("ReplaceFullPath", "ReplacePrefixMatch")), REQUIRED] = ""
    """Whether the whole path is replaced or the prefix that matched."""

    replace_full_path: str | None = None
    """The new path."""

    replace_prefix_match: str | None = None
    """What stands for the prefix."""


class UrlRewrite(Struct, kw_only=True, frozen=True, rename="camel"):
    """What the backend sees of the address."""

    hostname: Hostname | None = None
    """Another host."""

    path: PathModifier | None = None
    """Another path."""


class RouteFilter(Struct, kw_only=True, frozen=True, rename={
    "type": "type", "url_rewrite": "urlRewrite", "request_header_modifier": "requestHeaderModifier",
    "response_header_modifier": "responseHeaderModifier", "request_redirect": "requestRedirect",
    "request_mirror": "requestMirror", "extension_ref": "extensionRef",
}):  # fmt: skip
    """A change on the way; URLRewrite is the one that is made."""

    type: Annotated[str, REQUIRED] = ""
    """Which change."""

    url_rewrite: UrlRewrite | None = None
    """Another address."""

    request_header_modifier: Document | None = None
    """Not served."""

    response_header_modifier: Document | None = None
    """Not served."""

    request_redirect: Document | None = None
    """Not served."""

    request_mirror: Document | None = None
    """Not served."""

    extension_ref: Document | None = None
    """Not served."""


class BackendRef(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where requests go: an InferencePool."""

    group: Annotated[GroupName, DEFAULTED] = ""
    """Group of the backend: inference.networking.k8s.io."""

    kind: Annotated[KindName, DEFAULTED] = "Service"
    """Kind of the backend: InferencePool."""

    name: Annotated[ObjectName, REQUIRED] = ""
    """Its name."""

    namespace: NamespaceName | None = None
    """Its namespace; the route's own if absent."""

    port: PortNumber | None = None
    """Of a Service; a pool has its own."""

    weight: Annotated[int | None, Limits(minimum=0, maximum=1_000_000, format="int32"), DEFAULTED] = 1
    """How much of the traffic goes there, in relation to the other backends."""

    filters: list[RouteFilter] = []
    """Changes on the way to this one."""


class HttpRouteRule(Struct, kw_only=True, frozen=True, rename="camel"):
    """Requests that match go to these backends."""

    name: SectionName | None = None
    """What people call the rule."""

    matches: Annotated[list[RouteMatch], Limits(max_items=64)] = []
    """One of these must hold; absent: every path."""

    filters: Annotated[list[RouteFilter], Limits(max_items=16)] = []
    """Changes on the way."""

    backend_refs: Annotated[list[BackendRef], Limits(max_items=16)] = []
    """Where they go."""

    timeouts: Document | None = None
    """Not served; a ModelServer's are."""


class HttpRouteSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which requests go where."""

    parent_refs: Annotated[list[ParentReference], Limits(max_items=32)] = []
    """The Gateways that the route belongs to."""

    hostnames: Annotated[list[Hostname], Limits(max_items=16)] = []
    """Hosts that it is for; absent: those of its listeners."""

    rules: Annotated[list[HttpRouteRule], Limits(max_items=16)] = []
    """Which requests go where."""


class RouteParentStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What one Gateway made of the route."""

    parent_ref: Annotated[ParentReference, REQUIRED] = field(default_factory=ParentReference)
    """The Gateway, as the route names it."""

    controller_name: Annotated[str, REQUIRED] = ""
    """Who writes this."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Accepted, ResolvedRefs."""


class HttpRouteStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What Gateways made of the route."""

    parents: Annotated[list[RouteParentStatus], Limits(max_items=32), REQUIRED] = []
    """Each."""


@resource(
    API_VERSION,
    plural="httproutes",
    categories=("gateway-api",),
    has_status=True,
    kind="HTTPRoute",
    columns=(
        Column(name="Hostnames", json_path=".spec.hostnames"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class HttpRoute(Resource, kw_only=True, frozen=True, rename="camel"):
    """Which requests that come in at a Gateway go where."""

    spec: Annotated[HttpRouteSpec, REQUIRED] = field(default_factory=HttpRouteSpec)
    """Gateways and rules."""

    status: HttpRouteStatus = field(default_factory=HttpRouteStatus)
    """What the Gateways made of it."""
