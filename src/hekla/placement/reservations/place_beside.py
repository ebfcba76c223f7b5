# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""Place a job on what reservations leave, and tell it if those are why it does not fit (`book.py`)."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

from hekla.placement.constraint import Refusal
from hekla.placement.model import Job
from hekla.placement.named_jobs import NamedJob, Telling, joined
from hekla.placement.reservations.book import RESERVED, Book
from hekla.placement.reservations.forecast import place_freely
from hekla.placement.reservations.forecast_equal_pods import one_of_equals
from hekla.placement.reservations.reservation import NOBODY, Reservation, length
from hekla.placement.session import Failure, Session
from hekla.placement.statement import Statement

RUNNING_ESTIMATE = "hekla.dev/running-estimate"
MOST_TOLD = 2
"""So many reservations are told of that keep a job back."""


@runtime_checkable
class KeepsBook(Protocol):
    """A plug-in that keeps reservations."""

    keeps_reservations: bool

    def open(self, session: Session) -> Book:
        """The book as it stands."""


def book_of(session: Session) -> Book | None:
    """The session's book; None where no plug-in keeps one."""
    plugin = next(iter(session.policy.asked(KeepsBook)), None)
    return session.opened(plugin) if plugin is not None else None


@contextmanager
def kept_free_from(session: Session, job: Job) -> Iterator[None]:
    """What a job has to leave to others counts as in use within the block."""
    book = book_of(session)
    if book is None or not (heeded := book.heeded(job)):
        yield
        return
    with book.kept_free(heeded):
        yield


def place_beside(statement: Statement, session: Session, job: Job, book: Book) -> None:
    """Place tasks as `place_freely` does on what reservations leave; if those are why it does not fit, that is noted."""
    heeded = book.heeded(job)
    if not heeded:
        place_freely(statement, session, job)
        return
    kind = _kind(session, job, book, heeded)
    if kind is not None and (known := session.failed_beside.get(kind)) is not None:
        known.tell(session, job, book)
        return
    verdict = _verdict_beside(statement, session, job, book, heeded)
    if verdict is None:
        return
    if verdict.kept_back:
        session.refusals[job.uid] = refused(session, job, verdict, book)
    if kind is not None:
        found = session.refusals.get(job.uid), session.failures.get(job.uid)
        session.failed_beside[kind] = PlacementRefusal(verdict.kept_back, verdict.in_queue, *found)


class PlacementRefusal(NamedTuple):
    """Why a job does not start."""

    kept_back: Sequence[Reservation]
    """Those that keep its room."""

    in_queue: bool
    """Whether that is room in its queue, not on nodes."""

    refusal: Refusal | None = None
    failure: Failure | None = None

    def tell(self, session: Session, job: Job, book: Book) -> None:
        """Note the same of another job of its kind."""
        if self.kept_back:
            session.refusals[job.uid] = refused(session, job, self, book)
        elif self.refusal is not None:
            session.refusals[job.uid] = self.refusal
        if self.failure is not None:
            session.failures.setdefault(job.uid, Failure(next(job.pending()), self.failure.explanation))


def _kind(session: Session, job: Job, book: Book, heeded: Sequence[Reservation]) -> Hashable:
    """What jobs have in common of which none fits in this pass once one did not, since room only shrinks; None for a job
    that is alone of its kind. Two tries for each of a thousand alike that wait were most of a cycle.
    """  # fmt: skip
    task = one_of_equals(session, job)
    if task is None:
        return None
    whom = tuple([reservation.uid for reservation in heeded])
    return job.spec.queue, task.shape, len(job.tasks), session.shortfall(job), book.version, whom


def _verdict_beside(
    statement: Statement, session: Session, job: Job, book: Book, heeded: Sequence[Reservation]
) -> PlacementRefusal | None:  # fmt: skip
    """Place a job beside reservations; None if it was. Else which of them keep it back, if any do."""
    start = statement.savepoint
    with book.kept_free(heeded):
        place_freely(statement, session, job)
    if statement.savepoint > start and session.is_ready(job):
        return None
    statement.back_to_savepoint(start)
    session.failures.pop(job.uid, None)
    session.forget_hopeless()
    with session.statement() as trial:  # would it fit but for the reservations?
        place_freely(trial, session, job)
        if not trial or not session.is_ready(job):
            return PlacementRefusal((), in_queue=False)
        on_nodes = book.held.in_the_way(heeded, trial.placed)
    session.failures.pop(job.uid, None)
    if on_nodes:
        return PlacementRefusal(on_nodes, in_queue=False)
    return PlacementRefusal(book.held.in_queue_of(heeded, job) or heeded, in_queue=True)


def refused(session: Session, job: Job, verdict: PlacementRefusal, book: Book) -> Refusal:
    """A job is kept back by these, and what its owner can do about it."""
    now_s, named = session.wall_s, f'a part of what queue "{job.spec.queue}" may hold is kept for'
    told: list[Telling] = [
        (f"{named} ", NamedJob(one.job), f", which is to start {one.start_told(now_s)}")
        if verdict.in_queue
        else one.telling(now_s)
        for one in verdict.kept_back[:MOST_TOLD]
    ]
    if (more := len(verdict.kept_back) - MOST_TOLD) > 0:
        told.append((f"{more} more are in its way",))
    first = min(verdict.kept_back, key=lambda one: one.until_s)
    told.append((_hint(job, first.who_may_use_it(now_s), book),))
    return Refusal.naming(RESERVED, joined("; ", told), job.spec.namespace)


def _hint(job: Job, who: str, book: Book) -> str:
    spec, may = job.spec, f"{who} may use them"
    if who == NOBODY:
        return "nobody else is let in there until then"
    odd = spec.traits.get(RUNNING_ESTIMATE)
    if odd is not None:
        of_group = "PodGroup" if job.told == job.key else "job"
        kind = of_group if spec.has_group else "pod"
        return f'{may}, but {RUNNING_ESTIMATE} of {kind} "{job.told}" is "{odd}"; write a duration above 0 like 1h30m'
    if spec.estimate_s is not None:
        return f"{may}, but this one runs {length(spec.estimate_s)} by its {RUNNING_ESTIMATE}"
    default_s = book.ends.estimate_s(job)
    usual = f", or it counts as running {length(default_s)}" if default_s < inf else ""
    return f"{may}: say how long this one runs with {RUNNING_ESTIMATE}{usual}"
