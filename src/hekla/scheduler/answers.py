"""Answers questions of users about the running scheduler: why does this wait, and by which rules is it decided?

`app` puts these behind the API server. Nothing here changes anything, and nothing waits: an answer is computed on a copy
of the cluster within one turn of the event loop.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hekla.api.explanation import EXPLANATION, SCHEDULER, SNAPSHOT, SUBJECTS
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.kubernetes import group_name
from hekla.placement.model import Job
from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.configuration import without_secrets
from hekla.scheduler.explain import why_in
from hekla.scheduler.explanation_document import document_of
from hekla.scheduler.lost_nodes import lost_nodes
from hekla.scheduler.queue_why import queue_document, queue_why
from hekla.scheduler.remedies import remedies
from hekla.scheduler.remedies_by_eviction import remedies_by_eviction
from hekla.scheduler.snapshot import documents_of
from hekla.scheduler.why_not_evicted import ByAction, why_not_evicted

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

VCJOB_VERSION, VCJOB_KIND = "batch.volcano.sh/v1alpha1", "Job"


class NothingToExplainError(Exception):
    """There is no such object, or it is not this scheduler's; the text says which."""


def explanation(scheduler: "BatchScheduler", namespace: str, name: str, may_see: Callable[[str], bool]) -> Document:
    """The explanation `pod.NAME`, `podgroup.NAME`, `vcjob.NAME` or `queue.NAME`; NothingToExplainError if there is none.

    `may_see` says of which namespaces the asker may see what runs; jobs of others are not named.
    """
    subject, _, rest = name.partition(".")
    if subject not in SUBJECTS or not rest:
        names = ", ".join(f"{one}.NAME" for one in SUBJECTS)
        raise NothingToExplainError(f'there is no {EXPLANATION.singular} "{name}"; its name should be one of {names}')
    if subject == "queue":
        return _queue_explanation(scheduler, namespace, name, rest, may_see)
    pod = _pod(scheduler, namespace, rest) if subject == "pod" else None
    group = _group(scheduler, namespace, rest, is_vcjob=subject == "vcjob") if pod is None else None
    job = _job_of_pod(scheduler, pod) if pod is not None else _job_of_group(scheduler, group)
    if other := scheduler.feed.other_scheduler_of(job):
        raise NothingToExplainError(_asks_for(scheduler, f'the pods of {subject} "{rest}" ask', other))
    rehearsal = Rehearsal(scheduler.policy, now=scheduler.now_s())
    found = why_in(rehearsal, job.uid)
    evictions: Sequence[ByAction] = ()
    fixes = remedies(rehearsal, job.uid, found, may_see=may_see)
    if found.is_waiting and not found.fits:
        evictions = why_not_evicted(rehearsal, job.uid, may_see)
        classes = scheduler.feed.priority_classes
        fixes += tuple(remedies_by_eviction(rehearsal, job.uid, evictions, classes, may_see))
    document = document_of(name, job, found, fixes, group or scheduler.feed.group_of(job), pod, may_see)
    lost = lost_nodes(scheduler.feed, job)
    return {**document, "evictions": [one.document(may_see) for one in evictions], "lostNodes": lost}


def _queue_explanation(
    scheduler: "BatchScheduler", namespace: str, name: str, queue: str, may_see: Callable[[str], bool]
) -> Document:
    if queue not in scheduler.cluster.queues:
        raise NothingToExplainError(f'queue "{queue}" does not exist')
    found = queue_why(Rehearsal(scheduler.policy, now=scheduler.now_s()), queue, may_see)
    return queue_document(name, namespace, found, may_see)


def snapshot_document(scheduler: "BatchScheduler", name: str) -> Document:
    """What the scheduler decides by now, and what it decides; NothingToExplainError for another name, or too early.

    Not only an answer: the decisions are those of one whole cycle, which this runs at once and which takes effect as
    the next one would have. So they are what this process did, with its history, and not what a copy of it would do.
    """
    _must_be(scheduler, name)
    if not scheduler.is_following:
        raise NothingToExplainError(f'the scheduler "{name}" has not read all objects yet; ask again in a moment')
    head, *objects = documents_of(scheduler.recorded_cycle())
    return {
        "apiVersion": SNAPSHOT.api_version,
        "kind": SNAPSHOT.kind,
        "metadata": {"name": name},
        "head": head,
        "objects": objects,
    }


