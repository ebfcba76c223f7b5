"""Lets a job in only if the quotas of its namespace leave room for its minimum: otherwise its pods could not be made.

    a job may enter while  used + what those who are in will still ask for + its minimum <= hard   for each name that a quota bounds

Those who are in count until their pods are made. (The peer counts those let in during the same session alone; two gangs let in by two sessions,
before either had made its pods, each took a part of the quota and waited for the other's.)

What the job's own pods use already is part of `used`, so it is taken off the minimum. (The peer counts it twice.)
Quotas with scopes bound only some pods; they are left to the API server, which sees the pods. (The peer applies them to
all.)
"""

from dataclasses import dataclass

from hekla.placement.admitted_demand import still_asked
from hekla.placement.framework import Opinion, Vote, plugin
from hekla.placement.model import Job
from hekla.placement.session import Session
from hekla.quota.amounts import told


@plugin
@dataclass(frozen=True, kw_only=True)
class ResourceQuota:
    """Asks the quotas of a job's namespace."""

    def may_enqueue(self, session: Session, job: Job) -> Opinion:
        """A reject names the quota and what it lacks."""
        asked = still_asked(job)
        if not asked:
            return Opinion(Vote.PERMIT)
        entered = session.entered_by_namespace.of(job.spec.namespace)
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
