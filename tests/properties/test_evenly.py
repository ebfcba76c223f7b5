"""Equal pods that keep domains even get the nodes that they would get one after the other, whatever else runs there."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.placement import kernels
from hekla.placement.constraint import (
    Constraints,
    Operator,
    PodSelector,
    PodTerm,
    PreferredPodTerm,
    Requirement,
    TopologySpread,
)
from hekla.placement.kernels import twin
from hekla.placement.node_selection.placer import Placer
from hekla.testing.cluster import World, check

OURS = PodSelector((Requirement("app", Operator.IN, ("a",)),), frozenset({"default"}))
OTHERS = PodSelector((Requirement("app", Operator.IN, ("b",)),), frozenset({"default"}))
SPREADS = (
    (TopologySpread("zone", 1, OURS),),
    (TopologySpread("zone", 2, OURS), TopologySpread("host", 1, OURS)),
    (TopologySpread("zone", 1, OURS, min_domains=3),),
    (TopologySpread("zone", 1, OTHERS), TopologySpread("host", 2, OURS)),
    (TopologySpread("zone", 1, OURS, honours_affinity=False, honours_taints=True),),
    (TopologySpread("zone", 1, OURS), TopologySpread("host", 1, OURS, is_hard=False)),
)
REPELLING = Constraints(
    anti_affinity=(PodTerm("host", OURS),), preferred_pods=(PreferredPodTerm(5, PodTerm("zone", OURS)),)
)
PLUGINS = (
    (("priority", "gang"), ("predicates", "nodeorder", "binpack")),
    (("priority", "gang"), (("predicates", {"predicate.PodTopologySpreadEnable": False}), "nodeorder")),
)
NODES = st.lists(st.tuples(st.integers(1, 6), st.sampled_from("xyz "), st.booleans()), min_size=1, max_size=8)
RUNNING = st.lists(st.tuples(st.integers(0, 7), st.sampled_from("ab"), st.booleans()), max_size=5)
GANGS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(0, 5), st.integers(1, 2)), min_size=1, max_size=4
)


def build(plugins, nodes, running, gangs):
    world = World(plugins=PLUGINS[plugins])
    for number, (cpu, zone, has_host) in enumerate(nodes):
        labels = {"zone": zone} if zone != " " else {}
        world.node(f"n{number}", cpu=cpu, memory=8, labels=labels | ({"host": f"n{number}"} if has_host else {}))
    for number, (node, app, repels) in enumerate(running):
        constraints = REPELLING if repels else Constraints()
        world.running(
            f"r{number}", f"n{node % len(nodes)}", cpu=0.5, memory=1, labels={"app": app}, constraints=constraints
        )
    for number, (tasks, least, spreads, cpu) in enumerate(gangs):
        world.job(
            f"g{number}", tasks=tasks, min_available=min(least, tasks), cpu=cpu / 2, memory=1, labels={"app": "a"},
            constraints=Constraints(spreads=SPREADS[spreads]),
        )  # fmt: skip
    return world


@pytest.fixture(autouse=True, params=["plain", "compiled"])
def form(request):
    if request.param == "compiled" and not kernels.use_compiled():
        pytest.skip("numba is not installed")
    yield
    kernels.use(twin)


@given(plugins=st.integers(0, 1), nodes=NODES, running=RUNNING, gangs=GANGS)
def test_pods_kept_even_together_go_where_they_go_one_by_one(plugins, nodes, running, gangs):
    together, alone = (build(plugins, nodes, running, gangs) for _ in range(2))
    placed = [together.schedule() for _ in range(2)]
    with mock.patch.object(Placer, "place_apart", return_value=None):
        expected = [alone.schedule() for _ in range(2)]
    assert placed == expected
    assert together.cluster.nodes.used.tobytes() == alone.cluster.nodes.used.tobytes()
    assert together.cluster.nodes.share.tobytes() == alone.cluster.nodes.share.tobytes()
    check(together.cluster)


def test_a_run_of_pods_that_keep_zones_even_is_placed_in_one_pass():
    world = World()
    for number in range(6):
        world.node(f"n{number}", cpu=4, memory=8, labels={"zone": f"z{number % 3}"})
    world.job("g", tasks=6, cpu=1, memory=1, labels={"app": "a"}, constraints=Constraints(spreads=SPREADS[0]))
    with mock.patch.object(Placer, "place", side_effect=AssertionError("one by one")):
        assert sorted(world.schedule().values()) == [f"n{number}" for number in range(6)]
