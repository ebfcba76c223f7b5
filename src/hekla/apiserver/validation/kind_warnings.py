"""What the writer of an object is told although it is allowed; `pod_warnings.py` has what is in pods and templates.

Asked when an object is created, and when what it wants has changed. Names are told of only once, at creation.
"""

from collections.abc import Callable

from hekla.api.meta import Document
from hekla.apiserver.validation import names
from hekla.apiserver.validation.device_slices import warn_of_slice
from hekla.apiserver.validation.pod_warnings import label_warning, pod_warnings

Warn = Callable[[Document, bool], list[str]]
"""From an object and whether it is new to sentences."""

ENDPOINTS = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
"""Told to readers too, as Kubernetes tells of whole versions of an API that will go."""

_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_CLASS_MOVED = 'deprecated since v1.8; use "storageClassName" attribute instead'
_MANY_INDEXES = (
    "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might"
    " not be able to track completedIndexes when a big number of indexes fail"
)
_RECYCLE = (
    "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is"
    " to use dynamic provisioning."
)


def warn_of_pod(pod: Document, is_new: bool) -> list[str]:
    """A pod."""
    found = _about_name(pod, "this is used in the Pod's hostname") if is_new else []
    return found + pod_warnings(pod["metadata"], pod.get("spec", {}))


def warn_of_template(workload: Document, is_new: bool) -> list[str]:
    """A workload whose pods are named after it."""
    return (_about_name(workload) if is_new else []) + _about_template(workload.get("spec", {}), "spec.template.")


def warn_of_daemon_set(daemon_set: Document, is_new: bool) -> list[str]:
    """A daemon set, and whatever has a template and another way to name its pods."""
    return _about_template(daemon_set.get("spec", {}), "spec.template.")


def warn_of_pod_template(template: Document, is_new: bool) -> list[str]:
    """A PodTemplate object."""
    return _about_template(template, "template.")


def warn_of_stateful_set(stateful_set: Document, is_new: bool) -> list[str]:
    """A stateful set."""
    found, spec = warn_of_template(stateful_set, is_new), stateful_set.get("spec", {})
    if spec.get("revisionHistoryLimit", 0) < 0:
        found.append(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
        )
    for index, claim in enumerate(spec.get("volumeClaimTemplates", ())):
        found += _about_claim(claim.get("spec", {}), f"spec.volumeClaimTemplates[{index}].spec")
    return found


def warn_of_job(job: Document, is_new: bool) -> list[str]:
    """A job."""
    return (_about_name(job) if is_new else []) + _about_job(job.get("spec", {}), "spec")


def warn_of_cron_job(cron_job: Document, is_new: bool) -> list[str]:
    """A cron job."""
    spec = cron_job.get("spec", {}).get("jobTemplate", {}).get("spec", {})
    return (_about_name(cron_job) if is_new else []) + _about_job(spec, "spec.jobTemplate.spec")


