"""The plug-in rescheduling and the action shuffle: gangs stay whole, budgets are kept, bad arguments are told."""

import pytest
from msgspec.structs import replace

from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.budgets import DisruptionBudget
from hekla.placement.constraint import PodSelector
from hekla.placement.model import TaskStatus
from hekla.placement.plugins.rescheduling import Rescheduling
from hekla.placement.registry import ArgumentError, build_plugin
from hekla.testing.cluster import World

PARAMS = {"thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 50}}
ARGUMENTS = {"strategies": [{"name": "lowNodeUtilization", "params": PARAMS}]}


def busy_world() -> World:
    world = World(plugins=(("gang",), ("predicates", ("rescheduling", ARGUMENTS))))
    for name, cpu in (("n1", 90), ("n2", 5)):
        world.node(name, cpu=10, memory=10)
        world.cluster.put_usage(name, NodeUsage(cpu=cpu, memory=10, at_s=1000.0))
    world.tell_time(1010.0)
    return world


def test_a_gang_keeps_its_minimum() -> None:
    world = busy_world()
    job = world.job("gang", tasks=3, min_available=2, cpu=1)
    for task in list(job.tasks.values()):
        world.cluster.put_task(replace(task.spec, node="n1", status=TaskStatus.RUNNING), job)
    world.schedule(("shuffle",))
    assert list(world.evicted) == ["gang-0"]


def test_disruption_budgets_are_kept_one_eviction_after_the_other() -> None:
    world = busy_world()
    for name in ("a", "b", "c"):
        world.running(name, "n1", cpu=1, more={"has_group": False})
    selector = PodSelector(namespaces=None)
    world.cluster.put_budget(DisruptionBudget(name="one", namespace="default", selector=selector, allowed=1))
    world.schedule(("shuffle",))
    assert list(world.evicted) == ["a-0"]


def test_no_more_leave_than_the_idle_nodes_may_take() -> None:
    world = busy_world()
    world.cluster.put_usage("n2", NodeUsage(cpu=29, memory=10, at_s=1000.0))
    for name in ("a", "b", "c", "d"):
        world.running(name, "n1", cpu=1, more={"has_group": False})
    world.schedule(("shuffle",))
    # n2 may take 21 % of 10 cpus: two pods leave 0.1, the third takes the rest
    assert list(world.evicted) == ["a-0", "b-0", "c-0"]


def test_where_everybody_is_idle_nobody_moves() -> None:
    world = busy_world()
    world.cluster.put_usage("n1", NodeUsage(cpu=10, memory=10, at_s=1000.0))
    world.running("a", "n1", cpu=1, more={"has_group": False})
    world.schedule(("shuffle",))
    assert world.evicted == {}


def test_the_defaults_are_volcanos() -> None:
    plugin = build_plugin("rescheduling", {})
    assert plugin == Rescheduling()
    assert isinstance(plugin, Rescheduling)
    assert (plugin.interval_s, plugin.metrics_period_s) == (300.0, 300.0)
    assert plugin.thresholds == plugin.targets == {"cpu": 100.0, "memory": 100.0, "pods": 100.0}


def test_both_names_of_the_threshold_of_pods_are_read() -> None:
    told = {"strategies": [{"name": "lowNodeUtilization", "params": {"thresholds": {"pod": 20}}}]}
    plugin = build_plugin("rescheduling", told)
    assert isinstance(plugin, Rescheduling)
    assert plugin.thresholds["pods"] == 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"interval": "often"}, "argument interval is 'often'"),
        ({"metricsPeriod": "0s"}, "argument metricsPeriod is '0s'; a duration above 0 is expected"),
        ({"strategies": "all"}, "argument strategies is 'all'; a list of names with params is expected"),
        ({"strategies": [{"name": "offlineOnly"}]}, "argument strategies has 'offlineOnly'; lowNodeUtilization is what there is"),
        ({"strategies": [{"name": "lowNodeUtilization", "params": {"thresholds": {"gpu": 1}}}]}, "argument strategies.params.thresholds has 'gpu'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_told(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        build_plugin("rescheduling", arguments)
