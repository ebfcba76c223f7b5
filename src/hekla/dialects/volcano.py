"""Volcano's PodGroups and Queues as the engine's jobs and queues."""

from collections.abc import Mapping

import msgspec

from hekla.api.core import ResourceQuota
from hekla.api.pods import Pod
from hekla.api.selectors import LabelSelector
from hekla.api.volcano import scheduling
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.eviction_terms import group_is_preemptable
from hekla.dialects.node_terms import label_requirements
from hekla.dialects.pod_requests import amount, amounts
from hekla.dialects.surroundings import Surroundings
from hekla.dialects.timestamps import seconds
from hekla.dialects.topology import closeness
from hekla.dialects.traits import group_limits, group_traits, node_groups
from hekla.lib.go_duration import DurationError, cut, parse_duration
from hekla.lib.quantity import QuantityError
from hekla.placement.budgets import NamespaceQuota
from hekla.placement.constraint import PodSelector
from hekla.placement.model import JobPhase, JobSpec, SubGroupPolicy
from hekla.placement.queue import Queue

DEFAULT_QUEUE = "default"
VOLCANO = "volcano"
"""The name of Volcano's scheduler."""

QUEUE_KEY = "scheduling.volcano.sh/queue-name"
"""On a pod, or a namespace: the queue of pods that are in no PodGroup."""

PAST_USE = "hekla.dev/past-use"
"""On a queue: what it had over time, where plug-in `fair-share` is at work; written now and then for the next start."""

_NOTHING: Mapping[str, str] = {}

SCHEDULER_NAME = "hekla.dev/scheduler-name"
"""On a PodGroup: the scheduler that its pods will ask for."""

RUNNING_ESTIMATE = "hekla.dev/running-estimate"
"""How long each pod of a gang, or a lone pod, is expected to run: a duration like `1h30m`."""


def job_spec(group: PodGroup, around: Surroundings) -> JobSpec:
    """A PodGroup as a job."""
    spec, meta = group.spec, group.metadata
    estimate_s, odd = _estimate(meta.annotations)
    return JobSpec(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        queue=spec.queue or DEFAULT_QUEUE,
        priority=around.priority(spec.priority_class_name),
        created=seconds(meta.creation_timestamp),
        patience_s=_patience_s(meta.annotations),
        estimate_s=estimate_s,
        min_available=spec.min_member,
        role_minimums=spec.min_task_member,
        subgroups=tuple(_policy(policy) for policy in spec.sub_group_policy),
        min_resources=_minimum(group),
        quota_asked=_quota_asked(group),
        closeness=closeness(spec.network_topology),
        traits={**group_traits(meta.annotations), **odd},
        is_preemptable=group_is_preemptable(meta.annotations, meta.labels),
        phase=_phase(group.status.phase),
    )


def lone_pod(pod: Pod, *, queue: str = DEFAULT_QUEUE) -> JobSpec:
    """A pod without a PodGroup is a gang of one, in already."""
    meta, annotations = pod.metadata, pod.metadata.annotations
    estimate_s, odd = _estimate(annotations)
    return JobSpec(
        uid=lone_uid(pod),
        name=meta.name,
        namespace=meta.namespace,
        queue=queue,
        priority=pod.spec.priority or 0,
        created=seconds(meta.creation_timestamp),
        estimate_s=estimate_s,
        traits={**group_traits(annotations), **odd},
        phase=JobPhase.INQUEUE,
        lineage=_controller(pod),
        has_group=False,
    )


def _controller(pod: Pod) -> str:
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return owner.uid
    return ""


def lone_uid(pod: Pod) -> str:
    """The uid of the gang that a lone pod is."""
    return f"pod:{pod.metadata.uid}"


def queue_of(queue: scheduling.Queue) -> Queue:
    """A Volcano queue. One without a state is open: nobody has closed it."""
    return Queue(
        name=queue.metadata.name,
        weight=queue.spec.weight,
        priority=queue.spec.priority,
        parent=queue.spec.parent or "root",
        is_open=queue.status.state in {"", scheduling.QueueState.OPEN},
        capability=amounts(queue.spec.capability),
        guarantee=amounts(queue.spec.guarantee.resource),
        deserved=amounts(queue.spec.deserved),
        is_reclaimable=queue.spec.reclaimable is not False,
        is_strict=queue.spec.dequeue_strategy == "fifo",
        path=_path(queue.metadata.annotations),
        node_groups=node_groups(queue),
        group_limits=group_limits(queue.metadata.annotations),
        created=seconds(queue.metadata.creation_timestamp),
        uid=queue.metadata.uid,
    )


def _estimate(annotations: Mapping[str, str]) -> tuple[float | None, Mapping[str, str]]:
    """How long it runs, in seconds; and what it says of that if it cannot be read, for who tells why it waits."""
    text = annotations.get(RUNNING_ESTIMATE) if annotations else None
    if text is None:
        return None, _NOTHING
    seconds = _seconds_above_0(text)
    return seconds, _NOTHING if seconds is not None else {RUNNING_ESTIMATE: cut(text)}