def warn_of_service(service: Document, is_new: bool) -> list[str]:
    """A service: what does nothing in its type."""
    found, spec = list[str](), service.get("spec", {})
    kind, is_named_outside = spec.get("type", ""), spec.get("type") == "ExternalName"
    is_headless = kind == "ClusterIP" and spec.get("clusterIP") == "None"
    if "service.kubernetes.io/topology-aware-hints" in service["metadata"].get("annotations", {}):
        old, new = "service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"
        found.append(f"annotation {old} is deprecated, please use {new} instead")
    if is_headless:
        ignored = [f"spec.{key} is ignored for headless services" for key in ("loadBalancerIP", "externalIPs") if spec.get(key)]  # fmt: skip
        affinity = spec.get("sessionAffinity", "None") != "None"
        found += ignored + ["spec.SessionAffinity is ignored for headless services"] * affinity
    if spec.get("externalIPs") and not is_headless and not is_named_outside:
        found.append("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
    if spec.get("externalIPs") and is_named_outside:
        found.append('spec.externalIPs is ignored when spec.type is "ExternalName"')
    if spec.get("externalName") and not is_named_outside:
        found.append('spec.externalName is ignored when spec.type is not "ExternalName"')
    if spec.get("trafficDistribution") == "PreferClose":
        found.append('spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"')
    return found


def warn_of_ingress(ingress: Document, is_new: bool) -> list[str]:
    """An ingress that names its class the old way only."""
    annotations, is_said = ingress["metadata"].get("annotations", {}), "ingressClassName" in ingress.get("spec", {})
    if is_new and "kubernetes.io/ingress.class" in annotations and not is_said:
        return ["annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"]
    return []


def warn_of_claim(claim: Document, is_new: bool) -> list[str]:
    """A claim."""
    return _about_class(claim) + _about_claim(claim.get("spec", {}), "spec")


def warn_of_volume(volume: Document, is_new: bool) -> list[str]:
    """A volume."""
    recycled = volume.get("spec", {}).get("persistentVolumeReclaimPolicy") == "Recycle"
    return _about_class(volume) + [_RECYCLE] * recycled


def warn_of_runtime_class(runtime: Document, is_new: bool) -> list[str]:
    """A runtime class that goes to nodes by a label of old."""
    labels = (runtime.get("scheduling") or {}).get("nodeSelector") or {}
    return [f"scheduling.nodeSelector: {said}" for label in sorted(labels) if (said := label_warning(label))]


def warn_of_account(account: Document, is_new: bool) -> list[str]:
    """A service account that keeps secrets apart the old way."""
    key = "kubernetes.io/enforce-mountable-secrets"
    said = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    return [f"metadata.annotations[{key}]: {said}"] * (is_new and key in account["metadata"].get("annotations", {}))


def warn_of_endpoint_slice(endpoint_slice: Document, is_new: bool) -> list[str]:
    """An endpoint slice of names."""
    return ["spec.addressType: FQDN endpoints are deprecated"] * (endpoint_slice.get("addressType") == "FQDN")


def warn_of_node(node: Document, is_new: bool) -> list[str]:
    """A node."""
    old = ("spec.externalID: this field is deprecated, and is unused by Kubernetes",)
    return [*old] if node.get("spec", {}).get("externalID") else []


def _about_name(document: Document, use: str = "this is used in Pod names and hostnames") -> list[str]:
    wrong = names.dns_label(document["metadata"].get("name", ""))
    recommended = f"a DNS label is recommended: [{' '.join(wrong)}]"
    return [f"metadata.name: {use}, which can result in surprising behavior; {recommended}"] if wrong else []


def _about_template(owner: Document, path: str) -> list[str]:
    template = owner.get("template", {})
    return pod_warnings(template.get("metadata", {}), template.get("spec", {}), path)


def _about_job(spec: Document, path: str) -> list[str]:
    is_indexed = spec.get("completionMode") == "Indexed"
    is_wide = spec.get("completions", 0) > 100_000 and spec.get("parallelism", 0) > 10_000
    return [_MANY_INDEXES] * (is_indexed and is_wide) + _about_template(spec, f"{path}.template.")


def _about_class(document: Document) -> list[str]:
    if _CLASS_ANNOTATION in document["metadata"].get("annotations", {}):
        return [f"metadata.annotations[{_CLASS_ANNOTATION}]: {_CLASS_MOVED}"]
    return []


def _about_claim(spec: Document, path: str) -> list[str]:
    amount = spec.get("resources", {}).get("requests", {}).get("storage", "")
    said = f'{path}.resources.requests[storage]: fractional byte value "{amount}" is invalid, must be an integer'
    return [said] * amount.endswith("m")


KIND_WARNINGS: dict[str, Warn] = {
    "pods": warn_of_pod,
    "podtemplates": warn_of_pod_template,
    "replicationcontrollers": warn_of_template,
    "deployments.apps": warn_of_template,
    "replicasets.apps": warn_of_template,
    "statefulsets.apps": warn_of_stateful_set,
    "daemonsets.apps": warn_of_daemon_set,
    "jobs.batch": warn_of_job,
    "cronjobs.batch": warn_of_cron_job,
    "services": warn_of_service,
    "ingresses.networking.k8s.io": warn_of_ingress,
    "persistentvolumeclaims": warn_of_claim,
    "persistentvolumes": warn_of_volume,
    "serviceaccounts": warn_of_account,
    "endpointslices.discovery.k8s.io": warn_of_endpoint_slice,
    "nodes": warn_of_node,
    "runtimeclasses.node.k8s.io": warn_of_runtime_class,
    "resourceslices.resource.k8s.io": warn_of_slice,
}
"""By `plural.group`."""
