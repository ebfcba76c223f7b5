"""Columns of the built-in kinds: configuration, network, storage, rights. `printers_workloads.py` has what runs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.printers_workloads import NONE, WORKLOADS, selector_text
from hekla.apiserver.tables import AGE, CREATED, NAME, WIDE, Cell, Printer, age, shown, since


def _at(document: Document, path: str, otherwise: Any = "") -> Any:
    value: Any = document
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return otherwise if value is None else value


def _simple(*columns: tuple[str, str, str], before_age: int = 99) -> Printer:
    """A printer whose columns are fields: (name, type, path); Age stands after `before_age` of them."""
    cells = [Cell(name, kind, description=f".{path}") for name, kind, path in columns]
    first, last = columns[:before_age], columns[before_age:]

    def row(document: Document, now: datetime) -> list[Any]:
        def values(some: Sequence[tuple[str, str, str]]) -> list[Any]:
            return [_cell(document, kind, path) for _name, kind, path in some]

        return [document["metadata"]["name"], *values(first), age(document, now), *values(last)]

    return Printer((NAME, *cells[:before_age], AGE, *cells[before_age:]), row)


def _cell(document: Document, kind: str, path: str) -> Any:
    value = _at(document, path, None)
    if kind == "boolean":
        return bool(value)
    if kind == "integer":
        return len(value) if isinstance(value, list | dict) else value or 0
    return shown(value)


def _default_row(document: Document, now: datetime) -> list[Any]:
    return [document["metadata"]["name"], document["metadata"].get("creationTimestamp")]


by_default = Printer((NAME, CREATED), _default_row)
"""For kinds that nobody gave columns."""


def _config_map(one: Document, now: datetime) -> list[Any]:
    return [one["metadata"]["name"], len(one.get("data") or ()) + len(one.get("binaryData") or ()), age(one, now)]


def _secret(one: Document, now: datetime) -> list[Any]:
    return [one["metadata"]["name"], one.get("type", ""), len(one.get("data") or ()), age(one, now)]


def _service(one: Document, now: datetime) -> list[Any]:
    spec = one.get("spec") or {}
    kind = spec.get("type", "ClusterIP")
    ports = ",".join(_port(port) for port in spec.get("ports") or ()) or NONE
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP") or NONE]
    return [
        one["metadata"]["name"],
        kind,
        addresses[0] or NONE,
        _external(one, kind),
        ports,
        age(one, now),
        selector_text(spec.get("selector")),
    ]


def _port(port: Document) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}"


def _external(one: Document, kind: str) -> str:
    spec = one.get("spec") or {}
    if kind == "ExternalName":
        return str(spec.get("externalName", NONE))
    given = list(spec.get("externalIPs") or ())
    if kind == "LoadBalancer":
        ingress = _at(one, "status.loadBalancer.ingress", ())
        given = [i.get("ip") or i.get("hostname", "") for i in ingress] + given
        return ",".join(given) or "<pending>"
    return ",".join(given) or NONE


def _endpoints(one: Document, now: datetime) -> list[Any]:
    found: list[str] = []
    for subset in one.get("subsets") or ():
        ports: list[Document] = subset.get("ports") or [{}]
        addresses: list[Document] = subset.get("addresses") or []
        found += [f"{address.get('ip')}:{port.get('port')}" for port in ports for address in addresses]
    return [one["metadata"]["name"], _some(found), age(one, now)]


def _some(values: list[str]) -> str:
    more = f" + {len(values) - 3} more..." if len(values) > 3 else ""
    return ",".join(values[:3]) + more if values else NONE


def _endpoint_slice(one: Document, now: datetime) -> list[Any]:
    ports = [str(port.get("port")) for port in one.get("ports") or () if port.get("port")]
    addresses = [address for endpoint in one.get("endpoints") or () for address in endpoint.get("addresses") or ()]
    unset = "<unset>"
    shown_ports = _some(ports) if ports else unset
    return [
        one["metadata"]["name"],
        one.get("addressType", ""),
        shown_ports,
        _some(addresses) if addresses else unset,
        age(one, now),
    ]


def _namespace(one: Document, now: datetime) -> list[Any]:
    return [one["metadata"]["name"], _at(one, "status.phase"), age(one, now)]


def _event(one: Document, now: datetime) -> list[Any]:
    involved = one.get("involvedObject") or one.get("regarding") or {}
    kind = str(involved.get("kind", "")).lower()
    first = one.get("firstTimestamp") or one.get("eventTime") or one["metadata"].get("creationTimestamp")
    last = _at(one, "series.lastObservedTime", None) or one.get("lastTimestamp") or first
    count = _at(one, "series.count", None) or one.get("count") or 1
    source = one.get("source") or {}
    who = source.get("component") or one.get("reportingComponent") or ""
    return [
        since(last, now),
        one.get("type", ""),
        one.get("reason", ""),
        f"{kind}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        f"{who}, {source['host']}" if source.get("host") else who,
        str(one.get("message") or one.get("note") or "").strip(),
        since(first, now),
        count,
        one["metadata"]["name"],
    ]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(values: Any) -> str:
    return ",".join(_MODES.get(value, value) for value in values or ())


def _class(spec: Document, annotations: Document) -> str:
    return str(annotations.get("volume.beta.kubernetes.io/storage-class") or spec.get("storageClassName") or "")


def _volume(one: Document, now: datetime) -> list[Any]:
    spec, status, metadata = one.get("spec") or {}, one.get("status") or {}, one["metadata"]
    claim = spec.get("claimRef") or {}
    return [
        metadata["name"],
        _at(spec, "capacity.storage"),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if "deletionTimestamp" in metadata else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim['name']}" if claim.get("name") else "",
        _class(spec, metadata.get("annotations") or {}),
        spec.get("volumeAttributesClassName") or "<unset>",
        status.get("reason", ""),
        age(one, now),
        spec.get("volumeMode") or "<unset>",
    ]


def _claim(one: Document, now: datetime) -> list[Any]:
    spec, status, metadata = one.get("spec") or {}, one.get("status") or {}, one["metadata"]
    is_bound = bool(spec.get("volumeName"))
    return [
        metadata["name"],
        "Terminating" if "deletionTimestamp" in metadata else status.get("phase", ""),
        spec.get("volumeName", ""),
        _at(status, "capacity.storage") if is_bound else "",
        _modes(status.get("accessModes")) if is_bound else "",
        _class(spec, metadata.get("annotations") or {}),
        spec.get("volumeAttributesClassName") or "<unset>",
        age(one, now),
        spec.get("volumeMode") or "<unset>",
    ]


def _role_binding(one: Document, now: datetime) -> list[Any]:
    role = one.get("roleRef") or {}
    subjects = one.get("subjects") or ()
    named = {
        kind: ", ".join(
            f"{s.get('namespace', '')}/{s['name']}" if kind == "ServiceAccount" else s["name"]
            for s in subjects
            if s.get("kind") == kind
        )
        for kind in ("User", "Group", "ServiceAccount")
    }
    return [one["metadata"]["name"], f"{role.get('kind')}/{role.get('name')}", age(one, now), *named.values()]


def _pod_template(one: Document, now: datetime) -> list[Any]:
    template = one.get("template") or {}
    containers = _at(template, "spec.containers", ())
    labels = selector_text(_at(template, "metadata.labels", None))
    return [
        one["metadata"]["name"],
        *(",".join(c.get(key, "") for c in containers) for key in ("name", "image")),
        labels,
    ]


def _ingress_class(one: Document, now: datetime) -> list[Any]:
    parameters = _at(one, "spec.parameters", {})
    kind = ".".join(filter(None, (parameters.get("kind"), parameters.get("apiGroup"))))
    named = f"{kind}/{parameters.get('name')}" if parameters else NONE
    return [one["metadata"]["name"], _at(one, "spec.controller"), named, age(one, now)]


def _csi_driver(one: Document, now: datetime) -> list[Any]:
    spec = one.get("spec") or {}
    tokens = ",".join(token.get("audience", "") for token in spec.get("tokenRequests") or ()) or "<unset>"
    modes = ",".join(spec.get("volumeLifecycleModes") or ()) or NONE
    said = [bool(spec.get(key)) for key in ("attachRequired", "podInfoOnMount", "storageCapacity")]
    return [one["metadata"]["name"], *said, tokens, bool(spec.get("requiresRepublish")), modes, age(one, now)]


def _resource_claim(one: Document, now: datetime) -> list[Any]:
    held = (("allocation", "allocated"), ("reservedFor", "reserved"))
    states = ["deleted"] * ("deletionTimestamp" in one["metadata"])
    states += [word for key, word in held if _at(one, f"status.{key}", None)]
    return [one["metadata"]["name"], ",".join(states) or "pending", age(one, now)]


def _quota(one: Document, now: datetime) -> list[Any]:
    hard, used = _at(one, "status.hard", {}), _at(one, "status.used", {})
    pairs = {name: f"{name}: {used.get(name, '0')}/{value}" for name, value in sorted(hard.items())}
    limits = [text for name, text in pairs.items() if name.startswith("limits.")]
    requests = [text for name, text in pairs.items() if not name.startswith("limits.")]
    return [one["metadata"]["name"], ", ".join(requests), ", ".join(limits), age(one, now)]


def _budget(one: Document, now: datetime) -> list[Any]:
    spec = one.get("spec") or {}
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    allowed = _at(one, "status.disruptionsAllowed", 0)
    cells = ["N/A" if value is None else str(value) for value in (least, most)]
    return [one["metadata"]["name"], *cells, allowed, age(one, now)]


def _autoscaler(one: Document, now: datetime) -> list[Any]:
    spec, status = one.get("spec") or {}, one.get("status") or {}
    target = spec.get("scaleTargetRef") or {}
    least = spec.get("minReplicas")
    counts = ["<unset>" if least is None else str(least), spec.get("maxReplicas", 0), status.get("currentReplicas", 0)]
    targets = ", ".join(_metric(metric) for metric in spec.get("metrics") or ()) or NONE
    return [one["metadata"]["name"], f"{target.get('kind')}/{target.get('name')}", targets, *counts, age(one, now)]


def _metric(metric: Document) -> str:
    resource = metric.get("resource") or {}
    wanted = resource.get("target") or {}
    value = (
        f"{wanted['averageUtilization']}%" if "averageUtilization" in wanted else str(wanted.get("averageValue", "?"))
    )
    return f"{resource.get('name', metric.get('type', ''))}: <unknown>/{value}"


def _ingress(one: Document, now: datetime) -> list[Any]:
    spec = one.get("spec") or {}
    hosts = [rule.get("host") or "*" for rule in spec.get("rules") or ()] or ["*"]
    addresses = [i.get("ip") or i.get("hostname", "") for i in _at(one, "status.loadBalancer.ingress", ())]
    ports = "80, 443" if spec.get("tls") else "80"
    return [
        one["metadata"]["name"], spec.get("ingressClassName") or NONE, _some(hosts), ",".join(addresses), ports, age(one, now),
    ]  # fmt: skip


def _network_policy(one: Document, now: datetime) -> list[Any]:
    return [one["metadata"]["name"], selector_text(_at(one, "spec.podSelector", {})), age(one, now)]


def _revision(one: Document, now: datetime) -> list[Any]:
    owner = next((ref for ref in one["metadata"].get("ownerReferences") or () if ref.get("controller")), None)
    shown_owner = NONE
    if owner:
        group = owner.get("apiVersion", "").rpartition("/")[0]
        shown_owner = f"{owner['kind'].lower()}{f'.{group}' if group else ''}/{owner['name']}"
    return [one["metadata"]["name"], shown_owner, one.get("revision", 0), age(one, now)]


def _cells(*names: str | Cell) -> tuple[Cell, ...]:
    return (NAME, *(one if isinstance(one, Cell) else Cell(one) for one in names))


_EVENTS = Printer(
    (
        Cell("Last Seen", description=".lastTimestamp"), Cell("Type", description=".type"),
        Cell("Reason", description=".reason"), Cell("Object", description=".involvedObject"),
        Cell("Subobject", priority=WIDE), Cell("Source", priority=WIDE, description=".source"),
        Cell("Message", description=".message"), Cell("First Seen", priority=WIDE, description=".firstTimestamp"),
        Cell("Count", priority=WIDE, description=".count"), Cell("Name", priority=WIDE, description=".metadata.name"),
    ),
    _event,
)  # fmt: skip
_BINDINGS = Printer(
    _cells(
        "Role", AGE, Cell("Users", priority=WIDE), Cell("Groups", priority=WIDE), Cell("ServiceAccounts", priority=WIDE)
    ),
    _role_binding,
)
_WEBHOOKS = _simple(("Webhooks", "integer", "webhooks"))

PRINTERS: dict[str, Printer] = {
    **WORKLOADS,
    "configmaps": Printer(_cells(Cell("Data", description=".data"), AGE), _config_map),
    "secrets": Printer(_cells(Cell("Type", description=".type"), Cell("Data", description=".data"), AGE), _secret),
    "services": Printer(_cells("Type", "Cluster-IP", "External-IP", "Port(s)", AGE, Cell("Selector", priority=WIDE)), _service),
    "endpoints": Printer(_cells("Endpoints", AGE), _endpoints),
    "endpointslices.discovery.k8s.io": Printer(_cells("AddressType", "Ports", "Endpoints", AGE), _endpoint_slice),
    "namespaces": Printer(_cells("Status", AGE), _namespace),
    "events": _EVENTS,
    "events.events.k8s.io": _EVENTS,
    "persistentvolumes": Printer(
        _cells(
            "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass", "VolumeAttributesClass", "Reason",
            AGE, Cell("VolumeMode", priority=WIDE),
        ),
        _volume,
    ),
    "persistentvolumeclaims": Printer(
        _cells(
            "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", AGE,
            Cell("VolumeMode", priority=WIDE),
        ),
        _claim,
    ),
    "serviceaccounts": _simple(),
    "podtemplates": Printer(_cells("Containers", "Images", "Pod Labels"), _pod_template),
    "leases.coordination.k8s.io": _simple(("Holder", "string", "spec.holderIdentity")),
    "rolebindings.rbac.authorization.k8s.io": _BINDINGS,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDINGS,
    "storageclasses.storage.k8s.io": _simple(
        ("Provisioner", "string", "provisioner"), ("ReclaimPolicy", "string", "reclaimPolicy"),
        ("VolumeBindingMode", "string", "volumeBindingMode"), ("AllowVolumeExpansion", "boolean", "allowVolumeExpansion"),
    ),
    "priorityclasses.scheduling.k8s.io": _simple(
        ("Value", "integer", "value"), ("Global-Default", "boolean", "globalDefault"),
        ("PreemptionPolicy", "string", "preemptionPolicy"), before_age=2,
    ),
    "runtimeclasses.node.k8s.io": _simple(("Handler", "string", "handler")),
    "resourcequotas": Printer(_cells("Request", "Limit", AGE), _quota),
    "poddisruptionbudgets.policy": Printer(
        _cells("Min Available", "Max Unavailable", Cell("Allowed Disruptions", "integer"), AGE), _budget
    ),
    "horizontalpodautoscalers.autoscaling": Printer(
        _cells("Reference", "Targets", "MinPods", Cell("MaxPods", "string"), Cell("Replicas", "string"), AGE), _autoscaler
    ),
    "ingresses.networking.k8s.io": Printer(_cells("Class", "Hosts", "Address", "Ports", AGE), _ingress),
    "ingressclasses.networking.k8s.io": Printer(_cells("Controller", "Parameters", AGE), _ingress_class),
    "networkpolicies.networking.k8s.io": Printer(_cells("Pod-Selector", AGE), _network_policy),
    "controllerrevisions.apps": Printer(_cells("Controller", Cell("Revision", "string"), AGE), _revision),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
    "csidrivers.storage.k8s.io": Printer(
        _cells(
            Cell("AttachRequired", "boolean"), Cell("PodInfoOnMount", "boolean"), Cell("StorageCapacity", "boolean"),
            "TokenRequests", Cell("RequiresRepublish", "boolean"), "Modes", AGE,
        ),
        _csi_driver,
    ),
    "csinodes.storage.k8s.io": _simple(("Drivers", "integer", "spec.drivers")),
    "volumeattachments.storage.k8s.io": _simple(
        ("Attacher", "string", "spec.attacher"), ("PV", "string", "spec.source.persistentVolumeName"),
        ("Node", "string", "spec.nodeName"), ("Attached", "boolean", "status.attached"),
    ),
    "volumeattributesclasses.storage.k8s.io": _simple(("DriverName", "string", "driverName")),
    "deviceclasses.resource.k8s.io": _simple(),
    "resourceclaims.resource.k8s.io": Printer(_cells("State", AGE), _resource_claim),
    "resourceclaimtemplates.resource.k8s.io": _simple(),
    "resourceslices.resource.k8s.io": _simple(
        ("Node", "string", "spec.nodeName"), ("Driver", "string", "spec.driver"), ("Pool", "string", "spec.pool.name")
    ),
}  # fmt: skip
