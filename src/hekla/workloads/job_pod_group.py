"""The PodGroup of a job: its gang as the scheduler sees it, kept like the job while the job changes."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import msgspec

from hekla.api.meta import Document
from hekla.api.scheduling import PriorityClass
from hekla.api.volcano import PodGroup
from hekla.api.volcano.batch import JobSpec, NetworkTopology, TaskSpec
from hekla.kube.commands import Command, Create, Patch, target_of
from hekla.lib.quantity import Quantity
from hekla.workloads import keys
from hekla.workloads.job_kill import delete_group
from hekla.workloads.job_pods import owner_reference
from hekla.workloads.job_status import merge_patch
from hekla.workloads.job_view import JobView, pod_group_name
from hekla.workloads.template_request import request_of


def ensure_group(view: JobView) -> Iterator[Command]:
    """Create the job's PodGroup, bring it up to date, or take away that of an earlier version of the job."""
    group = view.group
    if group is None:
        yield Create(PodGroup, new_group(view), is_told_of_when_refused=True)
    elif not view.has_current_group:
        yield from delete_group(view, "it belongs to an earlier version of the job")
    elif patch := merge_patch(_watched(msgspec.to_builtins(group.spec)), _watched(group_spec(view))):
        yield Patch(target_of(group), {"spec": patch})


def new_group(view: JobView) -> Document:
    """The document of the PodGroup."""
    meta = view.job.metadata
    annotations = {key: value for key, value in meta.annotations.items() if key not in _NOT_INHERITED}
    if view.job.spec.running_estimate:
        annotations.setdefault(keys.RUNNING_ESTIMATE, view.job.spec.running_estimate)
    if scheduler := scheduler_of(view.job.spec):
        annotations[keys.SCHEDULER_NAME] = scheduler
    return {
        "apiVersion": PodGroup.kind_info.api_version,
        "kind": "PodGroup",
        "metadata": {
            "name": pod_group_name(view.job),
            "namespace": meta.namespace,
            "labels": dict(meta.labels),
            "annotations": {**annotations, keys.JOB_VERSION: str(view.job.status.version)},
            "ownerReferences": [owner_reference(view.job)],
        },
        "spec": group_spec(view),
    }


def scheduler_of(spec: JobSpec) -> str:
    """The scheduler that all pods of a job ask for; empty where they differ."""
    named = {(task.template.get("spec") or {}).get("schedulerName") or spec.scheduler_name for task in spec.tasks}
    return named.pop() if len(named) == 1 else ""


_NOT_INHERITED = (keys.SCHEDULER_NAME, keys.DELAYED_ACTIONS, "kubectl.kubernetes.io/last-applied-configuration")


def group_spec(view: JobView) -> Document:
    """What the gang asks for."""
    spec = view.job.spec
    first = [task for task in spec.tasks if not waits_for_others(task)]
    wanted: Document = {
        "minMember": min_member(spec),
        "minTaskMember": {task.name: least(task) for task in first},
        "queue": spec.queue,
        "minResources": min_resources(spec, _priorities(view)),
    }
    if spec.priority_class_name:
        wanted["priorityClassName"] = spec.priority_class_name
    if spec.network_topology is not None:
        wanted["networkTopology"] = _topology(spec.network_topology)
    if policies := [_sub_group(task) for task in spec.tasks if task.partition_policy is not None]:
        wanted["subGroupPolicy"] = policies
    return wanted


def min_member(spec: JobSpec) -> int:
    """How many pods must start together: `minAvailable`, but no more than tasks that wait for no others make.

    A task that depends on others has no pods until these run; Volcano counts them all the same, so that a job whose every
    task counts waits for itself for ever. Its room is part of `minResources`.
    """
    if not any(waits_for_others(task) for task in spec.tasks):
        return spec.min_available
    at_first = sum(least(task) for task in spec.tasks if not waits_for_others(task))
    return min(spec.min_available, max(1, at_first))


def waits_for_others(task: TaskSpec) -> bool:
    """Whether pods of the task are made only when others are up."""
    return task.depends_on is not None and bool(task.depends_on.name)


def least(task: TaskSpec) -> int:
    """How many pods of a task must be able to run."""
    if task.min_available is not None:
        return task.min_available
    policy = task.partition_policy
    if policy is not None and policy.min_partitions and policy.partition_size:
        return policy.min_partitions * policy.partition_size
    return task.replicas


def min_resources(spec: JobSpec, priorities: Sequence[int]) -> dict[str, str]:
    """What the smallest form of the job that may start asks for; tasks of high priority count first.

    Without enough task minimums to fill the gang, the first `minAvailable` pods count; else the minimums, then further
    replicas until the gang is full.
    """
    by_priority = [task for _, task in sorted(zip(priorities, spec.tasks, strict=True), key=lambda pair: -pair[0])]
    minimums = sum(task.replicas if task.min_available is None else task.min_available for task in spec.tasks)
    if spec.min_available < minimums:
        chosen = _first(by_priority, spec.min_available)
    else:
        chosen = _minimums_first(by_priority, spec.min_available)
    total: dict[str, Quantity] = {}
    for task, count in chosen:
        for name, amount in request_of(task.template.get("spec", {})).items():
            before = total.get(name, Quantity(Fraction(0), amount.form))
            total[name] = Quantity(before.value + amount.value * count, before.form)
    return {name: str(total[name]) for name in sorted(total)}


def _first(tasks: Sequence[TaskSpec], count: int) -> Iterator[tuple[TaskSpec, int]]:
    for task in tasks:
        yield task, min(task.replicas, count)
        count -= min(task.replicas, count)


def _minimums_first(tasks: Sequence[TaskSpec], count: int) -> Iterator[tuple[TaskSpec, int]]:
    for task in tasks:
        taken = min(task.min_available or 0, count)
        yield task, taken
        count -= taken
    for task in tasks:
        taken = min(task.replicas - (task.min_available or 0), count)
        yield task, taken
        count -= taken


def _priorities(view: JobView) -> list[int]:
    names = [task.template.get("spec", {}).get("priorityClassName", "") for task in view.job.spec.tasks]
    classes = {name: view.world.get(PriorityClass, "", name) for name in names if name}
    return [found.value if (found := classes.get(name)) else 0 for name in names]


def _topology(wish: NetworkTopology) -> Document:
    wanted: Document = {"mode": wish.mode}
    if wish.highest_tier_allowed is not None:
        wanted["highestTierAllowed"] = wish.highest_tier_allowed
    elif wish.highest_tier_name:
        wanted["highestTierName"] = wish.highest_tier_name
    return wanted


def _sub_group(task: TaskSpec) -> Document:
    policy = task.partition_policy
    assert policy is not None
    wanted: Document = {
        "name": task.name,
        "labelSelector": {"matchLabels": {keys.TASK_SPEC: task.name}},
        "matchLabelKeys": [keys.PARTITION_ID],
        "subGroupSize": policy.partition_size,
        "minSubGroups": 0 if waits_for_others(task) else policy.min_partitions,
    }
    if policy.network_topology is not None:
        wanted["networkTopology"] = _topology(policy.network_topology)
    return wanted


def _watched(spec: Document) -> Document:
    """The part of the spec that follows the job's."""
    names = ("minMember", "minTaskMember", "minResources", "priorityClassName")
    return {name: spec[name] for name in names if spec.get(name) not in (None, "")}
