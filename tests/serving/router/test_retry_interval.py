"""Time between two attempts, where a ModelServer's `retryInterval` gives it."""

import msgspec
import pytest

from hekla.api.kthena import ModelServer
from hekla.serving.router.backends import traits_of_server
from hekla.serving.router.plan import Attempt, Fault, Plan, Refusal, Waiting
from hekla.serving.router.question import Question
from hekla.testing.desk import Engine, PlainDesk, PlainPlan
from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")


class Patient(PlainPlan):
    """Gives engines time, and remembers when it was asked."""

    retry_s = 0.0
    asked_at: tuple[float, ...] = ()
    failed_at = 0.0

    def next(self, now: float) -> Attempt | Refusal:
        self.asked_at = (*self.asked_at, now)
        step = super().next(now)
        if isinstance(step, Attempt):
            step.retry_s = self.retry_s
        return step

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        super().failed(attempt, fault, now)
        self.failed_at = now


class PatientDesk(PlainDesk):
    """Hands out such plans; the first engine is always asked first."""

    def __init__(self, engines: list[Engine], retry_s: float) -> None:
        super().__init__({"m": engines})
        self.all, self.retry_s = engines, retry_s
        self.made: list[Patient] = []

    def plan(self, question: Question, now: float) -> Plan | Refusal | Waiting:
        plan = Patient(self.all, self._destinations["m"], 0.0)
        plan.retry_s = self.retry_s
        self.made.append(plan)
        return plan


def test_the_next_engine_is_asked_after_the_interval() -> None:
    async def story() -> None:
        broken = kit.says_and_closes(b"")
        async with kit.plane(broken, kit.says(kit.whole()), desk=lambda engines: PatientDesk(engines, 0.2)) as plane:
            assert (await plane.ask(kit.chat())).status == 200
            (plan,) = plane.desk.made
            assert plan.asked_at[1] - plan.failed_at > 0.19

    kit.run(story())


def test_who_leaves_in_the_interval_is_not_asked_for_any_more() -> None:
    async def story() -> None:
        broken = kit.says_and_closes(b"")
        async with kit.plane(broken, broken, desk=lambda engines: PatientDesk(engines, 3600.0)) as plane:
            client = await plane.client()
            await client.send(kit.chat())
            await kit.until(lambda: bool(plane.desk.made and plane.desk.made[0].faults))
            client.leave()
            await kit.until(lambda: bool(plane.over))
            assert plane.over[0].status == 499
            assert sum(len(one.asked) for one in plane.engines) == 1

    kit.run(story())


def test_the_interval_is_read_from_the_model_server() -> None:
    spec = {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": {"a": "b"}}, "workloadPort": {"port": 1}}
    for retry, told in (
        (None, 0.0),
        ({"attempts": 2, "retryInterval": "250ms"}, 0.25),
        ({"attempts": 2, "retryInterval": "0s"}, 0.0),
    ):
        document = {"metadata": {"name": "s"}, "spec": spec | {"trafficPolicy": {"retry": retry} if retry else None}}
        assert traits_of_server(msgspec.convert(document, ModelServer)).retry_s == told