def configuration_document(scheduler: "BatchScheduler", name: str) -> Document:
    """The scheduler's configuration as it is in use; NothingToExplainError for another name."""
    _must_be(scheduler, name)
    used = scheduler.configuration
    return {
        "apiVersion": SCHEDULER.api_version,
        "kind": SCHEDULER.kind,
        "metadata": {"name": name},
        "source": scheduler.configuration_source,
        "configuration": without_secrets(used.text),
        "actions": list(used.actions),
        "warnings": list(used.warnings),
        "refused": scheduler.configuration_refusal,
        "measurements": scheduler.usage.sentences(scheduler.cluster.nodes.row_of),
    }


def _must_be(scheduler: "BatchScheduler", name: str) -> None:
    if name not in scheduler.settings.scheduler_names:
        known = ", ".join(one for one in scheduler.settings.scheduler_names if one)
        raise NothingToExplainError(f'there is no scheduler "{name}" here; there is {known}')


def _pod(scheduler: "BatchScheduler", namespace: str, name: str) -> Pod:
    pod = next(
        (p for p in scheduler.feed.pods.values() if (p.metadata.namespace, p.metadata.name) == (namespace, name)), None
    )
    if pod is None:
        raise NothingToExplainError(f'pod "{name}" does not exist in namespace "{namespace}"')
    return pod


def _job_of_pod(scheduler: "BatchScheduler", pod: Pod) -> Job:
    task, name = scheduler.cluster.tasks.get(pod.metadata.uid), pod.metadata.name
    job = scheduler.cluster.jobs.get(task.job.uid) if task is not None and task.job is not None else None
    if job is not None:
        return job
    if not scheduler.feed.is_ours(pod):
        raise NothingToExplainError(_asks_for(scheduler, f'pod "{name}" asks', pod.spec.scheduler_name))
    if group := group_name(pod):
        raise NothingToExplainError(
            f'pod "{name}" waits for its PodGroup "{group}", which does not exist (yet); events of what it was made for say '
            "why, if it does not come"
        )
    raise NothingToExplainError(f'pod "{name}" waits until the controllers give it a PodGroup')


def _asks_for(scheduler: "BatchScheduler", who_asks: str, other: str) -> str:
    """What to say of what another scheduler is to place: that nobody serves a misspelt name is seen by nobody else."""
    ours = ", ".join(sorted(filter(None, scheduler.settings.scheduler_names)))
    return f'{who_asks} for the scheduler "{other}", which is not this one; ask that one, or name one of this one in schedulerName: {ours}'


def _group(scheduler: "BatchScheduler", namespace: str, name: str, *, is_vcjob: bool) -> PodGroup:
    groups = scheduler.feed.groups
    found = groups.get((namespace, name))
    if is_vcjob:
        found = next((g for (ns, _), g in groups.items() if ns == namespace and _is_of_vcjob(g, name)), None)
    if found is None and is_vcjob:
        raise NothingToExplainError(
            f'vcjob "{name}" does not exist in namespace "{namespace}", or has no PodGroup: it has just been made, or is over'
        )
    if found is None:
        raise NothingToExplainError(f'podgroup "{name}" does not exist in namespace "{namespace}"')
    return found


def _is_of_vcjob(group: PodGroup, name: str) -> bool:
    return any(
        (o.api_version, o.kind, o.name) == (VCJOB_VERSION, VCJOB_KIND, name) for o in group.metadata.owner_references
    )


def _job_of_group(scheduler: "BatchScheduler", group: PodGroup | None) -> Job:
    assert group is not None
    job = scheduler.cluster.jobs.get(group.metadata.uid)
    if job is None:
        raise NothingToExplainError(f'podgroup "{group.metadata.name}" is not known to the scheduler yet')
    return job
