"""What Kubernetes fills in for services, storage, configuration, rights, webhooks and definitions."""

import base64

from hekla.api.meta import Document

_RBAC = "rbac.authorization.k8s.io"
_COPIED = (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot"))
_FOUR_PODS = {"type": "Pods", "value": 4, "periodSeconds": 15}
_ALL = {"type": "Percent", "value": 100, "periodSeconds": 15}


def default_service(service: Document) -> None:
    """Type, ports, policies; the address comes from `allocate_cluster_ip`."""
    spec = service.setdefault("spec", {})
    kind = spec.setdefault("type", "ClusterIP")
    if spec.setdefault("sessionAffinity", "None") == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {}).setdefault("timeoutSeconds", 10800)
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if spec.get("clusterIP"):
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
        elif spec.get("clusterIPs"):
            spec["clusterIP"] = spec["clusterIPs"][0]


def needs_cluster_ip(service: Document) -> bool:
    """Whether an address must be allocated before the service is stored."""
    spec = service.get("spec", {})
    return spec.get("type", "ClusterIP") != "ExternalName" and not spec.get("clusterIP")


def set_cluster_ip(service: Document, address: str) -> None:
    """Write an allocated address where Kubernetes has it."""
    service["spec"]["clusterIP"] = address
    service["spec"]["clusterIPs"] = [address]


def keep_allocated(new: Document, old: Document) -> None:
    """A change that does not mention what was allocated keeps it."""
    drop_what_the_type_had(new, old)
    wanted, before = new["spec"], old.get("spec", {})
    if "ExternalName" not in (wanted.get("type"), before.get("type")):
        _keep_unsaid(wanted, before, "clusterIP", "clusterIPs")
    if _needs_health_port(wanted) and _needs_health_port(before):
        _keep_unsaid(wanted, before, "healthCheckNodePort")
    if _needs_node_ports(wanted) and _needs_node_ports(before):
        ports = {(port.get("protocol"), port.get("port")): port.get("nodePort") for port in before.get("ports", ())}
        for port in wanted.get("ports", ()):
            kept = ports.get((port.get("protocol"), port.get("port")))
            if not port.get("nodePort") and kept:
                port["nodePort"] = kept


def drop_what_the_type_had(new: Document, old: Document) -> None:
    """What the old service needed and the new one does not need goes, unless the change says it anew.

    A change that names another value than the old one is left to be refused, as in Kubernetes' `dropTypeDependentFields`.
    """
    wanted, before = new["spec"], old.get("spec", {})
    for needs, *keys in _NEEDED:
        if needs(before) and not needs(wanted):
            for key in keys:
                if wanted.get(key) == before.get(key):
                    wanted.pop(key, None)
    if _needs_node_ports(before) and not _needs_node_ports(wanted):
        taken = {port.get("nodePort") for port in before.get("ports", ())}
        for port in wanted.get("ports", ()):
            if port.get("nodePort") in taken:
                port.pop("nodePort", None)


def _keep_unsaid(wanted: Document, before: Document, *keys: str) -> None:
    for key in keys:
        if not wanted.get(key) and before.get(key):
            wanted[key] = before[key]


def _needs_node_ports(spec: Document) -> bool:
    return spec.get("type") in ("NodePort", "LoadBalancer")


def _is_balanced(spec: Document) -> bool:
    return spec.get("type") == "LoadBalancer"


def _needs_health_port(spec: Document) -> bool:
    return _is_balanced(spec) and spec.get("externalTrafficPolicy") == "Local"


def _is_reached_from_outside(spec: Document) -> bool:
    """Whether a service has addresses that others than pods can reach."""
    return _needs_node_ports(spec) or (spec.get("type") == "ClusterIP" and bool(spec.get("externalIPs")))


_NEEDED = (
    (_is_balanced, "allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerSourceRanges"),
    (_needs_health_port, "healthCheckNodePort"),
    (_is_reached_from_outside, "externalTrafficPolicy"),
)
"""What a service's fields are needed by."""


