"""Nodes, what they offer and what keeps pods away from them; runtime classes say how a node runs a pod."""

from typing import Any

from msgspec import Struct, field

from hekla.api.meta import Resource, Scope, resource
from hekla.api.pod_scheduling import Toleration
from hekla.api.scalars import wire_names


class Taint(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A mark that keeps pods away which do not tolerate it."""

    effect: str = ""
    key: str = ""
    time_added: str | None = None
    value: str = ""


class NodeSpec(
    Struct,
    kw_only=True,
    frozen=True,
    rename=wire_names(external_id="externalID", pod_cidr="podCIDR", pod_cidrs="podCIDRs", provider_id="providerID"),
    gc=False,
):
    """What is wanted of a node."""

    config_source: dict[str, Any] = {}
    external_id: str = ""
    pod_cidr: str = ""
    pod_cidrs: list[str] = []
    provider_id: str = ""
    taints: list[Taint] = []
    unschedulable: bool = False


class NodeCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a node, with the time of its last heartbeat."""

    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class NodeAddress(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A name or an address of the node."""

    address: str = ""
    type: str = ""


class DaemonEndpoint(Struct, kw_only=True, frozen=True, rename=wire_names(port="Port"), gc=False):
    """The port of a daemon."""

    port: int = 0


class NodeDaemonEndpoints(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Where the node's daemons listen."""

    kubelet_endpoint: DaemonEndpoint | None = None


class NodeSystemInfo(
    Struct,
    kw_only=True,
    frozen=True,
    rename=wire_names(boot_id="bootID", machine_id="machineID", system_uuid="systemUUID"),
    gc=False,
):
    """What the node is made of."""

    architecture: str = ""
    boot_id: str = ""
    container_runtime_version: str = ""
    kernel_version: str = ""
    kube_proxy_version: str = ""
    kubelet_version: str = ""
    machine_id: str = ""
    operating_system: str = ""
    os_image: str = ""
    system_uuid: str = ""


class ContainerImage(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An image the node holds."""

    names: list[str] = []
    size_bytes: int = 0


class NodeStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What the node offers and how it is."""

    addresses: list[NodeAddress] = []
    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: list[NodeCondition] = []
    daemon_endpoints: NodeDaemonEndpoints | None = None
    images: list[ContainerImage] = []
    node_info: NodeSystemInfo | None = None
    phase: str = ""
    volumes_in_use: list[str] = []


@resource("v1", plural="nodes", scope=Scope.CLUSTER, short=("no",), has_status=True)
class Node(Resource, kw_only=True, frozen=True, rename="camel"):
    """A machine, or a virtual one, that runs pods."""

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


class Overhead(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What the runtime itself needs for each pod."""

    pod_fixed: dict[str, str] = {}


class Scheduling(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which nodes have the runtime."""

    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []


@resource("node.k8s.io/v1", plural="runtimeclasses", scope=Scope.CLUSTER)
class RuntimeClass(Resource, kw_only=True, frozen=True, rename="camel"):
    """A way to run a pod, by the name a pod gives as runtimeClassName."""

    handler: str = ""
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None
