"""Tells waiting pods and gangs why they wait: conditions and events, written when they say something new.

What is told is decided by `sentences.py` and `group_status.py`; here it is compared with what the objects say
already. A sentence that differs only in its numbers is not rewritten more often than every few seconds, so that a
busy cluster does not turn a thousand waiting pods into a storm of writes.
"""

import re
from collections.abc import Iterator

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup
from hekla.dialects.feed import ClusterFeed
from hekla.kube.commands import Event, Patch, SetStatus, Target, target_of
from hekla.placement.constraint import Refusal
from hekla.placement.model import Job, JobPhase, Task, TaskStatus
from hekla.placement.plugins.gang import NOT_ENOUGH_OF_ROLE, NOT_ENOUGH_TASKS
from hekla.placement.session import Failure, Session
from hekla.scheduler import sentences
from hekla.scheduler.group_status import UNSCHEDULABLE, CycleOutcome, condition_document, status_patch
from hekla.scheduler.outlooks import Outlooks, with_outlook, without_outlook
from hekla.scheduler.stumbling import Stumbles

QUIET_S = 10.0
"""How long a sentence stands before one that differs in numbers alone may replace it."""

PATIENCE_S = 1.0
"""How long a gang may have too few pods before that is told: they come one after the other."""

KUBERNETES_OWN = frozenset({"default-scheduler", ""})
"""Schedulers of pods that are told in kube-scheduler's words."""

_TOO_FEW = frozenset({NOT_ENOUGH_TASKS, NOT_ENOUGH_OF_ROLE})
_WAITING = frozenset({TaskStatus.PENDING, TaskStatus.PIPELINED})
_DIGITS = re.compile(r"\d+")


