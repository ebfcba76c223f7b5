"""Write src/hekla/api/kubernetes/openapi-1.36.json.gz from the published schemas in the package kubernetes-validate.

Run `python tools/gen_kubernetes.py` in an environment with the dependency group `gen`. The result holds every definition
that a served kind reaches, with descriptions, and two facts which the schemas leave out because they are facts of
Kubernetes' Go types: which optional scalars tell "zero" from "not said" (`x-hekla-pointer`), and which optional
structs and times are always written (`default`). The values of enumerations, which the schemas leave out too, are in
`kubernetes_enums.json`, read from a server's OpenAPI v3. `hekla.api.schema` reads the result.
"""

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

ENUMS = Path(__file__).with_name("kubernetes_enums.json")
TARGET = ROOT / "src/hekla/api/kubernetes/openapi-1.36.json.gz"
META = "io.k8s.apimachinery.pkg.apis.meta.v1"
BESIDES = (
    f"{META}.DeleteOptions", f"{META}.Status", f"{META}.APIResourceList", f"{META}.APIGroupList",
    "io.k8s.api.policy.v1.Eviction", "io.k8s.api.autoscaling.v1.Scale", "io.k8s.api.authentication.v1.TokenRequest",
)  # fmt: skip
"""Definitions that are read or answered without being a collection of their own."""

ALWAYS_STRUCTS = {
    "metadata", "spec", "status", "template", "strategy", "updateStrategy", "jobTemplate", "involvedObject", "source",
    "loadBalancer", "daemonEndpoints", "kubeletEndpoint", "nodeInfo", "lastState", "state", "conditions", "targetPort",
    "deprecatedSource",
}  # fmt: skip
"""Fields whose Go type is a struct, not a pointer: they are written even when empty."""

ALWAYS = {"Container.resources", "EphemeralContainer.resources", "PersistentVolumeClaimSpec.resources"}
NEVER = {"ReplicationControllerSpec.template", "ListMeta.metadata"}
TIMES = {
    "PodCondition.lastProbeTime", "PodCondition.lastTransitionTime", "NodeCondition.lastHeartbeatTime",
    "NodeCondition.lastTransitionTime", "DeploymentCondition.lastUpdateTime", "DeploymentCondition.lastTransitionTime",
    "ReplicaSetCondition.lastTransitionTime", "StatefulSetCondition.lastTransitionTime",
    "DaemonSetCondition.lastTransitionTime", "JobCondition.lastProbeTime", "JobCondition.lastTransitionTime",
    "NamespaceCondition.lastTransitionTime", "PersistentVolumeClaimCondition.lastProbeTime",
    "PersistentVolumeClaimCondition.lastTransitionTime", "Event.firstTimestamp", "Event.lastTimestamp", "Event.eventTime",
    "Event.deprecatedFirstTimestamp", "Event.deprecatedLastTimestamp", "EventSeries.lastObservedTime",
    "CustomResourceDefinitionCondition.lastTransitionTime", "ContainerStateRunning.startedAt",
    "ContainerStateTerminated.startedAt", "ContainerStateTerminated.finishedAt",
    "HorizontalPodAutoscalerCondition.lastTransitionTime",
}  # fmt: skip
"""Times that are no pointers: unset, they are written as null."""

ALWAYS_VALUES = {
    "core.v1.Event.reportingComponent": "", "core.v1.Event.reportingInstance": "", "rbac.v1.Role.rules": None,
    "rbac.v1.ClusterRole.rules": None, "discovery.v1.EndpointSlice.endpoints": None,
    "discovery.v1.EndpointSlice.ports": None, "apps.v1.StatefulSetStatus.availableReplicas": 0,
    "policy.v1.PodDisruptionBudgetStatus.disruptionsAllowed": 0,
    "policy.v1.PodDisruptionBudgetStatus.currentHealthy": 0,
    "policy.v1.PodDisruptionBudgetStatus.desiredHealthy": 0,
    "policy.v1.PodDisruptionBudgetStatus.expectedPods": 0,
    "apiextensions.v1.CustomResourceDefinitionStatus.conditions": None,
    "apiextensions.v1.CustomResourceDefinitionStatus.storedVersions": None,
    "apiextensions.v1.CustomResourceDefinitionStatus.acceptedNames": {},
}  # fmt: skip
"""Other optional fields without omitempty, and what an unset one is written as."""

