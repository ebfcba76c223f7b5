"""What is wrong with horizontal pod autoscalers, in the version that they are stored in."""

from collections.abc import Callable
from typing import Final

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.lib import quantity

_SOURCES: Final = {
    "Object": "object", "External": "external", "Pods": "pods", "Resource": "resource",
    "ContainerResource": "containerResource",
}  # fmt: skip
_TARGETS = ("Utilization", "Value", "AverageValue")
_LONGEST_WINDOW_S, _LONGEST_PERIOD_S = 3600, 1800
_NOT_NEGATIVE = "must be greater than or equal to 0"
_ONE_OF_TWO = "must set either a target raw value or a target utilization"
_NOT_BOTH = "may not set both a target raw value and a target utilization"


def check_autoscaler(autoscaler: Document) -> list[FieldError]:
    """How many, of what, by which measure."""
    spec = autoscaler.get("spec", {})
    low, most, errors = spec.get("minReplicas", 1), spec.get("maxReplicas", 0), list[FieldError]()
    if low < 1:
        errors.append(invalid("spec.minReplicas", low, "must be greater than or equal to 1"))
    if most < 1:
        errors.append(required("spec.maxReplicas", "must be set and greater than 0"))
    if most < low:
        errors.append(invalid("spec.maxReplicas", most, "must be greater than or equal to `minReplicas`"))
    errors += _check_scaled(spec.get("scaleTargetRef", {}), "spec.scaleTargetRef")
    metrics = spec.get("metrics") or []
    for index, metric in enumerate(metrics):
        errors += _check_metric(metric, f"spec.metrics[{index}]")
    if low == 0 and not any(metric.get("type") in ("Object", "External") for metric in metrics):
        said = "must specify at least one Object or External metric to support scaling to zero replicas"
        errors.append(forbidden_field("spec.metrics", said))
    for key in ("scaleUp", "scaleDown"):
        if key in spec.get("behavior", {}):
            errors += _check_rules(spec["behavior"][key], f"spec.behavior.{key}")
    return errors


def check_autoscaler_status(new: Document, old: Document) -> list[FieldError]:
    """Counts that are none below zero."""
    status = new.get("status", {})
    return [
        invalid(f"status.{key}", status[key], _NOT_NEGATIVE)
        for key in ("currentReplicas", "desiredReplicas")
        if status.get(key, 0) < 0
    ]


