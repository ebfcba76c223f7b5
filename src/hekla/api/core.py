"""The core group: namespaces, configuration, services, quotas, events; pods and nodes are re-exported here.

Each family has its own module; import from `hekla.api.core` when you want a kind of `v1`.
"""

from msgspec import Struct, field

from hekla.api.containers import Container as Container
from hekla.api.meta import Condition, Resource, Scope, resource
from hekla.api.nodes import Node as Node
from hekla.api.nodes import NodeSpec as NodeSpec
from hekla.api.nodes import NodeStatus as NodeStatus
from hekla.api.nodes import Taint as Taint
from hekla.api.pods import Binding as Binding
from hekla.api.pods import Pod as Pod
from hekla.api.pods import PodSpec as PodSpec
from hekla.api.pods import PodStatus as PodStatus
from hekla.api.pods import PodTemplate as PodTemplate
from hekla.api.pods import PodTemplateSpec as PodTemplateSpec
from hekla.api.scalars import IntOrString, wire_names
from hekla.api.selectors import LocalObjectReference, ObjectReference
from hekla.api.storage import PersistentVolume as PersistentVolume
from hekla.api.storage import PersistentVolumeClaim as PersistentVolumeClaim


class NamespaceSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Finalizers that must go before the namespace does."""

    finalizers: list[str] = []


class NamespaceCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a namespace."""

    last_transition_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class NamespaceStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Whether the namespace is Active or Terminating."""

    conditions: list[NamespaceCondition] = []
    phase: str = ""


@resource("v1", plural="namespaces", scope=Scope.CLUSTER, short=("ns",), has_status=True)
class Namespace(Resource, kw_only=True, frozen=True, rename="camel"):
    """A room for names."""

    spec: NamespaceSpec = field(default_factory=NamespaceSpec)
    status: NamespaceStatus = field(default_factory=NamespaceStatus)


@resource("v1", plural="configmaps", short=("cm",))
class ConfigMap(Resource, kw_only=True, frozen=True, rename="camel"):
    """Configuration as text and bytes (base64)."""

    binary_data: dict[str, str] = {}
    data: dict[str, str] = {}
    immutable: bool = False


@resource("v1", plural="secrets")
class Secret(Resource, kw_only=True, frozen=True, rename="camel"):
    """Configuration that few may read; `data` is base64."""

    data: dict[str, str] = {}
    immutable: bool = False
    string_data: dict[str, str] = {}
    type: str = ""


@resource("v1", plural="serviceaccounts", short=("sa",))
class ServiceAccount(Resource, kw_only=True, frozen=True, rename="camel"):
    """The identity of a pod."""

    automount_service_account_token: bool | None = None
    image_pull_secrets: list[LocalObjectReference] = []
    secrets: list[ObjectReference] = []


class ServicePort(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One port of a service and where it leads."""

    app_protocol: str = ""
    name: str = ""
    node_port: int = 0
    port: int = 0
    protocol: str = ""
    target_port: IntOrString | None = None


