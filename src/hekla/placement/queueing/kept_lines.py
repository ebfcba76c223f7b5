# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""Lone jobs that wait stand in lines that outlive cycles: a cycle pays for who came and who goes, not for who waits.

A job of one pod that waits holds nothing yet, so its place follows from its spec, if all plug-ins that order jobs say
which fields they read (`JobOrder.orders_waiting_by`). It draws a ticket for its place, and steps out (`Job.step_out`)
when anything happens to it: its spec changes, it gets a second pod, it found no room. Who stands in no line is loose,
and is looked at in every cycle (`lines.loose`).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hekla.placement.framework import JobOrder, Key, Ready, Valid
from hekla.placement.model import Job, JobPhase, JobSpec
from hekla.placement.queueing.job_line import JobLine, Place

if TYPE_CHECKING:
    from hekla.placement.session import Session

MOST_ORDERS = 4096
"""What plug-ins say of so many kinds of jobs is remembered."""


class KeptLines:
    """The kept lines of one policy, by queue."""

    def __init__(self, asked: Callable[[type], Sequence[Any]]) -> None:
        orders = [getattr(plugin, "orders_waiting_by", None) for plugin in asked(JobOrder)]
        judges = [*asked(Valid), *asked(Ready)]  # not a set: a plug-in need not be hashable
        self._is_on = None not in orders and all(getattr(plugin, "starts_whole_jobs", False) for plugin in judges)
        names = sorted({name for fields in orders for name in fields or ()} | {"queue"})
        self._fields: Callable[[JobSpec], Any] = attrgetter(*names)
        self._orders: dict[Any, Key] = {}
        self._lines: dict[str, JobLine] = {}
        self._tickets = count(1)
        self._epoch = -1
        self._is_open = False
        self.taken_in = 0
        """How many jobs have joined a line, for tests of how work grows."""

    def open(self, session: "Session") -> tuple[list[Job], Mapping[str, JobLine]]:
        """(Jobs that wait and stand in no line, the lines of queues that are open), those who came in line by now.

        `close` says that everybody who got a turn was placed, stepped out or came back.
        """
        lines, cluster = session.cluster.lines, session.cluster
        if not self._is_on:
            return list(session.jobs_waiting()), {}
        if self._is_open or self._epoch != lines.epoch or not session.strict_queues.isdisjoint(self._lines):
            self._start_over(session)
        self._is_open = True
        loose = self._take_in(session)
        are_open = {name for name, queue in cluster.queues.items() if queue.is_open}
        return loose, {name: line for name, line in self._lines.items() if name in are_open and line.head()}

    def close(self) -> None:
        """The turns of this cycle are over."""
        self._is_open = False

    def _start_over(self, session: "Session") -> None:
        """Have everybody stand loose: others have kept lines of the same jobs, or a cycle broke off."""
        lines = session.cluster.lines
        for job in lines.for_nodes.values():
            job.ticket = 0
        lines.loose = dict(lines.for_nodes)
        lines.epoch += 1
        self._epoch = lines.epoch
        self._lines.clear()

    def _take_in(self, session: "Session") -> list[Job]:
        """Have loose jobs join the lines where they can; the others that wait."""
        cluster, rest = session.cluster, list[Job]()
        nodes, tickets, strict = cluster.nodes, self._tickets, session.strict_queues
        outside = cluster.lines.by_phase[JobPhase.PENDING]
        known, fields_of, loose, is_by_name = self._orders.get, self._fields, cluster.lines.loose, not nodes.seed
        stay = dict[str, Job]()
        fresh = {name: list[Place]() for name, queue in cluster.queues.items() if queue.is_open}
        for uid, job in loose.items():
            spec = job.spec
            queue = spec.queue
            if queue not in fresh or job.holds or uid in outside:
                stay[uid] = job
            elif (
                (task := job.sole) is None or job.statuses[0] != 1 or queue in strict
                # whether its pod may start by itself, asked by hand: a call was 0.1 us of the 4 that a pod takes
                or spec.min_available > 1 or job.pending_best_effort
                or spec.closeness is not None or spec.role_minimums or spec.subgroups
            ):  # fmt: skip
                stay[uid] = job
                rest.append(job)
            elif job.failed_at >= 0 and not session.is_worth_a_try(job):
                stay[uid] = job
            else:
                order = known(fields_of(spec))
                if order is None:
                    order = self._order(session, job)
                job.ticket = ticket = next(tickets)
                item = None if task.spec.is_gated else (job, (task,))
                fresh[queue].append((order, spec.created, uid if is_by_name else nodes.tie(uid), ticket, job, item))
        if any(fresh.values()):
            cluster.lines.loose = stay
        for queue, places in fresh.items():
            if places:
                self.taken_in += len(places)
                self._lines.setdefault(queue, JobLine([], is_kept=True)).feed(places)
        return rest

    def _order(self, session: "Session", job: Job) -> Key:
        """What plug-ins say, which is the same for all lone jobs whose specs have these fields in common."""
        if len(self._orders) >= MOST_ORDERS:
            self._orders.clear()
        order = self._orders[self._fields(job.spec)] = session.job_key(job)[:-2]
        return order
