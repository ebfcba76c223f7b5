"""HorizontalPodAutoscalers of autoscaling/v1, stored as v2: one percentage of the processor is one of v2's metrics.

What v1 has no field for travels in annotations, so that who reads and writes v1 loses nothing; `conversions.py` knows the ways.
"""

import json
from typing import Any

import msgspec

from hekla.api.meta import Document
from hekla.apiserver.gotypes import GoTypeError, GoValueError, Walk, coercion

_PREFIX = "autoscaling.alpha.kubernetes.io/"
_IN_SPEC, _IN_STATUS = ("metrics", "behavior"), ("current-metrics", "conditions")
_V2 = "io.k8s.api.autoscaling.v2."
_TYPES = {
    "metrics": "MetricSpec",
    "behavior": "HorizontalPodAutoscalerBehavior",
    "current-metrics": "MetricStatus",
    "conditions": "HorizontalPodAutoscalerCondition",
}


def to_stored(document: Document) -> Document:
    """v2 of a v1 autoscaler."""
    spec, status = dict(document.get("spec") or {}), dict(document.get("status") or {})
    annotations = dict(document["metadata"].get("annotations") or {})
    hidden = {name: _taken(annotations, name) for name in (*_IN_SPEC, *_IN_STATUS)}
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    own = [] if percent is None else [_cpu("target", {"type": "Utilization", "averageUtilization": percent})]
    if metrics := [*(hidden["metrics"] or ()), *own]:
        spec["metrics"] = metrics
    if hidden["behavior"]:
        spec["behavior"] = hidden["behavior"]
    current = status.pop("currentCPUUtilizationPercentage", None)
    seen = [] if current is None else [_cpu("current", {"averageUtilization": current})]
    if measured := [*(hidden["current-metrics"] or ()), *seen]:
        status["currentMetrics"] = measured
    if hidden["conditions"]:
        status["conditions"] = hidden["conditions"]
    if status.get("currentReplicas") == 0:
        del status["currentReplicas"]
    return _made(document, "autoscaling/v2", annotations, spec, status)


def from_stored(document: Document) -> Document:
    """v1 of a v2 autoscaler."""
    spec, status = dict(document.get("spec") or {}), dict(document.get("status") or {})
    annotations = dict(document["metadata"].get("annotations") or {})
    metrics, measured = spec.pop("metrics", None) or [], status.pop("currentMetrics", None) or []
    percent = next((value for one in metrics if (value := _percent(one, "target")) is not None), None)
    if percent is not None:
        spec["targetCPUUtilizationPercentage"] = percent
    current = next((value for one in measured if (value := _percent(one, "current")) is not None), None)
    if current is not None:
        status["currentCPUUtilizationPercentage"] = current
    _hide(annotations, "metrics", [one for one in metrics if _percent(one, "target") is None])
    _hide(annotations, "behavior", spec.pop("behavior", None))
    _hide(annotations, "current-metrics", [one for one in measured if _percent(one, "current") is None])
    _hide(annotations, "conditions", status.pop("conditions", None))
    counts = {"currentReplicas": 0, "desiredReplicas": 0}
    return _made(document, "autoscaling/v1", annotations, spec, counts | status)


def _made(document: Document, api_version: str, annotations: Document, spec: Document, status: Document) -> Document:
    metadata = {name: value for name, value in document["metadata"].items() if name != "annotations"}
    if annotations:
        metadata["annotations"] = annotations
    made = {**document, "apiVersion": api_version, "metadata": metadata, "spec": spec}
    return made | ({"status": status} if status or "status" in document else {})


def _cpu(key: str, value: Document) -> Document:
    return {"type": "Resource", "resource": {"name": "cpu", key: value}}


def _percent(metric: Document, key: str) -> int | None:
    """The percentage of the processor that a metric is about, if it is."""
    resource = metric.get("resource") or {}
    if metric.get("type") != "Resource" or resource.get("name") != "cpu":
        return None
    found = (resource.get(key) or {}).get("averageUtilization")
    return found if isinstance(found, int) else None


def _hide(annotations: Document, name: str, value: Any) -> None:
    if value:
        annotations[_PREFIX + name] = json.dumps(value, separators=(",", ":"), sort_keys=True)


def _taken(annotations: Document, name: str) -> Any:
    """What an annotation holds; one that somebody else wrote, in a form that v2 does not have, stays as it is."""
    text = annotations.get(_PREFIX + name)
    if not isinstance(text, str):
        return None
    try:
        value = msgspec.json.decode(text)
        coerce = coercion(_V2 + _TYPES[name])
        made = coerce(value, Walk()) if name == "behavior" else [coerce(one, Walk()) for one in _listed(value)]
    except (ValueError, RecursionError, GoTypeError, GoValueError):
        return None
    del annotations[_PREFIX + name]
    return made


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise GoTypeError(value, "[]")
    return value