class ClientIPConfig(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How long a client keeps its endpoint."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(Struct, kw_only=True, frozen=True, rename=wire_names(client_ip="clientIP"), gc=False):
    """How clients stay with one endpoint."""

    client_ip: ClientIPConfig | None = None


class ServiceSpec(
    Struct,
    kw_only=True,
    frozen=True,
    rename=wire_names(
        cluster_ip="clusterIP", cluster_ips="clusterIPs", external_ips="externalIPs", load_balancer_ip="loadBalancerIP"
    ),
    gc=False,
):
    """Which pods answer, on which address and ports."""

    allocate_load_balancer_node_ports: bool | None = None
    cluster_ip: str = ""
    cluster_ips: list[str] = []
    external_ips: list[str] = []
    external_name: str = ""
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    internal_traffic_policy: str = ""
    ip_families: list[str] = []
    ip_family_policy: str = ""
    load_balancer_class: str = ""
    load_balancer_ip: str = ""
    load_balancer_source_ranges: list[str] = []
    ports: list[ServicePort] = []
    publish_not_ready_addresses: bool = False
    selector: dict[str, str] = {}
    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    traffic_distribution: str = ""
    type: str = ""


class PortStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One port of a load balancer."""

    error: str = ""
    port: int = 0
    protocol: str = ""


class LoadBalancerIngress(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One address of a load balancer."""

    hostname: str = ""
    ip: str = ""
    ip_mode: str = ""
    ports: list[PortStatus] = []


class LoadBalancerStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Where a load balancer listens."""

    ingress: list[LoadBalancerIngress] = []


class ServiceStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What was observed of a service."""

    conditions: list[Condition] = []
    load_balancer: LoadBalancerStatus | None = None


@resource("v1", plural="services", short=("svc",), categories=("all",), has_status=True)
class Service(Resource, kw_only=True, frozen=True, rename="camel"):
    """One stable address for a changing set of pods."""

    spec: ServiceSpec = field(default_factory=ServiceSpec)
    status: ServiceStatus = field(default_factory=ServiceStatus)


class EndpointAddress(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One address behind a service."""

    hostname: str = ""
    ip: str = ""
    node_name: str = ""
    target_ref: ObjectReference | None = None


class EndpointsPort(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One port behind a service."""

    app_protocol: str = ""
    name: str = ""
    port: int = 0
    protocol: str = ""


class EndpointSubset(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Addresses times ports."""

    addresses: list[EndpointAddress] = []
    not_ready_addresses: list[EndpointAddress] = []
    ports: list[EndpointsPort] = []


@resource("v1", plural="endpoints", short=("ep",), singular="endpoints")
class Endpoints(Resource, kw_only=True, frozen=True, rename="camel"):
    """The addresses behind a service, in the old form."""

    subsets: list[EndpointSubset] = []


class EventSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Who saw it."""

    component: str = ""
    host: str = ""


class CoreEventSeries(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How often it was seen."""

    count: int = 0
    last_observed_time: str | None = None


@resource("v1", plural="events", short=("ev",))
class Event(Resource, kw_only=True, frozen=True, rename="camel"):
    """Something that happened to an object."""

    action: str = ""
    count: int = 0
    event_time: str | None = None
    first_timestamp: str | None = None
    involved_object: ObjectReference | None = None
    last_timestamp: str | None = None
    message: str = ""
    reason: str = ""
    related: ObjectReference | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
    series: CoreEventSeries | None = None
    source: EventSource | None = None
    type: str = ""


class ScopedResourceSelectorRequirement(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One clause of a quota's scope."""

    operator: str = ""
    scope_name: str = ""
    values: list[str] = []


class ScopeSelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which pods a quota counts."""

    match_expressions: list[ScopedResourceSelectorRequirement] = []


class ResourceQuotaSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How much a namespace may use."""

    hard: dict[str, str] = {}
    scope_selector: ScopeSelector | None = None
    scopes: list[str] = []


class ResourceQuotaStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How much it uses."""

    hard: dict[str, str] = {}
    used: dict[str, str] = {}


@resource("v1", plural="resourcequotas", short=("quota",), has_status=True)
class ResourceQuota(Resource, kw_only=True, frozen=True, rename="camel"):
    """The limit of what one namespace may use."""

    spec: ResourceQuotaSpec = field(default_factory=ResourceQuotaSpec)
    status: ResourceQuotaStatus = field(default_factory=ResourceQuotaStatus)


class LimitRangeItem(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Bounds and defaults for one type of object."""

    default: dict[str, str] = {}
    default_request: dict[str, str] = {}
    max: dict[str, str] = {}
    max_limit_request_ratio: dict[str, str] = {}
    min: dict[str, str] = {}
    type: str = ""


class LimitRangeSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Bounds and defaults."""

    limits: list[LimitRangeItem] = []


@resource("v1", plural="limitranges", short=("limits",))
class LimitRange(Resource, kw_only=True, frozen=True, rename="camel"):
    """Bounds and defaults for the objects of a namespace."""

    spec: LimitRangeSpec = field(default_factory=LimitRangeSpec)
