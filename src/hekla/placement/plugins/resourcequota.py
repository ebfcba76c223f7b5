"""Lets a job in only if the quotas of its namespace leave room for its minimum: otherwise its pods could not be made.

    a job may enter while  used + let in during this session + its minimum <= hard   for each name that a quota bounds

What the job's own pods use already is part of `used`, so it is taken off the minimum. (The peer counts it twice.)
Quotas with scopes bound only some pods; they are left to the API server, which sees the pods. (The peer applies them to
all.)
"""

from dataclasses import dataclass

from hekla.placement.framework import Opinion, Vote, plugin
from hekla.placement.model import HOLDS_NODE, Job, TaskStatus
from hekla.placement.session import Session
from hekla.quota.amounts import added, told

_MADE = frozenset({TaskStatus.PENDING, *HOLDS_NODE})


@plugin
@dataclass(frozen=True, kw_only=True)
class ResourceQuota:
    """Asks the quotas of a job's namespace."""

    def may_enqueue(self, session: Session, job: Job) -> Opinion:
        """A reject names the quota and what it lacks."""
        asked = _still_asked(job)
        if not asked:
            return Opinion(Vote.PERMIT)
        mates = (mate for mate in session.admitted if mate.spec.namespace == job.spec.namespace)
        entered = added(_still_asked(mate) for mate in mates)
        for quota in session.cluster.namespace_quotas.get(job.spec.namespace, {}).values():
            for name in sorted(asked.keys() & quota.hard.keys()):
                taken = quota.used.get(name, 0) + entered.get(name, 0)
                if taken + asked[name] > quota.hard[name]:
                    return Opinion(Vote.REJECT, _sentence(quota.name, name, asked[name], taken, quota.hard[name]))
        return Opinion(Vote.PERMIT)


def _sentence(quota: str, name: str, asked: int, taken: int, hard: int) -> str:
    unit = name.removeprefix("requests.").removeprefix("limits.")
    figures = f"{told(unit, asked)} asked, {told(unit, taken)} of {told(unit, hard)} taken"
    return f'resource quota insufficient: insufficient {name} ({figures} in resource quota "{quota}")'


def _still_asked(job: Job) -> dict[str, int]:
    """The job's minimum by the names of quotas, less what its pods that were made use already."""
    if not job.spec.quota_asked:
        return {}
    made = added(task.shape.request for task in job.tasks.values() if task.status in _MADE)
    rest = {name: amount - made.get(_resource(name), 0) for name, amount in job.spec.quota_asked.items()}
    return {name: amount for name, amount in rest.items() if amount > 0}


def _resource(name: str) -> str:
    """The resource that a quota's name is about. Limits are taken as large as requests: the engine knows no limits."""
    return name.removeprefix("requests.").removeprefix("limits.").removeprefix("count/")
