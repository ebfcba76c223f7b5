"""What is completed and refused in an AutoscalingPolicy, in the words of Kthena's webhook; policies of Kthena 0.3 are let in.

A 0.3 policy calls its metrics `metricName` and has no target: its AutoscalingPolicyBinding has (`binding_conversion.py`).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import inf
from typing import Any, Final

import msgspec

from hekla.api.fields import Quantity
from hekla.api.kthena import AutoscalingPolicy, AutoscalingPolicyBinding
from hekla.api.kthena.autoscaling import DisaggregatedTarget, Metric, RatioConstraint, RoleScaling
from hekla.api.meta import Document
from hekla.api.selectors import ObjectReference
from hekla.apiserver.admission import AdmissionRequest, Reader
from hekla.apiserver.fielderrors import FieldError, invalid, required
from hekla.apiserver.webhook_rule import is_readable
from hekla.lib.quantity import QuantityError, to_float, to_milli
from hekla.serving.admission_words import check_period, denial

SCALE_DOWN: Final = {
    "instances": 0, "percent": 100, "period": "1m0s", "selectPolicy": "Or", "stabilizationWindow": "5m0s",
}  # fmt: skip
SCALE_UP: Final = {
    "instances": 4, "percent": 100, "period": "1m0s", "selectPolicy": "Or", "stabilizationWindow": "0s",
}  # fmt: skip
PANIC: Final = {"percent": 0, "period": "0s", "panicThresholdPercent": 200, "panicModeHold": "0s"}

_POSITIVE = "metric target value must be greater than 0 and not equal to infinity"
_ONE_TARGET = "exactly one of homogeneousTarget, heterogeneousTarget, or disaggregatedTarget must be set"
_UNREACHABLE = "ratioConstraint is not achievable within role replica bounds"
_OLD_METRIC = "metrics[].metricName is how Kthena 0.3 wrote it: write name instead"
_OLD_POLICY = (
    f"{_OLD_METRIC}, and the target into this policy as spec.homogeneousTarget or spec.heterogeneousTarget; until then an "
    "AutoscalingPolicyBinding must name the target"
)
_OLD_BINDING = (
    "AutoscalingPolicyBinding was removed in Kthena 1.0; Hekla makes the AutoscalingPolicy {made} from it. To write it today, "
    "put spec.{target} of this binding into the AutoscalingPolicy {policy}, with metricEndpoint as "
    "target.metricSources[<metric>].pod, and delete the binding"
)


def default_autoscaling_policy(request: AdmissionRequest, reader: Reader) -> None:
    """Write the pace where none is said, and today's name of a metric where only the old one is."""
    if request.object is None or not is_readable(request.object, AutoscalingPolicy):
        return
    spec = request.object.setdefault("spec", {})
    for metric in _metrics(spec):
        if metric.get("metricName") and not metric.get("name"):
            metric["name"] = metric["metricName"]
    behavior = spec.get("behavior")
    if not behavior:
        spec["behavior"] = {"scaleUp": _scale_up(), "scaleDown": dict(SCALE_DOWN)}
        return
    _complete(behavior, "scaleDown", SCALE_DOWN)
    scale_up = behavior.get("scaleUp")
    if not scale_up or not any(scale_up.values()):
        behavior["scaleUp"] = _scale_up()
        return
    _complete(scale_up, "stablePolicy", SCALE_UP)
    if not scale_up.get("panicPolicy"):
        scale_up["panicPolicy"] = dict(PANIC)


def _metrics(spec: Document) -> Iterator[Document]:
    yield from spec.get("metrics") or ()
    for role in ((spec.get("disaggregatedTarget") or {}).get("roles") or {}).values():
        yield from role.get("metrics") or ()


def _scale_up() -> Document:
    return {"stablePolicy": dict(SCALE_UP), "panicPolicy": dict(PANIC)}


def _complete(parent: Document, name: str, usual: Mapping[str, Any]) -> None:
    if not parent.get(name):
        parent[name] = dict(usual)
    elif parent[name].get("stabilizationWindow") is None:
        parent[name]["stabilizationWindow"] = "5m" if name == "scaleDown" else "0s"


def refuse_autoscaling_policy(request: AdmissionRequest, reader: Reader) -> str:
    """Why an AutoscalingPolicy may not be written; empty if it may."""
    policy = msgspec.convert(request.object or {}, AutoscalingPolicy)
    if is_of_the_past(policy):
        request.warnings.append(_OLD_METRIC if _has_target(policy) else _OLD_POLICY)
    return denial(wrongs(policy))


def _has_target(policy: AutoscalingPolicy) -> bool:
    spec = policy.spec
    return any((spec.homogeneous_target, spec.heterogeneous_target, spec.disaggregated_target))