POINTERS = {
    "*": "optional defaultMode mode expirationSeconds apiGroup immutable automountServiceAccountToken localhostProfile "
    "storageClassName volumeMode volumeAttributesClassName collisionCount replicas revisionHistoryLimit runAsUser "
    "runAsGroup runAsNonRoot fsGroup activeDeadlineSeconds terminationGracePeriodSeconds tolerationSeconds controller "
    "blockOwnerDeletion deletionGracePeriodSeconds gracePeriodSeconds orphanDependents propagationPolicy "
    "preemptionPolicy failurePolicy matchPolicy sideEffects reinvocationPolicy scope url suspend appProtocol",
    "PodSpec": "shareProcessNamespace priority runtimeClassName enableServiceLinks setHostnameAsFQDN hostUsers "
    "hostnameOverride",
    "SecurityContext": "privileged readOnlyRootFilesystem allowPrivilegeEscalation procMount",
    "PodSecurityContext": "fsGroupChangePolicy supplementalGroupsPolicy seLinuxChangePolicy",
    "WindowsSecurityContextOptions": "gmsaCredentialSpecName gmsaCredentialSpec runAsUserName hostProcess",
    "Container": "restartPolicy",
    "EphemeralContainer": "restartPolicy",
    "VolumeMount": "mountPropagation recursiveReadOnly",
    "HostPathVolumeSource": "type",
    "CSIVolumeSource": "readOnly fsType",
    "GRPCAction": "service",
    "TopologySpreadConstraint": "minDomains nodeAffinityPolicy nodeTaintsPolicy",
    "PodDNSConfigOption": "value",
    "TypedObjectReference": "namespace",
    "ServiceSpec": "ipFamilyPolicy allocateLoadBalancerNodePorts loadBalancerClass internalTrafficPolicy "
    "trafficDistribution",
    "ClientIPConfig": "timeoutSeconds",
    "LoadBalancerIngress": "ipMode",
    "DeploymentSpec": "progressDeadlineSeconds",
    "DeploymentStatus": "terminatingReplicas -replicas",
    "ReplicaSetStatus": "terminatingReplicas -replicas",
    "StatefulSetStatus": "-replicas",
    "RollingUpdateStatefulSetStrategy": "partition",
    "JobSpec": "parallelism completions backoffLimit backoffLimitPerIndex maxFailedIndexes manualSelector "
    "ttlSecondsAfterFinished completionMode podReplacementPolicy managedBy",
    "JobStatus": "failedIndexes ready terminating",
    "PodFailurePolicyOnExitCodesRequirement": "containerName",
    "SuccessPolicyRule": "succeededIndexes succeededCount",
    "CronJobSpec": "timeZone startingDeadlineSeconds successfulJobsHistoryLimit failedJobsHistoryLimit",
    "PodDisruptionBudgetSpec": "unhealthyPodEvictionPolicy",
    "StorageClass": "reclaimPolicy allowVolumeExpansion volumeBindingMode",
    "LeaseSpec": "holderIdentity leaseDurationSeconds leaseTransitions strategy preferredHolder",
    "Endpoint": "hostname nodeName zone",
    "EndpointPort": "name protocol port",
    "MutatingWebhook": "timeoutSeconds",
    "ValidatingWebhook": "timeoutSeconds",
    "ServiceReference": "path port",
    "CustomResourceSubresourceScale": "labelSelectorPath",
    "JSONSchemaProps": "maximum minimum maxLength minLength maxItems minItems multipleOf maxProperties minProperties "
    "x-kubernetes-preserve-unknown-fields x-kubernetes-list-type x-kubernetes-map-type",
    "ValidationRule": "reason optionalOldSelf",
    "ContainerStatus": "started",
    "NetworkPolicyPort": "protocol endPort",
    "IngressSpec": "ingressClassName",
    "HTTPIngressPath": "pathType",
    "HorizontalPodAutoscalerSpec": "minReplicas targetCPUUtilizationPercentage",
    "HorizontalPodAutoscalerStatus": "observedGeneration currentCPUUtilizationPercentage",
    "MetricTarget": "averageUtilization",
    "MetricValueStatus": "averageUtilization",
    "HPAScalingRules": "stabilizationWindowSeconds selectPolicy",
    "CSIDriverSpec": "attachRequired podInfoOnMount storageCapacity requiresRepublish seLinuxMount fsGroupPolicy",
    "CSIVolumeSourceAttachment": "persistentVolumeName",
    "VolumeAttachmentSource": "persistentVolumeName",
    "VolumeNodeResources": "count",
    "ScaleSpec": "-replicas",
    "ScaleStatus": "-replicas",
    "EndpointConditions": "ready serving terminating",
    "EndpointAddress": "nodeName",
    "Preconditions": "uid resourceVersion",
    "ReplicationControllerStatus": "-replicas",
    "DeviceAttribute": "bool int string version",
    "DeviceClassSpec": "extendedResourceName",
    "DeviceConstraint": "matchAttribute distinctAttribute",
    "ExactDeviceRequest": "adminAccess",
    "ResourceSliceSpec": "nodeName allNodes perDeviceNodeSelection",
    "Device": "nodeName allNodes bindsToNode allowMultipleAllocations",
}
"""Optional scalars that are pointers in Go, by type; `*` for every type, `-x` takes x back."""


