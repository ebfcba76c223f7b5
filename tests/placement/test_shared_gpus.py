"""Parts of GPUs: a part fits on one GPU, whole GPUs are free ones, and what is given back is as before."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.constraint import Constraints, HostPort
from hekla.placement.model import TaskStatus
from hekla.placement.session import Session
from hekla.testing.cluster import World, check

PART = st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 1, 1, 2, 4, 1.5])


@pytest.mark.parametrize("asked", [0.5, 0.7])
def test_two_halves_on_two_gpus_are_no_room_for_a_whole_one(asked):
    world = World()
    world.node("n1", cpu=64, memory=64, shared_gpu=2)
    for number in range(2):
        world.job(f"part{number}", cpu=1, shared_gpu=0.6)
    world.job("whole", cpu=1, shared_gpu=1)
    world.job("more", cpu=1, shared_gpu=asked)
    assert world.schedule() == {"part0-0": "n1", "part1-0": "n1"}
    assert world.why("whole") == "0/1 nodes are available: 1 Insufficient hekla.dev/gpu-milli."
    assert world.why("more") == "0/1 nodes are available: 1 Insufficient hekla.dev/gpu-milli."


def test_parts_share_the_fullest_gpu_that_has_room():
    world = World()
    world.node("n1", cpu=64, memory=64, shared_gpu=4)
    world.job("a", cpu=1, shared_gpu=0.6)
    world.job("b", cpu=1, shared_gpu=0.3)
    world.job("c", cpu=1, shared_gpu=0.4)
    world.schedule()
    assert [world.cluster.tasks[name].devices for name in ("a-0", "b-0", "c-0")] == [(0,), (0,), (1,)]


def test_a_gpu_and_a_half_is_nothing_that_can_be_had():
    world = World()
    world.node("n1", cpu=64, memory=64, shared_gpu=4)
    world.job("odd", cpu=1, shared_gpu=1.5)
    assert world.schedule() == {}


def test_a_pod_that_runs_already_holds_its_gpus_even_where_they_are_overfull():
    world = World()
    world.node("n1", cpu=64, memory=64, shared_gpu=1)
    for name in ("x", "y"):
        world.running(name, "n1", cpu=1, shared_gpu=0.7)
    check(world.cluster)
    assert world.cluster.nodes.devices.left[0, 0] == -400
    world.finish("x-0")
    check(world.cluster)
    assert world.cluster.nodes.devices.left[0, 0] == 300


def test_a_node_that_loses_gpus_keeps_the_books():
    world = World()
    world.node("n1", cpu=64, memory=64, shared_gpu=4)
    for number in range(4):
        world.job(f"j{number}", cpu=1, shared_gpu=1)
    world.schedule()
    world.node("n1", cpu=64, memory=64, shared_gpu=2)
    check(world.cluster)
    world.finish("j0-0")
    world.job("next", cpu=1, shared_gpu=1)
    assert world.schedule() == {}, "four are held of two, so one that ends frees nothing"


@given(st.lists(PART, min_size=1, max_size=25), st.integers(1, 4), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_no_gpu_is_overfull_and_all_comes_back(parts, gpus, uses_fgd, data):
    plugins = (("priority", "gang"), ("predicates", "fgd" if uses_fgd else "binpack"))
    world = World(plugins=plugins)
    for number in range(3):
        world.node(f"n{number}", cpu=8, memory=64, shared_gpu=gpus)
    for number, part in enumerate(parts):
        ports = (HostPort("TCP", 80),) if number % 7 == 3 else ()
        world.job(f"j{number}", tasks=1 + number % 3, cpu=0.5, shared_gpu=part, constraints=Constraints(ports=ports))
    with Session(world.policy).statement() as statement:
        for task in list(world.cluster.tasks.values()):
            statement.allocate(task)
    check(world.cluster)
    assert not world.cluster.nodes.devices.held.any(), "a discarded statement gives every part back"
    for _ in range(3):
        world.schedule()
        devices = world.cluster.nodes.devices
        assert (devices.left >= 0).all()
        placed = list(world.cluster.placed())
        for task in placed:
            assert len(task.devices) == max(1, task.shape.gpu_milli // 1000)
            if data.draw(st.booleans()):
                world.finish(task.uid)
    assert all(task.status is not TaskStatus.FAILED for task in world.cluster.tasks.values())