def _check_scaled(scaled: Document, path: str) -> list[FieldError]:
    errors = _check_reference(scaled, path)
    version = scaled.get("apiVersion", "")
    if version.count("/") > 1:
        errors.append(invalid(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}"))
    elif "/" not in version and scaled.get("kind") != "ReplicationController":
        errors.append(invalid(f"{path}.apiVersion", version, "apiVersion must specify API group"))
    return errors


def _check_reference(reference: Document, path: str) -> list[FieldError]:
    errors = list[FieldError]()
    for key in ("kind", "name"):
        value = reference.get(key, "")
        errors += [invalid(f"{path}.{key}", value, said) for said in names.path_segment(value)]
        if not value:
            errors.append(required(f"{path}.{key}"))
    return errors


def _check_metric(metric: Document, path: str) -> list[FieldError]:
    kind, errors = metric.get("type", ""), list[FieldError]()
    unknown = not_supported(f"{path}.type", kind, tuple(sorted(_SOURCES)))
    if not kind:
        errors.append(required(f"{path}.type", "must specify a metric source type"))
    if kind not in _SOURCES:
        errors.append(unknown)
    present = [key for key in _SOURCES.values() if key in metric]
    if present:
        errors += _CHECKS[present[0]](metric[present[0]], f"{path}.{present[0]}")
    wanted = _SOURCES.get(kind)
    if wanted is None:
        errors.append(unknown)  # Kubernetes says it twice
    elif wanted not in metric:
        errors.append(required(f"{path}.{wanted}", "must populate information for the given metric source"))
    if len(present) > 1:
        said = "must populate the given metric source only"
        errors += [forbidden_field(f"{path}.{key}", said) for key in present if key != wanted]
    return errors


def _check_object(source: Document, path: str) -> list[FieldError]:
    target = source.get("target", {})
    errors = _check_reference(source.get("describedObject", {}), f"{path}.describedObject")
    errors += _check_identifier(source, path) + _check_target(target, f"{path}.target")
    if not target.keys() & {"value", "averageValue"}:
        errors.append(required(f"{path}.target.averageValue", "must set either a target value or averageValue"))
    return errors


def _check_external(source: Document, path: str) -> list[FieldError]:
    target = source.get("target", {})
    errors = _check_identifier(source, path) + _check_target(target, f"{path}.target")
    if not target.keys() & {"value", "averageValue"}:
        said = "must set either a target value for metric or a per-pod target"
        errors.append(required(f"{path}.target.averageValue", said))
    if {"value", "averageValue"} <= target.keys():
        said = "may not set both a target value for metric and a per-pod target"
        errors.append(forbidden_field(f"{path}.target.value", said))
    return errors


def _check_pods(source: Document, path: str) -> list[FieldError]:
    target = source.get("target", {})
    errors = _check_identifier(source, path) + _check_target(target, f"{path}.target")
    if not _is_positive(target.get("averageValue", "0")):
        errors.append(required(f"{path}.target.averageValue", "must specify a positive target averageValue"))
    return errors


def _check_resource(source: Document, path: str) -> list[FieldError]:
    target, errors = source.get("target", {}), list[FieldError]()
    if not source.get("name"):
        errors.append(required(f"{path}.name", "must specify a resource name"))
    errors += _check_target(target, f"{path}.target")
    if not target.keys() & {"averageUtilization", "averageValue"}:
        errors.append(required(f"{path}.target.averageUtilization", _ONE_OF_TWO))
    if {"averageUtilization", "averageValue"} <= target.keys():
        errors.append(forbidden_field(f"{path}.target.averageValue", _NOT_BOTH))
    return errors


def _check_container_resource(source: Document, path: str) -> list[FieldError]:
    is_named = bool(source.get("container"))
    errors = [] if is_named else [required(f"{path}.container", "must specify a container")]
    return errors + _check_resource(source, path)


_CHECKS: Final[dict[str, Callable[[Document, str], list[FieldError]]]] = {
    "object": _check_object,
    "external": _check_external,
    "pods": _check_pods,
    "resource": _check_resource,
    "containerResource": _check_container_resource,
}


def _check_identifier(source: Document, path: str) -> list[FieldError]:
    name = source.get("metric", {}).get("name", "")
    if not name:
        return [required(f"{path}.metric.name", "must specify a metric name")]
    return [invalid(f"{path}.metric.name", name, said) for said in names.path_segment(name)]


def _check_target(target: Document, path: str) -> list[FieldError]:
    kind, errors = target.get("type", ""), list[FieldError]()
    if not kind:
        errors.append(required(f"{path}.type", "must specify a metric target type"))
    if kind not in _TARGETS:
        errors.append(invalid(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue"))
    for key in ("value", "averageValue"):
        if key in target and not _is_positive(target[key]):
            errors.append(invalid(f"{path}.{key}", target[key], "must be positive"))
    if target.get("averageUtilization", 1) < 1:
        errors.append(invalid(f"{path}.averageUtilization", target["averageUtilization"], "must be greater than 0"))
    return errors


def _is_positive(amount: str) -> bool:
    return quantity.parse(amount).value > 0


def _check_rules(rules: Document, path: str) -> list[FieldError]:
    window_s, policies, errors = rules.get("stabilizationWindowSeconds", 0), rules.get("policies"), list[FieldError]()
    if window_s < 0:
        said = "must be greater than or equal to zero"
        errors.append(invalid(f"{path}.stabilizationWindowSeconds", window_s, said))
    if window_s > _LONGEST_WINDOW_S:
        said = f"must be less than or equal to {_LONGEST_WINDOW_S}"
        errors.append(invalid(f"{path}.stabilizationWindowSeconds", window_s, said))
    if rules.get("selectPolicy", "Max") not in ("Disabled", "Max", "Min"):
        errors.append(not_supported(f"{path}.selectPolicy", rules["selectPolicy"], ("Disabled", "Max", "Min")))
    if not policies:
        errors.append(required(f"{path}.policies", "must specify at least one Policy"))
    for index, policy in enumerate(policies or ()):
        errors += _check_policy(policy, f"{path}.policies[{index}]")
    if rules.get("tolerance", "0").startswith("-"):
        errors.append(invalid(f"{path}.tolerance", rules["tolerance"], _NOT_NEGATIVE))
    return errors


def _check_policy(policy: Document, path: str) -> list[FieldError]:
    kind, period_s, errors = policy.get("type", ""), policy.get("periodSeconds", 0), list[FieldError]()
    if kind not in ("Percent", "Pods"):
        errors.append(not_supported(f"{path}.type", kind, ("Percent", "Pods")))
    if policy.get("value", 0) <= 0:
        errors.append(invalid(f"{path}.value", policy.get("value", 0), "must be greater than zero"))
    if period_s <= 0:
        errors.append(invalid(f"{path}.periodSeconds", period_s, "must be greater than zero"))
    if period_s > _LONGEST_PERIOD_S:
        said = f"must be less than or equal to {_LONGEST_PERIOD_S}"
        errors.append(invalid(f"{path}.periodSeconds", period_s, said))
    return errors
