"""A desk without routes or policies, for tests and benches of the router's data plane: engines by model, in turn."""

from collections.abc import Sequence

from msgspec import Struct

from hekla.serving.router.plan import Attempt, Destination, Fault, Plan, Refusal, Target, Usage, Waiting
from hekla.serving.router.question import Question


class Engine(Struct):
    """An address."""

    name: str
    host: str
    port: int
    is_tls: bool = False
    verifies: bool = False


class PlainPlan:
    """One request's way over the engines of its model; remembers what it was told."""

    def __init__(self, engines: Sequence[Target], destination: Destination, head_timeout_s: float) -> None:
        self.destination = destination
        self._left = list(engines)
        self._head_timeout_s = head_timeout_s
        self.faults: list[Fault] = []
        self.first_byte_times: list[float] = []
        self.usages: list[Usage | None] = []

    def next(self, now: float) -> Attempt | Refusal:
        """Each engine once."""
        if not self._left:
            return Refusal(503, "proxy", "request to all pods failed")
        return Attempt(self._left.pop(0), head_timeout_s=self._head_timeout_s)

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        """Remember."""
        self.faults.append(fault)

    def first_byte(self, now: float) -> None:
        """Remember."""
        self.first_byte_times.append(now)

    def ended(self, usage: Usage | None, now: float) -> None:
        """Remember."""
        self.usages.append(usage)


class PlainDesk:
    """Plans over a fixed table."""

    def __init__(self, engines: dict[str, Sequence[Target]], head_timeout_s: float = 0.0) -> None:
        self.engines = engines
        self.plans: list[PlainPlan] = []
        self.questions: list[Question] = []
        self._turn = 0
        self._head_timeout_s = head_timeout_s
        self.keeps_plans = True
        """Off in benches, which make millions."""
        self._destinations = {
            model: Destination(model, f"default/{model}", "model_server", f"default/{model}", model)
            for model in engines
        }

    def plan(self, question: Question, now: float) -> Plan | Refusal | Waiting:
        """All engines of the model, beginning with the next in turn."""
        engines = self.engines.get(question.model)
        if engines is None:
            return Refusal(404, "route_not_found", "route not found")
        self._turn = turn = (self._turn + 1) % max(len(engines), 1)
        ordered = [*engines[turn:], *engines[:turn]]
        plan = PlainPlan(ordered, self._destinations[question.model], self._head_timeout_s)
        if self.keeps_plans:
            self.plans.append(plan)
            self.questions.append(question)
        return plan

    def hold(self, destination: Destination) -> Waiting | Refusal | None:
        """Nobody comes back here."""
        return None

    def models(self) -> Sequence[str]:
        """The names."""
        return tuple(self.engines)
