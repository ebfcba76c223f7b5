"""What is to become of sessions and sandboxes that a crash left half-made: compares rows with sandboxes; pure.

Every step of `desk.py` may be its last. Whatever is found then ends in a session that works, or is gone:

    row, no sandbox     a resume that failed is paused again; with a checkpoint it is paused; everything else has ended
    sandbox, no row     nobody can ever ask for it: given back
    another container   what the session held died with the one before: it has ended
    row on its way      its caller got no answer: it ends, unless it can be asked for again (an idempotency key, a resume)
    row that expires    what was begun is finished
    stray checkpoint    one that was begun, or that a resume has used up: dropped

A row that sleeps may have a sandbox that does not stand still yet, which nobody sees from here: `stillness.py` tells its node again.

Another gateway may be at work on what looks half-made, so where the store is shared a row or a sandbox must have looked
like that for longer than any step takes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from hekla.sandbox.sessions.counts import SANDBOX_GONE
from hekla.sandbox.sessions.lifecycle import SERVING, State
from hekla.sandbox.sessions.records import Session, SessionKind
from hekla.sandbox.sessions.stock import Held


class Remedy(StrEnum):
    """What is done."""

    END = "end"
    SETTLE = "settle"
    PUT_BACK = "put back"
    CLEAN = "clean"
    DROP = "drop"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be, and what is done about it."""

    remedy: Remedy
    session: str
    held: Held | None
    why: str


STARTED_ANEW = "its sandbox was started anew, and what the session held went with the old one"


def is_another(row: Session, container: str, *, if_unknown: bool = False) -> bool:
    """Whether a container is not the one that holds the session's state; `if_unknown` where the row does not say which does.

    An agent's own server is no state of ours: it may start anew.
    """
    if row.kind == SessionKind.RUNTIME or not row.sandbox or not container:
        return False
    return container != row.container if row.container else if_unknown


def findings(rows: Iterable[Session], held: Iterable[Held], *, is_start: bool) -> Iterator[Finding]:
    """All of them. `is_start`: a gateway alone has just begun, so nothing is on its way any more."""
    by_session: dict[str, list[Held]] = {}
    for one in held:
        by_session.setdefault(one.session, []).append(one)
    known = {row.id: row for row in rows}
    for row in known.values():
        yield from _of_row(row, _its(row, by_session.get(row.id, [])), is_start=is_start)
    for session, sandboxes in by_session.items():
        yield from _of_sandboxes(known.get(session), sandboxes)


def _its(row: Session, sandboxes: list[Held]) -> Held | None:
    """The sandbox that the row names; while it names none, the one that was taken for it."""
    if row.sandbox_uid:
        return next((one for one in sandboxes if one.uid == row.sandbox_uid), None)
    return sandboxes[0] if sandboxes else None


def _of_row(row: Session, its: Held | None, *, is_start: bool) -> Iterator[Finding]:
    state = row.state
    if state is State.EXPIRING:
        yield Finding(Remedy.END, row.id, its, "its end was begun and not finished")
    elif state in (State.CREATING, State.WARM, State.CLAIMED):
        if not is_start:
            return
        if row.checkpoint:
            yield Finding(Remedy.PUT_BACK, row.id, its, "its resume was not finished")
        elif its is not None and row.idempotency_key and not row.parent:
            yield Finding(Remedy.SETTLE, row.id, its, "its caller may ask again with the same key")
        else:
            yield Finding(Remedy.END, row.id, its, "its caller got no answer")
    elif state is State.PAUSED:
        if its is None and not row.checkpoint:
            yield Finding(Remedy.END, row.id, None, SANDBOX_GONE)
        elif its is not None and row.checkpoint:
            yield Finding(Remedy.DROP, row.id, its, "it has a checkpoint")
    elif its is None:
        yield Finding(Remedy.END, row.id, None, SANDBOX_GONE)
        return
    elif is_another(row, its.container):
        yield Finding(Remedy.END, row.id, its, STARTED_ANEW)
        return
    if is_start and (row.pending_checkpoint or (row.checkpoint and state in SERVING)):
        yield Finding(Remedy.CLEAN, row.id, its, "it names a checkpoint that it does not need")


def _of_sandboxes(row: Session | None, sandboxes: list[Held]) -> Iterator[Finding]:
    for one in sandboxes:
        if row is None:
            yield Finding(Remedy.DROP, one.session, one, "there is no such session")
        elif (row.sandbox_uid and one.uid != row.sandbox_uid) or (not row.sandbox_uid and one is not sandboxes[0]):
            yield Finding(Remedy.DROP, one.session, one, "its session has another one")