def _patience_s(annotations: Mapping[str, str]) -> float | None:
    """The job's own waiting time; one that is no duration above 0 counts as none."""
    return _seconds_above_0(annotations.get("volcano.sh/sla-waiting-time") or annotations.get("sla-waiting-time", ""))


def _seconds_above_0(text: str) -> float | None:
    """A duration like `1h30m` in seconds; None for one that is none, or not above 0."""
    try:
        seconds = parse_duration(text).total_seconds() if text else 0.0
    except DurationError:
        return None
    return seconds if seconds > 0 else None


def namespace_quota(quota: ResourceQuota) -> NamespaceQuota | None:
    """A ResourceQuota that bounds all pods alike; None for one with scopes."""
    if quota.spec.scopes or quota.spec.scope_selector is not None:
        return None
    hard, used = quota.status.hard or quota.spec.hard, quota.status.used
    return NamespaceQuota(name=quota.metadata.name, hard=quota_amounts(hard), used=quota_amounts(used))


def quota_amounts(quantities: Mapping[str, str] | Mapping[str, str | int | float]) -> dict[str, int]:
    """Quantities by the names of quotas, in the base unit of the resource that each is about; {} if one is none."""
    try:
        return {n: amount(n.removeprefix("requests.").removeprefix("limits."), q) for n, q in quantities.items()}
    except QuantityError:
        return {}


def past_use(queue: scheduling.Queue) -> tuple[dict[str, int], int]:
    """What a queue had until when, as a scheduler before us wrote it down: amount-microseconds, and microseconds.

    Nothing, if it is not written or cannot be read.
    """
    try:
        told = msgspec.json.decode(queue.metadata.annotations.get(PAST_USE, "{}"), type=_PastUse)
    except msgspec.DecodeError:
        return {}, 0
    return {name: max(amount, 0) * 1_000_000 for name, amount in told.amount_seconds.items()}, told.at * 1_000_000


def past_use_text(had: Mapping[str, int], at_us: int) -> str:
    """The same as the annotation says it."""
    seconds_had = {name: amount // 1_000_000 for name, amount in sorted(had.items()) if amount >= 1_000_000}
    return msgspec.json.encode(_PastUse(at=at_us // 1_000_000, amount_seconds=seconds_had)).decode()


class _PastUse(msgspec.Struct, rename="camel"):
    at: int = 0
    amount_seconds: dict[str, int] = msgspec.field(default_factory=dict)


def _path(annotations: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """The queue's place in the tree of hierarchical drf, `root/eng/dev` with weights `1/50/50`, without the root."""
    names = annotations.get("volcano.sh/hierarchy", "").split("/")[1:]
    weights = annotations.get("volcano.sh/hierarchy-weights", "").split("/")[1:]
    if len(names) != len(weights) or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in weights):
        return ()  # admission keeps such a queue out; one that is there all the same stands below the root
    return tuple((name, max(int(weight), 1)) for name, weight in zip(names, weights, strict=True))


def _phase(text: str) -> JobPhase:
    """The phase a group is in; one that nobody knows counts as not let in."""
    return JobPhase(text) if text in set(JobPhase) else JobPhase.PENDING


def _policy(policy: scheduling.SubGroupPolicy) -> SubGroupPolicy:
    return SubGroupPolicy(
        name=policy.name,
        selector=_selector(policy.label_selector),
        match_label_keys=tuple(policy.match_label_keys),
        size=policy.sub_group_size or 1,
        min_groups=policy.min_sub_groups or 0,
        closeness=closeness(policy.network_topology),
    )


def _selector(selector: LabelSelector | None) -> PodSelector:
    """The pods of a policy; a selector that cannot be understood selects none, and stops nobody else."""
    try:
        return PodSelector(label_requirements(selector) if selector else (), namespaces=None)
    except ValueError:
        return PodSelector(matches_nothing=True)


def _quota_asked(group: PodGroup) -> dict[str, int]:
    """The minimum by all names that quotas may bound it by: what it names, the same as requests, and its pods.

    Volcano's controllers write `requests.cpu` and `pods` beside `cpu` into a group; ours, and people, write `cpu`.
    """
    said = quota_amounts(group.spec.min_resources or {})
    if not said:
        return {}
    requests = {f"requests.{name}": value for name, value in said.items() if _is_resource(name) and name != "pods"}
    pods = {"pods": group.spec.min_member, "count/pods": group.spec.min_member} if group.spec.min_member else {}
    return {**pods, **requests, **said}


def _is_resource(name: str) -> bool:
    return not name.startswith(("count/", "requests.", "limits."))


def _minimum(group: PodGroup) -> dict[str, int] | None:
    """MinResources by resource. Quota names (`count/pods`, `requests.cpu`) are no resources of nodes."""
    if group.spec.min_resources is None:
        return None
    try:
        named = amounts(group.spec.min_resources)
    except QuantityError:
        return None
    return {name: value for name, value in named.items() if _is_resource(name)}
