"""Tells those who have waited for a while more than why: their place in the queue, who goes before, and the cheapest change
that would let them start, tried on a copy of the cluster. `hekla why` has the whole; this is one sentence of it.

It stands behind Volcano's and Kubernetes' own sentence, in the conditions of the PodGroup and its first pods and in one event:

    ... 2 Insufficient nvidia.com/gpu. Hekla: place 2 of 5 in queue "ml", behind ml/big; would start: lower minAvailable from 4 to 2

Cycles pay nothing for it. One job at a time is looked into while the scheduler has nothing to do, with a rest of twenty times
what it took; of one job not more often than every half minute, so that conditions stand still.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hekla.placement.cluster import Cluster
from hekla.placement.model import Job, JobPhase, TaskStatus
from hekla.placement.named_jobs import NamedJob
from hekla.placement.policy import Policy
from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.explain import Why, why_in
from hekla.scheduler.remedies import first_remedy

MARK = " Hekla: "
"""What parts this sentence from the one before it, which others grep for."""

MOST_CHARACTERS = 400
MOST_NAMED = 2
"""Jobs ahead that are named."""

MOST_PODS = 16
"""Pods of one job that are told; its PodGroup is told for all."""

REST_PER_LOOK = 20.0
"""How long a rest follows, in times of what a look took: 5 % of one core at most."""


@dataclass(frozen=True)
class JobOutlook:
    """What was found about a job, and when."""

    sentence: str
    at: float


class Outlooks:
    """Whose turn it is to be looked into, and what was found."""

    def __init__(self, *, after_s: float, every_s: float) -> None:
        """Jobs are looked into once they have waited for `after_s`, and again after `every_s`."""
        self._after_s, self._every_s = after_s, every_s
        self._found: dict[str, JobOutlook] = {}
        self._pods: dict[str, str] = {}
        """By uid of a pod that was told, its job's uid."""

    def of(self, uid: str) -> str:
        """What to say behind the sentence about a job; empty if nothing is known."""
        found = self._found.get(uid)
        return found.sentence if found is not None else ""

    def of_pod(self, uid: str) -> str:
        """The same for a pod, if it is one of those that are told."""
        return self.of(self._pods[uid]) if uid in self._pods else ""

    def has_looked_into(self, uid: str) -> bool:
        """Whether anything has been said of a job."""
        return uid in self._found

    def pods_of(self, uid: str) -> list[str]:
        """The uids of a job's pods that are told."""
        return [pod for pod, job in self._pods.items() if job == uid]

    def next_job(self, cluster: Cluster, now: float, wall_s: float) -> Job | None:
        """The job whose look has been due for longest, if one is due."""
        self._forget(cluster)
        due: list[tuple[float, str]] = []
        for job in waiting(cluster):
            found = self._found.get(job.uid)
            late_s = wall_s - job.spec.created - self._after_s if found is None else now - found.at - self._every_s
            if late_s >= 0:
                due.append((-late_s, job.uid))
        return cluster.jobs[min(due)[1]] if due else None

    def keep(self, job: Job, sentence: str, now: float) -> None:
        """Remember what was found about a job; its first pods that wait are to be told."""
        self._found[job.uid] = JobOutlook(sentence, now)
        waits = (task.uid for task in job.tasks.values() if task.status is TaskStatus.PENDING)
        for _, uid in zip(range(MOST_PODS), waits, strict=False):
            self._pods[uid] = job.uid

    def drop(self, uid: str) -> None:
        """What was found about a job holds no more: it waits for something else now. It is looked into in its turn."""
        found = self._found.get(uid)
        if found is not None:
            self._found[uid] = JobOutlook("", found.at)

    def _forget(self, cluster: Cluster) -> None:
        waits = {job.uid for job in waiting(cluster)}
        for uid in self._found.keys() - waits:
            del self._found[uid]
        for uid in [uid for uid, job in self._pods.items() if job not in self._found]:
            del self._pods[uid]


def waiting(cluster: Cluster) -> Iterable[Job]:
    """The jobs that wait for nodes, or to be let in."""
    lines = cluster.lines
    return {**lines.by_phase[JobPhase.PENDING], **lines.for_nodes}.values()


def look_into(policy: Policy, job: Job, now: float) -> str:
    """What can be said of a job that waits; empty for one that is about to start."""
    rehearsal = Rehearsal(policy, now=now)
    found = why_in(rehearsal, job.uid)
    if found.fits or not found.is_waiting:
        return ""

    def may_see(namespace: str) -> bool:
        return namespace == job.spec.namespace  # who may read the job need not know others'

    remedy = first_remedy(rehearsal, job.uid, found, may_see=may_see)
    return sentence_of(found, remedy.sentence if remedy is not None else "", may_see)


def sentence_of(found: Why, remedy: str, may_see: Callable[[str], bool]) -> str:
    """`place 2 of 5 in queue "ml", behind ml/big; would start: lower minAvailable from 4 to 2`."""
    told = f'place {found.place} of {found.waiting} in queue "{found.queue}"'
    names = [NamedJob(key).told_to(may_see) for key in found.ahead]
    if names:
        shown = list(dict.fromkeys(names))[:MOST_NAMED]
        others = found.place - 1 - sum(names.count(one) for one in shown)
        told += f", behind {', '.join(shown)}" + (f" and {others} more" if others > 0 else "")
    if remedy:
        told += f"; would start: {remedy}"
    return told if len(told) <= MOST_CHARACTERS else f"{told[: MOST_CHARACTERS - 3]}..."


def with_outlook(message: str, outlook: str) -> str:
    """A sentence with what is known besides behind it, in the place of what was known before."""
    leading = without_outlook(message)
    return f"{leading}{MARK}{outlook}" if outlook and leading else leading


def without_outlook(message: str) -> str:
    """The sentence that others grep for."""
    return message.partition(MARK)[0]
