"""The pod: containers that share a place, an address and a fate.

`containers.py`, `volumes.py` and `pod_scheduling.py` hold its parts; `nodes.py` is where it runs.
"""

from typing import Any

from msgspec import Struct, field

from hekla.api.containers import (
    AppArmorProfile,
    Container,
    EphemeralContainer,
    ResourceRequirements,
    SeccompProfile,
    SELinuxOptions,
    WindowsSecurityContextOptions,
)
from hekla.api.meta import ObjectMeta, Resource, resource
from hekla.api.pod_scheduling import (
    Affinity,
    PodResourceClaim,
    PodSchedulingGate,
    PodSchedulingGroup,
    Toleration,
    TopologySpreadConstraint,
)
from hekla.api.scalars import wire_names
from hekla.api.selectors import LocalObjectReference, ObjectReference
from hekla.api.volumes import Volume


class HostAlias(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Names for one address in the pod's hosts file."""

    hostnames: list[str] = []
    ip: str = ""


class PodDNSConfigOption(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One option of the resolver."""

    name: str = ""
    value: str = ""


class PodDNSConfig(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Name servers and search domains beside those of the DNS policy."""

    nameservers: list[str] = []
    options: list[PodDNSConfigOption] = []
    searches: list[str] = []


class PodReadinessGate(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A condition that must be true before the pod counts as ready."""

    condition_type: str = ""


class PodOS(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The operating system the pod is made for."""

    name: str = ""


class Sysctl(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One kernel setting."""

    name: str = ""
    value: str = ""


class PodSecurityContext(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """With which rights the pod's containers run unless they say otherwise."""

    app_armor_profile: AppArmorProfile | None = None
    fs_group: int | None = None
    fs_group_change_policy: str = ""
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    se_linux_change_policy: str = ""
    se_linux_options: SELinuxOptions | None = None
    seccomp_profile: SeccompProfile | None = None
    supplemental_groups: list[int] = []
    supplemental_groups_policy: str = ""
    sysctls: list[Sysctl] = []
    windows_options: WindowsSecurityContextOptions | None = None


class PodSpec(
    Struct,
    kw_only=True,
    frozen=True,
    rename=wire_names(host_ipc="hostIPC", host_pid="hostPID", set_hostname_as_fqdn="setHostnameAsFQDN"),
    gc=False,
):
    """What is to run, and where and how."""

    active_deadline_seconds: int | None = None
    affinity: Affinity | None = None
    automount_service_account_token: bool | None = None
    containers: list[Container] = []
    dns_config: PodDNSConfig | None = None
    dns_policy: str = ""
    enable_service_links: bool | None = None
    ephemeral_containers: list[EphemeralContainer] = []
    host_aliases: list[HostAlias] = []
    host_ipc: bool = False
    host_network: bool = False
    host_pid: bool = False
    host_users: bool | None = None
    hostname: str = ""
    hostname_override: str = ""
    image_pull_secrets: list[LocalObjectReference] = []
    init_containers: list[Container] = []
    node_name: str = ""
    node_selector: dict[str, str] = {}
    os: PodOS | None = None
    overhead: dict[str, str] = {}
    preemption_policy: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    readiness_gates: list[PodReadinessGate] = []
    resource_claims: list[PodResourceClaim] = []
    resources: ResourceRequirements | None = None
    restart_policy: str = ""
    runtime_class_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: list[PodSchedulingGate] = []
    scheduling_group: PodSchedulingGroup | None = None
    security_context: PodSecurityContext | None = None
    service_account: str = ""
    service_account_name: str = ""
    set_hostname_as_fqdn: bool | None = None
    share_process_namespace: bool | None = None
    subdomain: str = ""
    termination_grace_period_seconds: int | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    volumes: list[Volume] = []


class ContainerStateWaiting(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Not running yet, and why."""

    message: str = ""
    reason: str = ""


class ContainerStateRunning(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Running since."""

    started_at: str | None = None


class ContainerStateTerminated(
    Struct, kw_only=True, frozen=True, rename=wire_names(container_id="containerID"), gc=False
):
    """How it ended."""

    container_id: str = ""
    exit_code: int = 0
    finished_at: str | None = None
    message: str = ""
    reason: str = ""
    signal: int | None = None
    started_at: str | None = None


class ContainerState(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Exactly one of waiting, running and terminated."""

    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None
    waiting: ContainerStateWaiting | None = None


class VolumeMountStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How a volume is mounted in fact."""

    mount_path: str = ""
    name: str = ""
    read_only: bool = False
    recursive_read_only: str = ""
    volume_status: dict[str, Any] = {}


class LinuxContainerUser(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """User and groups of the first process."""

    gid: int = 0
    supplemental_groups: list[int] = []
    uid: int = 0


class ContainerUser(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The identity of the first process."""

    linux: LinuxContainerUser | None = None


class ResourceHealth(Struct, kw_only=True, frozen=True, rename=wire_names(resource_id="resourceID"), gc=False):
    """The health of one device."""

    health: str = ""
    message: str = ""
    resource_id: str = ""


class ResourceStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The health of one resource of a container."""

    name: str = ""
    resources: list[ResourceHealth] = []


class ContainerStatus(
    Struct, kw_only=True, frozen=True, rename=wire_names(container_id="containerID", image_id="imageID"), gc=False
):
    """What the node has seen of one container."""

    allocated_resources: dict[str, str] = {}
    allocated_resources_status: list[ResourceStatus] = []
    container_id: str = ""
    image: str = ""
    image_id: str = ""
    last_state: ContainerState | None = None
    name: str = ""
    ready: bool | None = None
    resources: ResourceRequirements | None = None
    restart_count: int = 0
    started: bool | None = None
    state: ContainerState | None = None
    stop_signal: str = ""
    user: ContainerUser | None = None
    volume_mounts: list[VolumeMountStatus] = []


class PodCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a pod."""

    last_probe_time: str | None = None
    last_transition_time: str | None = None
    message: str = ""
    observed_generation: int = 0
    reason: str = ""
    status: str = ""
    type: str = ""


class HostIP(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An address of the pod's node."""

    ip: str = ""


class PodIP(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An address of the pod."""

    ip: str = ""


class PodResourceClaimStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The claim made for an entry of the pod's resourceClaims."""

    name: str = ""
    resource_claim_name: str = ""


class PodExtendedResourceClaimStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The claim made for extended resources."""

    request_mappings: list[dict[str, Any]] = []
    resource_claim_name: str = ""


class PodStatus(
    Struct,
    kw_only=True,
    frozen=True,
    rename=wire_names(host_ip="hostIP", host_ips="hostIPs", pod_ip="podIP", pod_ips="podIPs"),
    gc=False,
):
    """What the node and the scheduler have seen of the pod."""

    allocated_resources: dict[str, str] = {}
    conditions: list[PodCondition] = []
    container_statuses: list[ContainerStatus] = []
    ephemeral_container_statuses: list[ContainerStatus] = []
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    host_ip: str = ""
    host_ips: list[HostIP] = []
    init_container_statuses: list[ContainerStatus] = []
    message: str = ""
    node_allocatable_resource_claim_statuses: list[dict[str, Any]] = []
    nominated_node_name: str = ""
    observed_generation: int = 0
    phase: str = ""
    pod_ip: str = ""
    pod_ips: list[PodIP] = []
    qos_class: str = ""
    reason: str = ""
    resize: str = ""
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    resources: ResourceRequirements | None = None
    start_time: str | None = None


@resource("v1", plural="pods", short=("po",), categories=("all",), has_status=True)
class Pod(Resource, kw_only=True, frozen=True, rename="camel"):
    """Containers that share a place, an address and a fate."""

    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class PodTemplateSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The pod that a workload makes copies of."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: PodSpec = field(default_factory=PodSpec)


@resource("v1", plural="podtemplates")
class PodTemplate(Resource, kw_only=True, frozen=True, rename="camel"):
    """A pod template as an object of its own."""

    template: PodTemplateSpec = field(default_factory=PodTemplateSpec)


@resource("v1", plural="bindings")
class Binding(Resource, kw_only=True, frozen=True, rename="camel"):
    """The wish that a pod run on a node; posted to the pod's `binding`."""

    target: ObjectReference | None = None
