"""Requests that wait for their turn before the desk is asked: one line per model, and an order that says whose turn it is.

Processes that are one router (`sharing.py`) have their lines in common: what users used and which sessions ended are known to all within
a tick, and so are the places of the engines: one starts while all together have room, and where others wait no process holds more than
its part of it.

`fair_queue.py` and `session_boost.py` are the orders. A guard (`plan.Guard`) whose places are `plan.Waiting`s; whoever runs it calls
`tick` now and then, for deadlines and for orders that go by the clock.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from hekla.serving.router.histograms import Counts, Histograms
from hekla.serving.router.holding import HOLD_S
from hekla.serving.router.plan import Refusal, Usage, Waiting
from hekla.serving.router.question import Question

MOST_WAITING: Final = 10_000
"""Places in one line; one more is refused."""

NOT_ROUTED: Final = Refusal(404, "route_not_found", "route not found", param="model")
FULL: Final = Refusal(429, "rate_limit", "too many requests are waiting", 1.0)
BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Kthena's buckets."""
MOST_TOLD: Final = 128
"""Deeds, and lines, in one message to the other processes; further deeds go with the next."""
LONGEST_NAME: Final = 200
"""Of a user or session of which others are told."""
Deed = tuple[str, str, float]
"""Model, user or session, and how much."""
TOO_LATE: Final = Refusal(504, "rate_limit", "Request processing timed out in queue")


class Room(Protocol):
    """What the lines ask about the engines."""

    def knows(self, model: str) -> bool:
        """Whether a route has the name: nobody else gets a line, so that made-up names make none."""

    def may_start(self, model: str, in_flight: int, now: float) -> bool:
        """Whether the model's engines can take one more than the `in_flight` that were let in."""

    def has_engines(self, model: str) -> bool:
        """Whether there is an engine at all; a model that sleeps, or restarts, has none."""


@dataclass(eq=False, slots=True)
class Place(Waiting):
    """One request in a line."""

    line: "Line"
    question: Question
    since: float
    number: int
    resume: Callable[[Refusal | None], None] | None = None

    def when_ready(self, resume: Callable[[Refusal | None], None]) -> None:
        """Call `resume` when the turn has come, or will not."""
        self.resume = resume

    def abandon(self) -> None:
        """Leave the line."""
        self.line.leave(self)

    def go(self, refusal: Refusal | None) -> None:
        """Tell the request what became of its place."""
        if self.resume is not None:
            resume, self.resume = self.resume, None
            resume(refusal)


class Order(Protocol):
    """Whose turn it is, and what it goes by."""

    name: str
    """In metrics: fairness_queue or session_boost_queue."""
    timeout_s: float
    """How long a request may wait."""

    def turn(self, places: Iterable[Place], now: float) -> Place:
        """Who of them is next."""

    def may_start(self, model: str, in_flight: int, now: float) -> bool:
        """Whether another request may start, as far as the order is concerned."""

    def kept_from(self, question: Question, now: float) -> int:
        """How many free places are kept for others than this one."""

    def started(self, question: Question, now: float) -> None:
        """A request was let in."""

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """A request that was let in is over."""

    def tell(self) -> Sequence[Deed]:
        """What the orders of the other processes should know, once."""

    def take_told(self, deeds: Iterable[Deed], sharers: int, now: float) -> None:
        """What other processes told; so many processes share what an operator set."""


class Elsewhere(NamedTuple):
    """The lines of one model in the other processes."""

    in_flight: int = 0
    waiting: int = 0
    """Processes in which somebody waits."""


NOWHERE: Final = Elsewhere()


@dataclass(eq=False, slots=True)
class Line:
    """The requests that wait for one model, and how many of it are under way."""

    model: str
    places: dict[int, Place] = field(default_factory=dict)
    in_flight: int = 0
    joined: int = 0
    waits: "Waits | None" = None
    """Where it is counted what became of its places."""
    slept_until: float = float("-inf")
    """When it last had no engine."""

    def join(self, question: Question, now: float) -> Place:
        """Take a place at the end."""
        self.joined += 1
        place = self.places[self.joined] = Place(self, question, now, self.joined)
        return place

    def leave(self, place: Place) -> None:
        """The client left, or waited too long."""
        if self.places.pop(place.number, None) is not None and self.waits is not None:
            self.waits.cancelled(self.model)
        place.resume = None


