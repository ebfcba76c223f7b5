"""Changes with which others would be evicted for a waiting job: a higher priority, another policy of its pods, one more action.

Each is tried on the copy before it is offered, as all remedies (`remedies.py`); the sentence says who would have to go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from hekla.placement.eviction.trial import EVICTING, is_for_gangs, is_served, outlook_of
from hekla.placement.framework import Preemptable, Reclaimable
from hekla.placement.model import Job, JobPhase, Task
from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.cluster_remedies import Remedy
from hekla.scheduler.sentences import job_told_to
from hekla.scheduler.why_not_evicted import ByAction, listed

MOST_CLASSES = 16
"""Priority classes that are tried at most, those nearest above the job's priority."""

FIRST_OF_THE_SYSTEM = 1_000_000_001
"""Priorities from here on are Kubernetes' own."""


def remedies_by_eviction(
    rehearsal: Rehearsal, uid: str, found: Sequence[ByAction], classes: Mapping[str, int], may_see: Callable[[str], bool]
) -> Iterator[Remedy]:  # fmt: skip
    """What would have others make way; nothing where an action makes room as things are, or for a job that is not let in.

    `classes` are the priority classes that there are, by name.
    """
    job, codes = rehearsal.job(uid), {one.code for one in found}
    if job.phase is JobPhase.PENDING or codes & {
        "makesRoom",
        "roomIsBeingMade",
        "tooFewPods",
        "notStarving",
        "nothingWaits",
    }:
        return
    configured = [action for action in rehearsal.policy.actions if action in EVICTING]
    if "preemptionPolicyNever" in codes:
        yield from _may_preempt(rehearsal, job, configured, may_see)
        return
    yield from _higher_priority(rehearsal, job, configured, classes, may_see)
    yield from _one_more_action(rehearsal, job, may_see)


def _higher_priority(
    rehearsal: Rehearsal, job: Job, configured: Sequence[str], classes: Mapping[str, int], may_see: Callable[[str], bool]
) -> Iterator[Remedy]:  # fmt: skip
    """The lowest class above the job's priority with which an action would make room."""
    actions = [action for action in configured if EVICTING[action] is Preemptable]
    users = ((value, name) for name, value in classes.items() if job.spec.priority < value < FIRST_OF_THE_SYSTEM)
    above = sorted(users)[:MOST_CLASSES]

    def victims(value: int) -> Sequence[Task]:
        with rehearsal.changed(job.uid, priority=value) as changed:
            return _victims(rehearsal, changed, actions)

    if not actions or not above or not victims(above[-1][0]):
        return
    low, high = 0, len(above) - 1
    while low < high:  # who may go for one class may go for a higher one
        middle = (low + high) // 2
        low, high = (low, middle) if victims(above[middle][0]) else (middle + 1, high)
    value, name = above[low]
    gone = victims(value)
    yield Remedy(
        change="HigherPriority",
        sentence=f'give it priorityClassName "{name}" ({value}): {listed(gone, may_see)} would be evicted',
        details={"class": name, "from": job.spec.priority, "to": value, "victims": _jobs(gone, may_see)},
    )


def _may_preempt(
    rehearsal: Rehearsal, job: Job, configured: Sequence[str], may_see: Callable[[str], bool]
) -> Iterator[Remedy]:
    with rehearsal.changed(job.uid, of_pods={"preemption_never": False}) as changed:
        gone = _victims(rehearsal, changed, configured)
    if gone:
        yield Remedy(
            change="MayPreempt",
            sentence=f"take preemptionPolicy: Never off its pods: {listed(gone, may_see)} would be evicted",
            details={"victims": _jobs(gone, may_see)},
        )


def _one_more_action(rehearsal: Rehearsal, job: Job, may_see: Callable[[str], bool]) -> Iterator[Remedy]:
    """The first action that is not configured and would make room."""
    before = rehearsal.policy.actions
    for action in EVICTING:
        if action in before or is_for_gangs(action) != job.spec.wants_closeness:
            continue
        rehearsal.policy.actions = (*before, action)
        try:
            gone = _victims(rehearsal, job, [action])
        finally:
            rehearsal.policy.actions = before
        if gone:
            yield Remedy(
                change="AddAction",
                sentence=f'add the action "{action}" to the scheduler: {listed(gone, may_see)} would be evicted',
                details={"action": action, "victims": _jobs(gone, may_see)},
            )
            return


def _victims(rehearsal: Rehearsal, job: Job, actions: Sequence[str]) -> Sequence[Task]:
    """Whom the first of some actions would evict that would make room."""
    session = rehearsal.session()
    for action in actions:
        if not is_served(session, job, action):
            continue
        if EVICTING[action] is Reclaimable and session.is_overused(session.cluster.queues[job.spec.queue]):
            continue
        gone = outlook_of(rehearsal, job, action).victims
        if gone:
            return gone
    return ()


def _jobs(victims: Sequence[Task], may_see: Callable[[str], bool]) -> list[str]:
    return sorted({job_told_to(task.job, may_see) for task in victims if task.job is not None})
