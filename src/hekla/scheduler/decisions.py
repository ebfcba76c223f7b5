"""What a cycle decided, in names: the same text for the same decisions, whoever took them and wherever.

The live scheduler and a replay both tell their decisions through `decisions_of`; `difference` says in sentences what
two of them do not share.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from hekla.placement.model import Job, JobPhase
from hekla.placement.session import Session
from hekla.placement.statement import Bind, Decision, Evict, Nominate
from hekla.scheduler.explain import refusal_of


class Started(Struct, frozen=True, rename="camel"):
    """A pod that was given a node."""

    pod: str
    node: str
    job: str
    queue: str


class Moved(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod that was sent away, or promised the room of those who leave; `action` says which."""

    action: str
    pod: str
    node: str
    job: str
    queue: str
    reason: str = ""


class Waiting(Struct, frozen=True, rename="camel"):
    """A job that waits, with the reason that the cycle found."""

    job: str
    queue: str
    pods: int
    """How many of its pods wait; 0 where they are made only once the job is let in."""

    code: str
    reason: str


class Decisions(Struct, frozen=True, rename="camel"):
    """One cycle's decisions: what was let in, started and moved, in the order in which it was decided; then who waits, by name."""

    admitted: list[str] = []
    started: list[Started] = []
    moved: list[Moved] = []
    waiting: list[Waiting] = []

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was changed."""
        return not (self.admitted or self.started or self.moved)

    def encoded(self) -> bytes:
        """As bytes that are equal if and only if the decisions are."""
        return msgspec.json.encode(self, order="deterministic")


def decisions_of(session: Session, choices: Iterable[Decision]) -> Decisions:
    """What a session decided; `choices` are what its actions yielded."""
    started: list[Started] = []
    moved: list[Moved] = []
    for choice in choices:
        job = choice.task.job
        assert job is not None, f"{choice.task} is of no job"
        if isinstance(choice, Bind):
            started.append(Started(choice.task.key, choice.node, job.key, job.spec.queue))
        else:
            moved.append(_moved(choice, job))
    admitted = [job.key for job in session.admitted]
    return Decisions(admitted, started, moved, sorted(_waiting(session), key=lambda one: (one.job, one.queue)))


def _moved(choice: Evict | Nominate, job: Job) -> Moved:
    if isinstance(choice, Evict):
        return Moved("evict", choice.task.key, choice.node, job.key, job.spec.queue, choice.reason)
    return Moved("promise" if choice.node else "forsake", choice.task.key, choice.node, job.key, job.spec.queue)


def _waiting(session: Session) -> Iterator[Waiting]:
    lines = session.cluster.lines
    jobs = {**lines.by_phase[JobPhase.PENDING], **lines.for_nodes}
    for job in jobs.values():
        code, reason = _why(session, job)
        yield Waiting(job.key, job.spec.queue, sum(1 for _ in job.pending()), code, reason)


def _why(session: Session, job: Job) -> tuple[str, str]:
    """What the cycle found about a job; of one that was not tried, why it was not."""
    failure = session.failures.get(job.uid)
    if failure is not None:
        return "Unschedulable", failure.explanation.sentence()
    if job.is_held:
        return "HeldBack", "a bind of it was refused a moment ago"
    refusal = session.refusals.get(job.uid) or refusal_of(session, job)
    return (refusal.code, refusal.sentence) if refusal is not None else ("", "")


# What two cycles do not share


class DecisionDifference(Struct, frozen=True, rename="camel"):
    """One thing that came out differently."""

    job: str
    pod: str
    before: str
    after: str

    def sentence(self) -> str:
        """`default/train-0: starts on n1; was: waits (0/2 nodes are available: 2 Insufficient cpu.)`."""
        return f"{self.pod or self.job}: {self.after}; was: {self.before}"


def difference(before: Decisions, after: Decisions) -> list[DecisionDifference]:
    """What came out differently, job by job; nothing if everything is the same."""
    first, second = _told(before), _told(after)
    found = []
    for key in sorted(first.keys() | second.keys()):
        was, now = first.get(key, "nothing"), second.get(key, "nothing")
        if was != now:
            found.append(DecisionDifference(key[0], key[1], was, now))
    if not found and before.encoded() != after.encoded():
        found.append(DecisionDifference("all jobs", "", _order(before), _order(after)))
    return found


def _told(decisions: Decisions) -> Mapping[tuple[str, str], str]:
    """By job and pod (or no pod), what was decided, in words."""
    told: dict[tuple[str, str], list[str]] = {}
    for job in decisions.admitted:
        told.setdefault((job, ""), []).append("is let in")
    for start in decisions.started:
        told.setdefault((start.job, start.pod), []).append(f"starts on {start.node}")
    for move in decisions.moved:
        why = f" ({move.reason})" if move.reason else ""
        told.setdefault((move.job, move.pod), []).append(f"{_ACTIONS[move.action]} {move.node}".rstrip() + why)
    for wait in decisions.waiting:
        told.setdefault((wait.job, ""), []).append(f"waits ({wait.reason})" if wait.reason else "waits")
    return {key: ", ".join(words) for key, words in told.items()}


_ACTIONS = {"evict": "is evicted from", "promise": "is promised room on", "forsake": "is promised nothing any more"}


def _order(decisions: Decisions) -> str:
    return "in the order " + ", ".join(start.pod for start in decisions.started)


# As text


def summary(decisions: Decisions) -> str:
    """One line: how many of what."""
    pods = len(decisions.started)
    moves = Counter(move.action for move in decisions.moved)
    waiting = len(decisions.waiting)
    parts = [f"{len(decisions.admitted)} let in", f"{pods} started"]
    parts += [f"{number} {_MOVED[action]}" for action, number in sorted(moves.items())]
    return ", ".join([*parts, "1 job waits" if waiting == 1 else f"{waiting} jobs wait"])


_MOVED = {"evict": "evicted", "promise": "promised room", "forsake": "promised nothing any more"}


def rows(decisions: Decisions) -> Sequence[Sequence[str]]:
    """Rows of (decision, what, where, queue, why), in order."""
    found = [("let in", job, "", "", "") for job in decisions.admitted]
    found += [("start", one.pod, one.node, one.queue, "") for one in decisions.started]
    found += [(one.action, one.pod, one.node, one.queue, one.reason) for one in decisions.moved]
    return found + [("wait", one.job, "", one.queue, one.reason) for one in decisions.waiting]