def is_of_the_past(policy: AutoscalingPolicy) -> bool:
    """Whether the policy is written as for Kthena 0.3."""
    return any(metric.metric_name for metric in policy.spec.metrics)


def wrongs(policy: AutoscalingPolicy) -> Iterator[FieldError]:
    """All that is wrong, in the webhook's order."""
    spec = policy.spec
    yield from _metric_wrongs(spec.metrics, "spec.metrics")
    yield from _target_wrongs(policy)
    if (spec.homogeneous_target or spec.heterogeneous_target) and not spec.metrics:
        yield required("spec.metrics", "at least one metric must be set")
    if spec.disaggregated_target is not None:
        yield from _disaggregated_wrongs(spec.disaggregated_target, spec.metrics)
    yield from _range_wrongs(policy)
    yield from _pace_wrongs(policy)


def _metric_wrongs(metrics: list[Metric], where: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, metric in enumerate(metrics):
        if not _is_positive(metric.target_value):
            yield invalid(f"{where}[{number}].targetValue", metric.target_value, _POSITIVE)
        if metric.name in seen:
            yield invalid(f"{where}[{number}].name", metric.name, f"duplicate metric name {metric.name} is not allowed")
        seen.add(metric.name)


def _target_wrongs(policy: AutoscalingPolicy) -> Iterator[FieldError]:
    spec = policy.spec
    targets = (spec.homogeneous_target, spec.heterogeneous_target, spec.disaggregated_target)
    count = sum(one is not None for one in targets)
    if count == 0 and is_of_the_past(policy):
        return
    if count != 1:
        yield invalid("spec", count, _ONE_TARGET)
    elif spec.homogeneous_target is not None:
        yield from _reference_wrongs(
            spec.homogeneous_target.target.target_ref, "spec.homogeneousTarget.target.targetRef"
        )
    elif spec.heterogeneous_target is not None:
        for number, param in enumerate(spec.heterogeneous_target.params):
            where = f"spec.heterogeneousTarget.params[{number}].target.targetRef"
            yield from _reference_wrongs(param.target.target_ref, where)
    elif spec.disaggregated_target is not None:
        yield from _reference_wrongs(spec.disaggregated_target.target_ref, "spec.disaggregatedTarget.targetRef")


def _reference_wrongs(target: ObjectReference, where: str) -> Iterator[FieldError]:
    if target.kind not in ("", "ModelServing"):
        yield invalid(f"{where}.kind", target.kind, f"targetRef.kind must be ModelServing, but got {target.kind}")
    if not target.name:
        yield invalid(f"{where}.name", target.name, "targetRef.name must be set, but got empty")


def _range_wrongs(policy: AutoscalingPolicy) -> Iterator[FieldError]:
    """The schema bounds each number; that the least is not above the most is said here for every kind of target."""
    spec = policy.spec
    ranges = []
    if spec.homogeneous_target is not None:
        one = spec.homogeneous_target
        ranges.append(("spec.homogeneousTarget", one.min_replicas, one.max_replicas))
    if spec.heterogeneous_target is not None:
        params = enumerate(spec.heterogeneous_target.params)
        ranges += [(f"spec.heterogeneousTarget.params[{i}]", p.min_replicas, p.max_replicas) for i, p in params]
    for where, least, most in ranges:
        if least > most:
            yield invalid(f"{where}.minReplicas", least, "minReplicas must be <= maxReplicas")


def _disaggregated_wrongs(target: DisaggregatedTarget, shared: list[Metric]) -> Iterator[FieldError]:
    where = "spec.disaggregatedTarget"
    for name, role in target.roles.items():
        if not name:
            said = "role name must refer to a ModelServing.spec.template.roles[].name and must not be empty"
            yield invalid(f"{where}.roles", name, said)
        else:
            yield from _role_wrongs(role, shared, f"{where}.roles[{name}]")
    if target.ratio_constraint is not None:
        yield from _ratio_wrongs(target.ratio_constraint, target.roles, f"{where}.ratioConstraint")


def _role_wrongs(role: RoleScaling, shared: list[Metric], where: str) -> Iterator[FieldError]:
    is_fixed = 0 < role.max_replicas == role.min_replicas
    if role.min_replicas > role.max_replicas:
        yield invalid(f"{where}.minReplicas", role.min_replicas, "minReplicas must be <= maxReplicas")
    if not is_fixed and not role.metrics and not shared:
        yield required(f"{where}.metrics", "metrics must be set on every non-fixed role when spec.metrics is empty")
    yield from _metric_wrongs(role.metrics, f"{where}.metrics")
    if is_fixed:
        return
    names = {metric.name for metric in role.metrics or shared}
    if not role.metric_sources and names:
        said = "metricSources must be set on every non-fixed role when metrics are configured"
        yield invalid(f"{where}.metricSources", 0, said)
        return
    for key in role.metric_sources:
        if key not in names:
            yield invalid(f"{where}.metricSources[{key}]", key, "metricSources key must match an effective metric name")


def _ratio_wrongs(ratio: RatioConstraint, roles: Mapping[str, RoleScaling], where: str) -> Iterator[FieldError]:
    above, below = ratio.numerator_role, ratio.denominator_role
    if above == below:
        yield invalid(f"{where}.denominatorRole", below, "numeratorRole and denominatorRole must differ")
    if above not in roles:
        yield invalid(f"{where}.numeratorRole", above, "numeratorRole must exist in roles")
    if below not in roles:
        yield invalid(f"{where}.denominatorRole", below, "denominatorRole must exist in roles")
    least, most = _amount(ratio.min_ratio), _amount(ratio.max_ratio)
    if least is None or most is None:
        yield invalid(where, "ratio", "ratio values must be finite")
        return
    if least > most:
        yield invalid(f"{where}.minRatio", str(ratio.min_ratio), "minRatio must be <= maxRatio")
    if above in roles and below in roles:
        yield from _bound_wrongs(roles[above], roles[below], least, most, where)


def _bound_wrongs(
    above: RoleScaling, below: RoleScaling, least: Fraction, most: Fraction, where: str
) -> Iterator[FieldError]:
    if (above.min_replicas == 0) != (below.min_replicas == 0):
        yield invalid(where, "scale-to-zero bounds", "ratio roles must be scalable-to-zero together")
    if least < 0 or most <= 0:
        yield invalid(where, "ratio", "minRatio must be >= 0 and maxRatio must be > 0")
        return
    if below.max_replicas > 0 and Fraction(above.min_replicas, below.max_replicas) > most:
        yield invalid(where, "bounds", _UNREACHABLE)
    if below.min_replicas > 0 and Fraction(above.max_replicas, below.min_replicas) < least:
        yield invalid(where, "bounds", _UNREACHABLE)


def _pace_wrongs(policy: AutoscalingPolicy) -> Iterator[FieldError]:
    behavior = policy.spec.behavior
    if behavior is None:
        return
    scale_up = behavior.scale_up
    paces = [("spec.behavior.scaleDown", behavior.scale_down)]
    paces.append(("spec.behavior.scaleUp.stablePolicy", scale_up.stable_policy if scale_up else None))
    for where, pace in paces:
        if pace is not None:
            yield from check_period(
                f"{where}.period", pace.period, "stable policy period must be between 0 and 30 minutes"
            )
            said = "stable policy stabilization window must be between 0 and 30 minutes"
            yield from check_period(f"{where}.stabilizationWindow", pace.stabilization_window, said)
    panic = scale_up.panic_policy if scale_up else None
    if panic is not None:
        where = "spec.behavior.scaleUp.panicPolicy"
        yield from check_period(f"{where}.period", panic.period, "panic policy period must be between 0 and 30 minutes")
        said = "panic policy panic mode hold must be between 0 and 30 minutes"
        yield from check_period(f"{where}.panicModeHold", panic.panic_mode_hold, said)


def refuse_binding(request: AdmissionRequest, reader: Reader) -> str:
    """Why an AutoscalingPolicyBinding may not be written; what may is warned about."""
    binding = msgspec.convert(request.object or {}, AutoscalingPolicyBinding)
    spec = binding.spec
    target = "homogeneousTarget" if spec.homogeneous_target is not None else "heterogeneousTarget"
    errors = []
    if not spec.policy_ref.name:
        errors.append(required("spec.policyRef.name", "the AutoscalingPolicy must be named"))
    bound = [spec.homogeneous_target] if spec.homogeneous_target else []
    params = spec.heterogeneous_target.params if spec.heterogeneous_target else []
    for where, one in [(f"spec.{target}", one) for one in bound] + [
        (f"spec.{target}.params[{number}]", one) for number, one in enumerate(params)
    ]:
        errors += _reference_wrongs(one.target.target_ref, f"{where}.target.targetRef")
        if one.min_replicas > one.max_replicas:
            errors.append(invalid(f"{where}.minReplicas", one.min_replicas, "minReplicas must be <= maxReplicas"))
    name, policy = binding.metadata.name or request.name, spec.policy_ref.name
    request.warnings.append(_OLD_BINDING.format(made=f'"{name}-bound"', target=target, policy=f'"{policy}"'))
    return denial(errors)


def _amount(quantity: Quantity) -> Fraction | None:
    try:
        return Fraction(to_milli(str(quantity)), 1000)
    except QuantityError:
        return None


def _is_positive(quantity: Quantity) -> bool:
    amount = _amount(quantity)
    return amount is not None and amount > 0 and to_float(str(quantity)) < inf