def default_secret(secret: Document) -> None:
    """Text becomes base64; the type is Opaque."""
    text = secret.pop("stringData", None)
    if text:
        data = secret.setdefault("data", {})
        for key, value in text.items():
            data[key] = base64.b64encode(value.encode()).decode()
    secret.setdefault("type", "Opaque")


def default_namespace(namespace: Document) -> None:
    """The label by which selectors find a namespace."""
    metadata = namespace["metadata"]
    if metadata.get("name"):
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]


def start_namespace(namespace: Document) -> None:
    """Active, and not gone before its content."""
    namespace["status"] = {"phase": "Active"}
    finalizers = namespace.setdefault("spec", {}).setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")


def keep_finalizers(new: Document, old: Document) -> None:
    """What holds a namespace is changed through `finalize` only."""
    new["spec"] = {**new.get("spec", {}), "finalizers": old.get("spec", {}).get("finalizers", [])}
    if not new["spec"]["finalizers"]:
        del new["spec"]["finalizers"]


def default_node(node: Document) -> None:
    """Everything a node has may be used, unless it says otherwise."""
    _say_ranges(node.get("spec", {}))
    status = node.get("status", {})
    if status.get("capacity") and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])


def _say_ranges(spec: Document) -> None:
    """The first range of addresses is said in two ways, and the older one counts."""
    first, ranges = spec.get("podCIDR"), spec.get("podCIDRs")
    if first and (not ranges or ranges[0] != first):
        spec["podCIDRs"] = [first]
    elif ranges and not first:
        spec["podCIDR"] = ranges[0]


def default_claim(claim: Document) -> None:
    """File systems, not block devices."""
    claim.setdefault("spec", {"resources": {}}).setdefault("volumeMode", "Filesystem")
    _default_phase(claim)


def start_claim(claim: Document) -> None:
    """Pending until it is bound; what it is filled from is said in both ways, where the older one knows it."""
    claim["status"] = {"phase": "Pending"}
    spec = claim["spec"]
    if "namespace" in spec.get("dataSourceRef", {}):  # Kubernetes knows no other namespace unless it is told to
        del spec["dataSourceRef"]
    source = spec.get("dataSource")
    if source is not None and (source.get("apiGroup", ""), source.get("kind")) not in _COPIED:
        del spec["dataSource"]
    _say_both(spec)


def keep_claim(claim: Document, old: Document) -> None:
    """What it is filled from is said in both ways whoever wrote it: a claim that is replaced by its manifest says it in one."""
    _say_both(claim["spec"])


def _say_both(spec: Document) -> None:
    for key, other in (("dataSource", "dataSourceRef"), ("dataSourceRef", "dataSource")):
        if key in spec and other not in spec:
            spec[other] = dict(spec[key])


def default_volume(volume: Document) -> None:
    """File systems that stay when their claim goes."""
    spec = volume.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")
    _default_phase(volume)


def start_volume(volume: Document) -> None:
    """Pending until it is found to be free."""
    volume["status"] = {"phase": "Pending"}


def _default_phase(document: Document) -> None:
    if "status" in document:
        document["status"].setdefault("phase", "Pending")


def default_storage_class(storage_class: Document) -> None:
    """Volumes go with their claims and are made at once."""
    storage_class.setdefault("reclaimPolicy", "Delete")
    storage_class.setdefault("volumeBindingMode", "Immediate")


def default_priority_class(priority_class: Document) -> None:
    """Zero, which Go always writes; pods of the class may push others out."""
    priority_class.setdefault("value", 0)
    priority_class.setdefault("preemptionPolicy", "PreemptLowerPriority")


def default_endpoints(endpoints: Document) -> None:
    """TCP."""
    for subset in endpoints.get("subsets", ()):
        for port in subset.get("ports", ()):
            port["protocol"] = port.get("protocol") or "TCP"
            if port.get("name") == "":
                del port["name"]


def default_endpoint_slice(endpoint_slice: Document) -> None:
    """TCP, and a port without a name has the empty one."""
    for port in endpoint_slice.get("ports") or ():
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def default_binding(binding: Document) -> None:
    """Groups of subjects and of the role."""
    role = binding.setdefault("roleRef", {})
    role["apiGroup"] = role.get("apiGroup") or _RBAC
    for subject in binding.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = subject.get("apiGroup") or _RBAC


