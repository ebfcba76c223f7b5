"""Writes a pod template as Kubernetes does before it hashes it, so that replica sets get the names they get there.

    (v1.PodTemplateSpec){ObjectMeta:(v1.ObjectMeta){Name:(string) ... Labels:(map[string]string)map[app:web] ...

Kubernetes hashes a printout of its Go structs, all fields in their order, set or not. The table below holds the types
of release 1.36 that plain templates use; of a field whose type is not here only "not set" can be written, and a template
that sets one is refused (`templates.py` then takes a hash of its own, as good but not the same). Verified against names
recorded from a real cluster.
"""

from collections.abc import Mapping
from typing import Any

_META = """
Name name string | GenerateName generateName string | Namespace namespace string | SelfLink selfLink string
UID uid types.UID | ResourceVersion resourceVersion string | Generation generation int64
CreationTimestamp creationTimestamp v1.Time | DeletionTimestamp deletionTimestamp *v1.Time
DeletionGracePeriodSeconds deletionGracePeriodSeconds *int64 | Labels labels map[string]string
Annotations annotations map[string]string | OwnerReferences ownerReferences []v1.OwnerReference
Finalizers finalizers []string | ManagedFields managedFields []v1.ManagedFieldsEntry
"""

_SPEC = """
Volumes volumes []v1.Volume | InitContainers initContainers []v1.Container | Containers containers []v1.Container
EphemeralContainers ephemeralContainers []v1.EphemeralContainer | RestartPolicy restartPolicy v1.RestartPolicy
TerminationGracePeriodSeconds terminationGracePeriodSeconds *int64
ActiveDeadlineSeconds activeDeadlineSeconds *int64 | DNSPolicy dnsPolicy v1.DNSPolicy
NodeSelector nodeSelector map[string]string | ServiceAccountName serviceAccountName string
DeprecatedServiceAccount serviceAccount string | AutomountServiceAccountToken automountServiceAccountToken *bool
NodeName nodeName string | HostNetwork hostNetwork bool | HostPID hostPID bool | HostIPC hostIPC bool
ShareProcessNamespace shareProcessNamespace *bool | SecurityContext securityContext *v1.PodSecurityContext
ImagePullSecrets imagePullSecrets []v1.LocalObjectReference | Hostname hostname string | Subdomain subdomain string
Affinity affinity *v1.Affinity | SchedulerName schedulerName string | Tolerations tolerations []v1.Toleration
HostAliases hostAliases []v1.HostAlias | PriorityClassName priorityClassName string | Priority priority *int32
DNSConfig dnsConfig *v1.PodDNSConfig | ReadinessGates readinessGates []v1.PodReadinessGate
RuntimeClassName runtimeClassName *string | EnableServiceLinks enableServiceLinks *bool
PreemptionPolicy preemptionPolicy *v1.PreemptionPolicy | Overhead overhead v1.ResourceList
TopologySpreadConstraints topologySpreadConstraints []v1.TopologySpreadConstraint
SetHostnameAsFQDN setHostnameAsFQDN *bool | OS os *v1.PodOS | HostUsers hostUsers *bool
SchedulingGates schedulingGates []v1.PodSchedulingGate | ResourceClaims resourceClaims []v1.PodResourceClaim
Resources resources *v1.ResourceRequirements | HostnameOverride hostnameOverride *string
SchedulingGroup schedulingGroup *v1.PodSchedulingGroup
"""

_CONTAINER = """
Name name string | Image image string | Command command []string | Args args []string
WorkingDir workingDir string | Ports ports []v1.ContainerPort | EnvFrom envFrom []v1.EnvFromSource
Env env []v1.EnvVar | Resources resources v1.ResourceRequirements
ResizePolicy resizePolicy []v1.ContainerResizePolicy | RestartPolicy restartPolicy *v1.ContainerRestartPolicy
RestartPolicyRules restartPolicyRules []v1.ContainerRestartRule | VolumeMounts volumeMounts []v1.VolumeMount
VolumeDevices volumeDevices []v1.VolumeDevice | LivenessProbe livenessProbe *v1.Probe
ReadinessProbe readinessProbe *v1.Probe | StartupProbe startupProbe *v1.Probe | Lifecycle lifecycle *v1.Lifecycle
TerminationMessagePath terminationMessagePath string
TerminationMessagePolicy terminationMessagePolicy v1.TerminationMessagePolicy
ImagePullPolicy imagePullPolicy v1.PullPolicy | SecurityContext securityContext *v1.SecurityContext
Stdin stdin bool | StdinOnce stdinOnce bool | TTY tty bool
"""

