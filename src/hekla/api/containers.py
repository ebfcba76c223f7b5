"""A container of a pod: what it runs, needs, exposes and how its health is asked.

`pods.py` puts containers together.
"""

from msgspec import Struct

from hekla.api.scalars import IntOrString, wire_names
from hekla.api.volumes import ObjectFieldSelector, ResourceFieldSelector, VolumeDevice, VolumeMount


class ContainerPort(Struct, kw_only=True, frozen=True, rename=wire_names(host_ip="hostIP"), gc=False):
    """A port the container listens on."""

    container_port: int = 0
    host_ip: str = ""
    host_port: int = 0
    name: str = ""
    protocol: str = ""


class ConfigMapKeySelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One key of a config map."""

    key: str = ""
    name: str = ""
    optional: bool = False


class SecretKeySelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One key of a secret."""

    key: str = ""
    name: str = ""
    optional: bool = False


class FileKeySelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One key of an env file in a volume."""

    key: str = ""
    optional: bool = False
    path: str = ""
    volume_name: str = ""


class EnvVarSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Where the value of a variable comes from."""

    config_map_key_ref: ConfigMapKeySelector | None = None
    field_ref: ObjectFieldSelector | None = None
    file_key_ref: FileKeySelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    secret_key_ref: SecretKeySelector | None = None


class EnvVar(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One environment variable."""

    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None


class ConfigMapEnvSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """All keys of a config map as variables."""

    name: str = ""
    optional: bool = False


class SecretEnvSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """All keys of a secret as variables."""

    name: str = ""
    optional: bool = False


class EnvFromSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A source of many variables, with a prefix."""

    config_map_ref: ConfigMapEnvSource | None = None
    prefix: str = ""
    secret_ref: SecretEnvSource | None = None


class ContainerResourceClaim(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A claim of the pod that this container uses."""

    name: str = ""
    request: str = ""


class ResourceRequirements(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What the container is promised (requests) and held to (limits)."""

    claims: list[ContainerResourceClaim] = []
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class ContainerResizePolicy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Whether a resize of one resource restarts the container."""

    resource_name: str = ""
    restart_policy: str = ""


class ExecAction(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A command run inside the container; exit status 0 is healthy."""

    command: list[str] = []


class HTTPHeader(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One header of a probe."""

    name: str = ""
    value: str = ""


class HTTPGetAction(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An HTTP request; any status from 200 to 399 is healthy."""

    host: str = ""
    http_headers: list[HTTPHeader] = []
    path: str = ""
    port: IntOrString | None = None
    scheme: str = ""


class TCPSocketAction(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A TCP connection; one that opens is healthy."""

    host: str = ""
    port: IntOrString | None = None


class GRPCAction(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A call of gRPC's own health service."""

    port: int = 0
    service: str = ""


class SleepAction(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A pause."""

    seconds: int = 0


class LifecycleHandler(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What to do at one moment of a container's life."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    sleep: SleepAction | None = None
    tcp_socket: TCPSocketAction | None = None


class Lifecycle(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What to do after the start and before the stop."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str = ""


class Probe(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A question about health, how often it is asked and how many answers count."""

    exec: ExecAction | None = None
    failure_threshold: int = 0
    grpc: GRPCAction | None = None
    http_get: HTTPGetAction | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    tcp_socket: TCPSocketAction | None = None
    termination_grace_period_seconds: int | None = None
    timeout_seconds: int | None = None


class Capabilities(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Linux capabilities to add and to drop."""

    add: list[str] = []
    drop: list[str] = []


class SELinuxOptions(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An SELinux label."""

    level: str = ""
    role: str = ""
    type: str = ""
    user: str = ""


class SeccompProfile(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which system calls are allowed."""

    localhost_profile: str = ""
    type: str = ""


class AppArmorProfile(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which AppArmor profile confines."""

    localhost_profile: str = ""
    type: str = ""


class WindowsSecurityContextOptions(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Settings for Windows nodes, which Hekla only carries along."""

    gmsa_credential_spec: str = ""
    gmsa_credential_spec_name: str = ""
    host_process: bool = False
    run_as_user_name: str = ""


class SecurityContext(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """With which rights a container runs."""

    allow_privilege_escalation: bool | None = None
    app_armor_profile: AppArmorProfile | None = None
    capabilities: Capabilities | None = None
    privileged: bool | None = None
    proc_mount: str = ""
    read_only_root_filesystem: bool | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    se_linux_options: SELinuxOptions | None = None
    seccomp_profile: SeccompProfile | None = None
    windows_options: WindowsSecurityContextOptions | None = None


class ContainerRestartRuleOnExitCodes(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Exit codes to which a restart rule applies."""

    operator: str = ""
    values: list[int] = []


class ContainerRestartRule(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What to do when a container exits in a given way."""

    action: str = ""
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


class Container(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One container. As an init container with restartPolicy Always it is a sidecar."""

    args: list[str] = []
    command: list[str] = []
    env: list[EnvVar] = []
    env_from: list[EnvFromSource] = []
    image: str = ""
    image_pull_policy: str = ""
    lifecycle: Lifecycle | None = None
    liveness_probe: Probe | None = None
    name: str = ""
    ports: list[ContainerPort] = []
    readiness_probe: Probe | None = None
    resize_policy: list[ContainerResizePolicy] = []
    resources: ResourceRequirements | None = None
    restart_policy: str = ""
    restart_policy_rules: list[ContainerRestartRule] = []
    security_context: SecurityContext | None = None
    startup_probe: Probe | None = None
    stdin: bool = False
    stdin_once: bool = False
    termination_message_path: str = ""
    termination_message_policy: str = ""
    tty: bool = False
    volume_devices: list[VolumeDevice] = []
    volume_mounts: list[VolumeMount] = []
    working_dir: str = ""


class EphemeralContainer(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A container added to a running pod to look into it."""

    args: list[str] = []
    command: list[str] = []
    env: list[EnvVar] = []
    env_from: list[EnvFromSource] = []
    image: str = ""
    image_pull_policy: str = ""
    lifecycle: Lifecycle | None = None
    liveness_probe: Probe | None = None
    name: str = ""
    ports: list[ContainerPort] = []
    readiness_probe: Probe | None = None
    resize_policy: list[ContainerResizePolicy] = []
    resources: ResourceRequirements | None = None
    restart_policy: str = ""
    restart_policy_rules: list[ContainerRestartRule] = []
    security_context: SecurityContext | None = None
    startup_probe: Probe | None = None
    stdin: bool = False
    stdin_once: bool = False
    target_container_name: str = ""
    termination_message_path: str = ""
    termination_message_policy: str = ""
    tty: bool = False
    volume_devices: list[VolumeDevice] = []
    volume_mounts: list[VolumeMount] = []
    working_dir: str = ""