def default_limit_range(limit_range: Document) -> None:
    """Of a container, a bound that is not said follows from the next wider one."""
    for item in limit_range.get("spec", {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        defaults = item.setdefault("default", {})
        for key, value in item.get("max", {}).items():
            defaults.setdefault(key, value)
        requests = item.setdefault("defaultRequest", {})
        for source in (defaults, item.get("min", {})):
            for key, value in source.items():
                requests.setdefault(key, value)
        for key in ("default", "defaultRequest"):
            if not item[key]:
                del item[key]


def default_mutating_webhooks(configuration: Document) -> None:
    """Webhooks that change."""
    for webhook in configuration.get("webhooks", ()):
        _default_webhook(webhook)
        webhook.setdefault("reinvocationPolicy", "Never")


def default_validating_webhooks(configuration: Document) -> None:
    """Webhooks that refuse."""
    for webhook in configuration.get("webhooks", ()):
        _default_webhook(webhook)


def _default_webhook(webhook: Document) -> None:
    webhook.setdefault("failurePolicy", "Fail")
    webhook.setdefault("matchPolicy", "Equivalent")
    webhook.setdefault("namespaceSelector", {})
    webhook.setdefault("objectSelector", {})
    webhook.setdefault("timeoutSeconds", 10)
    for rule in webhook.get("rules", ()):
        rule.setdefault("scope", "*")
    service = webhook.get("clientConfig", {}).get("service")
    if service is not None:
        service.setdefault("port", 443)


def default_network_policy(policy: Document) -> None:
    """TCP; a policy with egress rules is about egress too."""
    spec = policy.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    for rule in [*spec.get("ingress", ()), *spec.get("egress", ())]:
        for port in rule.get("ports", ()):
            port.setdefault("protocol", "TCP")
    spec.setdefault("policyTypes", ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def default_definition(definition: Document) -> None:
    """Names that follow from the kind, no conversion."""
    spec = definition.setdefault("spec", {})
    names = spec.setdefault("names", {"plural": "", "kind": ""})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    conversion = spec.setdefault("conversion", {})
    conversion.setdefault("strategy", "None")
    service = conversion.get("webhook", {}).get("clientConfig", {}).get("service")
    if service is not None:
        service.setdefault("port", 443)


def start_definition(definition: Document) -> None:
    """Not established yet; the storage version is the only one stored so far."""
    definition["status"] = {}
    remember_storage_version(definition, definition)


def remember_storage_version(new: Document, old: Document) -> None:
    """A version that objects may have been stored in stays listed."""
    stored = new.setdefault("status", {}).get("storedVersions") or []
    for version in new["spec"].get("versions") or ():
        if version.get("storage") and version.get("name") not in stored:
            new["status"]["storedVersions"] = [*stored, version["name"]]


def default_ingress_class(ingress_class: Document) -> None:
    """Parameters are of the cluster."""
    if "parameters" in ingress_class.get("spec", {}):
        ingress_class["spec"]["parameters"].setdefault("scope", "Cluster")


def default_autoscaler(autoscaler: Document) -> None:
    """At least one replica, 80 % of the processor; rules of scaling that are half said are completed."""
    spec = autoscaler.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    if "behavior" in spec:
        behavior = spec["behavior"]
        up, down = behavior.setdefault("scaleUp", {}), behavior.setdefault("scaleDown", {})
        up.setdefault("stabilizationWindowSeconds", 0)
        up.setdefault("policies", [dict(_FOUR_PODS), dict(_ALL)])
        down.setdefault("policies", [dict(_ALL)])
        for rules in (up, down):
            rules.setdefault("selectPolicy", "Max")


def default_csi_driver(driver: Document) -> None:
    """A driver that attaches and persists."""
    spec = driver.setdefault("spec", {})
    for key, value in {
        "attachRequired": True,
        "podInfoOnMount": False,
        "storageCapacity": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "volumeLifecycleModes": ["Persistent"],
        "requiresRepublish": False,
        "seLinuxMount": False,
    }.items():
        spec.setdefault(key, value)
