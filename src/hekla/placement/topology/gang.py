"""Place a gang whole inside one domain of the network, the tightest that takes it.

Tiers are tried from the lowest up; in a tier, the domain first that the plug-ins like most, which is the one that the
gang would leave fullest. A gang that has pods running stays with them: only domains around those are tried. Sub-gangs
with a wish of their own are placed the same way, each inside its own domain within the gang's. A soft wish is a hard
one that any tier satisfies, as in Volcano.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from hekla.placement.columns import natural_key
from hekla.placement.constraint import Refusal
from hekla.placement.framework import DomainScorer
from hekla.placement.model import ALLOCATED_STATUSES, READY_STATUSES, Job, SubGroupPolicy, Task, TaskStatus
from hekla.placement.node_selection.filling import fill_places
from hekla.placement.session import Failure, Session
from hekla.placement.statement import Statement
from hekla.placement.topology.demand import Demand, Room, room_for
from hekla.placement.topology.fill import Scores, fill
from hekla.placement.topology.refusals import NOT_KNOWN, no_such_tier, too_far_apart, why_nowhere
from hekla.placement.topology.tree import Tree
from hekla.placement.topology.venue import venue
from hekla.placement.topology.wish import Closeness


def place_close(statement: Statement, session: Session, job: Job) -> None:
    """Place tasks until the job is ready, or is one task larger if it was, as close together as it wishes."""
    waiting = session.in_task_order(task for task in job.pending() if not task.is_best_effort)
    if not waiting:
        return
    tree = session.cluster.topology.tree()
    ceiling = ceiling_of(tree, job.spec.closeness) if session.cluster.topology.is_known else NOT_KNOWN
    rows = settled_rows(job.tasks.values())
    if isinstance(ceiling, int) and rows and tree.tiers[tree.around(rows)] > ceiling:
        ceiling = too_far_apart(tree, tree.around(rows), len(rows), ceiling)
    if isinstance(ceiling, Refusal):
        session.refusals[job.uid] = ceiling
        return
    _Attempt(statement, session, job, tree).place(waiting, rows, ceiling)


@dataclass
class GangPart:
    """A sub-gang, or the pods that are in none; who is promised a node counts as placed."""

    policy: SubGroupPolicy | None
    name: str
    waiting: list[Task] = field(default_factory=list)
    placed: list[Task] = field(default_factory=list)

    @property
    def closeness(self) -> Closeness | None:
        """How close its pods are to be."""
        return self.policy.closeness if self.policy is not None else None

    @property
    def missing(self) -> int:
        """How many tasks it needs to be whole."""
        return max(self.policy.size - len(self.placed), 0) if self.policy is not None else 0

    @property
    def can_be_whole(self) -> bool:
        """Whether it is not whole, and enough of its tasks wait."""
        return 0 < self.missing <= len(self.waiting)


class _Attempt:
    """One job's attempt in one statement."""

    def __init__(self, statement: Statement, session: Session, job: Job, tree: Tree) -> None:
        self._statement, self._session, self._job, self._tree = statement, session, job, tree
        self._rows = session.cluster.nodes.rows
        self._why: Failure | None = None
        """What stopped the last try."""

    def place(self, waiting: Sequence[Task], rows: Sequence[int], ceiling: int) -> None:
        demand = Demand(waiting, min(self._session.shortfall(self._job), len(waiting)))
        room = room_for(demand, self._tree, self._session.policy.placer)
        for domain in self._candidates(demand, room, self._tree.root, ceiling, rows, self._job.spec.closeness):
            mark = len(self._statement)
            self._fill(domain, rows)
            if len(self._statement) > mark and self._session.is_ready(self._job):
                return
            self._statement.back_to(mark)
            if self._job.uid in self._session.refusals:
                return
        self._tell(demand, room, ceiling, rows)

    def _fill(self, domain: int, rows: Sequence[int]) -> None:
        job = self._job
        if job.spec.subgroups:
            self._place_groups(domain)
        else:
            inside = venue(self._tree, domain, self._rows, siblings=rows, wanted=len(job.tasks))
            fill_places(self._statement, self._session, job, inside)

    # Sub-gangs

    def _place_groups(self, domain: int) -> None:
        """Sub-gangs whole, those first that the gang cannot do without; then single tasks, until the job is ready."""
        groups = groups_in_order(self._session, self._job)
        for group in groups:
            if group.can_be_whole and self._place_group(group, group.missing, domain) and self._is_done():
                return
        for group in groups:
            left = [task for task in group.waiting if task.row < 0]
            if left and not (group.policy is not None and group.missing > len(group.waiting) - len(left)):
                group.waiting = left
                if (
                    self._place_group(group, min(self._session.shortfall(self._job), len(left)), domain)
                    and self._is_done()
                ):
                    return

    def _is_done(self) -> bool:
        return self._session.is_ready(self._job)

    def _place_group(self, group: GangPart, count: int, within: int) -> bool:
        """Place so many tasks of a sub-gang inside one domain; whether there was one."""
        tree, wish = self._tree, group.closeness
        ceiling = ceiling_of(tree, wish)
        if isinstance(ceiling, Refusal):
            self._session.refusals[self._job.uid] = ceiling
            return False
        demand = Demand(group.waiting, count)
        room = room_for(demand, tree, self._session.policy.placer)
        rows = settled_rows(group.placed) + settled_rows(group.waiting)
        for domain in self._candidates(demand, room, within, ceiling, rows, wish):
            mark = len(self._statement)
            if self._place_tasks(demand, domain, rows, len(group.placed) + len(group.waiting)):
                return True
            self._statement.back_to(mark)
            if self._job.uid in self._session.refusals:
                return False
        allowed = list(self._allowed(within, ceiling, rows, wish))
        told = why_nowhere(
            self._session.policy, tree, demand, room, allowed, ceiling=tree.tiers[max(allowed, default=within)],
            group=group.name,
        )  # fmt: skip
        self._why = Failure(demand.tasks[0], told)
        return False

    def _place_tasks(self, demand: Demand, domain: int, rows: Sequence[int], siblings: int) -> bool:
        """Place the tasks that are needed inside a domain, whichever of them fit; whether enough did."""
        left = demand.needed
        inside = venue(self._tree, domain, self._rows, siblings=rows, wanted=siblings)
        for _, run in groupby(demand.tasks, key=lambda task: (task.shape, task.spec.role, task.carriers)):
            left -= self._session.try_run(self._statement, self._job, list(run)[:left], inside)
            if left == 0:
                return True
        return False

    # Domains

    def _candidates(
        self, demand: Demand, room: Room, within: int, ceiling: int, rows: Sequence[int], wish: Closeness | None
    ) -> Iterator[int]:
        """The domains to try, tightest first."""
        liked: Scores | None = None
        for level in levels_for(self._tree, within, ceiling, rows, wish):
            fit = [domain for domain in level if room.is_enough[domain]]
            if len(fit) > 1:
                liked = self._liked(demand) if liked is None else liked
                scores = -liked[fit]
                fit = [fit[at] for at in np.lexsort((np.array(fit), scores)).tolist()]
            yield from fit

    def _allowed(self, within: int, ceiling: int, rows: Sequence[int], wish: Closeness | None) -> Iterator[int]:
        for level in levels_for(self._tree, within, ceiling, rows, wish):
            yield from level

    def _liked(self, demand: Demand) -> Scores:
        """How much the plug-ins like each domain; without any, the one that would be fullest is liked most."""
        nodes, request = self._session.cluster.nodes, demand.request
        scorers = self._session.policy.asked(DomainScorer)  # type: ignore[type-abstract]  # a Protocol is what is asked for
        if not scorers:
            return fill(nodes, self._tree, request, {name: 1.0 for name in request if name != "pods"})
        scores: Scores = sum(
            (plugin.score_domains(nodes, self._tree, request) for plugin in scorers),
            np.zeros(len(self._tree.names), np.float64),
        )
        return scores

    def _tell(self, demand: Demand, room: Room, ceiling: int, rows: Sequence[int]) -> None:
        """Note why no domain took the gang; where any domain would have done, the nodes' reasons say more."""
        if self._why is not None:
            self._session.failures.setdefault(self._job.uid, self._why)
            return
        allowed = list(self._allowed(self._tree.root, ceiling, rows, self._job.spec.closeness))
        if self._tree.root in allowed:
            self._session.explain_failure(self._job, demand.tasks[0])
            return
        told = why_nowhere(self._session.policy, self._tree, demand, room, allowed, ceiling=ceiling)
        self._session.failures.setdefault(self._job.uid, Failure(demand.tasks[0], told))


