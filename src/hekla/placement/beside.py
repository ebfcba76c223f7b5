# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""Place a job on what reservations leave, and tell it if those are why it does not fit (`reservations.py`)."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, runtime_checkable

from hekla.placement.constraint import Refusal
from hekla.placement.forecast import place_freely
from hekla.placement.kept_room import Reservation
from hekla.placement.model import Job
from hekla.placement.reservations import RESERVED, Book
from hekla.placement.session import Failure, Session
from hekla.placement.soonest import one_of_equals
from hekla.placement.statement import Statement


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
        known.tell(session, job)
        return
    if not _placed_beside(statement, session, job, book, heeded) and kind is not None:
        session.failed_beside[kind] = Verdict(session.refusals.get(job.uid), session.failures.get(job.uid))


class Verdict(NamedTuple):
    """Why a job does not start."""

    refusal: Refusal | None
    failure: Failure | None

    def tell(self, session: Session, job: Job) -> None:
        """Note the same of another job of its kind."""
        if self.refusal is not None:
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


def _placed_beside(
    statement: Statement, session: Session, job: Job, book: Book, heeded: Sequence[Reservation]
) -> bool:  # fmt: skip
    start = statement.savepoint
    with book.kept_free(heeded):
        place_freely(statement, session, job)
    if statement.savepoint > start and session.is_ready(job):
        return True
    statement.back_to_savepoint(start)
    session.failures.pop(job.uid, None)
    session.forget_hopeless()
    with session.statement() as trial:  # would it fit but for the reservations?
        place_freely(trial, session, job)
        fits = bool(trial) and session.is_ready(job)
    if fits:
        session.failures.pop(job.uid, None)
        session.refusals[job.uid] = Refusal(RESERVED, _kept_back(session, heeded[0]))
    return False


def _kept_back(session: Session, first: Reservation) -> str:
    hint = "a job that ends before may use them: say how long this one runs with hekla.dev/running-estimate"
    return f"{first.sentence(session.wall_s)}; {hint}"
