"""Reconciles LeaderWorkerSets: each becomes a ModelServing of one role, whose groups are one leader and its workers.

    replicas, maxUnavailable, maxSurge, partition     of the ModelServing's groups
    size                                              one entry pod and size - 1 workers
    restartPolicy                                     RecreateGroupOnPodRestart: the role's instance; None: the pod
    startupPolicy                                     LeaderReady: workers are made when their leader is ready
    labels leaderworkerset.sigs.k8s.io/*              by plug-in `lws-standard-labels`, subgroups' too
    networkConfig                                     headless services made here, and pods' names in them by the plug-in

Where the project's own controller runs as well, it and we would both make pods: leave its CustomResourceDefinition to one.
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from hekla.api.core import Pod, Service
from hekla.api.foreign import LeaderWorkerSet
from hekla.api.foreign.leader_worker_set import LeaderWorkerSetStatus
from hekla.api.kthena import ModelServing
from hekla.api.meta import Document
from hekla.kube.commands import Command, Create, Delete, Patch, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.serving.serving_names import LEADER_READY, STARTUP, owner_reference
from hekla.serving.serving_plugins.lws_standard_labels import (
    PREFIX,
    SUBDOMAIN_POLICY,
    SUBGROUP_SIZE,
    SUBGROUP_TYPE,
    UNIQUE,
)
from hekla.serving.serving_plugins.registry import LWS_LABELS

ROLE = "default"


GROUP_INDEX, WORKER_INDEX, SET_NAME = f"{PREFIX}group-index", f"{PREFIX}worker-index", f"{PREFIX}name"


def _set_of(pod: Pod) -> Iterator[tuple[str, str]]:
    """The set that a leader is of: it may need a service of its own."""
    labels = pod.metadata.labels
    if labels.get(WORKER_INDEX) == "0" and SET_NAME in labels:
        yield pod.metadata.namespace, labels[SET_NAME]


@reconciler(
    LeaderWorkerSet,
    owns=(ModelServing, Service),
    reads=(Pod,),
    wakes={Pod: _set_of},
    heeds={Pod: lambda pod: pod.metadata.labels.get(GROUP_INDEX)},
)
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
    startup = _startup(lws)
    if found.metadata.annotations.get(STARTUP) != startup:
        yield Patch(target_of(found), {"metadata": {"annotations": {STARTUP: startup}}})
    yield from _services(lws, found, world)
    status = _written(_status_of(found))
    before = _written(lws.status)
    if patch := {key: value for key, value in status.items() if before.get(key) != value}:
        yield SetStatus(target_of(lws), patch)


def serving_spec(lws: LeaderWorkerSet) -> Document:
    """The spec of the ModelServing that stands for a LeaderWorkerSet."""
    spec = lws.spec
    group = spec.leader_worker_template
    policies = _policies(lws)
    role: Document = {
        "name": ROLE,
        "replicas": 1,
        "entryTemplate": _template(group.leader_template or group.worker_template, policies),
        "workerReplicas": max(0, (1 if group.size is None else group.size) - 1),
        "workerTemplate": _template(group.worker_template, policies),
    }
    wanted: Document = {
        "replicas": 1 if spec.replicas is None else spec.replicas,
        "schedulerName": "volcano",
        "plugins": [{"name": LWS_LABELS, "type": "BuiltIn"}],
        "template": {"roles": [role]},
        "recoveryPolicy": "None" if group.restart_policy in ("None", "Default") else "RoleRecreate",
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


def _policies(lws: LeaderWorkerSet) -> dict[str, str]:
    """The annotations by which pods are told of the set's policies, as the project tells its own."""
    split = lws.spec.leader_worker_template.sub_group_policy
    told = {SUBDOMAIN_POLICY: UNIQUE} if _is_unique(lws) else {}
    if split is not None and split.sub_group_size is not None:
        told |= {SUBGROUP_TYPE: split.sub_group_policy_type, SUBGROUP_SIZE: str(split.sub_group_size)}
    return told


def _is_unique(lws: LeaderWorkerSet) -> bool:
    network = lws.spec.network_config
    return network is not None and network.subdomain_policy == UNIQUE


def _startup(lws: LeaderWorkerSet) -> str | None:
    return LEADER_READY if lws.spec.startup_policy == LEADER_READY else None


def _services(lws: LeaderWorkerSet, serving: ModelServing, world: World) -> Iterator[Command]:
    """The headless services in which pods have their names: one, or one for each group whose leader is there."""
    wanted = {lws.metadata.name: {SET_NAME: lws.metadata.name}}
    if _is_unique(lws):
        labels = (pod.metadata.labels for pod in world.owned(Pod, serving.metadata.uid))
        groups = {some[GROUP_INDEX] for some in labels if some.get(WORKER_INDEX) == "0" and GROUP_INDEX in some}
        wanted = {
            f"{lws.metadata.name}-{group}": {SET_NAME: lws.metadata.name, GROUP_INDEX: group}
            for group in sorted(groups)
        }
    for service in world.owned(Service, lws.metadata.uid):
        if service.metadata.name not in wanted:
            yield Delete(target_of(service), reason="the set has no such group, or another policy for subdomains")
    for name, selector in wanted.items():
        if world.get(Service, lws.metadata.namespace, name) is None:
            yield Create(Service, _service(lws, name, selector), is_told_of_when_refused=True)


def _service(lws: LeaderWorkerSet, name: str, selector: dict[str, str]) -> Document:
    metadata = {
        "name": name,
        "namespace": lws.metadata.namespace,
        "labels": {SET_NAME: lws.metadata.name},
        "ownerReferences": [owner_reference(lws)],
    }
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _template(template: Document, policies: dict[str, str]) -> Document:
    metadata = template.get("metadata") or {}
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    if policies:
        kept["annotations"] = {**kept.get("annotations", {}), **policies}
    return {**({"metadata": kept} if kept else {}), "spec": template.get("spec") or {}}


def _document(lws: LeaderWorkerSet, spec: Document) -> Document:
    kind, meta = ModelServing.kind_info, lws.metadata
    annotations = {
        key: text for key, text in meta.annotations.items() if key != "kubectl.kubernetes.io/last-applied-configuration"
    }
    if startup := _startup(lws):
        annotations[STARTUP] = startup
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
