"""What a ModelBooster becomes: a ModelServing, a ModelServer that selects its pods, a ModelRoute to that, and, where its
annotations ask for it, an AutoscalingPolicy.

    serving.hekla.dev/max-replicas: "8"      scale between min-replicas (1) and this
    serving.hekla.dev/ttft: 500ms            hold the time to the first token (p95): prefill, or all
    serving.hekla.dev/inter-token: 50ms      hold the time between tokens (p95): decode, or all

A child carries a hash of what it was made from. One whose hash is the same is left alone, so that whoever scales it by hand or
by a policy keeps what he did.
"""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import timedelta

import msgspec

from hekla.api.kthena import AutoscalingPolicy, ModelBooster, ModelRoute, ModelServer, ModelServing, labels
from hekla.api.kthena.booster import BackendType, WorkerType
from hekla.api.meta import Document, Resource
from hekla.lib.digits import whole_number
from hekla.lib.go_duration import DurationError, parse_duration
from hekla.serving.engine_arguments import ArgumentError, kv_connector
from hekla.serving.model_booster_pods import BoosterPods, Images, served_name

MIN_REPLICAS, MAX_REPLICAS = "serving.hekla.dev/min-replicas", "serving.hekla.dev/max-replicas"
OURS = "serving.hekla.dev/"
TTFT, INTER_TOKEN = "serving.hekla.dev/ttft", "serving.hekla.dev/inter-token"
GRACE_S = 60
ROLES: Mapping[str, tuple[tuple[str, WorkerType], ...]] = {
    BackendType.VLLM: (("leader", WorkerType.SERVER),),
    BackendType.VLLM_DISAGGREGATED: (("prefill", WorkerType.PREFILL), ("decode", WorkerType.DECODE)),
}
OBJECTIVES = {
    TTFT: ("vllm:time_to_first_token_seconds", "prefill"),
    INTER_TOKEN: ("vllm:inter_token_latency_seconds", "decode"),
}
"""By annotation, the engine's histogram and the role that it depends on."""


def children(booster: ModelBooster, images: Images) -> list[tuple[type[Resource], Document]]:
    """Everything that should be there; raises ArgumentError."""
    made = [serving(booster, images), server(booster), route(booster)]
    kinds: list[type[Resource]] = [ModelServing, ModelServer, ModelRoute]
    if policy := autoscaling(booster):
        made.append(policy)
        kinds.append(AutoscalingPolicy)
    return list(zip(kinds, made, strict=True))


def child_name(booster: ModelBooster) -> str:
    """`<model>-<backend>`."""
    return f"{booster.metadata.name}-{booster.spec.backend.name}"


def serving(booster: ModelBooster, images: Images) -> Document:
    """The ModelServing."""
    backend = booster.spec.backend
    roles = ROLES.get(backend.type)
    if roles is None:
        raise ArgumentError(f"not support model backend type: {backend.type}")
    said = msgspec.to_builtins(backend)
    for old in (
        "minReplicas",
        "maxReplicas",
    ):  # they are converted before; what runs is not of another revision for their sake
        said.pop(old)
    revision = _hash(said, msgspec.to_builtins(images.downloader + images.runtime))
    pods = BoosterPods(booster, _labels(booster, backend.name, revision), images)
    made = [pods.role(name, kind) for name, kind in roles]
    spec: Document = {
        "replicas": backend.replicas,
        "template": {
            "restartGracePeriodSeconds": GRACE_S,
            "gangPolicy": {"minRoleReplicas": {role["name"]: role["replicas"] for role in made}},
            "roles": made,
        },
    }
    if backend.scheduler_name:
        spec["schedulerName"] = backend.scheduler_name
    return _document(ModelServing, booster, child_name(booster), spec, pods.child_labels)


def server(booster: ModelBooster) -> Document:
    """The ModelServer."""
    backend = booster.spec.backend
    selector: Document = {"matchLabels": {labels.MODEL_UID: booster.metadata.uid}}
    if backend.type == BackendType.VLLM_DISAGGREGATED:
        selector["pdGroup"] = {
            "groupKey": labels.GROUP_NAME,
            "prefillLabels": {labels.ROLE: "prefill"},
            "decodeLabels": {labels.ROLE: "decode"},
        }
    spec: Document = {
        "model": served_name(booster),
        "inferenceEngine": "vLLM",
        "workloadSelector": selector,
        "workloadPort": {"port": BoosterPods(booster, {}).port},
        "trafficPolicy": {"retry": {"attempts": 5, "retryInterval": "0s"}},
    }
    if (connector := kv_connector(backend)) is not None:
        spec["kvConnector"] = {"type": str(connector)}
    return _document(ModelServer, booster, child_name(booster), spec, _labels(booster, backend.name, _hash(spec)))


def route(booster: ModelBooster) -> Document:
    """The ModelRoute."""
    rule: Document = {"name": "default", "targetModels": [{"modelServerName": child_name(booster)}]}
    if booster.spec.model_match is not None:
        rule["modelMatch"] = _without_none(msgspec.to_builtins(booster.spec.model_match))
    spec: Document = {"modelName": booster.spec.name or booster.metadata.name, "rules": [rule]}
    return _document(ModelRoute, booster, booster.metadata.name, spec, _labels(booster, "", _hash(spec)))


