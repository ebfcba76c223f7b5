"""What is wrong with configuration, nodes, budgets, quotas, leases, rights, webhooks and other small kinds."""

import base64

from hekla.api.meta import Document
from hekla.apiserver.decoding import wrong_with_map
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    Cause,
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
)
from hekla.apiserver.match_conditions import check_conditions
from hekla.apiserver.validation import names
from hekla.apiserver.validation.metadata import check_labels
from hekla.apiserver.validation.placement import check_taints, check_tolerations
from hekla.apiserver.validation.quantities import check_container_resources, check_not_negative
from hekla.apiserver.validation.selectors import check_label_selector
from hekla.apiserver.validation.service_exposure import is_network
from hekla.apiserver.validation.workloads import check_count_or_percent

_MOST_BYTES = 1024 * 1024
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_PREEMPTION = ("PreemptLowerPriority", "Never")
_RBAC = "rbac.authorization.k8s.io"
_HIGHEST_USER_PRIORITY = 1_000_000_000
_SECRET_KEYS = {
    "kubernetes.io/dockercfg": (".dockercfg",), "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"), "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}  # fmt: skip
_WITH_JSON = ("kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson")


def check_config_map(config_map: Document) -> list[FieldError]:
    """Keys that are file names, and not too much."""
    data, binary = config_map.get("data", {}), config_map.get("binaryData", {})
    errors, size = [], 0
    for key in sorted(data):
        errors += [invalid(f"data[{key}]", key, said) for said in names.config_key(key)]
        if key in binary:
            errors.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
        size += len(data[key].encode())
    for key in sorted(binary):
        errors += [invalid(f"binaryData[{key}]", key, said) for said in names.config_key(key)]
        size += len(binary[key]) * 3 // 4
    return errors + _check_size(size, "")


