"""Why are running pods not evicted for a job? Each with the first reason that keeps it, counted; and who may go.

The rules are those of `eligibility.py` and `victim_order.py`, asked of all pods together in the order of eviction, each as if those
before it had gone. So "may go" says that pods may, not that their going would be enough: that is tried by
`trial.py`.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hekla.placement.eviction.eligibility import Hurdle, Right
from hekla.placement.eviction.victim_order import in_order_of_eviction, is_candidate
from hekla.placement.framework import Preemptable, Reclaimable
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.plugins.drf import Drf
from hekla.placement.session import Session

LOOKS_AT_JOBS = 20_000
"""Hierarchical drf builds the tree of all jobs for each pod that it is asked about: it is asked about so few that the trees
together have no more jobs."""


class WhyKept(NamedTuple):
    """Why a pod is not evicted."""

    code: str
    sentence: str
    """What is said of several: `are kept by disruption budgets`."""


LEAVING = WhyKept("leaving", "are leaving already")
NOT_PREEMPTABLE = WhyKept("notPreemptable", 'say that they may not be evicted (volcano.sh/preemptable: "false")')
NOT_LENT = WhyKept("queueNotReclaimable", "run in queues that give nothing back (reclaimable: false)")
HIGHER = WhyKept("higherPriority", "run for jobs of a higher priority")
WENT_BEFORE = WhyKept("wentBefore", "run for jobs for which this one made way not long ago")
MIN_RUN = WhyKept("minRun", "have not run for as long as they asked to before they are evicted")
BUDGET = WhyKept("disruptionBudget", "are kept by disruption budgets")
NOBODY_AGREES = WhyKept("nobodyAgrees", "are let go by no tier of plug-ins")
NOT_LOOKED_AT = WhyKept("notLookedAt", "were not looked at, for they are many")

_BY_PLUGIN: Mapping[str, WhyKept] = {
    "priority": WhyKept("notLowerPriority", "run for jobs of the same priority"),
    "gang": WhyKept("gangNeedsThem", "are needed by their gangs"),
    "conformance": WhyKept("systemPod", "belong to the cluster itself (kube-system, or a system priority class)"),
    "cdp": WhyKept("coolingDown", "were placed not long ago (cool-down)"),
    "pdb": BUDGET,
    "drf": WhyKept("smallerShare", "run for jobs that would hold less than this one"),
    "proportion": WhyKept("withinShare", "run in queues that hold no more than they deserve"),
    "capacity": WhyKept("withinShare", "run in queues that hold no more than they deserve"),
    "tdm": WhyKept("outsideWindow", "may not be evicted at this hour, or not for this pod (tdm)"),
    "extender": WhyKept("extenderKeeps", "are kept by the extender"),
}  # fmt: skip


_BY_WORD = {MIN_RUN.code: MIN_RUN, BUDGET.code: BUDGET}


@dataclass
class Census:
    """Who may go for a job by one right, and why the others stay."""

    kept: Counter[WhyKept] = field(default_factory=Counter)
    """How many pods, by reason."""

    asked: Sequence[Task] = ()
    """Those about whom plug-ins were asked, in the order of eviction."""

    may_go: Sequence[Task] = ()
    """Those who may go, one after the other."""

    @property
    def jobs(self) -> Iterator[str]:
        """The uids of the jobs that may lose pods: first those of who may go, then others of which another pod may."""
        tasks = (*self.may_go, *self.asked)
        return iter(dict.fromkeys(task.job.uid for task in tasks if task.job is not None))


def census(session: Session, asker: Task, right: Right, *, together: bool) -> Census:
    """Ask about every pod that runs where this right could take it from; `together` as the actions for gangs do."""
    assert asker.job is not None
    found, eligibility = Census(), session.eligibility
    ranked = in_order_of_eviction(session, asker.job, _within_reach(session, asker.job, right, found.kept))
    left = [task for task, _, _ in ranked]
    most = _most_asked(session)
    if len(left) > most:
        found.kept[NOT_LOOKED_AT] = len(left) - most
    remaining: Sequence[Task] = left[:most]
    found.asked = remaining
    for behind, hurdle in eligibility.hurdles(right, asker):
        remaining = _past(remaining, hurdle, behind, found.kept) if remaining else ()
    if not remaining:
        return found
    votes = eligibility.voted_together if together else eligibility.voted
    found.may_go = votes(right, asker, remaining)
    gone = {task.uid for task in found.may_go}
    rest = [task for task in remaining if task.uid not in gone]
    for behind, hurdle in eligibility.opinions(right, asker, together=together):
        rest = list(_past(rest, hurdle, behind, found.kept)) if rest else []
    if rest:
        found.kept[NOBODY_AGREES] += len(rest)
    return found


def _past(tasks: Sequence[Task], hurdle: Hurdle, behind: object, kept: Counter[WhyKept]) -> Sequence[Task]:
    """Those who get past a hurdle; the others are counted."""
    left = hurdle(tasks)
    if len(left) < len(tasks):
        kept[_said_by(behind)] += len(tasks) - len(left)
    return left


def _within_reach(session: Session, job: Job, right: Right, kept: Counter[WhyKept]) -> Iterator[Task]:
    """Pods that run in the queues that a right is about, and that nothing keeps that needs no plug-in to say so."""
    queue = job.spec.queue
    for other in session.cluster.jobs.values():
        has_some = other.ready_count or other.statuses[TaskStatus.RELEASING]
        if not has_some or other is job or (other.spec.queue == queue) != (right is Preemptable):
            continue
        reason = _why_whole_job(session, other, job, right)
        for task in other.tasks.values():
            if task.row < 0 or not (task.status.is_evictable or task.is_leaving):
                continue
            if reason is None and is_candidate(task):
                yield task
            else:
                kept[reason or (LEAVING if task.is_leaving else NOT_PREEMPTABLE)] += 1


def _why_whole_job(session: Session, victim: Job, job: Job, right: Right) -> WhyKept | None:
    """What keeps all pods of a job alike."""
    queue = session.cluster.queues.get(victim.spec.queue)
    if right is Reclaimable and (queue is None or not queue.is_reclaimable):
        return NOT_LENT
    if right is Preemptable and victim.spec.priority > job.spec.priority:
        return HIGHER
    return None if session.eligibility.may_make_way(victim, job) else WENT_BEFORE


def _said_by(behind: object) -> WhyKept:
    """The reason of a plug-in, or what a word stands for."""
    if isinstance(behind, str):
        return _BY_WORD[behind]
    asked = getattr(behind, "preemptable", None) or getattr(behind, "reclaimable", None)
    plugin = getattr(asked, "__self__", behind)  # where switches left only a part of a plug-in, whose part it is
    name = type(plugin).__module__.rpartition(".")[2].replace("_", "-")
    return _BY_PLUGIN.get(name) or WhyKept(f"keptBy/{name}", f"are kept by the plug-in {name}")


def _most_asked(session: Session) -> int:
    jobs = len(session.cluster.jobs)
    if any(isinstance(plugin, Drf) and plugin.hierarchy for plugin in session.policy.plugins):
        return max(LOOKS_AT_JOBS // max(jobs, 1), 1)
    return sys.maxsize
