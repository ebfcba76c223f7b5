from hekla.placement.cluster import FIRST_TALLIES
from hekla.placement.constraint import Constraints, Operator, PodSelector, PodTerm, Requirement
from hekla.testing.cluster import World, check


def apart_from(app: str) -> Constraints:
    selector = PodSelector((Requirement("app", Operator.IN, (app,)),), frozenset({"default"}))
    return Constraints(anti_affinity=(PodTerm("kubernetes.io/hostname", selector),))


def test_questions_that_nobody_asks_any_more_are_forgotten_and_the_others_still_counted() -> None:
    world = World()
    world.node("n1", cpu=8, labels={"kubernetes.io/hostname": "n1"})
    world.job("stays", cpu=1, constraints=apart_from("stays"), labels={"app": "stays"})
    assert world.schedule() == {"stays-0": "n1"}
    for number in range(FIRST_TALLIES):
        world.job(f"j{number}", cpu=1, constraints=apart_from(f"a{number}"), labels={"app": f"a{number}"})
        world.cluster.remove_job(f"j{number}")
    assert len(world.cluster.tallies) <= FIRST_TALLIES
    world.job("again", cpu=1, constraints=apart_from("stays"), labels={"app": "stays"})
    assert world.schedule() == {}
    assert world.why("again") == "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."
    check(world.cluster)


def test_an_image_report_is_no_news() -> None:
    world = World()
    world.node("n1", cpu=8)
    gains, version = world.cluster.gains, world.cluster.nodes.version
    world.node("n1", cpu=8, images={"trainer": 1 << 30})
    assert (world.cluster.gains, world.cluster.nodes.version) == (gains, version)
    assert world.cluster.nodes.image("trainer")[0] == 1 << 30


def test_a_node_that_shrinks_keeps_what_runs_there_and_takes_nothing_more() -> None:
    world = World()
    world.node("n1", cpu=8)
    world.job("a", tasks=6, cpu=1)
    assert len(world.schedule()) == 6
    world.node("n1", cpu=4)
    world.job("b", cpu=1)
    assert world.schedule() == {}
    assert world.why("b") == "0/1 nodes are available: 1 Insufficient cpu."


def test_a_pod_that_changes_its_queue_is_charged_to_the_new_one() -> None:
    from msgspec.structs import replace

    world = World()
    world.node("n1", cpu=8)
    world.queue("team")
    job = world.job("a", cpu=2)
    world.schedule()
    world.cluster.put_job(replace(job.spec, queue="team"))
    assert +world.cluster.held["default"] == {}
    assert world.cluster.held["team"]["cpu"] == 2000
    check(world.cluster)


def test_another_seed_breaks_ties_otherwise_and_always_the_same_way() -> None:
    def placed(seed: int) -> list[str]:
        world = World(plugins=(("gang",), ("predicates",)), seed=seed)
        for number in range(20):
            world.node(f"n{number}", cpu=1)
        world.job("a", tasks=20, cpu=1)
        return list(world.schedule().values())

    assert placed(0) == [f"n{number}" for number in range(20)]
    assert placed(7) == placed(7)
    assert placed(7) != placed(0)
    assert sorted(placed(7)) == sorted(placed(0))
