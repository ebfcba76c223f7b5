"""Make room for a gang at once, inside one domain of the network: evict whom it takes, promise the gang its rows.

Domains are tried widest first, as in Volcano, and of those of a tier the one is taken where it does the least harm. In
a domain all that the gang needs to start is tried out: bundles go one after the other (`bundles.py`) until every task
has a row, then those come back who are not needed after all, the most valuable first. What is left is the plan; it is
carried out when it is known to be the best one. Sub-gangs find a domain of their own within the gang's the same way.

`evict_for_task.py` does it for one task after the other, without a wish to be close.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hekla.placement.columns import BoolArray, IntArray
from hekla.placement.constraint import Refusal
from hekla.placement.eviction.bundles import Bundle, Harm, units_in_order, victims_of
from hekla.placement.eviction.eligibility import Right
from hekla.placement.eviction.future_fit import is_plain, will_fit
from hekla.placement.eviction.gang_minimum import needed
from hekla.placement.framework import Preemptable
from hekla.placement.model import Job, Task
from hekla.placement.session import Session
from hekla.placement.shape import Shape
from hekla.placement.statement import Statement
from hekla.placement.topology.gang import GangPart, ceiling_of, groups_in_order, levels_for, settled_rows
from hekla.placement.topology.refusals import NOT_KNOWN
from hekla.placement.topology.venue import slots
from hekla.placement.topology.wish import Closeness

MOST_SPARED = 64
"""How many victims are tried to be spared one by one, where sparing all at once that seem superfluous does not do."""


class GangManner(NamedTuple):
    """How a gang action evicts."""

    action: str
    right: Right
    most_domains: int
    allows_whole: bool
    promises_only: bool = False
    """Whether nobody is evicted: promises of lower priorities are taken over, that is all."""


class GangEvictionPlan(NamedTuple):
    """What a gang would have done in a domain."""

    units: Sequence[Bundle]
    places: Sequence[tuple[Task, int]]
    domain: int


@dataclass
class _Section:
    """Tasks that are given rows together: enough of them, or until the gang needs no more."""

    tasks: Sequence[Task]
    count: int | None = None

    @property
    def waiting(self) -> list[Task]:
        return [task for task in self.tasks if task.row < 0]

    @property
    def placed(self) -> int:
        return sum(1 for task in self.tasks if task.row >= 0)


@dataclass
class _Trial:
    """What was tried in a domain so far."""

    statement: Statement
    evicts: bool
    gone: list[tuple[int, Bundle]] = field(default_factory=list)
    """Who was sent away, and where the statement stood before."""

    minds_queue: bool = False
    """Whether the queue's share kept a task from a row that it would have fitted."""

    def back_to(self, savepoint: int) -> None:
        self.statement.back_to_savepoint(savepoint)
        self.gone = [entry for entry in self.gone if entry[0] < savepoint]


