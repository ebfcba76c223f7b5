"""Reconciles AutoscalingPolicyBindings of Kthena 0.3: each, with its policy, becomes the AutoscalingPolicy of today, `<binding>-bound`.

The binding owns what is made from it, so that deleting it stops the scaling. A binding to one role becomes a disaggregated target
with that role; `metricEndpoint` becomes a source for each of the policy's metrics.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from hekla.api.kthena import AutoscalingPolicy, AutoscalingPolicyBinding
from hekla.api.kthena.autoscaling import AutoscalingPolicySpec
from hekla.api.kthena.binding import BoundHomogeneous, BoundParam, BoundTarget
from hekla.api.meta import Document
from hekla.kube.commands import Command, Create, Patch, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.serving.conditions import Observation, as_documents, conditions
from hekla.serving.serving_names import owner_reference

SUFFIX = "-bound"


def _bindings_of(policy: AutoscalingPolicy, world: World) -> Iterator[tuple[str, str]]:
    for binding in world.list(AutoscalingPolicyBinding, policy.metadata.namespace):
        if binding.spec.policy_ref.name == policy.metadata.name:
            yield binding.metadata.namespace, binding.metadata.name


@reconciler(AutoscalingPolicyBinding, owns=(AutoscalingPolicy,), finds={AutoscalingPolicy: _bindings_of})
def reconcile_binding(binding: AutoscalingPolicyBinding, world: World, now: datetime) -> Iterator[Command]:
    """Make the policy of today, or say why it cannot be made."""
    meta = binding.metadata
    if meta.deletion_timestamp is not None:
        return
    name = meta.name + SUFFIX
    policy = world.get(AutoscalingPolicy, meta.namespace, binding.spec.policy_ref.name)
    made = world.get(AutoscalingPolicy, meta.namespace, name)
    is_ours = made is None or any(one.uid == meta.uid for one in made.metadata.owner_references)
    if policy is not None and is_ours:
        yield from _keep(binding, made, {"name": name, "namespace": meta.namespace}, converted(binding, policy))
    observed = _observed(binding, is_there=policy is not None, is_ours=is_ours)
    told = conditions(binding.status.conditions, [observed], meta.generation, now)
    if told != as_documents(binding.status.conditions):
        yield SetStatus(target_of(binding), {"conditions": told})


def _keep(
    binding: AutoscalingPolicyBinding, made: AutoscalingPolicy | None, metadata: Document, spec: Document
) -> Iterator[Command]:
    if made is None:
        owned = {**metadata, "ownerReferences": [owner_reference(binding)]}
        info = AutoscalingPolicy.kind_info
        document = {"apiVersion": info.api_version, "kind": info.kind, "metadata": owned, "spec": spec}
        yield Create(AutoscalingPolicy, document)
    elif msgspec.convert(spec, AutoscalingPolicySpec) != made.spec:
        absent = dict.fromkeys(("homogeneousTarget", "heterogeneousTarget", "disaggregatedTarget"))
        yield Patch(target_of(made), {"spec": absent | spec})


def _observed(binding: AutoscalingPolicyBinding, *, is_there: bool, is_ours: bool) -> Observation:
    name, policy = binding.metadata.name + SUFFIX, binding.spec.policy_ref.name
    if not is_there:
        said = f'AutoscalingPolicy "{policy}" does not exist; create it, or name another in spec.policyRef'
        return Observation("Converted", False, "PolicyNotFound", said)
    if not is_ours:
        said = f'AutoscalingPolicy "{name}" exists and was not made from this binding; rename the one or the other'
        return Observation("Converted", False, "NameTaken", said)
    return Observation("Converted", True, "Converted", f'AutoscalingPolicy "{name}" scales what this binding names')


def converted(binding: AutoscalingPolicyBinding, policy: AutoscalingPolicy) -> Document:
    """The spec of the policy of today."""
    old = policy.spec
    metrics = [{"name": one.name or one.metric_name, "targetValue": one.target_value} for one in old.metrics]
    names = [str(one["name"]) for one in metrics]
    spec: Document = {"tolerancePercent": old.tolerance_percent, "metrics": metrics}
    if old.behavior is not None:
        spec["behavior"] = _without_nothing(msgspec.to_builtins(old.behavior))
    one, several = binding.spec.homogeneous_target, binding.spec.heterogeneous_target
    if one is not None and one.target.sub_targets is not None and one.target.sub_targets.name:
        spec["disaggregatedTarget"] = _of_role(one, one.target.sub_targets.name, names)
    elif one is not None:
        spec["homogeneousTarget"] = _bounded(one, names)
    elif several is not None:
        params = [{**_bounded(param, names), "cost": param.cost} for param in several.params]
        percent = several.cost_expansion_rate_percent
        spec["heterogeneousTarget"] = {"params": params, "costExpansionRatePercent": percent}
    return spec


def _bounded(one: BoundHomogeneous | BoundParam, names: list[str]) -> Document:
    target = {"targetRef": _target(one.target), "metricSources": _sources(one.target, names)}
    return {"target": target, "minReplicas": one.min_replicas, "maxReplicas": one.max_replicas}


def _of_role(one: BoundHomogeneous, role: str, names: list[str]) -> Document:
    bounds = {"minReplicas": one.min_replicas, "maxReplicas": one.max_replicas}
    roles = {role: {**bounds, "metricSources": _sources(one.target, names)}}
    return {"targetRef": _target(one.target), "roles": roles}


def _target(target: BoundTarget) -> Document:
    reference: Document = _without_nothing(msgspec.to_builtins(target.target_ref))
    return reference


def _sources(target: BoundTarget, names: list[str]) -> Document:
    endpoint = target.metric_endpoint
    source: Document = {"uri": endpoint.uri, "port": endpoint.port}
    if endpoint.label_selector is not None:
        source["labelSelector"] = _without_nothing(msgspec.to_builtins(endpoint.label_selector))
    return {name: {"pod": source} for name in names}


def _without_nothing(found: Any) -> Any:
    """Without fields that say nothing: what a reader takes for absent need not be written."""
    if not isinstance(found, dict):
        return found
    inner = {name: _without_nothing(value) for name, value in found.items()}
    return {name: value for name, value in inner.items() if value not in (None, "", [], {})}
