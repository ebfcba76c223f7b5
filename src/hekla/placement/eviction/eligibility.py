# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""Who may be evicted for whom: the plug-ins' answers added up, and what nobody may overrule.

Tier by tier, those victims may go that all plug-ins of the tier agree on which have an opinion; the first tier that
lets anybody go decides. Three things differ from Volcano, on purpose:

- Two plug-ins of a tier whose answers have nobody in common let nobody of that tier go. (There, the next plug-in of the
  tier starts over with its own list, so that the last one overrules those before.)
- A *shield* (conformance, pdb, cdp) is asked before all tiers and holds in all of them. (There, a tier whose shield
  protects everybody lets the next tier decide, which knows nothing of the shield.)
- What queues deserve (proportion, capacity) binds reclaim in all tiers. (There, gang in the first tier decides alone, and
  queues lose what they deserve.) Only a gang that goes whole may take its queue below that.

Beyond plug-ins: nobody is evicted for a job of a lower priority in the same queue, nor for one that made way for it
(`precedence.py`), nor before it has run for as long as it asked to, nor more than its disruption budgets allow.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hekla.placement.constraint import Refusal
from hekla.placement.framework import (
    Entitled,
    Key,
    Pipelined,
    Preemptable,
    Preemptive,
    Reclaimable,
    Starving,
    UnifiedEvictable,
    VictimQueueOrder,
    Vote,
)
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.queue import Queue

if TYPE_CHECKING:
    from hekla.placement.cluster import Cluster
    from hekla.placement.session import Session

Right = type[Preemptable] | type[Reclaimable]
"""By which right a task is evicted: priority within a queue, or what another queue deserves."""

Hurdle = Callable[[Sequence[Task]], Sequence[Task]]
"""Those of some victims, which are in the order of eviction, that get past it."""

_METHODS: dict[Any, str] = {Preemptable: "preemptable", Reclaimable: "reclaimable"}