def check_secret(secret: Document) -> list[FieldError]:
    """Keys that are file names, what the type demands, and not too much."""
    data = secret.get("data", {})
    errors = []
    for key in sorted(data):
        errors += [invalid(f"data[{key}]", key, said) for said in names.config_key(key)]
    errors += _check_size(sum(len(value) * 3 // 4 for value in data.values()), "data")
    kind = secret.get("type", "")
    errors += [required(f"data[{key}]") for key in _SECRET_KEYS.get(kind, ()) if key not in data]
    if kind in _WITH_JSON:
        errors += [
            error for key in _SECRET_KEYS[kind] if key in data for error in _check_json(data[key], f"data[{key}]")
        ]
    if kind == "kubernetes.io/service-account-token" and not secret["metadata"].get("annotations", {}).get(
        "kubernetes.io/service-account.name"
    ):
        errors.append(required("metadata.annotations[kubernetes.io/service-account.name]"))
    if kind == "kubernetes.io/ssh-auth" and data.get("ssh-privatekey") == "":
        errors.append(required("data[ssh-privatekey]"))
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        errors += [required("data[username]"), required("data[password]")]
    return errors


def _check_json(value: str, path: str) -> list[FieldError]:
    wrong = wrong_with_map(base64.b64decode(value))
    return [invalid(path, "<secret contents redacted>", wrong)] if wrong else []


def _check_size(size: int, path: str) -> list[FieldError]:
    if size <= _MOST_BYTES:
        return []
    return [FieldError(Cause.TOO_LONG, path or "[]", f"Too long: may not be more than {_MOST_BYTES} bytes")]


def check_immutable(new: Document, old: Document) -> list[FieldError]:
    """What says of itself that it is immutable stays."""
    if not old.get("immutable"):
        return _check_type_kept(new, old)
    errors = []
    if not new.get("immutable"):
        errors.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
    for key in ("data", "binaryData"):
        if new.get(key) != old.get(key):
            errors.append(forbidden_field(key, "field is immutable when `immutable` is set"))
    return errors + _check_type_kept(new, old)


def _check_type_kept(new: Document, old: Document) -> list[FieldError]:
    return [invalid("type", new.get("type", ""), IMMUTABLE)] if new.get("type") != old.get("type") else []


def check_new_namespace(namespace: Document) -> list[FieldError]:
    """Names of those whom a namespace waits for."""
    errors = list[FieldError]()
    for name in namespace.get("spec", {}).get("finalizers") or ():
        errors += [invalid("spec.finalizers", name, said) for said in names.qualified_name(name)]
        if "/" not in name and name != "kubernetes":
            said = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid("spec.finalizers", name, said))
    return errors


def check_node(node: Document) -> list[FieldError]:
    """Taints, amounts and ranges of addresses of a node."""
    spec = node.get("spec", {})
    errors = check_taints(spec.get("taints", []), "metadata.taints")
    for key in ("capacity", "allocatable"):
        for name, amount in sorted(node.get("status", {}).get(key, {}).items()):
            where = f"status.{key}.{name}"
            errors += [invalid(where, name, said) for said in names.qualified_name(name)]
            errors += check_not_negative(amount, where)
    ranges = spec.get("podCIDRs", ())
    for index, one in enumerate(ranges):
        if not is_network(one):
            said = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            errors.append(invalid(f"spec.podCIDRs[{index}]", one, said))
    if not errors and len({":" in one for one in ranges}) < len(ranges):
        errors.append(invalid("spec.podCIDRs", list(ranges), "may specify no more than one CIDR for each IP family"))
    return errors


def check_node_update(new: Document, old: Document) -> list[FieldError]:
    """A node keeps its provider and address range."""
    errors = []
    for key, name in (("providerID", "providerID"), ("podCIDRs", "podCIDR")):
        before = old.get("spec", {}).get(key)
        if before and new.get("spec", {}).get(key) != before:
            said = f'node updates may not change {name} except from "" to valid'
            errors.append(forbidden_field(f"spec.{key}", said))
    return errors


def check_budget(budget: Document) -> list[FieldError]:
    """A disruption budget."""
    spec = budget.get("spec", {})
    errors = []
    if "minAvailable" in spec and "maxUnavailable" in spec:
        errors.append(invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
    for key in ("minAvailable", "maxUnavailable"):
        if key in spec:
            wrong = check_count_or_percent(spec[key], f"spec.{key}")
            errors += wrong
            if not wrong and isinstance(spec[key], str) and int(spec[key][:-1]) > 100:
                errors.append(invalid(f"spec.{key}", spec[key], "must not be greater than 100%"))
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in ("AlwaysAllow", "IfHealthyBudget"):
        errors.append(not_supported("spec.unhealthyPodEvictionPolicy", policy, ("AlwaysAllow", "IfHealthyBudget")))
    return errors + check_label_selector(spec.get("selector"), "spec.selector")


def check_lease(lease: Document) -> list[FieldError]:
    """Positive durations."""
    spec = lease.get("spec", {})
    errors = []
    if spec.get("leaseDurationSeconds", 1) <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions", 0) < 0:
        errors.append(invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))
    return errors


def check_priority_class(priority_class: Document) -> list[FieldError]:
    """A value below those of the system."""
    value, name = priority_class.get("value", 0), priority_class["metadata"].get("name", "")
    errors = []
    if name.startswith("system-") and _SYSTEM_PRIORITIES.get(name) != value:
        said = "priority class names with 'system-' prefix are reserved for system use only. error: "
        wanted = _SYSTEM_PRIORITIES.get(name)
        why = (
            f"value of {name} PriorityClass must be {wanted}"
            if wanted
            else f"{name} is not a known system priority class"
        )
        errors.append(forbidden_field("metadata.name", said + why))
    elif value > _HIGHEST_USER_PRIORITY and not name.startswith("system-"):
        errors.append(
            forbidden_field("value", f"maximum allowed value of a user defined priority is {_HIGHEST_USER_PRIORITY}")
        )
    policy = priority_class.get("preemptionPolicy", "")
    if not policy:
        errors.append(required("preemptionPolicy"))
    elif policy not in _PREEMPTION:
        errors.append(not_supported("preemptionPolicy", policy, _PREEMPTION))
    return errors


def check_runtime_class(runtime_class: Document) -> list[FieldError]:
    """A handler's name, what its pods cost on top, and the nodes that have it."""
    handler, scheduling = runtime_class.get("handler", ""), runtime_class.get("scheduling", {})
    errors = [] if handler else [required("handler")]
    if handler:
        errors += [invalid("handler", handler, said) for said in names.dns_label(handler)]
    errors += check_container_resources({"limits": runtime_class.get("overhead", {}).get("podFixed", {})}, "overhead")
    errors += check_labels(scheduling.get("nodeSelector", {}), "scheduling.nodeSelector")
    tolerations = scheduling.get("tolerations", [])
    errors += check_tolerations(tolerations, "scheduling.tolerations")
    for index, one in enumerate(tolerations):
        if one in tolerations[:index]:
            keys = ("key", "operator", "value", "effect")
            shown = {key.capitalize(): one.get(key, "") for key in keys}
            shown["TolerationSeconds"] = one.get("tolerationSeconds")
            errors.append(duplicate(f"scheduling.tolerations[{index}]", shown))
    return errors


def check_runtime_class_update(new: Document, old: Document) -> list[FieldError]:
    """The handler stays."""
    if new.get("handler") != old.get("handler"):
        return [invalid("handler", new.get("handler", ""), IMMUTABLE)]
    return []


def check_role(role: Document) -> list[FieldError]:
    """Rules with verbs on something, or selectors of the roles that they are taken from."""
    errors = _check_aggregation(role["aggregationRule"]) if "aggregationRule" in role else []
    for index, rule in enumerate(role.get("rules") or ()):
        where = f"rules[{index}]"
        if not rule.get("verbs"):
            errors.append(required(f"{where}.verbs", "verbs must contain at least one value"))
        if rule.get("nonResourceURLs"):
            if role["metadata"].get("namespace"):
                said = "namespaced rules cannot apply to non-resource URLs"
                errors.append(invalid(f"{where}.nonResourceURLs", rule["nonResourceURLs"], said))
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                errors.append(
                    invalid(
                        f"{where}.nonResourceURLs",
                        rule["nonResourceURLs"],
                        "rules cannot apply to both regular resources and non-resource URLs",
                    )
                )
            continue
        if not rule.get("apiGroups"):
            errors.append(required(f"{where}.apiGroups", "resource rules must supply at least one api group"))
        if not rule.get("resources"):
            errors.append(required(f"{where}.resources", "resource rules must supply at least one resource"))
    return errors


def _check_aggregation(rule: Document) -> list[FieldError]:
    path, selectors = "aggregationRule.clusterRoleSelectors", rule.get("clusterRoleSelectors") or ()
    if not selectors:
        return [required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil")]
    errors = list[FieldError]()
    for index, one in enumerate(selectors):
        wrong = check_label_selector(one, f"{path}[{index}]")
        errors += [*wrong, invalid(f"{path}[{index}]", one, "invalid label selector.")] if wrong else []
    return errors


def check_binding(binding: Document) -> list[FieldError]:
    """A role and subjects."""
    role, errors = binding.get("roleRef", {}), []
    if role.get("apiGroup") != _RBAC:
        errors.append(not_supported("roleRef.apiGroup", role.get("apiGroup", ""), (_RBAC,)))
    allowed = ("Role", "ClusterRole") if binding["metadata"].get("namespace") else ("ClusterRole",)
    if role.get("kind") not in allowed:
        errors.append(not_supported("roleRef.kind", role.get("kind", ""), allowed))
    if not role.get("name"):
        errors.append(required("roleRef.name"))
    else:
        errors += [invalid("roleRef.name", role["name"], said) for said in names.path_segment(role["name"])]
    for index, subject in enumerate(binding.get("subjects", ())):
        errors += _check_subject(subject, f"subjects[{index}]", is_cluster=not binding["metadata"].get("namespace"))
    return errors


def _check_subject(subject: Document, path: str, *, is_cluster: bool) -> list[FieldError]:
    kind, errors = subject.get("kind", ""), []
    if not subject.get("name"):
        errors.append(required(f"{path}.name"))
    if kind == "ServiceAccount":
        name = subject.get("name", "")
        if name:
            errors += [invalid(f"{path}.name", name, said) for said in names.dns_subdomain(name)]
        if subject.get("apiGroup"):
            errors.append(not_supported(f"{path}.apiGroup", subject["apiGroup"], ("",)))
        if is_cluster and not subject.get("namespace"):
            errors.append(required(f"{path}.namespace"))
    elif kind not in ("User", "Group"):
        errors.append(not_supported(f"{path}.kind", kind, ("ServiceAccount", "User", "Group")))
    elif subject.get("apiGroup", _RBAC) != _RBAC:
        errors.append(not_supported(f"{path}.apiGroup", subject["apiGroup"], (_RBAC,)))
    return errors


def check_binding_update(new: Document, old: Document) -> list[FieldError]:
    """The role of a binding stays."""
    if new.get("roleRef") != old.get("roleRef"):
        return [invalid("roleRef", new.get("roleRef"), "cannot change roleRef")]
    return []


def check_webhooks(configuration: Document) -> list[FieldError]:
    """Each webhook: a name, where it is, what it wants."""
    errors, seen = list[FieldError](), set[str]()
    for index, webhook in enumerate(configuration.get("webhooks", ())):
        where, name = f"webhooks[{index}]", webhook.get("name", "")
        errors += _check_webhook(webhook, where)
        if name in seen:
            errors.append(FieldError(Cause.DUPLICATE, f"{where}.name", f'Duplicate value: "{name}"'))
        seen.add(name)
    return errors


def _check_webhook(webhook: Document, path: str) -> list[FieldError]:
    name, errors = webhook.get("name", ""), []
    if len(name.split(".")) < 3:
        errors.append(
            invalid(f"{path}.name", name, "should be a domain with at least three segments separated by dots")
        )
    if not webhook.get("admissionReviewVersions"):
        errors.append(required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1"))
    if webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
        allowed = ("None", "NoneOnDryRun")
        errors.append(
            not_supported(f"{path}.sideEffects", webhook["sideEffects"], allowed)
            if webhook.get("sideEffects")
            else required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun")
        )
    if not 1 <= webhook.get("timeoutSeconds", 10) <= 30:
        errors.append(
            invalid(
                f"{path}.timeoutSeconds",
                webhook["timeoutSeconds"],
                "the timeout value must be between 1 and 30 seconds",
            )
        )
    for key, allowed in (("failurePolicy", ("Fail", "Ignore")), ("matchPolicy", ("Equivalent", "Exact"))):
        if webhook.get(key) not in allowed:
            errors.append(not_supported(f"{path}.{key}", webhook.get(key, ""), allowed))
    client = webhook.get("clientConfig", {})
    if ("url" in client) == ("service" in client):
        errors.append(required(f"{path}.clientConfig", "exactly one of url or service is required"))
    errors += check_conditions(webhook.get("matchConditions") or (), f"{path}.matchConditions")
    errors += check_label_selector(webhook.get("namespaceSelector"), f"{path}.namespaceSelector")
    return errors + check_label_selector(webhook.get("objectSelector"), f"{path}.objectSelector")
