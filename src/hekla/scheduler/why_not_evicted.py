"""Why is nobody evicted for a job that waits? For each action that evicts for others: what rules it out, or who stays and why.

Where an action would evict after all, it is told whom. `remedies_by_eviction.py` looks for a change with which one would.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hekla.api.meta import Document
from hekla.placement.actions.preempt import may_ask
from hekla.placement.constraint import Refusal
from hekla.placement.eviction.refusals import Census
from hekla.placement.eviction.trial import EVICTING, is_served, outlook_of
from hekla.placement.framework import Reclaimable
from hekla.placement.model import Job, JobPhase, Task
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.session import Session
from hekla.scheduler.sentences import job_told_to

MOST_TOLD = 3
MAKES_ROOM, ALL_KEPT, NOT_ENOUGH = "makesRoom", "allKept", "notEnough"


@dataclass(frozen=True, kw_only=True)
class ByAction:
    """What one action finds."""

    action: str
    code: str
    sentence: str
    census: Census | None = None
    """Who stays and why, where pods were asked about."""

    victims: Sequence[Task] = ()
    """Who would be evicted."""

    def document(self, may_see: Callable[[str], bool]) -> Document:
        """For programs."""
        kept = sorted(self.census.kept.items(), key=lambda one: (-one[1], one[0].code)) if self.census else ()
        return {
            "action": self.action,
            "code": self.code,
            "message": self.sentence,
            "mayGo": len(self.census.may_go) if self.census else 0,
            "kept": [{"code": why.code, "message": why.sentence, "pods": pods} for why, pods in kept],
            "victims": sorted({job_told_to(task.job, may_see) for task in self.victims if task.job is not None}),
        }


def why_not_evicted(rehearsal: Rehearsal, uid: str, may_see: Callable[[str], bool]) -> Sequence[ByAction]:
    """What the actions that evict for others find, in the order in which they are configured; one entry if none is."""
    session, job = rehearsal.session(), rehearsal.job(uid)
    if any(task.is_claim for task in job.tasks.values()):
        return [ByAction(action="", code="roomIsBeingMade", sentence="others are leaving for it already")]
    configured = [action for action in session.policy.actions if action in EVICTING]
    if not configured:
        sentence = f"no action that evicts for others is configured ({', '.join(EVICTING)})"
        return [ByAction(action="", code="notConfigured", sentence=sentence)]
    ruled_out = _rules_out_all(session, job)
    if ruled_out is not None:
        return [ByAction(action="", code=ruled_out.code, sentence=ruled_out.sentence)]
    found: list[ByAction] = []
    for action in configured:
        # Two actions by one right: where the first makes room, the second has nothing to do.
        if not any(one.code == MAKES_ROOM and EVICTING[one.action] is EVICTING[action] for one in found):
            found.append(_by(rehearsal, session, job, action, may_see))
    return found


def _by(
    rehearsal: Rehearsal, session: Session, job: Job, action: str, may_see: Callable[[str], bool]
) -> ByAction:  # fmt: skip
    ruled_out = _rules_out(session, job, action)
    if ruled_out is not None:
        return ByAction(action=action, code=ruled_out.code, sentence=ruled_out.sentence)
    found = outlook_of(rehearsal, job, action)
    if found.victims:
        sentence = f"evicts {listed(found.victims, may_see)} for it when it is its turn"
        return ByAction(action=action, code=MAKES_ROOM, sentence=sentence, census=found.census, victims=found.victims)
    free, kept = len(found.census.may_go), sum(found.census.kept.values())
    if free:
        sentence = f"evicting the {free} pods that may go would not make room"
        return ByAction(action=action, code=NOT_ENOUGH, sentence=sentence, census=found.census)
    where = "in other queues" if EVICTING[action] is Reclaimable else f'of other jobs in queue "{job.spec.queue}"'
    sentence = f"none of the {kept} pods that run {where} may go" if kept else f"no pods {where} run"
    return ByAction(action=action, code=ALL_KEPT if kept else "noPods", sentence=sentence, census=found.census)


def _rules_out_all(session: Session, job: Job) -> Refusal | None:
    """What keeps every action from evicting for a job."""
    if job.phase is JobPhase.PENDING:
        return Refusal("notLetIn", "nobody is evicted for a job that is not let in")
    if not any(True for _ in job.pending()):
        return Refusal("nothingWaits", "none of its pods waits for a node")
    invalid = session.why_invalid(job)
    if invalid is not None:
        return Refusal("tooFewPods", f"nobody is evicted for a gang that is not complete: {invalid.sentence}")
    if not may_ask(job):
        return Refusal("preemptionPolicyNever", "its pods say preemptionPolicy: Never")
    if not session.eligibility.is_starving(job):
        return Refusal("notStarving", "it has its minimum, and nobody is evicted for what goes beyond")
    return None


def _rules_out(session: Session, job: Job, action: str) -> Refusal | None:
    """What keeps one action from it."""
    if not is_served(session, job, action):
        return Refusal(
            "leftToGangActions", f"it wants its pods close together, and gang{action} makes room for such gangs"
        )
    if EVICTING[action] is not Reclaimable:
        return None
    queue = session.cluster.queues[job.spec.queue]
    if session.is_overused(queue):
        return Refusal("overShare", f'queue "{queue.name}" holds all that it deserves, so it takes nothing back')
    waiting = session.in_task_order(task for task in job.pending() if not task.spec.preemption_never)
    return session.eligibility.why_not_preemptive(job, waiting[0]) or _why_share_is_too_small(session, job, waiting)


def _why_share_is_too_small(session: Session, job: Job, waiting: Sequence[Task]) -> Refusal | None:
    """What evictions in other queues cannot mend: the job's own queue may not take all that the job needs."""
    needed = waiting[: session.shortfall(job)]
    equal = [task for task in needed if task.shape is needed[0].shape]
    allowed = session.allowance(job, equal[0], len(equal))
    if allowed >= len(equal):
        return None
    sentence = f'queue "{job.spec.queue}" may take {allowed} of the {len(needed)} pods that it needs, and no more'
    return Refusal("shareTooSmall", sentence)


def listed(victims: Sequence[Task], may_see: Callable[[str], bool]) -> str:
    """`3 pods of default/a and default/b`."""
    names = sorted({job_told_to(task.job, may_see) for task in victims if task.job is not None})
    more = f" and {len(names) - MOST_TOLD} more jobs" if len(names) > MOST_TOLD else ""
    told = names[:MOST_TOLD]
    joined = f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 and not more else ", ".join(told)
    return f"{len(victims)} pod{'s' if len(victims) > 1 else ''} of {joined}{more}"