def main() -> None:
    """Write the file and say how large it is."""
    source = _published()
    wanted = _reachable(source, _roots(source))
    compact = {name: _definition(name, source[name]) for name in sorted(wanted)}
    add_enums(compact)
    text = json.dumps(compact, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()
    TARGET.write_bytes(gzip.compress(text, 9, mtime=0))
    print(f"{TARGET.relative_to(ROOT)}: {len(compact)} definitions, {TARGET.stat().st_size} bytes")


def add_enums(definitions: dict[str, Any]) -> None:
    """Say which values a field may have, and what they mean: clients show it, the server's own checks decide."""
    for where, (values, meaning) in json.loads(ENUMS.read_text()).items():
        name, _, path = where.partition(" ")
        schema = definitions.get(name, {})
        for part in path.replace("[]", ".items").replace("{}", ".additionalProperties").split("."):
            inside = schema if part in ("items", "additionalProperties") else schema.get("properties", {})
            schema = inside.get(part, {})
        schema["enum"] = values
        if meaning:
            schema["description"] = "\n\n".join(filter(None, (schema.get("description"), meaning)))


def _published() -> dict[str, Any]:
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
    else:
        found = importlib.util.find_spec("kubernetes_validate")
        if found is None or found.origin is None:
            sys.exit(
                "kubernetes-validate is not installed; run `pip install --group gen` or give the path of _definitions.json"
            )
        path = Path(found.origin).parent / "kubernetes-json-schema/v1.36.0-local/_definitions.json"
    loaded: dict[str, Any] = json.loads(path.read_text())["$defs"]
    return loaded


def _roots(source: dict[str, Any]) -> set[str]:
    from hekla.api.kubernetes.served import SERVED

    kinds = {(one.kind.group, one.kind.version, one.kind.kind) for one in SERVED}
    kinds |= {(group, version, f"{kind}List") for group, version, kind in kinds}
    found = set(BESIDES)
    for name, schema in source.items():
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            if (gvk["group"], gvk["version"], gvk["kind"]) in kinds and ".meta.v1." not in name:
                found.add(name)
    return found


def _reachable(source: dict[str, Any], roots: set[str]) -> set[str]:
    seen: set[str] = set()
    queue = sorted(roots)
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        queue += _references(source[name])
    return seen


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [ref for one in node for ref in _references(one)]
    if not isinstance(node, dict):
        return []
    here = [node["$ref"].removeprefix("#/$defs/")] if isinstance(node.get("$ref"), str) else []
    return here + [ref for value in node.values() for ref in _references(value)]


def _definition(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    short = name.rsplit(".", 1)[1]
    if short == "Quantity":
        return {"description": schema.get("description", ""), "type": "string", "format": "quantity"}
    if short == "IntOrString":
        return {"type": "string", "format": "int-or-string", "x-kubernetes-int-or-string": True}
    compact = _compact(schema)
    for field, value in compact.get("properties", {}).items():
        _mark(short, field, value, schema.get("required", ()))
        key = f"{'.'.join(name.rsplit('.', 3)[1:])}.{field}"
        if key in ALWAYS_VALUES:
            value["default"] = ALWAYS_VALUES[key]
    return compact


def _compact(schema: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            kept[key] = value.removeprefix("#/$defs/")
        elif key == "type":
            kept[key] = next(one for one in value if one != "null") if isinstance(value, list) else value
        elif key == "properties":
            kept[key] = {name: _compact(one) for name, one in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            kept[key] = _compact(value)
        elif key == "enum":
            continue  # only apiVersion and kind have one here, and those are said elsewhere
        else:
            kept[key] = value
    return kept


def _mark(type_: str, field: str, schema: dict[str, Any], required: Any) -> None:
    key = f"{type_}.{field}"
    if "$ref" in schema:
        is_time = schema["$ref"].endswith((".Time", ".MicroTime"))
        is_always = (field in ALWAYS_STRUCTS or key in ALWAYS) and key not in NEVER and not is_time
        if is_always and not schema["$ref"].endswith("IntOrString"):
            schema["default"] = {}
        if field == "targetPort":
            schema["default"] = 0
        if key in TIMES:
            schema["default"] = None
    elif schema.get("type") in ("string", "integer", "boolean", "number") and field not in required:
        taken_back = f"-{field}" in POINTERS.get(type_, "").split()
        if not taken_back and field in (POINTERS["*"] + " " + POINTERS.get(type_, "")).split():
            schema["x-hekla-pointer"] = True


if __name__ == "__main__":
    main()
