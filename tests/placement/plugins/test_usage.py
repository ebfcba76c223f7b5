"""The plug-in usage: Volcano's arithmetic, in numbers."""

import pytest
from msgspec.structs import replace

from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.kernels import SCALE
from hekla.placement.model import TaskStatus
from hekla.placement.plugins.usage import Estimator, Load, Usage, composite
from hekla.placement.registry import ArgumentError, build_plugin
from hekla.testing.cluster import GIB, World

USUAL = Estimator()


@pytest.mark.parametrize(
    ("request_", "limit", "estimator", "load", "expected"),
    [
        (1000, 0, USUAL, 0.0, 700),
        (1000, 2000, USUAL, 0.0, 700),
        (1000, 500, USUAL, 0.0, 700),
        (1000, 0, USUAL, 0.59, 700),
        (1000, 0, USUAL, 0.6, 840),
        (1000, 2000, Estimator(burst_ratio=0.5), 0.0, 1200),
        (1000, 2000, Estimator(burst_ratio=0.5), 0.9, 1440),
        (1000, 1000, Estimator(request_ratio=1.0), 0.9, 1000),
        (1000, 1100, Estimator(request_ratio=1.0, burst_ratio=1.0), 0.9, 1100),
        (0, 1000, Estimator(burst_ratio=0.3), 0.0, 300),
        (0, 0, USUAL, 0.9, 0),
    ],
)
def test_a_pods_use_is_estimated(
    request_: float, limit: float, estimator: Estimator, load: float, expected: float
) -> None:
    assert estimator.estimate(request_, limit, estimator.risk(load)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("percent", "estimated", "capacity", "expected"),
    [(50, 0, 8000, 0.5), (50, 2000, 8000, 0.75), (80, 4000, 8000, 1.0), (0, 0, 8000, 0.0), (50, 100, 0, 0.0)],
)
def test_estimates_add_to_what_was_measured(percent: float, estimated: float, capacity: float, expected: float) -> None:
    assert composite(percent / 100, estimated, capacity) == expected


def world_with(arguments: dict[str, object] | None = None, **percent: tuple[float, float]) -> World:
    world = World(plugins=(("gang",), (("usage", arguments or {}),)))
    for name, (cpu, memory) in percent.items():
        world.node(name, cpu=8, memory=16)
        world.cluster.put_usage(name, NodeUsage(cpu=cpu, memory=memory, at_s=1000.0))
    world.tell_time(1010.0)
    world.schedule()
    return world


def scores(world: World, **asks: float) -> list[float]:
    """What Volcano would say: 100 times the weight."""
    (task,) = world.job(f"asks-{len(world.cluster.jobs)}", **asks).tasks.values()
    (plugin,) = (p for p in world.policy.plugins if isinstance(p, Usage))
    found = world.policy.placer.scores(task)[: world.cluster.nodes.height]
    world.cluster.remove_job(f"asks-{len(world.cluster.jobs) - 1}")
    return [round(float(score) / SCALE * 100 * plugin.weight, 2) for score in found]


def test_scores_are_volcanos() -> None:
    # ((1 - 0.2) * 1 + (1 - 0.4) * 1) / 2 * 100 * 5, and so on
    assert scores(world_with(n1=(20, 40), n2=(0, 0), n3=(80, 80)), cpu=1) == [350.0, 500.0, 100.0]


def test_weights_are_volcanos() -> None:
    arguments = {"usage.weight": 10, "cpu.weight": 3, "memory.weight": 1}
    assert scores(world_with(arguments, n1=(20, 40)), cpu=1) == [750.0]


def test_pods_that_came_of_late_count_until_they_have_run_for_the_window() -> None:
    world = world_with(n1=(20, 40))
    task = world.running("late", "n1", cpu=4, memory=8)
    # 0.2 + 2800 / 8000 = 0.55; 0.4 + 5.6 / 16 = 0.75
    assert scores(world, cpu=1) == [175.0]
    world.tell_time(1041.0)
    world.schedule()
    assert scores(world, cpu=1) == [350.0]
    world.cluster.remove_task(task.uid)
    assert scores(world, cpu=1) == [350.0]


def test_each_late_pod_raises_the_estimate_of_the_next() -> None:
    world = world_with(n1=(50, 50))
    for name in ("first", "second"):
        world.running(name, "n1", cpu=2, memory=4)
    (plugin,) = (p for p in world.policy.plugins if isinstance(p, Usage))
    # the first: 0.5 + 1400 / 8000 = 0.675, which is above 0.6; so the second counts 1400 * 1.2
    assert plugin.load(world.cluster.nodes, 0).cpu == pytest.approx(0.5 + (1400 + 1680) / 8000)


def test_a_pod_that_is_bound_and_does_not_run_yet_stays_an_estimate() -> None:
    world = world_with(n1=(20, 40))
    task = world.running("late", "n1", cpu=4, memory=8)
    assert task.job is not None
    world.cluster.put_task(replace(task.spec, status=TaskStatus.BOUND), task.job)
    world.tell_time(1100.0)
    world.schedule()
    assert scores(world, cpu=1) == [175.0]


def test_pods_that_ask_for_nothing_count_as_configured() -> None:
    world = world_with({"estimator": {"be_cpu": "800m", "be_memory": "1.6Gi"}}, n1=(0, 0))
    world.running("late", "n1")
    assert scores(world, cpu=1) == [450.0]
    plugin = build_plugin("usage", {"estimator": {"be_cpu": 500, "be_mem": "1gi"}})
    assert isinstance(plugin, Usage)
    assert plugin.estimator.best_effort == Load(500, GIB)


def test_limits_count_where_bursts_do() -> None:
    world = world_with({"estimator": {"burst_ratio": 0.5}}, n1=(0, 0))
    task = world.running("late", "n1", cpu=2, memory=4)
    assert task.job is not None
    world.cluster.put_task(replace(task.spec, limits={"cpu": 4000}), task.job)
    # cpu (2000 * 0.7 + 2000 * 0.5) / 8000 = 0.3; memory 4 * 0.7 / 16 = 0.175
    assert scores(world, cpu=1) == [381.25]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"thresholds": 80}, "argument thresholds is 80; a mapping is expected"),
        (
            {"estimator": {"request_ratio": 2}},
            "argument estimator.request_ratio is 2; a number from 0 to 1 is expected",
        ),
        ({"estimator": {"risk_factor": 0.5}}, "argument estimator.risk_factor is 0.5; a number from 1 up is expected"),
        ({"estimator": {"be_cpu": "lots"}}, "argument estimator.be_cpu is 'lots'"),
        ({"usage.weight": -1}, "argument usage.weight is -1; a number from 0 up is expected"),
    ],
)
def test_bad_arguments_are_told(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        build_plugin("usage", arguments)
