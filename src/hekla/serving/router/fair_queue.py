"""Fairness between users: of those who wait, the one who used least lately goes first.

Use is counted as Kthena counts it: weighted tokens (and requests, if asked) in a sliding window; requests of one user keep their
order, and who gives no name comes last. The prompt is counted when the request starts and not when it has ended: otherwise a user
with a hundred requests at once would pass as one who has used nothing.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hekla.serving.router.plan import NOT_ASKED, Usage
from hekla.serving.router.question import Question
from hekla.serving.router.queues import LONGEST_NAME, MOST_TOLD, Deed, Place
from hekla.serving.router.variables import Reader

MOST_USERS: Final = 10_000
"""Users whose use is remembered; the one idle longest is forgotten."""
PARTS: Final = 60
"""A window is counted in so many parts; what is older than the window by less than one of them still counts."""


@dataclass(frozen=True, kw_only=True)
class Fairness:
    """Kthena's FAIRNESS_* settings."""

    window_s: float = 300.0
    timeout_s: float = 60.0
    token_weight: float = 1.0
    request_weight: float = 0.0
    input_weight: float = 1.0
    output_weight: float = 2.0
    max_concurrent: int = 0
    """Requests of a model under way; 0: as many as the engines have room for."""
    max_qps: float = 0.0
    """Requests of a model let in per second; 0: any. Kthena's 100 takes no account of what the engines can do."""


def read_fairness(environment: Mapping[str, str]) -> Fairness:
    """The settings of the environment."""
    read = Reader(environment, "FAIRNESS_")
    return Fairness(
        window_s=read.seconds("WINDOW_SIZE", 300.0, least=60.0, most=3600.0),
        timeout_s=read.seconds("QUEUE_TIMEOUT", 60.0, least=0.001),
        token_weight=read.number("PRIORITY_TOKEN_WEIGHT", 1.0),
        request_weight=read.number("PRIORITY_REQUEST_NUM_WEIGHT", 0.0),
        input_weight=read.number("INPUT_TOKEN_WEIGHT", 1.0),
        output_weight=read.number("OUTPUT_TOKEN_WEIGHT", 2.0),
        max_concurrent=int(read.number("MAX_CONCURRENT", 0.0)),
        max_qps=read.number("MAX_QPS", 0.0),
    )


class Use:
    """What one user used within a window."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: deque[tuple[int, float]] = deque()

    def add(self, amount: float, part: int) -> None:
        """Count an amount at the part of time."""
        if self._parts and self._parts[-1][0] == part:
            amount += self._parts.pop()[1]
        self._parts.append((part, amount))

    def within(self, first: int) -> float:
        """What was used since part `first`; older parts are dropped."""
        while self._parts and self._parts[0][0] < first:
            self._parts.popleft()
        return sum(amount for _, amount in self._parts)


class FairOrder:
    """An order for `queues.Lines`."""

    name = "fairness_queue"

    def __init__(self, settings: Fairness) -> None:
        self._settings = settings
        self.timeout_s = settings.timeout_s
        self._uses: OrderedDict[tuple[str, str], Use] = OrderedDict()
        self._next_at: dict[str, float] = {}
        self._untold: dict[tuple[str, str], float] = {}
        self._sharers = 1

    def turn(self, places: Iterable[Place], now: float) -> Place:
        """Of every user's first request, the one whose user used least; of equals, the one that came first."""
        first: dict[str, Place] = {}
        for place in places:  # in the order in which they came
            first.setdefault(place.question.user, place)
        return min(
            first.values(),
            key=lambda one: (not one.question.user, self.used(one.question.model, one.question.user, now), one.number),
        )

    def used(self, model: str, user: str, now: float) -> float:
        """What a user used of a model within the window, weighted."""
        use = self._uses.get((model, user))
        return 0.0 if use is None else use.within(self._part(now) - PARTS)

    def may_start(self, model: str, in_flight: int, now: float) -> bool:
        """Whether the limits that an operator set allow another."""
        settings = self._settings
        if settings.max_concurrent and in_flight >= settings.max_concurrent:
            return False
        return not settings.max_qps or now >= self._next_at.get(model, now)

    def kept_from(self, question: Question, now: float) -> int:
        """Nothing is kept for anybody."""
        return 0

    def started(self, question: Question, now: float) -> None:
        """Count the prompt and the request."""
        settings = self._settings
        self._count(
            question,
            settings.request_weight + settings.token_weight * settings.input_weight * question.input_tokens,
            now,
        )
        if settings.max_qps:
            self._next_at[question.model] = (
                max(now, self._next_at.get(question.model, now)) + self._sharers / settings.max_qps
            )

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """Count the answer, and put the prompt's estimate right."""
        if usage is None:
            return
        settings = self._settings
        is_known = usage.input_tokens or usage is NOT_ASKED
        more = usage.input_tokens - question.input_tokens if is_known else 0
        tokens = settings.input_weight * more + settings.output_weight * usage.output_tokens
        self._count(question, settings.token_weight * tokens, now)

    def tell(self) -> list[Deed]:
        """What users used here since the last time; who is told of once is told of from then on."""
        told = list(self._untold)[:MOST_TOLD]
        return [(*key, self._untold.pop(key)) for key in told]

    def take_told(self, deeds: Iterable[Deed], sharers: int, now: float) -> None:
        """What users used in other processes of this router; a pace that an operator set is divided among them."""
        self._sharers = max(1, sharers)
        for model, user, amount in deeds:
            self._add((model, user), amount, now)

    def _count(self, question: Question, amount: float, now: float) -> None:
        key = (question.model, question.user)
        if len(self._untold) < MOST_USERS and len(question.user) <= LONGEST_NAME:
            self._untold[key] = self._untold.get(key, 0.0) + amount
        self._add(key, amount, now)

    def _add(self, key: tuple[str, str], amount: float, now: float) -> None:
        use = self._uses.get(key)
        if use is None:
            use = self._uses[key] = Use()
            if len(self._uses) > MOST_USERS:
                self._uses.popitem(last=False)
        else:
            self._uses.move_to_end(key)
        use.add(amount, self._part(now))
        use.within(self._part(now) - PARTS)

    def _part(self, now: float) -> int:
        return int(now * PARTS / self._settings.window_s)