class Reports:
    """Remembers what was told, and yields what has to be told now."""

    def __init__(self, feed: ClusterFeed, outlooks: Outlooks) -> None:
        self._feed, self._outlooks = feed, outlooks
        self._told: dict[str, tuple[str, float]] = {}
        """By uid of a pod or group, the last sentence and when it was told."""

        self._too_few_since: dict[str, tuple[int, float]] = {}
        """By uid of a job, how many pods it had when it was too few, and since when it has no more."""

        self.look_again: set[str] = set()
        """Uids of jobs that should be looked at again after `PATIENCE_S`; the caller takes them out."""

        self.stumbles = Stumbles()

        self._sent: dict[str, tuple[str, Document]] = {}
        """By uid of a group, the revision seen and what was sent for it: the answer may not have come back yet."""

    def after(
        self, session: Session, jobs: set[str], *, session_id: str, now: str
    ) -> Iterator[SetStatus | Patch | Event]:
        """The commands that make objects say what a session found about these jobs."""
        for uid in sorted(jobs):
            job = session.cluster.jobs.get(uid)
            if job is None:
                self.forget(uid)
                self.stumbles.forget(uid)
                continue
            if self._feed.other_scheduler_of(job):
                continue  # it says why; two who tell of one gang would answer one another without end
            is_lone = not job.spec.has_group and uid not in self.stumbles.told
            is_lone = is_lone and not job.statuses[TaskStatus.PIPELINED]
            if is_lone and uid not in session.failures and self._has_queue(session, job):
                continue  # a lone pod that found its node, or waits for nothing that it has not been told
            outcome = self.outcome(session, job)
            group = self._feed.group_of(job)
            if group is not None:
                yield from self._group(session, group, job, outcome, session_id, now)
            if not outcome.is_ready:
                yield from self._pods(session, job, outcome, now)

    def outcome(self, session: Session, job: Job) -> CycleOutcome:
        """What a session found about a job."""
        if job.uid in self.stumbles.told:
            return CycleOutcome(is_ready=False, refusal=Refusal("SchedulerError", self.stumbles.told[job.uid]))
        queue = self._feed.queues.get(job.spec.queue)
        refusal = session.refusals.get(job.uid)
        if self._is_still_arriving(session, job):
            self.look_again.add(job.uid)
            refusal = None
        if queue is None and job.spec.queue not in session.cluster.queues:
            refusal = Refusal("QueueNotFound", sentences.queue_missing(job.spec.queue))
        elif (fault := self._feed.queue_faults.get(job.spec.queue)) is not None:
            refusal = Refusal("QueueInvalid", sentences.queue_invalid(job.spec.queue, fault))
        elif queue is not None and queue.status.state not in {"", "Open"} and job.wants_more:
            refusal = Refusal("QueueNotOpen", sentences.queue_closed(job.spec.queue, queue.status.state))
        failure = session.failures.get(job.uid)
        is_placed = bool(job.ready_count) or not job.wants_more
        is_ready = is_placed and session.is_ready(job) and job.phase is not JobPhase.PENDING
        is_promised = job.statuses[TaskStatus.PIPELINED] > 0 and not is_ready
        return CycleOutcome(
            is_ready=is_ready, failure=failure, refusal=refusal, is_promised=is_promised,
            outlook="" if is_ready else self._outlooks.of(job.uid),
        )  # fmt: skip

    @staticmethod
    def _has_queue(session: Session, job: Job) -> bool:
        return job.uid not in session.refusals and session.is_admitted_to_queue(job)

    def forget(self, uid: str) -> None:
        """Forget what was told to an object that is gone."""
        self._told.pop(uid, None)
        self._sent.pop(uid, None)
        self._too_few_since.pop(uid, None)

    def _group(
        self, session: Session, group: PodGroup, job: Job, outcome: CycleOutcome, session_id: str, now: str
    ) -> Iterator[SetStatus | Patch | Event]:
        patch = status_patch(group, job, outcome, session=session_id, now=now)
        conditions = patch.get("conditions")
        told = (conditions[-1]["type"], without_outlook(conditions[-1]["message"])) if conditions else ("", "")
        if conditions and not self._is_news(job.uid, ": ".join(told), session.now, job):
            del patch["conditions"]
            conditions = None
        elif conditions and not self._outlooks.of(job.uid):
            conditions[-1]["message"] = told[1]  # it waits for something else now, which other changes would mend
        target = target_of(group)
        if patch and self._sent.get(job.uid) != (target.resource_version, patch):
            self._sent[job.uid] = (target.resource_version, patch)
            yield SetStatus(target, patch)
        if conditions and outcome.is_ready:
            yield Event(target, "Scheduled", "pod group is ready")
        elif conditions:
            yield Event(target, "Unschedulable", told[1], "Warning")

    def _pods(self, session: Session, job: Job, outcome: CycleOutcome, now: str) -> Iterator[SetStatus | Patch | Event]:
        """Tell each waiting pod its own reason; pods of an equal shape have the same."""
        if outcome.failure is None and outcome.refusal is None and not outcome.is_promised:
            return
        for task in job.tasks.values():
            pod = self._feed.pods.get(task.uid)
            if pod is None or task.status not in _WAITING or task.spec.is_gated:
                continue
            if task.is_claim:
                node = session.cluster.nodes.name(task.row)
                reason, message = "Unschedulable", sentences.waits_for_room(task, node)
            elif outcome.failure is None and outcome.refusal is None:
                continue  # its siblings were promised room; it is tried in the next cycle
            else:
                reason, message = _pod_sentence(job, task, outcome, pod.spec.scheduler_name)
            leading, message = message, with_outlook(message, self._outlooks.of_pod(task.uid))
            if _is_told(pod, reason, message) or not self._is_news(task.uid, leading, session.now):
                continue
            # Guarded: the pod may be bound before this is written, and must then not be called unscheduled.
            conditions = {"status": {"conditions": _conditions(pod, reason, message, now)}}
            yield Patch(target_of(pod), conditions, subresource="status", is_guarded=True)
            yield Event(_stable(pod), "FailedScheduling", message, "Warning")

    def outlook_commands(self, job: Job, now: str, *, is_first: bool) -> Iterator[SetStatus | Patch | Event]:
        """What makes a job's PodGroup and first pods say what was found about it; the first time in an event, too."""
        told: Event | None = None
        group = self._feed.group_of(job)
        for one in group.status.conditions if group is not None else ():
            if group is not None and (one.type, one.status) == (UNSCHEDULABLE, "True"):
                message = with_outlook(one.message, self._outlooks.of(job.uid))
                if message != one.message:
                    conditions = [
                        condition_document(other, message=message if other is one else "")
                        for other in group.status.conditions
                    ]
                    yield SetStatus(target_of(group), {"conditions": conditions})
                    told = Event(target_of(group), "Unschedulable", message, "Warning")
        for pod in filter(None, map(self._feed.pods.get, self._outlooks.pods_of(job.uid))):
            waits = next((c for c in pod.status.conditions if (c.type, c.status) == ("PodScheduled", "False")), None)
            if waits is None or waits.reason == "SchedulingGated" or not waits.message:
                continue
            message = with_outlook(waits.message, self._outlooks.of_pod(pod.metadata.uid))
            if message != waits.message:
                status = {"status": {"conditions": _conditions(pod, waits.reason, message, now)}}
                yield Patch(target_of(pod), status, subresource="status", is_guarded=True)
                told = told or Event(_stable(pod), "FailedScheduling", message, "Warning")
        if is_first and told is not None:
            yield told

    def _is_news(self, uid: str, sentence: str, now: float, job: Job | None = None) -> bool:
        """Whether to tell: another sentence at once, other numbers after a while, the same if it did not get through."""
        before, told_at = self._told.get(uid, ("", -QUIET_S))
        is_alike = _DIGITS.sub("#", sentence) == _DIGITS.sub("#", before)
        if is_alike and now - told_at < QUIET_S:
            return False
        if job is not None and before and not is_alike:
            self._outlooks.drop(job.uid)
        self._told[uid] = (sentence, now)
        return True

    def _is_still_arriving(self, session: Session, job: Job) -> bool:
        """Whether pods of a gang are just being made: that they are too few is no news until it has lasted."""
        refusal = session.refusals.get(job.uid)
        if refusal is None or refusal.code not in _TOO_FEW:
            self._too_few_since.pop(job.uid, None)
            return False
        # Patience begins anew with every pod that comes: 4,000 take seconds to be made, and telling each of the first
        # ones what would soon be untrue cost as much as all else that was written about them.
        count, since = self._too_few_since.get(job.uid, (-1, session.now))
        if count != len(job.tasks):
            since = session.now
        self._too_few_since[job.uid] = len(job.tasks), since
        return session.now - since < PATIENCE_S


