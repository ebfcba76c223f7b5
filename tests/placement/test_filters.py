from dataclasses import replace

from hekla.placement.constraint import (
    Constraints,
    HostPort,
    NodeTerm,
    Operator,
    PodSelector,
    Requirement,
    TopologySpread,
)
from hekla.placement.model import TaskStatus
from hekla.testing.cluster import World

ON_N2 = NodeTerm(labels=(Requirement("kubernetes.io/hostname", Operator.IN, ("n2",)),))

IN_ZONE_A = ((NodeTerm(labels=(Requirement("zone", Operator.IN, ("a",)),)),),)
"""What a volume of a pod asks for, so that zone b is still one that the pod could use as far as evenness goes."""

WEB = PodSelector(labels=(Requirement("app", Operator.IN, ("web",)),), namespaces=frozenset({"default"}))
EVEN = Constraints(spreads=(TopologySpread("zone", 1, WEB),))


def two_nodes() -> World:
    world = World()
    for name in ("n1", "n2"):
        world.node(name, cpu=8, labels={"kubernetes.io/hostname": name})
    return world


def test_a_bound_volume_draws_its_pod_to_the_nodes_that_reach_it() -> None:
    world = two_nodes()
    world.job("a", cpu=1, constraints=Constraints(volume_terms=((ON_N2,),)))
    assert world.schedule() == {"a-0": "n2"}
    world.node("n2", cpu=1, labels={"kubernetes.io/hostname": "n2"})
    world.job("b", cpu=1, constraints=Constraints(volume_terms=((ON_N2,),)))
    assert world.schedule() == {}
    assert world.why("b") == "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had volume node affinity conflict."


def test_a_claim_for_one_pod_is_used_by_one_pod_at_a_time() -> None:
    world = two_nodes()
    alone = Constraints(exclusive_claims=("default/data",))
    world.job("first", cpu=1, constraints=alone)
    world.job("second", cpu=1, constraints=alone)
    assert len(world.schedule()) == 1
    assert world.why("second").startswith("0/2 nodes are available: 2 node has pod using PersistentVolumeClaim")
    world.cluster.remove_job("first")
    assert list(world.schedule()) == ["second-0"]


def test_a_named_node_is_the_only_one() -> None:
    world = two_nodes()
    world.job("a", cpu=1, constraints=Constraints(node_name="n2"))
    world.job("b", cpu=1, constraints=Constraints(node_name="n3"))
    assert world.schedule() == {"a-0": "n2"}
    assert world.why("b") == "0/2 nodes are available: 2 node(s) didn't match the requested node name."


def test_ports_on_different_addresses_do_not_collide_but_every_address_collides_with_each() -> None:
    world = World()
    world.node("n1", cpu=8)
    for name, ip in (("one", "10.0.0.1"), ("two", "10.0.0.2")):
        world.job(name, cpu=1, constraints=Constraints(ports=(HostPort("TCP", 80, ip),)))
    world.job("udp", cpu=1, constraints=Constraints(ports=(HostPort("UDP", 80),)))
    world.job("all", cpu=1, constraints=Constraints(ports=(HostPort("TCP", 80),)))
    assert set(world.schedule()) == {"one-0", "two-0", "udp-0"}


def test_one_address_collides_with_a_pod_that_takes_every_address() -> None:
    world = World()
    world.node("n1", cpu=8)
    world.job("all", cpu=1, constraints=Constraints(ports=(HostPort("TCP", 80),)))
    assert set(world.schedule()) == {"all-0"}
    world.job("one", cpu=1, constraints=Constraints(ports=(HostPort("TCP", 80, "10.0.0.1"),)))
    assert world.schedule() == {}


def leave(world: World, name: str) -> None:
    """Somebody deletes a pod that runs: it is on its way out."""
    task = world.cluster.tasks[name]
    world.cluster.put_state(task, TaskStatus.RELEASING, task.spec.node)


def zones_with_a_pod_in_one() -> World:
    world = World()
    for zone in ("a", "b"):
        world.node(zone, cpu=8, labels={"zone": zone})
    world.running("old", "a", labels={"app": "web"}, constraints=EVEN)
    return world


def test_who_is_on_its_way_out_makes_no_domain_fuller() -> None:
    """As in kube-scheduler, whose own count skips terminating pods."""
    world = zones_with_a_pod_in_one()
    world.job("first", cpu=1, labels={"app": "web"}, constraints=replace(EVEN, volume_terms=IN_ZONE_A))
    assert world.schedule() == {}
    leave(world, "old-0")
    assert world.schedule() == {"first-0": "a"}
    world.job("second", cpu=1, labels={"app": "web"}, constraints=replace(EVEN, volume_terms=IN_ZONE_A))
    assert world.schedule() == {}


def test_who_was_to_leave_and_stays_counts_again_and_who_is_overdue_does_not() -> None:
    world = zones_with_a_pod_in_one()
    leave(world, "old-0")
    world.schedule()
    world.tell_time(1_000)
    world.schedule()
    assert world.cluster.tasks["old-0"].is_overdue
    world.job("first", cpu=1, labels={"app": "web"}, constraints=replace(EVEN, volume_terms=IN_ZONE_A))
    assert world.schedule() == {"first-0": "a"}
    world.node("a", cpu=8, labels={"zone": "a", "rack": "1"})
    world.schedule()
    world.cluster.remove_node("a")
    world.node("a", cpu=8, labels={"zone": "a"})
    world.schedule()
    world.cluster.remove_task("old-0")
    world.schedule()


def test_a_port_that_is_taken_is_told_before_what_is_lacking() -> None:
    """In kube-scheduler's order, in which a node is counted under the first filter that refuses it."""
    world = World()
    world.node("n1", cpu=2)
    port = Constraints(ports=(HostPort("TCP", 80),))
    world.job("first", cpu=1, constraints=port)
    world.job("second", cpu=2, constraints=port)
    assert world.schedule() == {"first-0": "n1"}
    assert world.why("second") == (
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    )
