"""What Kubernetes fills in where a pod, or the pod template of a workload, says nothing.

Applying it twice changes nothing. `defaulting_workloads.py` calls it for templates; `validation/pods.py` checks.
"""

from collections.abc import Iterable
from typing import Any

from hekla.api.meta import Document
from hekla.lib import quantity

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_DEFAULT_MODE = 420  # 0644
_FILE_VOLUMES = ("secret", "configMap", "downwardAPI", "projected")
VOLUME_SOURCES = frozenset({
    "hostPath", "emptyDir", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "secret", "nfs", "iscsi",
    "glusterfs", "persistentVolumeClaim", "rbd", "flexVolume", "cinder", "cephfs", "flocker", "downwardAPI", "fc",
    "azureFile", "configMap", "vsphereVolume", "quobyte", "azureDisk", "photonPersistentDisk", "projected",
    "portworxVolume", "scaleIO", "storageos", "csi", "ephemeral", "image",
})  # fmt: skip


def default_pod(pod: Document) -> None:
    """A pod: the template's defaults and those that only pods have."""
    spec = pod.setdefault("spec", {})
    default_pod_spec(spec)
    if spec["terminationGracePeriodSeconds"] < 0:  # what a negative one has always meant
        spec["terminationGracePeriodSeconds"] = 1
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec, ("initContainers", "containers")):
        _request_what_is_limited(container.get("resources", {}))
        if spec.get("hostNetwork"):
            for port in container.get("ports", ()):
                if not port.get("hostPort") and port.get("containerPort"):
                    port["hostPort"] = port["containerPort"]
    _request_for_the_whole_pod(spec)
    status = pod.get("status", {})
    if status.get("podIP") and "podIPs" not in status:
        status["podIPs"] = [{"ip": status["podIP"]}]


def default_pod_template(template: Document) -> None:
    """The template of a workload."""
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def default_pod_spec(spec: Document) -> None:
    """What pods and templates have in common."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in _containers(spec, CONTAINER_LISTS):
        _default_container(container)
    for volume in spec.get("volumes", ()):
        _default_volume(volume)


def start_pod(pod: Document) -> None:
    """The status a new pod begins with."""
    status: Document = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": pod["metadata"].get("creationTimestamp"),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    pod["status"] = status


def qos_class(spec: Document) -> str:
    """Guaranteed, Burstable or BestEffort: who goes first when a node runs out of memory."""
    whole = spec.get("resources", {})
    if whole.get("requests") or whole.get("limits"):
        return _qos_of([whole])
    return _qos_of(
        [container.get("resources", {}) for container in _containers(spec, ("containers", "initContainers"))]
    )


def _qos_of(resources: list[Document]) -> str:
    is_guaranteed, any_said = True, False
    for one in resources:
        limits, requests = _compute(one.get("limits", {})), _compute(one.get("requests", {}))
        any_said = any_said or bool(limits or requests)
        if set(limits) != {"cpu", "memory"} or any(requests.get(key, limits[key]) != limits[key] for key in limits):
            is_guaranteed = False
    if not any_said:
        return "BestEffort"
    return "Guaranteed" if is_guaranteed else "Burstable"


def _compute(resources: dict[str, str]) -> dict[str, Any]:
    known = {key: quantity.parse(resources[key]).value for key in ("cpu", "memory") if key in resources}
    return {key: value for key, value in known.items() if value.numerator > 0}


def _containers(spec: Document, lists: Iterable[str]) -> list[Document]:
    return [container for key in lists for container in spec.get(key) or ()]


def _request_what_is_limited(resources: Document) -> None:
    limits = resources.get("limits")
    if limits:
        requests = resources.setdefault("requests", {})
        for key, limit in limits.items():
            requests.setdefault(key, limit)


def _request_for_the_whole_pod(spec: Document) -> None:
    whole = spec.get("resources")
    if whole and whole.get("limits"):
        requests = whole.setdefault("requests", {})
        for key, limit in whole["limits"].items():
            if not any(key in c.get("resources", {}).get("requests", {}) for c in _containers(spec, ("containers",))):
                requests.setdefault(key, limit)
        if not requests:
            del whole["requests"]


def _default_container(container: Document) -> None:
    if "imagePullPolicy" not in container and "image" in container:
        container["imagePullPolicy"] = pull_policy(container["image"])
    elif "imagePullPolicy" not in container:
        container["imagePullPolicy"] = "Always"
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for env in container.get("env", ()):
        if "valueFrom" in env:
            _default_env(env)
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        if key in container:
            _default_probe(container[key])
    for handler in container.get("lifecycle", {}).values():
        if isinstance(handler, dict):
            _default_http_get(handler)


def pull_policy(image: str) -> str:
    """Always for `latest` and for no tag, IfNotPresent for anything that names a version."""
    if "@" in image:
        return "IfNotPresent"
    _, _, last = image.rpartition("/")
    _, colon, tag = last.partition(":")
    return "IfNotPresent" if colon and tag != "latest" else "Always"


def _default_env(env: Document) -> None:
    source = env.get("valueFrom")
    if source:
        if "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in source:
            source["resourceFieldRef"].setdefault("divisor", "0")
        if "fileKeyRef" in source:
            source["fileKeyRef"].setdefault("optional", False)


def _default_probe(probe: Document) -> None:
    probe.setdefault("timeoutSeconds", 1)
    probe.setdefault("periodSeconds", 10)
    probe.setdefault("successThreshold", 1)
    probe.setdefault("failureThreshold", 3)
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")
    _default_http_get(probe)


def _default_http_get(handler: Document) -> None:
    get = handler.get("httpGet")
    if get is not None:
        get.setdefault("path", "/")
        get.setdefault("scheme", "HTTP")


def _default_volume(volume: Document) -> None:
    if not VOLUME_SOURCES & volume.keys():
        volume["emptyDir"] = {}
    for key in _FILE_VOLUMES:
        if key in volume:
            volume[key].setdefault("defaultMode", _DEFAULT_MODE)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    if "image" in volume:
        volume["image"].setdefault("pullPolicy", pull_policy(volume["image"].get("reference", "")))
    if "ephemeral" in volume:
        claim = volume["ephemeral"].get("volumeClaimTemplate", {})
        claim.setdefault("metadata", {})
        claim.setdefault("spec", {"resources": {}}).setdefault("volumeMode", "Filesystem")
    _default_downward(volume.get("downwardAPI"))
    for source in volume.get("projected", {}).get("sources", ()):
        _default_downward(source.get("downwardAPI"))
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)


def _default_downward(source: Document | None) -> None:
    for item in (source or {}).get("items", ()):
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in item:
            item["resourceFieldRef"].setdefault("divisor", "0")