class Waits:
    """How long requests waited in all lines of a router, and what became of them, in Kthena's metrics."""

    def __init__(self, name: str) -> None:
        """`name` is the order's."""
        self._more = ("_all",) if name == "fairness_queue" else ()  # Kthena's label of users, which it gives up there
        labels = ("model", *(("user_id",) if self._more else ()))
        self._took = Histograms(f"kthena_router_{name}_duration_seconds", "How long requests waited", BOUNDS_S, labels)
        self._cancelled = Counts(
            f"kthena_router_{name}_cancelled_total", "Requests that left, or waited too long", labels
        )
        self._dequeued = Counts(f"kthena_router_{name}_dequeue_total", "Requests whose turn came", labels)

    def started(self, model: str, waited_s: float) -> None:
        """A request's turn came."""
        self._took.note((model, *self._more), waited_s)
        self._dequeued.add((model, *self._more))

    def cancelled(self, model: str) -> None:
        """A request left the line."""
        self._cancelled.add((model, *self._more))

    def metrics(self) -> Iterator[str]:
        """As text."""
        for one in (self._took, self._cancelled, self._dequeued):
            yield from one.lines()


class Lines:
    """The guard: lets requests in by an order while there is room, and holds the others."""

    def __init__(self, order: Order, room: Room) -> None:
        self.order = order
        self.waits = Waits(order.name)
        self._room = room
        self._lines: dict[str, Line] = {}
        self._elsewhere: Mapping[str, Elsewhere] = {}

    def lines(self) -> Iterable[Line]:
        """For the metrics."""
        return self._lines.values()

    def admit(self, question: Question, now: float) -> Refusal | Place | None:
        """Let it in, hold it, or refuse it where no route has the model or the line is full."""
        line = self._lines.get(question.model)
        if line is None:
            if not self._room.knows(question.model):
                return NOT_ROUTED
            line = self._lines[question.model] = Line(question.model, waits=self.waits)
        if len(line.places) >= MOST_WAITING:
            return FULL
        place = line.join(question, now)
        self._advance(line, now)
        return None if place.number not in line.places else place

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """A request is over: somebody else may start."""
        line = self._lines[question.model]
        line.in_flight -= 1
        self.order.ended(question, usage, now)
        self._advance(line, now)

    def tick(self, now: float) -> None:
        """Refuse who waited too long, let in who may go by now, forget lines whose route is gone."""
        for line in list(self._lines.values()):
            if line.places and not self._room.has_engines(line.model):
                line.slept_until = now
            for place in [one for one in line.places.values() if self._is_late(line, one, now)]:
                self._refuse(place, TOO_LATE)
            if not self._room.knows(line.model):
                for place in list(line.places.values()):
                    self._refuse(place, NOT_ROUTED)
                if not line.in_flight:
                    del self._lines[line.model]
            self._advance(line, now)

    def tell(self) -> tuple[dict[str, tuple[int, int]], Sequence[Deed]]:
        """By model how many are under way and how many wait, and what the others' orders should know."""
        busy = [one for one in self._lines.values() if one.in_flight or one.places]
        return {one.model: (one.in_flight, len(one.places)) for one in busy[:MOST_TOLD]}, self.order.tell()

    def take_told(self, elsewhere: Mapping[str, Elsewhere], deeds: Iterable[Deed], sharers: int, now: float) -> None:
        """The other processes' lines as they are now, and what they told of users and sessions."""
        self._elsewhere = elsewhere
        self.order.take_told(deeds, sharers, now)

    def _is_late(self, line: Line, place: Place, now: float) -> bool:
        """Whether a place has waited too long: while there is no engine as long as a held request, then as long as the order says."""
        patience_s = self.order.timeout_s
        if line.slept_until >= now:
            return now - place.since >= max(patience_s, HOLD_S)
        return now - max(place.since, line.slept_until) >= patience_s

    def _refuse(self, place: Place, refusal: Refusal) -> None:
        resume = place.resume
        place.line.leave(place)
        if resume is not None:
            resume(refusal)

    def _advance(self, line: Line, now: float) -> None:
        while line.places:
            place = self.order.turn(line.places.values(), now)
            if not self._may_start(line, place.question, now):
                return
            del line.places[place.number]
            self.waits.started(line.model, now - place.since)
            self._start(line, place.question, now)
            place.go(None)

    def _may_start(self, line: Line, question: Question, now: float) -> bool:
        others = self._elsewhere.get(line.model, NOWHERE)
        kept = self.order.kept_from(question, now)
        # of all there is, and where others wait of this process' part: whoever holds more lets the next place go
        for in_flight in {line.in_flight + others.in_flight, line.in_flight * (1 + others.waiting)}:
            if not self.order.may_start(line.model, in_flight, now):
                return False
            if not self._room.may_start(line.model, in_flight + kept, now):
                return False
        return True

    def _start(self, line: Line, question: Question, now: float) -> None:
        line.in_flight += 1
        self.order.started(question, now)