def autoscaling(booster: ModelBooster) -> Document | None:
    """The AutoscalingPolicy, if the annotations ask for one; raises ArgumentError."""
    told = booster.metadata.annotations
    if MAX_REPLICAS not in told:
        return None
    bounds, metrics = _bounds(told), _objectives(told)
    port = BoosterPods(booster, {}).port
    spec = (
        _by_role(booster, bounds, metrics, port)
        if _is_disaggregated(booster)
        else _whole(booster, bounds, metrics, port)
    )
    backend = booster.spec.backend.name
    return _document(AutoscalingPolicy, booster, child_name(booster), spec, _labels(booster, backend, _hash(spec)))


def wrong_annotations(told: Mapping[str, str]) -> Iterator[ArgumentError]:
    """What of our own annotations cannot be read; admission refuses it, and what was stored before has it in its status."""
    for read in (_bounds, _objectives):
        try:
            read(told)
        except ArgumentError as error:
            yield error


def idle_annotations(told: Mapping[str, str]) -> list[str]:
    """Those of ours that change nothing: names that nobody reads, and what is held by scaling where nothing is scaled."""
    known = {MIN_REPLICAS, MAX_REPLICAS, *OBJECTIVES}
    return [
        name
        for name in told
        if (name in known and MAX_REPLICAS not in told) or (name.startswith(OURS) and name not in known)
    ]


def _bounds(told: Mapping[str, str]) -> Document:
    least, most = _count(told, MIN_REPLICAS, 1), _count(told, MAX_REPLICAS, 1)
    if MAX_REPLICAS in told and most < max(1, least):
        said = f'annotation {MAX_REPLICAS} is "{most}"; it must be at least 1 and {MIN_REPLICAS}, which is "{least}"'
        raise ArgumentError(said, value=told[MAX_REPLICAS])
    return {"minReplicas": least, "maxReplicas": most}


def _objectives(told: Mapping[str, str]) -> dict[str, list[Document]]:
    metrics = {role: [] for role in ("prefill", "decode")}  # type: dict[str, list[Document]]
    for annotation, (metric, role) in OBJECTIVES.items():
        if annotation in told:
            metrics[role].append({"name": metric, "targetValue": _seconds(told, annotation)})
    return metrics


def _whole(booster: ModelBooster, bounds: Document, metrics: dict[str, list[Document]], port: int) -> Document:
    wanted = [*metrics["prefill"], *metrics["decode"]] or [WAITING]
    target = {"targetRef": _reference(booster), "metricSources": _sources(wanted, port)}
    return {"metrics": wanted, "homogeneousTarget": {"target": target, **bounds}}


def _by_role(booster: ModelBooster, bounds: Document, metrics: dict[str, list[Document]], port: int) -> Document:
    roles = {}
    for role, wanted in metrics.items():
        held = wanted or [WAITING]
        roles[role] = {**bounds, "metrics": held, "metricSources": _sources(held, port)}
    return {"disaggregatedTarget": {"targetRef": _reference(booster), "roles": roles}}


WAITING: Document = {"name": "vllm:num_requests_waiting", "targetValue": "2"}
"""What is held where no objective is stated."""


def _sources(metrics: list[Document], port: int) -> Document:
    return {one["name"]: {"pod": {"name": one["name"], "uri": "/metrics", "port": port}} for one in metrics}


def _reference(booster: ModelBooster) -> Document:
    return {"kind": "ModelServing", "name": child_name(booster)}


def _is_disaggregated(booster: ModelBooster) -> bool:
    return booster.spec.backend.type == BackendType.VLLM_DISAGGREGATED


def _count(told: Mapping[str, str], key: str, default: int) -> int:
    text = told.get(key, str(default))
    number = whole_number(text)
    if number is None or number > 1_000_000:
        raise ArgumentError(f'annotation {key} is "{text}"; write a number from 0 to 1000000', value=text)
    return number


def _seconds(told: Mapping[str, str], key: str) -> str:
    try:
        found = parse_duration(told[key])
    except DurationError:
        found = timedelta()
    if found <= timedelta():
        raise ArgumentError(
            f'annotation {key} is "{told[key]}"; write a duration above 0, such as 500ms', value=told[key]
        )
    return f"{found // timedelta(milliseconds=1)}m"


def _labels(booster: ModelBooster, backend: str, revision: str) -> dict[str, str]:
    return {
        labels.MODEL_NAME: booster.metadata.name,
        labels.BACKEND_NAME: backend,
        labels.MANAGED_BY: "workload.serving.volcano.sh",
        labels.BOOSTER_REVISION: revision,
        labels.MODEL_UID: booster.metadata.uid,
    }


def _document(kind: type[Resource], booster: ModelBooster, name: str, spec: Document, own: dict[str, str]) -> Document:
    info, meta = kind.kind_info, booster.metadata
    owner = {
        "apiVersion": booster.kind_info.api_version,
        "kind": booster.kind_info.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata: Document = {"name": name, "namespace": meta.namespace, "labels": own, "ownerReferences": [owner]}
    if kind is ModelServing and (queue := meta.annotations.get(labels.QUEUE_NAME)):
        metadata["annotations"] = {labels.QUEUE_NAME: queue}
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, "spec": spec}


def _without_none(value: Document) -> Document:
    return {
        key: _without_none(item) if isinstance(item, dict) else item
        for key, item in value.items()
        if item is not None and item not in ({}, "")
    }


def _hash(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:10]