def _pod_sentence(job: Job, task: Task, outcome: CycleOutcome, scheduler: str) -> tuple[str, str]:
    """(reason, message) for one pod, in the words of the scheduler that it asked for.

    Only `Unschedulable` makes an autoscaler add nodes, so only a pod that fits is not.
    """
    failure = outcome.failure
    if failure is None and outcome.refusal is not None and outcome.refusal.code == "SchedulerError":
        return "SchedulerError", outcome.refusal.sentence
    if failure is None:
        return "Unschedulable", outcome.refusal.sentence if outcome.refusal else ""
    node = failure.placements.get(task.uid)
    if node is not None and job.spec.has_group:
        return "Schedulable", sentences.fits_but_waits(task, node)
    return "Unschedulable", _explained(job, task, failure, scheduler)


def _explained(job: Job, task: Task, failure: Failure, scheduler: str) -> str:
    if task is failure.task or task.shape is failure.task.shape:
        explanation = failure.explanation
        return explanation.sentence() if scheduler in KUBERNETES_OWN else sentences.no_node(explanation)
    return sentences.gang_unschedulable(job, failure)


def _is_told(pod: Pod, reason: str, message: str) -> bool:
    return any(
        c.type == "PodScheduled" and (c.status, c.reason, c.message) == ("False", reason, message)
        for c in pod.status.conditions
    )


def _conditions(pod: Pod, reason: str, message: str, now: str) -> list[Document]:
    """The pod's conditions with PodScheduled told anew."""
    kept: list[Document] = []
    since = now
    for condition in pod.status.conditions:
        if condition.type != "PodScheduled":
            kept.append({
                "type": condition.type, "status": condition.status, "reason": condition.reason,
                "message": condition.message, "lastTransitionTime": condition.last_transition_time,
            })  # fmt: skip
        elif condition.status == "False" and condition.last_transition_time:
            since = condition.last_transition_time
    told = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }
    return [*kept, told]


def _stable(pod: Pod) -> Target:
    return Target(kind=Pod, name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
