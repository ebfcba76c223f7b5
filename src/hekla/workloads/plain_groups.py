"""Reconciles the PodGroups of plain workloads: of ReplicaSets, StatefulSets, DaemonSets and batch Jobs that ask for a gang,
of LeaderWorkerSets, Spark drivers and Flink's job managers by their labels, and, if told so, of every other pod.

`plain_gang.py` says who asks; `plain_group.py` what the group looks like. A group goes with what it was made for: deleted
when that is scaled to nothing, collected as garbage when it is deleted.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import partial

import msgspec

from hekla.api.apps import DaemonSet, ReplicaSet, StatefulSet
from hekla.api.batch import Job
from hekla.api.core import Namespace, Pod
from hekla.api.meta import Document, Resource
from hekla.api.volcano import PodGroup
from hekla.kube.commands import Command, Delete, Patch, RequeueAfter, target_of
from hekla.kube.reconcile import Reconciler, World, reconciler
from hekla.workloads import keys
from hekla.workloads.ours import USUAL, Ours
from hekla.workloads.plain_gang import (
    LWS_SIZE,
    OWNERS,
    Gang,
    asks_for_gang,
    belongs_by_labels,
    gang_by_labels,
    gang_of_owner,
    group_of,
)
from hekla.workloads.plain_group import GroupWish, ensure_group, is_owned_by, owner_reference, wish_of

LOOK_AGAIN_S = 5.0
"""How often a pod looks whether the group of an earlier leader is gone."""

_OVER = ("Complete", "Failed")
_ENDED = ("Succeeded", "Failed")


def plain_groups(*, every_pod: bool = False, ours: Ours = USUAL) -> tuple[Reconciler, ...]:
    """The reconcilers of plain workloads' groups.

    `every_pod` gives each plain pod a PodGroup, gang or not, as Volcano does; schedulers that wait for it need that.
    """
    reconcilers = [_of_owners(kind, every_pod, ours) for kind in OWNERS.values()]
    reconcilers.append(_of_leaders(ours))
    return (*reconcilers, _of_others(ours)) if every_pod else tuple(reconcilers)


# Workloads with pods of one template


def _of_owners(kind: type[Resource], every_pod: bool, ours: Ours) -> Reconciler:
    named = kind.kind_info.kind

    def owner_of_unmarked(pod: Pod) -> Iterator[tuple[str, str]]:
        """The owner of a pod that waits and names no group: nobody marked it as it was made."""
        if _may_be_marked(pod, ours):
            for owner in pod.metadata.owner_references:
                if owner.controller and (owner.api_version, owner.kind) == (kind.kind_info.api_version, named):
                    yield pod.metadata.namespace, owner.name

    declare = reconciler(
        kind, owns=(PodGroup,), reads=(Namespace, Pod), wakes={Pod: owner_of_unmarked}, name=f"group-of-{named.lower()}"
    )
    return declare(partial(_reconcile_owner, every_pod=every_pod, ours=ours))


def _reconcile_owner(owner: Resource, world: World, now: datetime, *, every_pod: bool, ours: Ours) -> Iterator[Command]:
    """Keep the group of what makes pods of one template, and mark pods that nobody has marked."""
    meta = owner.metadata
    if meta.deletion_timestamp is not None:
        return
    name = gang_of_owner(meta.uid)
    group = world.get(PodGroup, meta.namespace, name)
    most = _replicas(owner)
    pods = world.owned(Pod, meta.uid) if _is_ours(owner, ours) else ()
    asks = asks_for_gang(meta.annotations, _template_notes(owner))
    # A pod may have been marked for reasons that are gone: it waits for its group all the same.
    is_wanted = _is_ours(owner, ours) and (
        every_pod or asks or any(group_of(pod.metadata.annotations) == name for pod in pods)
    )
    if not is_wanted or most == 0:
        if group is not None and is_owned_by(group, meta.uid) and group.metadata.deletion_timestamp is None:
            yield Delete(target_of(group), reason="nothing is to run in it")
        return
    wish = wish_of(meta.annotations, owner.spec.template, most)  # type: ignore[attr-defined]  # all OWNERS have one
    if wish.min_member > 1 and _makes_pods_in_turn(owner):
        wish = wish.alone(
            f"StatefulSet {meta.name!r} makes its pods one after the other, each when the last is ready: they cannot wait "
            "for one another; set spec.podManagementPolicy to Parallel for a gang"
        )
    yield from ensure_group(
        world, group, name, owner_reference(owner), meta.namespace, wish, told=owner, default_queue=ours.queue
    )
    for pod in pods:
        if _may_be_marked(pod, ours):
            yield _mark(pod, name)


def _replicas(owner: Resource) -> int | None:
    """How many pods there are to be; None if that is not known yet."""
    match owner:
        case ReplicaSet() | StatefulSet():
            return 1 if owner.spec.replicas is None else owner.spec.replicas
        case Job():
            is_over = any(one.type in _OVER and one.status == "True" for one in owner.status.conditions)
            if owner.spec.suspend or is_over:
                return 0
            at_once = 1 if owner.spec.parallelism is None else owner.spec.parallelism
            return at_once if owner.spec.completions is None else min(at_once, owner.spec.completions)
        case DaemonSet() if owner.status.observed_generation:
            return owner.status.desired_number_scheduled
    return None


def _makes_pods_in_turn(owner: Resource) -> bool:
    return isinstance(owner, StatefulSet) and owner.spec.pod_management_policy != "Parallel"


def _is_ours(owner: Resource, ours: Ours) -> bool:
    """Whether the pods of a workload ask for our scheduler and are in no gang by their labels."""
    template: Document = owner.spec.template  # type: ignore[attr-defined]  # all OWNERS have one
    labels = (template.get("metadata") or {}).get("labels") or {}
    return template.get("spec", {}).get("schedulerName") in ours.schedulers and not belongs_by_labels(labels)


def _template_notes(owner: Resource) -> dict[str, str]:
    template: Document = owner.spec.template  # type: ignore[attr-defined]  # all OWNERS have one
    return (template.get("metadata") or {}).get("annotations") or {}


# Pods that lead a gang by their labels


def _of_leaders(ours: Ours) -> Reconciler:
    def concerns(pod: Pod, world: World) -> bool:
        return pod.spec.scheduler_name in ours.schedulers and gang_by_labels(pod.metadata.labels) is not None

    declare = reconciler(Pod, owns=(PodGroup,), reads=(Namespace,), concerns=concerns, name="group-of-leader")
    return declare(partial(_reconcile_member, ours=ours))


def _reconcile_member(pod: Pod, world: World, now: datetime, *, ours: Ours) -> Iterator[Command]:
    """Mark a pod that is in a gang by its labels; keep the gang's group if the pod leads it."""
    gang, given = gang_by_labels(pod.metadata.labels), group_of(pod.metadata.annotations)
    if gang is None or (given and given != gang.name) or pod.metadata.deletion_timestamp is not None:
        return
    if _may_be_marked(pod, ours):
        yield _mark(pod, gang.name)
    if gang.leads and pod.status.phase not in _ENDED:
        wish = _wish_of_leader(pod, gang)
        yield from _ensure_for_pod(pod, world, gang.name, owner_reference(pod), wish, ours.queue)


