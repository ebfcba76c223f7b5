"""Keeps a cluster of the engine true to the objects of an API server, change by change.

Each `on_*` takes an object before and after a change, as informers tell it; objects may come in any order. What a
change means for others (a claim that gets bound, a PodGroup that comes after its pods) is followed up here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from hekla.api.core import Namespace, ResourceQuota
from hekla.api.csi import CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment
from hekla.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.policy import PodDisruptionBudget
from hekla.api.scheduling import PriorityClass
from hekla.api.selectors import LabelSelector
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.api.volcano import scheduling
from hekla.api.volcano.scheduling import PodGroup
from hekla.api.volcano.shard import NodeShard
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.device_objects import DeviceObjects
from hekla.dialects.eviction_terms import budget_of, course
from hekla.dialects.kubernetes import group_name, node_spec, task_spec, task_status
from hekla.dialects.node_terms import selects
from hekla.dialects.pod_devices import claim_ids
from hekla.dialects.pod_volumes import claim_names
from hekla.dialects.shards import HEEDLESS, NodeShards, Sharding
from hekla.dialects.storage import Storage
from hekla.dialects.topology import domain_spec
from hekla.dialects.traits import node_usage
from hekla.dialects.volcano import (
    DEFAULT_QUEUE,
    QUEUE_KEY,
    SCHEDULER_NAME,
    VOLCANO,
    job_spec,
    lone_pod,
    lone_uid,
    namespace_quota,
    past_use,
    queue_of,
)
from hekla.lib.quantity import QuantityError
from hekla.placement.cluster import Cluster
from hekla.placement.loading import Loading
from hekla.placement.model import Job, JobSpec, TaskSpec, TaskStatus

Key = tuple[str, str]


class ClusterFeed(Storage, DeviceObjects):
    """Translates changes of objects into changes of a cluster."""

    def __init__(
        self, cluster: Cluster, *, scheduler_names: Iterable[str], default_queue: str = DEFAULT_QUEUE,
        waits_for_groups: bool = False, sharding: Sharding = HEEDLESS,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cluster = cluster
        self.shards = NodeShards(sharding)
        cluster.nodes.shut_by = self.shards.refusal
        self.default_queue = default_queue
        self._waits_for_groups = waits_for_groups
        self.pods: dict[str, Pod] = {}
        self.groups: dict[Key, PodGroup] = {}
        self.queues: dict[str, scheduling.Queue] = {}
        self.queue_faults: dict[str, str] = {}
        """What is wrong with queues that cannot be used, by name."""

        self.hyper_nodes: dict[str, HyperNode] = {}
        self.dirty: set[str] = set()
        """Uids of jobs that changed since somebody took note."""

        self._names = frozenset(scheduler_names)
        self._others = Job(JobSpec(uid="", name="pods of other schedulers", queue="", has_group=False))
        self._waiting_for_group: dict[Key, set[str]] = {}
        self._left_to_others: dict[Key, set[str]] = {}
        """By PodGroup, its pods that wait for another scheduler."""

        self._uses_claim: dict[Key, set[str]] = {}
        self._uses_devices: dict[Key, set[str]] = {}
        self._nodes: dict[str, Node] = {}
        self._namespaces: dict[str, Namespace] = {}
        self._priorities: dict[str, PriorityClass] = {}
        self._selects_namespaces = False

    # Changes

    @property
    def followed(self) -> Mapping[type[Resource], Callable[[Any, Any], None]]:
        """Every kind that placement depends on, with who is to be told. Pods last: most of what they refer to is then known."""
        return {
            PriorityClass: self.on_priority_class, scheduling.Queue: self.on_queue, Namespace: self.on_namespace,
            ResourceQuota: self.on_resource_quota, PodDisruptionBudget: self.on_budget,
            CSIDriver: self.on_csi_driver, CSIStorageCapacity: self.on_storage_capacity,
            StorageClass: self.on_storage_class, PersistentVolume: self.on_volume,
            PersistentVolumeClaim: self.on_claim, CSINode: self.on_csi_node, VolumeAttachment: self.on_attachment,
            DeviceClass: self.on_device_class, ResourceSlice: self.on_resource_slice,
            ResourceClaim: self.on_resource_claim,
            NodeShard: self.on_node_shard, Node: self.on_node, HyperNode: self.on_hyper_node,
            PodGroup: self.on_pod_group, Pod: self.on_pod,
        }  # fmt: skip

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A node came, changed or went."""
        if new is not None:
            self._nodes[new.metadata.name] = new
            name = new.metadata.name
            self.cluster.put_node(node_spec(new, self.volume_limits(name), self.shards.side_of(name)))
            usage = node_usage(new)
            if usage is not None:
                self.cluster.put_usage(new.metadata.name, usage)
        elif old is not None:
            self._nodes.pop(old.metadata.name, None)
            self.cluster.remove_node(old.metadata.name)

    def on_node_shard(self, old: NodeShard | None, new: NodeShard | None) -> None:
        """A scheduler should have other nodes, or has: some may be ours now, or no longer."""
        changed = self.shards.put(old, new)
        if self.cluster.nodes.shut_by != self.shards.refusal:
            self.cluster.nodes.shut_by = self.shards.refusal
            self.cluster.gains += 1  # who waits is to hear of it
        for name in changed:
            if (node := self._nodes.get(name)) is not None:
                self.on_node(node, node)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went."""
        if new is None:
            if old is not None:
                self._forget_pod(old)
            return
        self._know_pod(new)
        if old is not None and self._differs_in_state_only(old, new):
            self._update_state(new)
        else:
            self._put_pod(new)

    def on_pods(self, pods: Iterable[Pod]) -> None:
        """Pods came that nobody has heard of, very many at once."""
        load = Loading(self.cluster)
        try:
            for pod in pods:
                self._know_pod(pod)
                self._put_pod(pod, load.put)
        finally:
            load.finish()

    def on_pod_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """A gang came, changed or went."""
        if new is None:
            if old is not None:
                self._forget_group(old)
            return
        key = (new.metadata.namespace, new.metadata.name)
        self.groups[key] = new
        spec = job_spec(new, self)
        named = new.metadata.annotations.get(SCHEDULER_NAME, "")
        if named and named not in self._names:
            spec = msgspec.structs.replace(spec, left_to=named)
        known = self.cluster.jobs.get(spec.uid)
        if known is not None:
            spec = msgspec.structs.replace(spec, phase=known.spec.phase)  # its phase is ours to write from now on
        job = self.cluster.put_job(spec)
        self.dirty.add(job.uid)
        for uid in self._waiting_for_group.pop(key, set()):
            if uid in self.pods:
                self._put_pod(self.pods[uid])

    def on_queue(self, old: scheduling.Queue | None, new: scheduling.Queue | None) -> None:
        """A queue came, changed or went."""
        if new is None:
            if old is not None:
                self.queues.pop(old.metadata.name, None)
                self.queue_faults.pop(old.metadata.name, None)
                self.cluster.remove_queue(old.metadata.name)
            return
        self.queues[new.metadata.name] = new
        self.queue_faults.pop(new.metadata.name, None)
        try:
            self.cluster.put_queue(queue_of(new))
            self.cluster.ledger.bring_past(new.metadata.name, *past_use(new))
        except QuantityError as error:  # validation keeps such a queue out; its jobs wait, and are told why
            self.cluster.remove_queue(new.metadata.name)
            self.queue_faults[new.metadata.name] = str(error)

    def on_hyper_node(self, old: HyperNode | None, new: HyperNode | None) -> None:
        """A domain of the network came, changed or went."""
        _put(self.hyper_nodes, old, new)
        if new is not None:
            self.cluster.put_domain(domain_spec(new))
        elif old is not None:
            self.cluster.remove_domain(old.metadata.name)

    @property
    def priority_classes(self) -> Mapping[str, int]:
        """The priority classes that there are, by name."""
        return {known.metadata.name: known.value for known in self._priorities.values()}

    def on_priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        """A priority class came, changed or went: groups that name it change with it."""
        _put(self._priorities, old, new)
        for group in list(self.groups.values()):
            self.on_pod_group(group, group)

    def on_resource_quota(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """A namespace's quota came, changed or went."""
        known = new or old
        assert known is not None
        quota = namespace_quota(new) if new is not None else None
        if quota is not None:
            self.cluster.put_namespace_quota(known.metadata.namespace, quota)
        else:
            self.cluster.remove_namespace_quota(known.metadata.namespace, known.metadata.name)

    def on_budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        """A disruption budget came, changed or went."""
        if new is not None:
            self.cluster.put_budget(budget_of(new))
        elif old is not None:
            self.cluster.remove_budget(old.metadata.namespace, old.metadata.name)

    def on_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """A claim came, changed or went: its pods may now be placed elsewhere, or at all."""
        self._reread_users(self.put_claim(old, new))

    def on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """A volume came, changed or went; one that is attached is known by its claim from when it has one."""
        self._reread_users(self.put_volume(old, new))
        for name in self.attachments_of((new or old).metadata.name):  # type: ignore[union-attr]  # one is there
            self._attach(name)

    def on_storage_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """A storage class came, changed or went."""
        self._reread_users(self.put_class(old, new))

    def on_csi_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        """A driver of storage came, changed or went."""
        self._reread_users(self.put_driver(old, new))

    def on_storage_capacity(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """A driver told anew how much room is left somewhere."""
        self._reread_users(self.put_capacity(old, new))

    def on_csi_node(self, old: CSINode | None, new: CSINode | None) -> None:
        """What a node can attach is known, or another than it was."""
        node = self._nodes.get(self.put_node(old, new))
        if node is not None:
            self.on_node(node, node)

    def on_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        """A volume was attached to a node, or detached."""
        self._attach(self.put_attachment(old, new))

    def on_device_class(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """A class of devices came, changed or went."""
        if self.put_device_class(old, new):
            self._reread(uid for uids in list(self._uses_devices.values()) for uid in list(uids))

    def on_resource_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """A driver offers other devices than before."""
        self.put_slice(self.cluster, old, new)

    def on_resource_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """A claim to devices came, changed or went, or was given some."""
        for key in self.put_resource_claim(self.cluster, old, new):
            for uid in list(self._uses_devices.get(key, ())):
                if (pod := self.pods.get(uid)) is not None and task_status(pod) is not TaskStatus.RELEASING:
                    self._put_pod(pod)  # those that run as well: what they use is then known to be used by them

    def on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        """A namespace came, changed or went: pods that select namespaces by label may mean others now."""
        _put(self._namespaces, old, new)
        before = old.metadata.labels if old else None
        after = new.metadata.labels if new else None
        if self._selects_namespaces and before != after:
            self._reread(list(self.pods))
        elif _queue_in(old) != _queue_in(new):
            name = (new or old).metadata.name  # type: ignore[union-attr]  # one of them is there
            self._reread([uid for uid, pod in self.pods.items() if pod.metadata.namespace == name])

    # What pods are surrounded by besides storage (see `surroundings.py`)

    def namespaces(self, selector: LabelSelector) -> frozenset[str]:
        """The namespaces that a selector selects now."""
        self._selects_namespaces = True
        return frozenset(name for name, ns in self._namespaces.items() if selects(selector, ns.metadata.labels))

    def priority(self, class_name: str) -> int:
        """The value of a priority class; of the global default for "", else 0."""
        if class_name:
            found = self._priorities.get(class_name)
            return found.value if found is not None else 0
        return max((p.value for p in self._priorities.values() if p.global_default), default=0)

    def preemption_policy(self, class_name: str) -> str:
        """What a priority class says about evicting others; of the global default for "", else nothing."""
        if class_name:
            found = self._priorities.get(class_name)
            return found.preemption_policy if found is not None else ""
        default = max((p for p in self._priorities.values() if p.global_default), key=lambda p: p.value, default=None)
        return default.preemption_policy if default is not None else ""

    # How it is done

    def is_ours(self, pod: Pod) -> bool:
        """Whether the pod asks for this scheduler."""
        return pod.spec.scheduler_name in self._names

    def node(self, name: str) -> Node | None:
        """A node as it was last seen."""
        return self._nodes.get(name)

    def other_scheduler_of(self, job: Job) -> str:
        """The other scheduler that a gang waits for, none of whose pods waits for this one; empty if there is none."""
        if job.statuses[TaskStatus.PENDING]:
            return ""
        return self._asked_by_pods(job) or (job.spec.left_to if not job.tasks else "")

    def _asked_by_pods(self, job: Job) -> str:
        if not self._left_to_others:
            return ""
        uids = self._left_to_others.get((job.spec.namespace, job.spec.name), ()) if job.spec.has_group else ()
        return min((self.pods[uid].spec.scheduler_name for uid in uids if uid in self.pods), default="")

    def group_of(self, job: Job) -> PodGroup | None:
        """The PodGroup that a job stands for."""
        group = self.groups.get((job.spec.namespace, job.spec.name)) if job.spec.has_group else None
        return group if group is not None and group.metadata.uid == job.uid else None

    def _know_pod(self, pod: Pod) -> None:
        self.pods[pod.metadata.uid] = pod
        if pod.spec.volumes:
            for name in claim_names(pod):
                self._uses_claim.setdefault((pod.metadata.namespace, name), set()).add(pod.metadata.uid)
        for key in claim_ids(pod):
            self._uses_devices.setdefault(key, set()).add(pod.metadata.uid)

    def _put_pod(self, pod: Pod, put: Callable[[TaskSpec, Job], object] | None = None) -> None:
        job = self._job_of(pod)
        if job is None:
            self.cluster.remove_task(pod.metadata.uid)
        else:
            (put or self.cluster.put_task)(task_spec(pod, self), job)
            if put is None or job.spec.has_group or not pod.spec.node_name:
                self.dirty.add(job.uid)  # of a lone pod that runs already there is nothing to tell
        if job is None or job is self._others or job.spec.has_group:
            lone = self.cluster.jobs.get(lone_uid(pod))
            if lone is not None and not lone.tasks:
                self.cluster.remove_job(lone.uid)  # the pod was given a group after we had met it

    def _job_of(self, pod: Pod) -> Job | None:
        """The job a pod belongs to; None for a pod that is none of our business, or waits for its group to appear."""
        name = group_name(pod)
        if name:
            key = (pod.metadata.namespace, name)
            group = self.groups.get(key)
            if not pod.spec.node_name and not self.is_ours(pod):
                self._left_to_others.setdefault(key, set()).add(pod.metadata.uid)
                return None
            _discard(self._left_to_others, key, pod.metadata.uid)
            if group is not None:
                return self.cluster.jobs[group.metadata.uid]
            self._waiting_for_group.setdefault(key, set()).add(pod.metadata.uid)
        if name or not self.is_ours(pod):
            return self._others if pod.spec.node_name else None
        if self._waits_for_groups and pod.spec.scheduler_name == VOLCANO and not pod.spec.node_name:
            return None
        return self.cluster.put_job(lone_pod(pod, queue=self._queue_of(pod)))

    def _queue_of(self, pod: Pod) -> str:
        """The queue of a pod without a group: its own, its namespace's, or that of all who name none."""
        named = pod.metadata.annotations.get(QUEUE_KEY)
        if not named and (namespace := self._namespaces.get(pod.metadata.namespace)) is not None:
            named = _queue_in(namespace)
        return named or self.default_queue

    def _update_state(self, pod: Pod) -> None:
        """The short way for the many changes that only say how a pod fares."""
        task = self.cluster.tasks.get(pod.metadata.uid)
        if task is None or task.job is None:
            self._put_pod(pod)
            return
        job, status, spec = task.job, task_status(pod), task.spec
        if (spec.status, spec.node, spec.nominated) == (status, pod.spec.node_name, pod.status.nominated_node_name):
            return
        self.dirty.add(job.uid)
        if job is self._others and spec.node != pod.spec.node_name:
            self._put_pod(pod)
            return
        self.cluster.put_state(task, status, pod.spec.node_name, **course(pod))

    @staticmethod
    def _differs_in_state_only(old: Pod, new: Pod) -> bool:
        if old.metadata.labels != new.metadata.labels or old.metadata.annotations != new.metadata.annotations:
            return False
        if old.status.resource_claim_statuses != new.status.resource_claim_statuses:
            return False
        spec = new.spec
        if old.spec.node_name != spec.node_name:
            spec = msgspec.structs.replace(spec, node_name=old.spec.node_name)
        return old.spec == spec

    def _forget_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.pods.pop(uid, None)
        task = self.cluster.tasks.get(uid)
        if task is not None and task.job is not None:
            self.dirty.add(task.job.uid)
        self.cluster.remove_task(uid)
        self.cluster.remove_job(lone_uid(pod))
        for name in claim_names(pod):
            _discard(self._uses_claim, (pod.metadata.namespace, name), uid)
        for key in claim_ids(pod):
            _discard(self._uses_devices, key, uid)
        for index in (self._waiting_for_group, self._left_to_others):
            _discard(index, (pod.metadata.namespace, group_name(pod)), uid)

    def _forget_group(self, group: PodGroup) -> None:
        key = (group.metadata.namespace, group.metadata.name)
        if self.groups.get(key) is group or (
            key in self.groups and self.groups[key].metadata.uid == group.metadata.uid
        ):
            del self.groups[key]
        job = self.cluster.jobs.get(group.metadata.uid)
        members = list(job.tasks) if job is not None else []
        self.cluster.remove_job(group.metadata.uid)
        for uid in members:
            if uid in self.pods:
                self._put_pod(self.pods[uid])

    def _reread_users(self, claims: Iterable[Key]) -> None:
        """Claims mean something else now: read the pods anew that wait with them."""
        self._reread(uid for claim in claims for uid in self._uses_claim.get(claim, ()))

    def _attach(self, name: str) -> None:
        """Tell the engine what an attachment says, if there is one."""
        said = self.attached(name)
        if said is None:
            self.cluster.remove_attachment(name)
        else:
            self.cluster.put_attachment(name, *said)

    def _reread(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            pod = self.pods.get(uid)
            if pod is not None and task_status(pod) is TaskStatus.PENDING:
                self._put_pod(pod)


def _queue_in(namespace: Namespace | None) -> str:
    """The queue of the pods in a namespace that name none."""
    return namespace.metadata.annotations.get(QUEUE_KEY, "") if namespace is not None else ""


def _put(store: dict, old, new) -> None:  # type: ignore[type-arg, no-untyped-def]  # any kind by name
    if new is not None:
        store[new.metadata.name] = new
    elif old is not None:
        store.pop(old.metadata.name, None)


def _discard(index: dict[Key, set[str]], key: Key, uid: str) -> None:
    """Take a uid out of an index, and its entry with the last one."""
    uids = index.get(key)
    if uids is not None:
        uids.discard(uid)
        if not uids:
            del index[key]
