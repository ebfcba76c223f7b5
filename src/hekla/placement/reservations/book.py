"""Room kept for jobs that wait for much of it, and filled meanwhile by those who are gone before it is needed.

A gang that needs half of the cluster never finds it free at once while small jobs keep coming. So when it does not fit, it
is found out when it will, and where: pods are taken away in the order in which they are expected to end, on a copy of the
cluster, until it fits. From then on that room is reserved. Whoever

    ends before the reservation begins       may use it (backfill)
    is of higher priority                     does not heed it
    else                                      uses only what the reservation does not need of what is idle now:
                                              max(0, reserved - given back on that node until then)

so that nobody who was let in delays it, as long as estimates hold. Where one does not, the start is put off, but not the time by
which those must be gone who are let in: that is the start that was told first. Once it has passed nobody is, and the job waits
where it was to start, giving up a place only for one that is free. So it is late by no more than those overrun that were there
then: the proof is that from then on they can only become fewer. What its queue, or one above, may hold at most is kept
by the same rule, and what its queue deserves at most.

Room is kept for `depth` jobs at a time: those that need the largest part of the cluster at once, since what they need is
least likely to be free by chance (`order.py`). As a cycle begins, a job for which room has become free elsewhere is planned
anew, before anybody else takes that room: nodes that others were expected to leave, and do not, are exchanged for those that
are free. So how long a job waits hangs less on estimates than on how often nodes become free. Nothing is kept for a job that
can never fit, nor for one whose queue holds all that it deserves; evictions do not heed reservations.

A job that is kept out for want of room has its reservation before it enters, planned with the pods that it will make; so it
enters at once. Its claim is in an account of its own (`admitted_demand.py`): others enter as if it were not there, but for what is
kept of the idle room. `expected_ends.py` says when pods end, `forecast.py` finds out when a job fits, and `place_beside.py` places
jobs on what is left. The plug-in `reservation` has this switched on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

from hekla.placement.model import Job, JobPhase
from hekla.placement.reservations.eventual_fit import InTheEnd
from hekla.placement.reservations.expected_ends import Ends
from hekla.placement.reservations.forecast import expected_start
from hekla.placement.reservations.forecast_equal_pods import Expected, KeptForJob, one_of_equals, soonest
from hekla.placement.reservations.held_amounts import HeldAmounts
from hekla.placement.reservations.order import most_in_need
from hekla.placement.reservations.planning_budget import (
    AGAIN_FIRST,
    FROM_THE_START,
    MOST_LOOKS,
    MOST_PLANS,
    Plans,
    Unplanned,
)
from hekla.placement.reservations.reservation import Reservation
from hekla.placement.session import Session
from hekla.quota.amounts import added

RESERVED = "reserved"
PATIENCE_S = 60.0
"""How long after its start room is kept for a job that was let in and has made no pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the plug-in was told."""

    depth: int
    """For how many jobs at a time room is kept."""

    after_s: float
    """How long a job must have waited."""

    estimate_s: float | None
    """How long jobs are expected to run that say nothing."""


class Book:
    """The reservations as one session sees them."""

    def __init__(self, session: Session, terms: Terms) -> None:
        self._session, self._terms = session, terms
        self._cluster = session.cluster
        self.ends = Ends(session, terms.estimate_s)
        self.held = HeldAmounts(self._cluster, self.ends)
        self._plans = Plans(session, self._expected)
        self._kept_idle: dict[tuple[str, ...], Mapping[str, int]] = {}
        self._in_order: Sequence[Reservation] | None = None
        self.version = 0
        """Grows when room is kept for others than before."""

        self._free = 0
        """For how many more jobs room may be kept in this cycle: what is given up meanwhile goes to whom the next one chooses."""

        for uid, reservation in list(self.kept.items()):
            if self._is_void(reservation):
                self._strike(uid)
            else:
                session.look_again(self._next_look(reservation))
        for uid in self._cluster.let_in - self.kept.keys():
            if not self._is_yet_to_start(uid):
                self._cluster.let_in.discard(uid)
        for reservation in self.in_order if self.kept else ():
            job = self._cluster.jobs[reservation.uid]
            if session.wall_s >= reservation.start_s and session.rests(job):
                self.wish(job)  # somebody is late, and it will not be tried: all others would wait beside idle nodes
            else:
                self._take_free_room(reservation)
        self._free = terms.depth - len(self.kept)
        if self._free > 0:
            self._choose()

    @property
    def kept(self) -> dict[str, Reservation]:
        """By job; they outlive the session."""
        return self._cluster.reservations

    @property
    def in_order(self) -> Sequence[Reservation]:
        """The reservations, the earliest first."""
        if self._in_order is None:
            self._in_order = sorted(self.kept.values(), key=lambda r: (r.until_s, r.uid))
        return self._in_order

    # Who heeds what

    def heeded(self, job: Job) -> list[Reservation]:
        """The reservations that a job must not delay, the earliest first."""
        if not self.kept:
            return []
        end, priority = self._session.wall_s + self.ends.estimate_s(job), job.spec.priority
        return [r for r in self.in_order if r.uid != job.uid and r.priority >= priority and r.until_s < end]

    @contextmanager
    def kept_free(self, heeded: Sequence[Reservation]) -> Iterator[None]:
        """What these need of what is idle now, and of what their queues may hold, counts as in use within the block."""
        nodes, ledger = self._cluster.nodes, self._cluster.ledger
        taken = [(row, *nodes.vector(held)) for row, held in self.held.on_rows(heeded)]
        posted = list(self.held.in_queues(heeded))
        for row, resources, amounts in taken:
            nodes.take(row, resources, amounts)
        for name, held in posted:
            ledger.of(name).post(held, 0, 1)
        try:
            yield
        finally:
            for row, resources, amounts in taken:
                nodes.give(row, resources, amounts)
            for name, held in posted:
                ledger.of(name).post(held, 0, -1)

    def kept_idle(self, heeded: Sequence[Reservation]) -> Mapping[str, int]:
        """How much these need of what is idle now, by resource."""
        key = tuple(reservation.uid for reservation in heeded)
        known = self._kept_idle.get(key)
        if known is None:
            known = self._kept_idle[key] = added(held for _, held in self.held.on_rows(heeded))
        return known

    # Keeping them

    def placed(self, job: Job) -> None:
        """A job's pods were given nodes: it needs no reservation, and gives back there what it takes when it ends."""
        self._cluster.let_in.discard(job.uid)
        self._strike(job.uid)
        self.ends.note(job)

    def wish(self, job: Job) -> None:
        """A job did not fit: reserve room for it, or find out anew when it will fit."""
        known = self.kept.get(job.uid)
        if known is None and not self._is_eligible(job):
            return
        if known is None and job.uid in self._cluster.out_of_reach:
            return  # its turn to be planned comes as cycles begin
        if known is None or known.is_imagined or not self._is_on_time(known):
            found = self._planned(job)
            if found is Unplanned.NOT_YET:
                return
            if isinstance(found, Unplanned):
                self._keep(job, None)
            elif found.start_s > self._session.wall_s:
                self._keep(job, found)
            else:  # there is room, and it was tried: nobody waits for what else is in its way
                self._keep(job, None)
                self._plans.put_off(job)

    def _choose(self) -> None:
        """Keep room for those that are most in need of it, as far as it may be kept for more; who fits now needs none."""
        if not self.ends.in_order:
            return
        session, lines = self._session, self._cluster.lines
        outside = [job for job in lines.by_phase[JobPhase.PENDING].values() if job.spec.min_resources]
        inside = (job for job in lines.loose.values() if job.phase is not JobPhase.PENDING and any(job.pending()))
        waiting = (job for job in (*inside, *outside) if job.uid not in self.kept)
        eligible = {job.uid: job for job in waiting if self._is_eligible(job) and not job.is_held}
        self._look_at_some_again(eligible)
        # of a strict queue the head is tried, and wishes
        strict, known = session.strict_queues, self._cluster.out_of_reach
        fresh = [job for uid, job in eligible.items() if uid not in known and job.spec.queue not in strict]
        for job in most_in_need(session, fresh):
            if self._free <= 0:
                return
            found = self._planned(job, FROM_THE_START) if self._may_start(job) else Unplanned.NEVER
            if found is Unplanned.NOT_YET:
                return
            if isinstance(found, Unplanned):
                continue
            if found.start_s > session.wall_s:
                self._keep(job, found)
            elif session.rests(job):
                # there is room, it was tried, and nothing has changed: something else is in its way
                self._plans.put_off(job)

    def _look_at_some_again(self, eligible: Mapping[str, Job]) -> None:
        """Plan those that would not fit and may do so by now, who was planned longest ago first."""
        known = self._cluster.out_of_reach
        for uid in known.keys() - eligible.keys():
            del known[uid]
        room = InTheEnd(self._session, self.ends.in_order, self._kept_rooms()) if known else None
        for uid in list(known):
            if room is None or room.looks >= MOST_LOOKS:
                return
            job = eligible[uid]
            if not self._may_start(job):
                continue
            if not room.may_fit(job):
                if len(known) > MOST_LOOKS:
                    self._plans.put_off(job)
            elif self._planned(job, AGAIN_FIRST) is Unplanned.NOT_YET:
                return

    def _may_start(self, job: Job) -> bool:
        """Whether nothing but room keeps a job from starting."""
        return self._session.may_hope(job) and (not job.tasks or self._session.why_invalid(job) is None)

    def _may_keep(self, job: Job) -> bool:
        """The same of one that was told a start: that its queue has had its share is no reason while no other queue waits."""
        if self._session.may_hope(job):
            return True
        lines, queue = self._cluster.lines, job.spec.queue
        waiting = chain(lines.for_nodes.values(), lines.by_phase[JobPhase.PENDING].values())
        return all(other.spec.queue == queue for other in waiting) and self._session.may_hope(job, minds_share=False)

    def _take_free_room(self, reservation: Reservation) -> None:
        """Plan a job anew if there is room elsewhere by now, and keep that instead unless it starts later with it."""
        session, nodes, job = self._session, self._cluster.nodes, self._cluster.jobs[reservation.uid]
        task = one_of_equals(session, job)
        if task is None:
            return
        free = session.policy.placer.slots(task.shape)
        rows = {nodes.row_of[name]: pods for name, pods in reservation.places.items() if name in nodes.row_of}
        inside = sum(min(int(free[row]), pods) for row, pods in rows.items())
        if inside >= session.shortfall(job) or int(free.sum()) <= inside:
            return
        found = self._planned(job)
        if isinstance(found, Reservation) and (
            found.start_s <= reservation.start_s or not self._is_on_time(reservation)
        ):
            self._keep(job, found)

    def waits_for(self, reservation: Reservation) -> str:
        """The job that ends last of those whose room it needs; empty if it needs nobody's."""
        nodes, last = self._cluster.nodes, ""
        short = set[int]()
        for name, room in reservation.rooms.items():
            row = nodes.row_of.get(name, -1)
            if row >= 0 and any(int(nodes.idle[nodes.resource(r), row]) < amount for r, amount in room.items()):
                short.add(row)
        for end_s, task in self.ends.in_order:
            if task.row in short and end_s <= reservation.start_s and task.job is not None:
                last = task.job.told
        return last

    def why_unplanned(self, job: Job) -> Unplanned | None:
        """Why no room is kept for a job for which it might be; None if there is another reason, or some is kept."""
        if job.uid in self.kept or not self.ends.in_order or not self._is_eligible(job):
            return None
        if job.uid in self._cluster.out_of_reach:
            return Unplanned.NEVER
        return None if self._plans.has_found(job) else Unplanned.NOT_YET

    def _is_on_time(self, reservation: Reservation) -> bool:
        """Whether it is to begin yet, and can by all that is known."""
        return self._session.wall_s < reservation.start_s and self._is_in_reach(reservation)

    def lets_in(self, job: Job) -> bool:
        """Whether a job that finds no room may enter since room is kept for it, from now on if it was not before."""
        if job.uid in self.kept:
            self._cluster.let_in.add(job.uid)
        if job.uid in self._cluster.let_in:
            return True
        gains = self._cluster.gains
        if job.barred_at.get(RESERVED, -1) == gains or not self._is_eligible(job):
            return False
        if job.uid in self._cluster.out_of_reach or not self._may_keep(job):
            return False
        found = self._planned(job)
        if found is Unplanned.NOT_YET:
            return False
        if isinstance(found, Reservation):
            self._keep(job, found)
            self._cluster.let_in.add(job.uid)
            return True
        job.barred_at = {**job.barred_at, RESERVED: gains}
        return False

    def _is_eligible(self, job: Job) -> bool:
        """Whether room may be kept for one more job, and this one has waited long enough."""
        if self._free <= 0 or job.ready_count:
            return False
        return self._has_waited(job)

    def _has_waited(self, job: Job) -> bool:
        due_s = job.spec.created + self._terms.after_s
        if self._terms.after_s and self._session.wall_s < due_s:
            self._session.look_again(due_s)
            return False
        return True

    def _keep(self, job: Job, found: Reservation | None) -> None:
        """Keep this room for a job from now on, instead of what was kept for it before."""
        known = self.kept.get(job.uid)
        if found is not None and known is not None and not known.is_imagined:
            found = replace(found, told_s=known.told_s)
        if found == known:
            return
        self._strike(job.uid)
        self._free += int(known is not None) - int(found is not None)
        if found is not None:
            self.kept[job.uid] = found
            self._session.look_again(self._next_look(found))
        self._changed()

    def _strike(self, uid: str) -> None:
        if self.kept.pop(uid, None) is not None:
            self._cluster.gains += 1  # who was kept back may go
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._in_order = None
        self._kept_idle.clear()
        self._session.recount_entered()

    def _next_look(self, reservation: Reservation) -> float:
        """When the reservation begins, or is over because there are no pods for it."""
        start_s, now_s = reservation.start_s, self._session.wall_s
        if start_s > now_s:
            return start_s
        return start_s + PATIENCE_S if reservation.is_imagined else inf

    def _is_void(self, reservation: Reservation) -> bool:
        job = self._cluster.jobs.get(reservation.uid)
        if job is None or job.ready_count or not self._may_keep(job):
            return True
        if not job.tasks:  # let in, and about to make its pods
            return self._session.wall_s >= reservation.start_s + PATIENCE_S
        return not job.wants_more or self._session.why_invalid(job) is not None

    def _is_yet_to_start(self, uid: str) -> bool:
        job = self._cluster.jobs.get(uid)
        return job is not None and not job.ready_count and job.phase is JobPhase.INQUEUE

    def _is_in_reach(self, reservation: Reservation) -> bool:
        """Whether its nodes are there and will have the room by then."""
        nodes = self._cluster.nodes
        for name, room in reservation.rooms.items():
            row = nodes.row_of.get(name, -1)
            if row < 0 or not nodes.is_live[row]:
                return False
            back = self.ends.given_back(row, reservation.start_s)
            if any(int(nodes.idle[nodes.resource(r), row]) + back.get(r, 0) < amount for r, amount in room.items()):
                return False
        return True

    def _planned(self, job: Job, most: int = MOST_PLANS) -> Reservation | Unplanned:
        """When and where a job will fit as others end."""
        if not self.ends.in_order:  # nobody says how long pods run: there is nothing to plan with
            return Unplanned.NEVER
        if job.uid in self.kept:  # what is kept for it is a part of its question; and not many have a reservation
            found = self._expected(job) or Unplanned.NEVER
        else:
            found = self._plans.of(job, self.version, most)
        if isinstance(found, Unplanned):
            return found
        return Reservation(
            uid=job.uid, job=job.told, priority=job.spec.priority, start_s=found.start_s, told_s=found.start_s, rooms=found.rooms,
            is_imagined=not job.tasks,
        )  # fmt: skip

    def _expected(self, job: Job) -> Expected | None:
        kept = self._kept_rooms(job.uid)
        known = self.kept.get(job.uid)
        if known is None:
            return expected_start(self._session, job, self.ends.in_order, kept)
        if self._session.wall_s >= known.told_s and (found := self._in_place(job, known, kept)) is not None:
            return found
        return expected_start(self._session, job, self.ends.in_order, kept, known.places)

    def _kept_rooms(self, but_for: str = "") -> Sequence[KeptForJob]:
        """What is kept for all, or all others."""
        return [KeptForJob(self._cluster.jobs[r.uid].spec.queue, r.rooms) for r in self.in_order if r.uid != but_for]

    def _in_place(self, job: Job, known: Reservation, others: Sequence[KeptForJob]) -> Expected | None:
        """When a job that is late will fit where room is kept for it, or is free now; None if it will not, as things are.

        To go where somebody is said to end sooner would be to give up what has become free for the next wrong estimate.
        """
        task = one_of_equals(self._session, job)
        if task is not None:
            return soonest(self._session, job, task, self.ends.in_order, others, known.places, stays=True)
        start_s = self.ends.free_from(known.rooms)
        return Expected(start_s, known.rooms) if self._session.wall_s < start_s < inf else None