def _wish_of_leader(pod: Pod, gang: Gang) -> GroupWish:
    """A LeaderWorkerSet's gang is as large as it says. A driver that makes the others itself starts alone; what its
    annotations say of the minimum then counts for the room that the queue must have.
    """
    notes = pod.metadata.annotations
    size = {keys.GROUP_MIN_MEMBER: notes[LWS_SIZE]} if LWS_SIZE in notes else {}
    wish = wish_of({**size, **notes}, _as_template(pod), None)
    return wish.alone("") if gang.grows else wish


# All other pods, where every pod is to have a group


def _of_others(ours: Ours) -> Reconciler:
    def concerns(pod: Pod, world: World) -> bool:
        owner = _controller(pod)
        is_other = owner is None or (owner["apiVersion"], owner["kind"]) not in OWNERS
        is_ours = pod.spec.scheduler_name in ours.schedulers and gang_by_labels(pod.metadata.labels) is None
        return is_ours and is_other

    declare = reconciler(Pod, owns=(PodGroup,), reads=(Namespace,), concerns=concerns, name="group-of-pod")
    return declare(partial(_reconcile_other, ours=ours))


def _reconcile_other(pod: Pod, world: World, now: datetime, *, ours: Ours) -> Iterator[Command]:
    """Keep the group of a pod that nobody made, or somebody whose kind we do not know."""
    owner, given = _controller(pod), group_of(pod.metadata.annotations)
    name = gang_of_owner(owner["uid"] if owner is not None else pod.metadata.uid)
    if (given and given != name) or pod.metadata.deletion_timestamp is not None or pod.status.phase in _ENDED:
        return
    if _may_be_marked(pod, ours):
        yield _mark(pod, name)
    wish = wish_of(pod.metadata.annotations, _as_template(pod), None)
    yield from _ensure_for_pod(pod, world, name, owner or owner_reference(pod), wish, ours.queue)


def _controller(pod: Pod) -> Document | None:
    owner = next((one for one in pod.metadata.owner_references if one.controller), None)
    # A group that blocked the deletion of a foreign owner would need rights to its kind's finalizers.
    return None if owner is None else {**msgspec.to_builtins(owner), "blockOwnerDeletion": False}


def _ensure_for_pod(
    pod: Pod, world: World, name: str, owner: Document, wish: GroupWish, default_queue: str
) -> Iterator[Command]:
    group = world.get(PodGroup, pod.metadata.namespace, name)
    if group is not None and not is_owned_by(group, owner["uid"]):
        yield RequeueAfter(LOOK_AGAIN_S)  # it belongs to an earlier leader, or to another one that is still there
        return
    yield from ensure_group(
        world, group, name, owner, pod.metadata.namespace, wish, told=pod, default_queue=default_queue
    )


def _as_template(pod: Pod) -> Document:
    document: Document = msgspec.to_builtins(pod)
    return {"metadata": document["metadata"], "spec": document["spec"]}


# Marks


def _may_be_marked(pod: Pod, ours: Ours) -> bool:
    """Whether a pod waits for a node without naming a group."""
    if pod.spec.scheduler_name not in ours.schedulers or pod.spec.node_name or group_of(pod.metadata.annotations):
        return False
    return pod.metadata.deletion_timestamp is None and pod.status.phase in ("", "Pending")


def _mark(pod: Pod, group: str) -> Patch:
    return Patch(target_of(pod), {"metadata": {"annotations": {keys.GROUP_NAME: group}}})