class Eligibility:
    """The answers in one cycle."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._policy = session.policy
        self._heeds_budgets = dict.fromkeys(_METHODS, True)

    # Votes

    def is_pipelined(self, job: Job) -> bool:
        """Whether a job has enough once what it was promised is free: a reject decides, else a tier's permit, else yes."""
        for tier in self._policy.asked_by_tier(Pipelined):
            votes = [plugin.is_pipelined(self._session, job).vote for plugin in tier]
            if Vote.REJECT in votes:
                return False
            if Vote.PERMIT in votes:
                return True
        return True

    def is_starving(self, job: Job) -> bool:
        """Whether others may be evicted for a job: all agree in the first tier that has an opinion; nobody: no."""
        first = next((tier for tier in self._policy.asked_by_tier(Starving) if tier), ())
        return bool(first) and all(plugin.is_starving(self._session, job) for plugin in first)

    def is_entitled(self, job: Job) -> bool:
        """Whether a job's queue may take back what the job asks for; no, if nobody knows what queues deserve."""
        asked = self._policy.asked(Entitled)
        return bool(asked) and all(plugin.is_entitled(self._session, job) for plugin in asked)

    def would_make_room(self, job: Job) -> bool:
        """Whether others would be evicted for a job that starves: its queue deserves it, or lower priorities hold as much."""
        actions = self._policy.actions
        if any(name in actions for name in ("reclaim", "gangreclaim")) and self.is_entitled(job):
            return True
        return any(name in actions for name in ("preempt", "gangpreempt")) and self._is_held_below(job)

    def _is_held_below(self, job: Job) -> bool:
        """Whether jobs of a lower priority in the same queue hold, and may lose, what a job starts with."""
        below: Counter[str] = Counter()
        for priority, held in self._held_by_priority.get(job.spec.queue, ()):
            if priority < job.spec.priority:
                below.update(held)
        minimum = job.spec.min_resources or {}
        return any(minimum.values()) and all(below[name] >= amount for name, amount in minimum.items())

    @cached_property
    def _held_by_priority(self) -> dict[str, list[tuple[int, Mapping[str, int]]]]:
        """By queue, what its jobs hold that may be evicted, with their priorities."""
        found: dict[str, list[tuple[int, Mapping[str, int]]]] = {}
        for job in self._session.cluster.jobs.values():
            if job.may_lose and job.spec.is_preemptable is not False:
                found.setdefault(job.spec.queue, []).append((job.spec.priority, job.holding))
        return found

    def why_not_preemptive(self, job: Job, task: Task) -> Refusal | None:
        """Why a job's queue may not have others evicted for a task; None if it may."""
        queue = self._session.cluster.queues[job.spec.queue]
        asked = self._policy.asked(Preemptive)
        return next((no for p in asked if (no := p.why_not_preemptive(self._session, queue, task))), None)

    def victim_queue_key(self, queue: Queue, preemptor: Job) -> Key:
        """The smaller loses tasks first."""
        asked = self._policy.asked(VictimQueueOrder)
        return tuple(key for p in asked for key in p.victim_queue_key(self._session, queue, preemptor))

    # Victims

    def heed_budgets(self, right: Right, yes: bool) -> None:
        """Whether disruption budgets bind this kind of eviction; a plug-in pdb that is configured binds it anyway."""
        self._heeds_budgets[right] = yes

    def evictable(self, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Those of `victims`, which are in the order of eviction, that may go for a task."""
        allowed = self._unshielded(right, task, victims)
        return self.voted(right, task, allowed) if allowed else ()

    def may_go_whole(self, right: Right, task: Task, gang: Sequence[Task]) -> bool:
        """Whether a gang may go whole, of which one task may go.

        Where queues take back what they deserve, the part of a gang that its queue has borrowed cannot go without the
        rest: then its queue may end up below what it deserves, but never below its guarantee.
        """
        if right is not Reclaimable:
            return len(self.evictable(right, task, gang)) == len(gang)
        return len(self._unshielded(right, task, gang)) == len(gang) and self._keeps_guarantees(gang)

    def _keeps_guarantees(self, gang: Sequence[Task]) -> bool:
        """Whether the gang's queue, and those above it, hold what they are guaranteed without it."""
        job, cluster = gang[0].job, self._session.cluster
        assert job is not None
        total: Counter[str] = Counter()
        for one in gang:
            total.update(one.shape.request)
        name, seen = job.spec.queue, set[str]()
        while name in cluster.queues and name not in seen:
            seen.add(name)
            held = cluster.ledger.of(name).held
            kept = cluster.queues[name].guarantee
            if any(total[resource] and held[resource] - total[resource] < least for resource, least in kept.items()):
                return False
            name = cluster.ledger.parents.get(name, "")
        return True

    def may_go_together(self, right: Right, task: Task, victims: Sequence[Task], *, is_whole: bool) -> bool:
        """Whether tasks of one job may all go for a task of a gang; `is_whole` says that nothing of the job is left then.

        What protects tasks from being evicted one by one protects them here too, which it does not in Volcano; the tiers
        are asked by `UnifiedEvictable`.
        """
        if len(self._unshielded(right, task, victims)) < len(victims):
            return False
        if right is Reclaimable:
            if not any(_knows_shares(plugin) for plugin in self._policy.asked(Reclaimable)):
                return False  # nobody knows what queues deserve; in Volcano priority would then permit all
            owed = len(self._owed(right, task, victims))
            if owed < len(victims) and not (is_whole and owed and self._keeps_guarantees(victims)):
                return False
        return self._agree(right, task, victims)

    def _agree(self, right: Right, task: Task, victims: Sequence[Task]) -> bool:
        """Whether the first tier that lets anybody go lets all go; yes, if nobody has an opinion."""
        is_asked = False
        for tier in self._policy.asked_by_tier(UnifiedEvictable):
            going: set[str] | None = None
            for plugin in tier:
                answer = plugin.evictable_together(self._session, task, victims, takes_back=right is Reclaimable)
                if answer is not None:
                    named = {one.uid for one in answer}
                    is_asked, going = True, named if going is None else going & named
            if going:
                return len(going) == len(victims)
        return not is_asked

    def would_do(self, job: Job, gone: Sequence[Task]) -> bool:
        """Whether a job would have enough with its promises alone, if these tasks of it went."""
        before = [(one, one.status) for one in gone]
        for one in gone:
            job.move(one, TaskStatus.RELEASING)
        is_enough = self.is_pipelined(job)
        for one, status in before:
            job.move(one, status)
        return is_enough

    def voted(self, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """The tiers' decision, shields aside; if there are no plug-ins but shields, nobody is against it."""
        victims = self._owed(right, task, victims)
        is_asked = False
        for tier in self._policy.asked_by_tier(right):
            agreed: Sequence[Task] | None = None
            for plugin in tier:
                if _is_shield(plugin):
                    continue
                is_asked = True
                # who knows shares has been asked, and lets all go that are left
                answer = victims if _knows_shares(plugin) else self._answer(plugin, right, task, victims)
                if answer is None:
                    continue
                named = {one.uid for one in answer}
                agreed = [one for one in (victims if agreed is None else agreed) if one.uid in named]
                if not agreed:
                    break
            if agreed:
                return agreed
        return victims if self._policy.asked(right) and not is_asked else ()

    def hurdles(self, right: Right, task: Task) -> Iterator[tuple[object, Hurdle]]:
        """What protects victims whatever the tiers say, in order, each with what stands behind it: a word, or a plug-in."""
        yield "minRun", lambda victims: [victim for victim in victims if self._has_run_enough(victim)]
        asked = self._policy.asked(right)
        yield from ((plugin, partial(self._left, plugin, right, task)) for plugin in asked if _is_shield(plugin))
        if self._heeds_budgets[right]:
            yield "disruptionBudget", partial(within_budgets, self._session.cluster)
        yield from ((plugin, partial(self._left, plugin, right, task)) for plugin in asked if _knows_shares(plugin))

    def opinions(self, right: Right, task: Task, *, together: bool) -> Iterator[tuple[object, Hurdle]]:
        """Whom each plug-in of the tiers would let go; `together` as the actions for gangs ask. `voted` adds them up."""
        if together:
            asked = self._policy.asked(UnifiedEvictable)
            yield from ((plugin, partial(self._together, plugin, right, task)) for plugin in asked)
            return
        for plugin in self._policy.asked(right):
            if not _is_shield(plugin) and not _knows_shares(plugin):
                yield plugin, partial(self._left, plugin, right, task)

    def voted_together(self, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """The tiers' decision for the actions for gangs, whatever protects victims anyway aside."""
        is_asked = False
        for tier in self._policy.asked_by_tier(UnifiedEvictable):
            left = victims
            for plugin in tier:
                is_asked, left = True, self._together(plugin, right, task, left)
            if left and tier:
                return left
        return () if is_asked else victims

    def _together(self, plugin: UnifiedEvictable, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        answer = plugin.evictable_together(self._session, task, victims, takes_back=right is Reclaimable)
        return victims if answer is None else answer

    def _left(self, plugin: Any, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        answer = self._answer(plugin, right, task, victims) if victims else None
        return victims if answer is None else answer

    def _answer(self, plugin: Any, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        answer: Sequence[Task] | None = getattr(plugin, _METHODS[right])(self._session, task, victims)
        return answer

    def _owed(self, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Those that queues owe, by all plug-ins that know what queues deserve."""
        for plugin in self._policy.asked(right):
            if victims and _knows_shares(plugin):
                answer = getattr(plugin, _METHODS[right])(self._session, task, victims)
                victims = victims if answer is None else answer
        return victims

    def may_make_way(self, victim: Job, preemptor: Job) -> bool:
        """Whether evicting tasks of one job for another lets evictions come to an end, and harms no higher priority."""
        if victim is preemptor:
            return True
        if victim.party == preemptor.party or victim.party in self.before(preemptor):
            return False
        return victim.spec.queue != preemptor.spec.queue or victim.spec.priority <= preemptor.spec.priority

    def before(self, job: Job) -> frozenset[str]:
        """The parties that go before a job, as far as this cycle has come."""
        precedence = self._session.cluster.precedence
        return precedence.before(job.party) if len(precedence) else frozenset()

    def _unshielded(self, right: Right, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Those of `victims` that no shield, budget or time to run protects, each as if those before had gone."""
        session = self._session
        left = [victim for victim in victims if self._has_run_enough(victim)]
        for plugin in self._policy.asked(right):
            if left and _is_shield(plugin):
                answer = getattr(plugin, _METHODS[right])(session, task, left)
                left = left if answer is None else list(answer)
        return within_budgets(session.cluster, left) if self._heeds_budgets[right] else left

    def _has_run_enough(self, victim: Task) -> bool:
        spec = victim.spec
        if not spec.min_run_s or spec.started is None:
            return True
        until = spec.started + spec.min_run_s
        if until <= self._session.wall_s:
            return True
        self._session.look_again(until)
        return False


def within_budgets(cluster: "Cluster", victims: Iterable[Task]) -> list[Task]:
    """Those of the victims, one after the other, that their disruption budgets let go."""
    if not cluster.budgets:
        return list(victims)
    taken: Counter[tuple[str, str]] = Counter(cluster.spent)
    chosen = []
    for victim in victims:
        budgets = cluster.budgets_of(victim)
        if all(taken[budget.namespace, budget.name] < budget.allowed for budget in budgets):
            chosen.append(victim)
            taken.update((budget.namespace, budget.name) for budget in budgets)
    return chosen


def _knows_shares(plugin: object) -> bool:
    return bool(getattr(plugin, "knows_shares", False))


def _is_shield(plugin: object) -> bool:
    return bool(getattr(plugin, "is_shield", False))