class GangRoom:
    """Makes room for one gang."""

    def __init__(self, session: Session, job: Job, manner: GangManner, *, among: Iterable[Job] | None = None) -> None:
        """`among` are the jobs that may lose tasks, where not all there are."""
        self._session, self._job, self._manner = session, job, manner
        self._among = session.cluster.jobs.values() if among is None else among
        self._cluster, self._eligibility, self._placer = session.cluster, session.eligibility, session.policy.placer
        self._tree = session.cluster.topology.tree()
        self._grows = session.is_ready(job)
        """Whether it runs already and only wants more."""

        waiting = [task for task in job.pending() if not task.is_best_effort and not task.spec.preemption_never]
        self._askers = session.in_task_order(waiting)
        self._needed = needed(session, job, self._askers)
        self._useful = self._rows_of_use()
        self._victims: list[Job] | None = None
        self._domain = self._tree.root
        self._refusal: Refusal | None = None
        """Why the queue may not take a task, if that was in the way."""

    def make(self, statement: Statement) -> bool:
        """Promise the gang what it needs, with evictions where they are needed; whether there is a domain for it."""
        if not self._needed:
            return False
        levels = self._domains()
        if isinstance(levels, Refusal):
            self._session.refusals[self._job.uid] = levels
            return False
        with self._cluster.looking_ahead():
            # Where room will be without harm the tightest domain is taken; the widest leaves most choice of victims.
            plan = self._best(statement, levels[::-1], evicts=False) or self._best(statement, levels, evicts=True)
            if plan is not None:
                self._carry_out(statement, plan)
        if plan is None and self._refusal is not None:
            self._session.note_no_room(self._job, self._refusal)
        return plan is not None

    # Domains

    def _domains(self) -> list[list[int]] | Refusal:
        """The domains to try, tier by tier, the widest first; none that could not take the gang if it were empty."""
        wish, topology = self._job.spec.closeness, self._cluster.topology
        if self._job.spec.wants_closeness and not topology.is_known:
            return NOT_KNOWN
        return self._levels(
            wish, self._tree.root, settled_rows(self._job.tasks.values()), self._askers, len(self._needed)
        )

    def _levels(
        self, wish: Closeness | None, within: int, rows: Sequence[int], tasks: Sequence[Task], count: int
    ) -> list[list[int]] | Refusal:
        ceiling = ceiling_of(self._tree, wish)
        if isinstance(ceiling, Refusal):
            return ceiling
        holds, left = self._holds(tasks, count), self._manner.most_domains
        found: list[list[int]] = []
        for level in reversed(list(levels_for(self._tree, within, ceiling, rows, wish))):
            found.append([domain for domain in level if holds[domain]][:left])
            left -= len(found[-1])
        return found

    def _holds(self, tasks: Sequence[Task], count: int) -> BoolArray:
        """Which domains could take so many of these tasks if nothing ran there.  # [domain]"""
        shapes = Counter(task.shape for task in tasks)
        enough: BoolArray = np.ones(len(self._tree.names), np.bool_)
        for shape, number in shapes.items():
            enough &= self._tree.sums(self._slots_when_empty(shape)) >= count - (len(tasks) - number)
        return enough

    def _slots_when_empty(self, shape: Shape) -> IntArray:
        nodes = self._cluster.nodes
        return slots(nodes.allocatable, shape.resources, shape.amounts, self._placer.open_rows(shape))

    def _rows_of_use(self) -> BoolArray:
        """Rows that could take one of the tasks that wait.  # [node]"""
        useful: BoolArray = np.zeros(self._cluster.nodes.rows, np.bool_)
        for shape in {task.shape for task in self._askers}:
            useful |= self._slots_when_empty(shape) > 0
        return useful

    # Plans

    def _best(self, statement: Statement, levels: Sequence[Sequence[int]], *, evicts: bool) -> GangEvictionPlan | None:
        """The plan of least harm in the first tier in which there is any."""
        for level in levels:
            plans = []
            for domain in level:
                plan = self._plan(statement, domain, evicts=evicts)
                if plan is not None and not plan.units:
                    return plan
                if plan is not None:
                    plans.append(plan)
            if plans:
                return min(plans, key=lambda plan: _harm(self._session, plan.units))
        return None

    def _plan(self, statement: Statement, domain: int, *, evicts: bool) -> GangEvictionPlan | None:
        """What it would take in one domain; nothing is changed."""
        start, trial = statement.savepoint, _Trial(statement, evicts)
        self._domain = domain
        plan = None
        if self._place(trial, domain):
            units = [unit for _, unit in trial.gone]
            places = [(task, task.row) for task in statement.placed]
            plan = GangEvictionPlan(self._without_needless(statement, start, units, places), places, domain)
        trial.back_to(start)
        return plan

    def _carry_out(self, statement: Statement, plan: GangEvictionPlan) -> None:
        self._domain = plan.domain
        is_done = self._replay(statement, statement.savepoint, plan.units, plan.places)
        assert is_done, "what was tried out can be done"

    def _replay(
        self, statement: Statement, start: int, units: Sequence[Bundle], places: Sequence[tuple[Task, int]]
    ) -> bool:
        """Do it again from a savepoint on; whether every task fits its row and its queue's share."""
        statement.back_to_savepoint(start)
        for unit in units:
            self._send_away(statement, unit)
        for task, row in places:
            if self._why_not(task) is not None or not will_fit(self._cluster, self._placer, task, row):
                return False
            statement.pipeline(task, row, evicted=bool(units))
        return True

    # Sparing

    def _without_needless(
        self, statement: Statement, start: int, units: Sequence[Bundle], places: Sequence[tuple[Task, int]]
    ) -> Sequence[Bundle]:
        """Who must go if the gang gets these rows, and nobody else."""
        needless = self._needless(units)
        kept = [unit for unit in units if id(unit) not in needless]
        if len(kept) == len(units) or self._replay(statement, start, kept, places):
            return kept
        kept, broken = list(units), {unit.job.uid for unit in kept if unit.harm is Harm.WHOLE}
        for unit in [unit for unit in reversed(units) if id(unit) in needless][:MOST_SPARED]:
            fewer = [one for one in kept if one is not unit]
            if unit.job.uid not in broken and self._replay(statement, start, fewer, places):
                kept = fewer
            elif unit.harm is Harm.WHOLE:
                broken.add(unit.job.uid)
        return kept

    def _needless(self, units: Sequence[Bundle]) -> set[int]:
        """Units, by id, whose room nobody takes, as far as amounts tell; the most valuable are looked at first."""
        future, needless, broken = self._cluster.nodes.future_idle(), set[int](), set[str]()
        for unit in reversed(units):
            if unit.job.uid in broken:
                continue  # what a job could spare goes with the rest of it
            held = [(one.shape, row) for one, row in zip((*unit.tasks, *unit.claims), unit.rows, strict=True)]
            for shape, row in held:
                future[shape.resources, row] -= shape.amounts
            if (future[:, unit.rows] >= 0).all():
                needless.add(id(unit))
                continue
            for shape, row in held:
                future[shape.resources, row] += shape.amounts
            if unit.harm is Harm.WHOLE:
                broken.add(unit.job.uid)
        return needless

    # One domain

    def _place(self, trial: _Trial, domain: int) -> bool:
        """Give the gang rows in a domain: whole, or of a job that has sub-gangs as many of those as it needs."""
        mask = self._tree.mask(domain, self._cluster.nodes.rows)
        if not self._job.spec.subgroups:
            return self._serve(trial, _Section(self._needed), mask) or (
                len(self._askers) > len(self._needed) and self._serve(trial, _Section(self._askers), mask)
            )
        groups, askers = groups_in_order(self._session, self._job), {task.uid for task in self._askers}
        for group in groups:
            section = _Section([task for task in group.waiting if task.uid in askers], group.missing)
            if (
                group.can_be_whole
                and len(section.tasks) >= group.missing
                and self._place_group(trial, group, section, domain)
                and self._has_enough()
            ):
                return True
        for group in groups:
            section = _Section([task for task in group.waiting if task.uid in askers and task.row < 0])
            is_part = group.policy is not None and group.missing > len(group.waiting) - len(section.tasks)
            if section.tasks and not is_part and self._place_group(trial, group, section, domain):
                return True
        return False

    def _place_group(self, trial: _Trial, group: GangPart, section: _Section, within: int) -> bool:
        """Give a sub-gang rows in one domain inside another: where no one goes, else where it does the least harm."""
        if group.closeness is None:
            return self._serve(trial, section, self._tree.mask(within, self._cluster.nodes.rows))
        rows = settled_rows([*group.placed, *group.waiting])
        levels = self._levels(group.closeness, within, rows, section.tasks, section.count or 1)
        if isinstance(levels, Refusal):
            self._session.refusals[self._job.uid] = levels
            return False
        for level in levels[::-1]:
            if any(self._serve_without(trial, section, domain) for domain in level):
                return True
        for level in levels if trial.evicts else ():
            found = [(harm, domain) for domain in level if (harm := self._harm_in(trial, section, domain)) is not None]
            if found:
                return self._serve(trial, section, self._mask(min(found)[1]))
        return False

    def _serve_without(self, trial: _Trial, section: _Section, domain: int) -> bool:
        """Give a section rows in a domain where nobody has to go for it."""
        start = trial.statement.savepoint
        is_served = self._fill(trial, section, np.flatnonzero(self._mask(domain)))
        if not is_served:
            trial.back_to(start)
        return is_served

    def _harm_in(self, trial: _Trial, section: _Section, domain: int) -> Any:
        """The harm it would do to give a section rows in a domain; None if there is no room to be made."""
        start, before = trial.statement.savepoint, len(trial.gone)
        is_served = self._serve(trial, section, self._mask(domain))
        harm = (_harm(self._session, [unit for _, unit in trial.gone[before:]]), domain) if is_served else None
        trial.back_to(start)
        return harm

    def _serve(self, trial: _Trial, section: _Section, mask: BoolArray) -> bool:
        """Give a section rows under a mask, one bundle after the other leaving; all or nothing."""
        start = trial.statement.savepoint
        if self._fill(trial, section, np.flatnonzero(mask)) or (
            trial.evicts and (self._evict(trial, section, mask) or self._evict_first(trial, section, mask, start))
        ):
            return True
        trial.back_to(start)
        return False

    def _evict(self, trial: _Trial, section: _Section, mask: BoolArray) -> bool:
        """Let bundle after bundle go and fill what it leaves, until it is enough."""
        for unit in self._units(section, mask):
            if not self._let_go(trial, section, unit):
                continue
            # Where the queue's share was in the way, rows that were free before may be taken now.
            rows = np.flatnonzero(mask) if trial.minds_queue else np.unique([row for row in unit.rows if mask[row]])
            if self._fill(trial, section, rows):
                return True
        return False

    def _evict_first(self, trial: _Trial, section: _Section, mask: BoolArray, start: int) -> bool:
        """The same with all gone before the first is placed: small tasks may have taken the rows of large ones."""
        if len({task.shape for task in section.tasks}) < 2:
            return False
        trial.back_to(start)
        for unit in self._units(section, mask):
            self._let_go(trial, section, unit)
        return self._fill(trial, section, np.flatnonzero(mask))

    def _mask(self, domain: int) -> BoolArray:
        return self._tree.mask(domain, self._cluster.nodes.rows)

    # Victims

    def _units(self, section: _Section, mask: BoolArray) -> Sequence[Bundle]:
        if self._victims is None:
            self._victims = victims_of(self._session, self._manner.right, self._job, self._among)
        need: Counter[str] = Counter()
        for task in section.waiting[: section.count]:
            need.update(task.shape.request)
        units = units_in_order(
            self._session, self._manner.right, self._job, self._victims, mask & self._useful, +need,
            allows_whole=self._manner.allows_whole,
        )  # fmt: skip
        return [unit for unit in units if unit.harm is Harm.PROMISE] if self._manner.promises_only else units

    def _let_go(self, trial: _Trial, section: _Section, unit: Bundle) -> bool:
        """Send a bundle away if it may go for one of those who wait; whether it went."""
        if any(task.is_leaving for task in unit.tasks) or any(not task.is_claim for task in unit.claims):
            return False
        is_whole = unit.harm is Harm.WHOLE
        askers = {task.shape: task for task in section.waiting}.values()
        may_go = not unit.tasks or any(
            self._eligibility.may_go_together(self._manner.right, task, unit.tasks, is_whole=is_whole)
            for task in askers
        )
        if may_go:
            trial.gone.append((trial.statement.savepoint, unit))
            self._send_away(trial.statement, unit)
        return may_go

    def _send_away(self, statement: Statement, unit: Bundle) -> None:
        for task in unit.tasks:
            statement.evict(task, self._reason(task), self._job, self._manner.action)
        for task in unit.claims:
            statement.forsake(task, self._job)

    def _reason(self, victim: Task) -> str:
        """In the words of the event that the victim's owner reads."""
        job, other = self._job, victim.job
        assert other is not None
        where = f' in hypernode "{self._tree.names[self._domain]}"' if self._domain != self._tree.root else ""
        if self._manner.right is Preemptable:
            return f'makes room for gang "{job.key}" of priority {job.spec.priority}{where}'
        return f'makes room for gang "{job.key}"{where}: queue "{job.spec.queue}" takes back what queue "{other.spec.queue}" borrowed'

    # Rows

    def _fill(self, trial: _Trial, section: _Section, rows: IntArray) -> bool:
        """Promise rows to tasks of a section, as far as there will be room; whether it has enough then."""
        for _, run in groupby(section.waiting, key=lambda task: (task.shape, task.carriers)):
            equal = list(run)
            for task, row in zip(equal, self._places(equal, rows), strict=False):
                if (refusal := self._why_not(task)) is not None:
                    trial.minds_queue, self._refusal = True, refusal
                    break
                trial.statement.pipeline(task, row, evicted=bool(trial.gone))
                if self._is_enough(section):
                    return True
        return False

    def _is_enough(self, section: _Section) -> bool:
        return self._has_enough() if section.count is None else section.placed >= section.count

    def _has_enough(self) -> bool:
        """Whether the gang can start with what it was promised; one that runs already asks for all or a sub-gang."""
        is_fed = not self._eligibility.is_starving(self._job) or (self._grows and bool(self._job.spec.subgroups))
        return is_fed and self._eligibility.is_pipelined(self._job)

    def _places(self, tasks: Sequence[Task], rows: IntArray) -> Iterator[int]:
        """A row for each of some equal tasks, best first and every one filled before the next, as long as there are any."""
        shape = tasks[0].shape
        rows = rows[self._placer.open_rows(shape)[rows]]
        if not len(rows):
            return
        rows = rows[np.lexsort((-self._cluster.nodes.rank()[rows], -self._placer.likes(shape)[rows]))]
        if is_plain(tasks[0]):
            room = slots(
                self._cluster.nodes.future_idle()[:, rows], shape.resources, shape.amounts, np.ones(len(rows), np.bool_)
            )
            for row, number in zip(rows.tolist(), room.tolist(), strict=True):
                yield from (row for _ in range(min(number, len(tasks))))
            return
        for task in tasks:
            row = next((row for row in rows.tolist() if will_fit(self._cluster, self._placer, task, row)), None)
            if row is None:
                return
            yield row

    def _why_not(self, task: Task) -> Refusal | None:
        """Why the gang's queue may not take a task, or have others evicted for it; None if it may."""
        if self._manner.right is not Preemptable:
            refusal = self._eligibility.why_not_preemptive(self._job, task)
            if refusal is not None:
                return refusal
        return self._session.why_not_allocatable(self._job, task)


def _harm(session: Session, units: Sequence[Bundle]) -> tuple[int, int, int, int]:
    """How much is lost: the highest priority, how many jobs, how many pods, and how many minutes of work."""
    victims = [task for unit in units for task in unit.tasks]
    highest = max((unit.job.spec.priority for unit in units), default=0)
    jobs = len({unit.job.uid for unit in units if unit.harm is Harm.WHOLE})
    lost = sum(int(task.spec.lost_work_s(session.wall_s) // 60) for task in victims)
    return highest, jobs, len(victims), lost
