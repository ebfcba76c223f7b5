"""Reconciles LeaderWorkerSets: each becomes a ModelServing of one role, whose groups are one leader and its workers.

    replicas, maxUnavailable, maxSurge, partition     of the ModelServing's groups
    size                                              one entry pod and size - 1 workers
    restartPolicy                                     RecreateGroupOnPodRestart: the role's instance; None: the pod
    labels leaderworkerset.sigs.k8s.io/*              by plug-in `lws-standard-labels`

Where the project's own controller runs as well, it and we would both make pods: leave its CustomResourceDefinition to one.
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from hekla.api.foreign import LeaderWorkerSet
from hekla.api.foreign.leader_worker_set import LeaderWorkerSetStatus
from hekla.api.kthena import ModelServing
from hekla.api.meta import Document
from hekla.kube.commands import Command, Create, Patch, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.serving.serving_names import owner_reference
from hekla.serving.serving_plugins.registry import LWS_LABELS

ROLE = "default"


@reconciler(LeaderWorkerSet, owns=(ModelServing,))
def reconcile_leader_worker_set(lws: LeaderWorkerSet, world: World, now: datetime) -> Iterator[Command]:
    """Bring one LeaderWorkerSet a step closer."""
    if lws.metadata.deletion_timestamp is not None:
        return
    found = world.get(ModelServing, lws.metadata.namespace, lws.metadata.name)
    wanted = serving_spec(lws)
    if found is None or not any(owner.uid == lws.metadata.uid for owner in found.metadata.owner_references):
        # where the name is taken by another, an event says by whom
        yield Create(ModelServing, _document(lws, wanted), is_told_of_when_refused=True)
        return
    if _meaning(found) != _meaning(_read(wanted)):
        yield Patch(target_of(found), {"spec": wanted})
    status = _written(_status_of(found))
    before = _written(lws.status)
    if patch := {key: value for key, value in status.items() if before.get(key) != value}:
        yield SetStatus(target_of(lws), patch)


def serving_spec(lws: LeaderWorkerSet) -> Document:
    """The spec of the ModelServing that stands for a LeaderWorkerSet."""
    spec = lws.spec
    group = spec.leader_worker_template
    role: Document = {
        "name": ROLE,
        "replicas": 1,
        "entryTemplate": _template(group.leader_template or group.worker_template),
        "workerReplicas": max(0, (1 if group.size is None else group.size) - 1),
        "workerTemplate": _template(group.worker_template),
    }
    wanted: Document = {
        "replicas": 1 if spec.replicas is None else spec.replicas,
        "schedulerName": "volcano",
        "plugins": [{"name": LWS_LABELS, "type": "BuiltIn"}],
        "template": {"roles": [role]},
        "recoveryPolicy": "None" if group.restart_policy == "None" else "RoleRecreate",
    }
    rolling = spec.rollout_strategy.rolling_update_configuration if spec.rollout_strategy is not None else None
    if rolling is not None:
        budget = {
            "maxUnavailable": rolling.max_unavailable, "maxSurge": rolling.max_surge, "partition": rolling.partition
        }  # fmt: skip
        wanted["rolloutStrategy"] = {
            "type": "ServingGroupRollingUpdate",
            "rollingUpdateConfiguration": {key: value for key, value in budget.items() if value is not None},
        }
    return wanted


def _template(template: Document) -> Document:
    metadata = template.get("metadata") or {}
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {**({"metadata": kept} if kept else {}), "spec": template.get("spec") or {}}


def _document(lws: LeaderWorkerSet, spec: Document) -> Document:
    kind, meta = ModelServing.kind_info, lws.metadata
    annotations = {
        key: text for key, text in meta.annotations.items() if key != "kubectl.kubernetes.io/last-applied-configuration"
    }
    metadata = {
        "name": meta.name,
        "namespace": meta.namespace,
        "labels": dict(meta.labels),
        "annotations": annotations,
        "ownerReferences": [owner_reference(lws)],
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def _read(spec: Document) -> ModelServing:
    return msgspec.convert({"spec": spec}, ModelServing)


def _meaning(serving: ModelServing) -> bytes:
    """What of a ModelServing follows the LeaderWorkerSet, with everything that a server fills in filled in."""
    return msgspec.json.encode(msgspec.structs.replace(serving.spec, scheduler_name=""), order="deterministic")


def _written(status: LeaderWorkerSetStatus) -> Document:
    """A status as a server keeps it: conditions without what they do not say."""
    document: Document = msgspec.to_builtins(status)
    conditions = [
        {key: value for key, value in one.items() if value not in (None, "")} for one in document["conditions"]
    ]
    return {**document, "conditions": conditions}


def _status_of(found: ModelServing) -> LeaderWorkerSetStatus:
    return LeaderWorkerSetStatus(
        replicas=found.status.replicas,
        ready_replicas=found.status.available_replicas,
        updated_replicas=found.status.updated_replicas,
        hpa_pod_selector=found.status.label_selector,
        conditions=found.status.conditions,
    )
