from datetime import timedelta

import pytest

from hekla.api.volcano.bus import Command as Order
from hekla.kube.commands import RequeueAfter
from hekla.testing.job_world import NAMESPACE, NOW, job, order
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge, decide
from hekla.testing.world import FakeWorld
from hekla.workloads.command import reconcile_command


def test_a_command_for_nobody_is_removed_after_a_minute() -> None:
    world = FakeWorld(order("AbortJob", "gone"))
    assert decide(reconcile_command, world, NAMESPACE, "order", now=NOW) == [RequeueAfter(60.0)]
    converge(reconcile_command, world, NAMESPACE, "order", now=NOW + timedelta(minutes=1))
    assert world.list(Order) == []


def test_a_command_for_an_earlier_job_of_the_same_name_is_removed_too() -> None:
    document = job()
    document["metadata"]["uid"] = "another"
    world = FakeWorld(document, order("AbortJob"))
    converge(reconcile_command, world, NAMESPACE, "order", now=NOW + timedelta(hours=1))
    assert world.list(Order) == []


def test_a_command_that_has_a_target_is_left_to_it() -> None:
    document = job()
    document["metadata"]["uid"] = "uid-train"
    world = FakeWorld(document, order("AbortJob"))
    assert decide(reconcile_command, world, NAMESPACE, "order", now=NOW + timedelta(hours=1)) == []


@pytest.mark.parametrize("minutes", [0, 1, 60])
@pytest.mark.parametrize("has_target", [True, False])
def test_the_keeper_of_commands_comes_to_rest_heals_and_touches_only_the_command(
    has_target: bool, minutes: int
) -> None:
    def make() -> FakeWorld:
        document = job()
        document["metadata"]["uid"] = "uid-train"
        return FakeWorld(order("AbortJob"), *([document] if has_target else []))

    now = NOW + timedelta(minutes=minutes)
    assert_converges(reconcile_command, make(), NAMESPACE, "order", now=now)
    assert_heals(reconcile_command, make, NAMESPACE, "order", now=now)
    assert_touches_only_its_own(reconcile_command, make(), NAMESPACE, "order", now=now)