_POD_SECURITY = """
SELinuxOptions seLinuxOptions *v1.SELinuxOptions | WindowsOptions windowsOptions *v1.WindowsSecurityContextOptions
RunAsUser runAsUser *int64 | RunAsGroup runAsGroup *int64 | RunAsNonRoot runAsNonRoot *bool
SupplementalGroups supplementalGroups []int64
SupplementalGroupsPolicy supplementalGroupsPolicy *v1.SupplementalGroupsPolicy | FSGroup fsGroup *int64
Sysctls sysctls []v1.Sysctl | FSGroupChangePolicy fsGroupChangePolicy *v1.PodFSGroupChangePolicy
SeccompProfile seccompProfile *v1.SeccompProfile | AppArmorProfile appArmorProfile *v1.AppArmorProfile
SELinuxChangePolicy seLinuxChangePolicy *v1.PodSELinuxChangePolicy
"""


def _fields(text: str) -> list[tuple[str, str, str]]:
    rows = (part.split() for line in text.strip().splitlines() for part in line.split(" | "))
    return [(go, json, kind) for go, json, kind in rows]


_STRUCTS: Mapping[str, list[tuple[str, str, str]]] = {
    "v1.PodTemplateSpec": _fields("ObjectMeta metadata v1.ObjectMeta | Spec spec v1.PodSpec"),
    "v1.ObjectMeta": _fields(_META),
    "v1.PodSpec": _fields(_SPEC),
    "v1.Container": _fields(_CONTAINER),
    "v1.PodSecurityContext": _fields(_POD_SECURITY),
    "v1.ResourceRequirements": _fields(
        "Limits limits v1.ResourceList | Requests requests v1.ResourceList | Claims claims []v1.ResourceClaim"
    ),
    "v1.ContainerPort": _fields(
        "Name name string | HostPort hostPort int32 | ContainerPort containerPort int32 | "
        "Protocol protocol v1.Protocol | HostIP hostIP string"
    ),
    "v1.EnvVar": _fields("Name name string | Value value string | ValueFrom valueFrom *v1.EnvVarSource"),
    "v1.LocalObjectReference": _fields("Name name string"),
    "v1.Toleration": _fields(
        "Key key string | Operator operator v1.TolerationOperator | Value value string | "
        "Effect effect v1.TaintEffect | TolerationSeconds tolerationSeconds *int64"
    ),
}

_TEXTS = frozenset(
    {
        "string", "types.UID", "v1.RestartPolicy", "v1.DNSPolicy", "v1.PreemptionPolicy", "v1.Protocol",
        "v1.TerminationMessagePolicy", "v1.PullPolicy", "v1.ContainerRestartPolicy", "v1.SupplementalGroupsPolicy",
        "v1.PodFSGroupChangePolicy", "v1.PodSELinuxChangePolicy", "v1.TolerationOperator", "v1.TaintEffect",
    }
)  # fmt: skip
_NUMBERS = frozenset({"int32", "int64"})
_NO_TIME = "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}"


class NotPlainError(Exception):
    """The template sets a field whose type is not in the table."""


def go_dump(template: Any) -> str:
    """The template as Kubernetes prints it; NotPlainError if that is not known."""
    return _typed(template, "v1.PodTemplateSpec")


def _typed(value: Any, kind: str) -> str:
    return f"({kind}){_value(value, kind)}"


def _value(value: Any, kind: str) -> str:
    if kind.startswith("*"):
        return "<nil>" if value is None else _value(value, kind[1:])
    if kind.startswith("[]"):
        # An empty list does not survive storage: it comes back as none.
        return f"[{' '.join(_value(item, kind[2:]) for item in value)}]" if value else "<nil>"
    if kind == "map[string]string":
        return f"map[{' '.join(f'{key}:{value[key]}' for key in sorted(value))}]" if value else "<nil>"
    if kind in _STRUCTS:
        return _struct(value or {}, _STRUCTS[kind])
    if kind in _TEXTS:
        return str(value or "")
    if kind in _NUMBERS:
        return str(int(value or 0))
    if kind == "bool":
        return "true" if value else "false"
    return _unset(value, kind)


def _struct(value: Mapping[str, Any], fields: list[tuple[str, str, str]]) -> str:
    unknown = value.keys() - {json for _, json, _ in fields}
    if unknown:
        raise NotPlainError(", ".join(sorted(unknown)))
    return "{" + " ".join(f"{go}:{_typed(value.get(json), kind)}" for go, json, kind in fields) + "}"


def _unset(value: Any, kind: str) -> str:
    if value:
        raise NotPlainError(kind)
    return _NO_TIME if kind == "v1.Time" else "<nil>"