def groups_in_order(session: Session, job: Job) -> list[GangPart]:
    """A job's sub-gangs: those that are needed to have enough of them go first, then by policy and name."""
    groups, needed = _groups(session, job), list[GangPart]()
    for policy in job.spec.subgroups:
        own = [group for group in groups if group.policy is policy]
        lacking = policy.min_groups - sum(1 for group in own if not group.missing)
        needed += [group for group in own if group.can_be_whole][: max(lacking, 0)]
    return needed + [group for group in groups if not any(group is other for other in needed)]


def levels_for(
    tree: Tree, within: int, ceiling: int, rows: Sequence[int], wish: Closeness | None
) -> Iterator[Sequence[int]]:
    """Domains by tier, the lowest first: all of them inside one, or, with siblings placed, those around the siblings."""
    if wish is None:
        yield [within]
    elif rows:
        for domain in tree.chain(tree.around(rows)):
            if tree.tiers[domain] <= ceiling and tree.holds(within, domain):
                yield [domain]
    else:
        yield from tree.levels(within=within, up_to=ceiling)


def ceiling_of(tree: Tree, wish: Closeness | None) -> int | Refusal:
    """The highest tier that a wish allows. None named means any, as a soft wish does."""
    if wish is None or not wish.is_hard:
        return tree.tiers[tree.root]
    if wish.tier_name:
        tier = tree.tier_names.get(wish.tier_name)
        return tier if tier is not None else no_such_tier(tree, wish.tier_name)
    return wish.highest_tier if wish.highest_tier is not None else tree.tiers[tree.root]


def settled_rows(tasks: Iterable[Task]) -> list[int]:
    """Where these tasks are, or are promised to be; those that are ending left out."""
    return [task.row for task in tasks if task.row >= 0 and (task.is_claim or task.status in ALLOCATED_STATUSES)]


def _groups(session: Session, job: Job) -> list[GangPart]:
    """The job's sub-gangs in order of policy and name, then the tasks that are in none."""
    groups: dict[tuple[int, str], GangPart] = {}
    for task in session.in_task_order(job.tasks.values()):
        at, name = group_of(job, task)
        policy = job.spec.subgroups[at] if at < len(job.spec.subgroups) else None
        group = groups.setdefault((at, name), GangPart(policy, name))
        if task.status in READY_STATUSES or task.is_claim:
            group.placed.append(task)
        elif task.status is TaskStatus.PENDING and not task.spec.is_gated and not task.is_best_effort:
            group.waiting.append(task)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], natural_key(key[1])))]


def group_of(job: Job, task: Task) -> tuple[int, str]:
    """The sub-gang of a task: the place of its policy, and its name; after all policies for those that are in none."""
    for at, policy in enumerate(job.spec.subgroups):
        name = policy.group_of(task.spec)
        if name is not None:
            return at, name
    return len(job.spec.subgroups), ""
