"""What an object counts for in a ResourceQuota, as Kubernetes' evaluators say.

Pure: documents in, exact quantities out. Admission (`admission_rules/resource_quota.py`) asks before a write, and the
controller of `controlplane` sums the same numbers for the quota's status.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from hekla.api.meta import Document
from hekla.lib.quantity import Form, Quantity, parse

Usage = dict[str, Quantity]
"""Amounts by the names that `spec.hard` uses: `pods`, `requests.cpu`, `count/jobs.batch`."""

ZERO = Quantity(Fraction(0), Form.DECIMAL)

_COUNTED = {
    "services": "services",
    "configmaps": "configmaps",
    "secrets": "secrets",
    "persistentvolumeclaims": "persistentvolumeclaims",
    "replicationcontrollers": "replicationcontrollers",
    "resourcequotas": "resourcequotas",
}
"""Resources that have a quota name of their own beside `count/<resource>`."""

RESOURCE_CLAIMS = "resourceclaims.resource.k8s.io"
OF_DEVICE_CLASS = ".deviceclass.resource.k8s.io/devices"
"""What follows a DeviceClass' name where a quota limits its devices."""

MOST_DEVICES = 32
"""Of one claim; what a request for all devices counts for."""

_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_TERMINAL = frozenset({"Succeeded", "Failed"})


def usage_of(resource: str, document: Document) -> Usage:
    """What one object of `plural.group` uses."""
    if resource == "pods":
        return pod_usage(document)
    used: Usage = {f"count/{resource}": _units(1)}
    if resource in _COUNTED:
        used[_COUNTED[resource]] = _units(1)
    if resource == "services":
        used |= _service_usage(document)
    if resource == "persistentvolumeclaims":
        used |= _claim_usage(document)
    if resource == RESOURCE_CLAIMS:
        used |= _devices(document)
    return used


def pod_usage(pod: Document) -> Usage:
    """What a pod uses: itself, and unless it has ended, its requests and limits."""
    used: Usage = {"count/pods": _units(1)}
    if (pod.get("status") or {}).get("phase") in _TERMINAL:
        return used
    used["pods"] = _units(1)
    for name, amount in pod_amounts(pod["spec"], "requests").items():
        used[f"requests.{name}"] = amount
        if name in _COMPUTE:
            used[name] = amount
    for name, amount in pod_amounts(pod["spec"], "limits").items():
        if name in _COMPUTE:
            used[f"limits.{name}"] = amount
    return used


def pod_amounts(spec: Document, which: str) -> Usage:
    """Requests or limits of a whole pod: containers and sidecars together, or its largest init step; plus overhead."""
    running = total(_amounts(container, which) for container in spec.get("containers", ()))
    sidecars: Usage = {}
    peak: Usage = {}
    for container in spec.get("initContainers", ()):
        amounts = _amounts(container, which)
        if container.get("restartPolicy") == "Always":
            sidecars = total([sidecars, amounts])
            peak = _largest(peak, sidecars)
        else:
            peak = _largest(peak, total([sidecars, amounts]))
    whole = _largest(total([running, sidecars]), peak)
    overhead = {name: parse(text) for name, text in (spec.get("overhead") or {}).items()}
    return total([whole, overhead]) if whole else whole


def total(parts: Iterable[Mapping[str, Quantity]]) -> Usage:
    """The sum, name by name."""
    summed: Usage = {}
    for part in parts:
        for name, amount in part.items():
            before = summed.get(name, ZERO)
            # Kubernetes keeps the suffix family of the first amount that is not zero
            form = before.form if before.value else amount.form
            summed[name] = Quantity(before.value + amount.value, form)
    return summed


def in_scope(quota: Document, resource: str, document: Document) -> bool:
    """Whether a quota's scopes select an object; scopes speak of pods only."""
    spec = quota["spec"]
    scopes: list[tuple[str, str, list[str]]] = [(name, "Exists", []) for name in spec.get("scopes", ())]
    for one in (spec.get("scopeSelector") or {}).get("matchExpressions", ()):
        scopes.append((one["scopeName"], one["operator"], one.get("values") or []))
    if not scopes:
        return True
    return resource == "pods" and all(_in_one_scope(document, *scope) for scope in scopes)


def _in_one_scope(pod: Document, scope: str, operator: str, values: list[str]) -> bool:
    spec = pod["spec"]
    if scope in {"Terminating", "NotTerminating"}:
        return (spec.get("activeDeadlineSeconds") is not None) == (scope == "Terminating")
    if scope in {"BestEffort", "NotBestEffort"}:
        is_best_effort = not pod_amounts(spec, "requests") and not pod_amounts(spec, "limits")
        return is_best_effort == (scope == "BestEffort")
    if scope == "PriorityClass":
        name = spec.get("priorityClassName") or ""
        tests = {"In": name in values, "NotIn": name not in values, "Exists": bool(name), "DoesNotExist": not name}
        return tests[operator]
    if scope == "CrossNamespacePodAffinity":
        return _crosses_namespaces(spec)
    return False


def _crosses_namespaces(spec: Document) -> bool:
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        terms = list(rules.get("requiredDuringSchedulingIgnoredDuringExecution", ()))
        weighted = rules.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        terms += [one["podAffinityTerm"] for one in weighted]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


def _amounts(container: Document, which: str) -> Usage:
    return {name: parse(text) for name, text in ((container.get("resources") or {}).get(which) or {}).items()}


def _largest(one: Usage, other: Usage) -> Usage:
    names = one.keys() | other.keys()
    return {name: max(one.get(name, ZERO), other.get(name, ZERO), key=lambda amount: amount.value) for name in names}


def _service_usage(service: Document) -> Usage:
    kind, ports = service["spec"].get("type", "ClusterIP"), len(service["spec"].get("ports") or ())
    is_balanced = kind == "LoadBalancer"
    allocates = service["spec"].get("allocateLoadBalancerNodePorts", True)
    takes_ports = kind == "NodePort" or (is_balanced and allocates)
    return {
        "services.loadbalancers": _units(int(is_balanced)),
        "services.nodeports": _units(ports if takes_ports else 0),
    }


def _claim_usage(claim: Document) -> Usage:
    spec = claim["spec"]
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    used: Usage = {"requests.storage": parse(asked)} if asked else {}
    name = spec.get("storageClassName")
    if name:
        prefix = f"{name}.storageclass.storage.k8s.io"
        used[f"{prefix}/persistentvolumeclaims"] = _units(1)
        if asked:
            used[f"{prefix}/requests.storage"] = parse(asked)
    return used


def _devices(claim: Document) -> Usage:
    """Devices by their class; of what is to be the first that is available, the most that may be given of each class."""
    used: Usage = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        used = total(
            [used, _largest_of(map(_of_request, request.get("firstAvailable") or [request.get("exactly") or {}]))]
        )
    return used


def _of_request(request: Document) -> Usage:
    """Those of one request; one of a mode that nobody knows yet counts for nothing."""
    counts = {"ExactCount": request.get("count", 1), "All": MOST_DEVICES}
    name, count = request.get("deviceClassName"), counts.get(request.get("allocationMode", "ExactCount"), 0)
    return {f"{name}{OF_DEVICE_CLASS}": _units(count)} if name else {}


def _largest_of(parts: Iterable[Usage]) -> Usage:
    found: Usage = {}
    for part in parts:
        found = _largest(found, part)
    return found


def _units(count: int) -> Quantity:
    return Quantity(Fraction(count), Form.DECIMAL)
