from collections.abc import Callable

from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints
from hekla.placement.model import Job, JobPhase
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.wish import Closeness
from hekla.scheduler.explain import why_in
from hekla.scheduler.remedies import remedies
from hekla.testing.cluster import World, check


def small_world() -> World:
    world = World(
        plugins=(("priority", "gang"), ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"))
    )
    world.node("n1", cpu=16, gpu=4, labels={"kind": "a"})
    world.node("n2", cpu=16, gpu=4, labels={"kind": "b"})
    return world


def offered(world: World, job: Job, may_see: Callable[[str], bool] = lambda _: True) -> dict[str, str]:
    rehearsal = Rehearsal(world.policy)
    found = remedies(rehearsal, job.uid, why_in(rehearsal, job.uid), may_see=may_see)
    check(world.cluster)
    return {remedy.change: remedy.sentence for remedy in found}


def test_a_gang_that_is_too_wide_hears_every_single_change_that_would_do() -> None:
    world = small_world()
    world.running("old", "n1", gpu=4)
    assert offered(world, world.job("train", tasks=4, cpu=1, gpu=2)) == {
        "FewerPerPod": "ask for 1 nvidia.com/gpu per pod instead of 2",
        "SmallerMinimum": "lower minAvailable from 4 to 2",
        "EndOf": "wait for default/old to end, which holds 4 nvidia.com/gpu",
        "MoreNodes": "add one more node like n1 (4 nvidia.com/gpu)",
    }


def test_what_is_offered_is_true() -> None:
    world = small_world()
    old = world.running("old", "n1", gpu=4)
    job = world.job("train", tasks=4, cpu=1, gpu=2)
    assert "EndOf" in offered(world, job)
    assert world.schedule() == {}
    world.finish(old.uid)
    assert len(world.schedule()) == 4


def test_the_end_of_a_job_that_holds_less_is_offered_before_that_of_one_that_holds_more() -> None:
    world = small_world()
    world.running("large", "n1", gpu=4)
    world.running("small", "n2", gpu=3)
    assert offered(world, world.job("train", cpu=1, gpu=3))["EndOf"] == (
        "wait for default/small to end, which holds 3 nvidia.com/gpu"
    )


def test_a_job_that_may_not_be_seen_is_not_named() -> None:
    world = small_world()
    world.running("secret", "n1", gpu=4)
    job = world.job("train", tasks=2, cpu=1, gpu=4)
    assert offered(world, job, may_see=lambda _: False)["EndOf"] == (
        "wait for a job of another namespace to end, which holds 4 nvidia.com/gpu"
    )


def test_a_node_selector_that_is_in_the_way_is_named() -> None:
    world = small_world()
    job = world.job("picky", tasks=2, cpu=1, gpu=4, constraints=Constraints(selector=(("kind", "a"),)))
    assert offered(world, job)["NoNodeDemands"] == "take nodeSelector and required node affinity off the pods"


def test_more_nodes_than_one_are_counted() -> None:
    world = small_world()
    assert offered(world, world.job("wide", tasks=5, cpu=1, gpu=4))["MoreNodes"] == (
        "add 3 more nodes like n1 (4 nvidia.com/gpu each)"
    )


def test_a_pod_that_is_larger_than_any_node_is_not_told_to_wait_or_to_add_nodes() -> None:
    world = small_world()
    world.running("old", "n1", gpu=4)
    assert offered(world, world.job("huge", cpu=1, gpu=9)) == {
        "FewerPerPod": "ask for 4 nvidia.com/gpu per pod instead of 9"
    }


def test_a_job_that_is_not_let_in_hears_whose_end_would_help() -> None:
    world = small_world()
    world.running("old", "n1", gpu=4)
    job = world.job(
        "wide", tasks=0, min_available=2, phase=JobPhase.PENDING, more={"min_resources": {"nvidia.com/gpu": 8}}
    )
    assert offered(world, job) == {
        "FewerPerPod": "ask for 2 nvidia.com/gpu per pod instead of 4",
        "SmallerMinimum": "lower minAvailable from 2 to 1",
        "EndOf": "wait for default/old to end, which holds 4 nvidia.com/gpu",
        "MoreNodes": "add one more node like n1 (4 nvidia.com/gpu)",
    }


def test_nothing_is_offered_to_a_job_that_fits() -> None:
    world = small_world()
    assert offered(world, world.job("train", tasks=2, cpu=1, gpu=2)) == {}


def test_a_rehearsal_knows_nothing_of_what_comes_later() -> None:
    world = small_world()
    rehearsal = Rehearsal(world.policy)
    world.cluster.put_node(NodeSpec(name="n3", allocatable={"cpu": 1000}))
    assert len(rehearsal.cluster.nodes) == 2


def quota_world() -> World:
    world = World(plugins=(("priority", "gang"), ("capacity", "predicates", "nodeorder")))
    world.node("n1", cpu=16, gpu=8)
    world.queue("small", capability={"nvidia.com/gpu": 2})
    return world


def test_a_limit_of_the_queue_is_raised_no_further_than_it_must_be() -> None:
    world = quota_world()
    world.queue("other")
    offer = offered(world, world.job("train", tasks=3, cpu=1, gpu=2, more={"queue": "small"}))
    assert offer["MoreQuota"] == 'raise the capability of queue "small" from 2 to 6 nvidia.com/gpu'
    assert offer["AnotherQueue"] == 'submit it to queue "default" instead of "small"'


def test_a_limit_that_is_not_in_the_way_is_left_alone() -> None:
    world = quota_world()
    assert "MoreQuota" not in offered(world, world.job("train", tasks=9, cpu=1, gpu=1))


def test_a_weight_is_raised_where_shares_are_dealt_by_weight() -> None:
    world = World(plugins=(("priority", "gang"), ("proportion", "predicates", "nodeorder")))
    world.node("n1", cpu=8)
    world.queue("a", weight=1)
    world.queue("b", weight=1)
    world.job("rival", tasks=8, min_available=1, cpu=1, more={"queue": "b"})
    offer = offered(world, world.job("train", tasks=6, cpu=1, more={"queue": "a"}))
    assert offer["MoreWeight"] == 'raise the weight of queue "a" from 1 to 3'


def test_a_few_jobs_of_lower_priority_are_named_where_no_single_one_is_enough() -> None:
    world = small_world()
    for number, node in enumerate(("n1", "n1", "n2", "n2")):
        world.running(f"old-{number}", node, gpu=2)
    offer = offered(world, world.job("urgent", tasks=1, cpu=1, gpu=4, more={"priority": 10}))
    assert offer["Evict"] == "evict default/old-2 and default/old-3, which hold 4 nvidia.com/gpu"
    assert "EndOf" not in offer


def test_nobody_of_the_same_priority_is_offered_for_eviction() -> None:
    world = small_world()
    for number, node in enumerate(("n1", "n1", "n2", "n2")):
        world.running(f"old-{number}", node, gpu=2)
    assert "Evict" not in offered(world, world.job("equal", tasks=1, cpu=1, gpu=4))


def test_a_demand_for_closeness_is_widened_by_as_few_tiers_as_do() -> None:
    world = World(plugins=(("priority", "gang"), ("predicates", "nodeorder", "network-topology-aware")))
    for number in range(4):
        world.node(f"n{number}", cpu=4)
    for rack, members in (("r0", ("n0", "n1")), ("r1", ("n2", "n3"))):
        world.cluster.put_domain(DomainSpec(name=rack, tier=1, members=tuple(Members(name=name) for name in members)))
    row = tuple(Members(name=rack, are_domains=True) for rack in ("r0", "r1"))
    world.cluster.put_domain(DomainSpec(name="row", tier=2, members=row))
    near = {"closeness": Closeness(is_hard=True, highest_tier=1)}
    offer = offered(world, world.job("wide", tasks=3, cpu=4, more=near))
    assert offer["WiderTopology"] == "raise networkTopology.highestTierAllowed from 1 to 2"


def test_a_job_that_waits_to_be_let_in_hears_how_many_nodes_would_do() -> None:
    world = small_world()
    world.running("old", "n1", gpu=4)
    world.running("more", "n2", gpu=4)
    wanted = {"min_resources": {"cpu": 1000, "nvidia.com/gpu": 8}}
    job = world.job("late", tasks=0, min_available=4, phase=JobPhase.PENDING, more=wanted)
    assert offered(world, job)["MoreNodes"] == "add 2 more nodes like n1 (4 nvidia.com/gpu each)"


def test_a_gang_of_a_volcano_job_is_told_by_the_jobs_name() -> None:
    world = small_world()
    world.running("old-022c1e84-9fe5-4f64-a35e-fa3e7d0b2bec", "n1", gpu=4)
    job = world.job("train", tasks=2, cpu=1, gpu=4)
    assert offered(world, job)["EndOf"] == "wait for default/old to end, which holds 4 nvidia.com/gpu"


def test_what_is_offered_to_a_job_without_pods_lets_them_start_and_not_only_in() -> None:
    world = small_world()
    world.running("old", "n1", gpu=3)  # 4 and 1 are left: a gang of pods of 2 that is let in would find room for two
    wanted = {"min_resources": {"nvidia.com/gpu": 8}, "role_minimums": {"w": 4}}
    job = world.job("late", tasks=0, min_available=4, phase=JobPhase.PENDING, more=wanted)
    assert offered(world, job) == {
        "FewerPerPod": "ask for 1 nvidia.com/gpu per pod instead of 2",
        "SmallerMinimum": "lower minAvailable from 4 to 2",
        "EndOf": "wait for default/old to end, which holds 3 nvidia.com/gpu",
        "MoreNodes": "add one more node like n1 (4 nvidia.com/gpu)",
    }
    assert not job.tasks


def test_another_queue_with_quota_but_without_nodes_is_not_offered() -> None:
    world = small_world()
    world.queue("small", capability={"nvidia.com/gpu": 4})
    world.queue("wide")
    world.running("old", "n1", more={"queue": "small"}, gpu=3)
    wanted = {"min_resources": {"nvidia.com/gpu": 6}, "queue": "small"}
    job = world.job("late", tasks=0, min_available=2, phase=JobPhase.PENDING, more=wanted)
    assert "AnotherQueue" not in offered(world, job)


def test_who_is_ahead_and_who_waits_are_told_by_the_names_that_users_gave() -> None:
    world = small_world()
    uids = "022c1e84-9fe5-4f64-a35e-fa3e7d0b2bec", "122c1e84-9fe5-4f64-a35e-fa3e7d0b2bec"
    world.job(f"first-{uids[0]}", gpu=5)
    job = world.job(f"second-{uids[1]}", gpu=5)
    found = why_in(Rehearsal(world.policy), job.uid)
    assert (found.job, found.ahead) == ("default/second", ("default/first",))
