"""Reconciles ResourceQuota: what is used of it. Admission charges what is created; here it is added up anew.

The numbers are those of `hekla.apiserver.quota_usage`, so that both agree.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from hekla.api.batch import CronJob, Job
from hekla.api.core import ConfigMap, ResourceQuota, Secret, Service
from hekla.api.devices import ResourceClaim
from hekla.api.meta import Document, Resource
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolumeClaim
from hekla.apiserver import quota_usage
from hekla.apiserver.quota_usage import Usage
from hekla.controlplane.views import Deployment, ReplicaSet, StatefulSet
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.lib.quantity import parse

COUNTED: tuple[type[Resource], ...] = (
    Pod, Service, PersistentVolumeClaim, ConfigMap, Secret, Deployment, ReplicaSet, StatefulSet, Job, CronJob, ResourceClaim,
)  # fmt: skip
"""Kinds whose objects a quota can count; the status leaves out amounts of any other kind."""


def _quotas_of(obj: Resource, world: World) -> Iterator[tuple[str, str]]:
    """The quotas of an object's namespace."""
    for quota in world.list(ResourceQuota, obj.metadata.namespace):
        yield quota.metadata.namespace, quota.metadata.name


@reconciler(ResourceQuota, finds=dict.fromkeys(COUNTED, _quotas_of), name="resource-quota")
def reconcile_quota(quota: ResourceQuota, world: World, now: datetime) -> Iterator[Command]:
    """Sum up what the namespace uses of what the quota limits."""
    hard = {name: parse(text) for name, text in quota.spec.hard.items()}
    said = msgspec.to_builtins(quota)
    parts = [usage for kind in COUNTED if _is_limited(kind, hard) for usage in _usages(said, kind, world)]
    used = quota_usage.total(parts)
    amounts = {name: used.get(name, quota_usage.ZERO) for name in hard if _is_known(name)}
    status: Document = {
        "hard": {name: str(amount) for name, amount in hard.items()},
        "used": {name: str(amount) for name, amount in amounts.items()},
    }
    gone = dict.fromkeys((quota.status.hard.keys() | quota.status.used.keys()) - hard.keys())
    if status != {"hard": quota.status.hard, "used": quota.status.used}:
        yield SetStatus(target_of(quota), {key: {**gone, **amounts} for key, amounts in status.items()})


def _usages(quota: Document, kind: type[Resource], world: World) -> Iterator[Usage]:
    resource = kind.kind_info.resource
    for obj in world.list(kind, quota["metadata"]["namespace"]):
        document = msgspec.to_builtins(obj)
        if quota_usage.in_scope(quota, resource, document):
            yield quota_usage.usage_of(resource, document)


def _is_limited(kind: type[Resource], hard: Mapping[str, object]) -> bool:
    """Whether any limit is about this kind: most quotas name pods alone."""
    resource = kind.kind_info.resource
    if resource in hard or f"count/{resource}" in hard:
        return True
    if kind is Pod:
        return any(
            not name.startswith("count/") and name not in _OTHERS and not any(part in name for part in _OF_CLASSES)
            for name in hard
        )
    if kind is ResourceClaim:
        return any(name.endswith(quota_usage.OF_DEVICE_CLASS) for name in hard)
    if kind is Service:
        return any(name.startswith("services.") for name in hard)
    if kind is PersistentVolumeClaim:
        return any("storage" in name for name in hard)
    return False


def _is_known(name: str) -> bool:
    counted = {f"count/{kind.kind_info.resource}" for kind in COUNTED}
    return not name.startswith("count/") or name in counted


_OF_CLASSES = (".storageclass.", quota_usage.OF_DEVICE_CLASS)
_OTHERS = frozenset(
    {
        "services", "configmaps", "secrets", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas",
        "services.loadbalancers", "services.nodeports", "requests.storage",
    }
)  # fmt: skip
