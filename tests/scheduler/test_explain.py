from hekla.cli.why_text import why_text
from hekla.placement.model import JobPhase
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.wish import Closeness
from hekla.scheduler.explain import why
from hekla.scheduler.explanation_document import document_of
from hekla.testing.cluster import World, check


def small_world() -> World:
    world = World(plugins=(("priority", "gang"), ("overcommit", "predicates", "binpack")))
    world.node("n1", cpu=4, gpu=8)
    world.node("n2", cpu=4)
    return world


def test_a_job_that_does_not_fit_hears_how_far_it_gets_and_why_not_further() -> None:
    world = small_world()
    job = world.job("train", tasks=3, cpu=1, gpu=4)
    answer = why(world.policy, job)
    assert not answer.fits
    assert (answer.placeable, answer.wanted, answer.place) == (2, 3, 1)
    assert answer.sentence() == (
        "2 of the 3 pods that default/train needs find a node; "
        "train-2: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    )


def test_pods_that_ask_for_nothing_and_fit_nowhere_hear_why() -> None:
    """`requests: {memory: 0}` on nodes that are full of pods, or closed: the reason could not be put together."""
    world = World(plugins=(("priority", "gang"), ("overcommit", "predicates", "binpack")))
    world.node("n1", cpu=4, pods=0)
    job = world.job("small", tasks=1, cpu=0)
    answer = why(world.policy, job)
    assert not answer.fits
    assert answer.lacks == ()


def test_asking_changes_nothing() -> None:
    world = small_world()
    job = world.job("train", tasks=2, cpu=1)
    before = world.cluster.nodes.used.tobytes()
    assert why(world.policy, job).fits
    assert world.cluster.nodes.used.tobytes() == before
    check(world.cluster)
    assert len(world.schedule()) == 2


def test_the_place_in_the_queue_is_told() -> None:
    world = small_world()
    world.job("first", cpu=9, more={"priority": 1})
    last = world.job("last", cpu=9)
    assert why(world.policy, last).place == 2


def test_a_job_that_may_not_enter_hears_what_is_left() -> None:
    world = small_world()
    job = world.job("wide", phase=JobPhase.PENDING, more={"min_resources": {"nvidia.com/gpu": 64}})
    assert why(world.policy, job).sentence() == (
        "resource in cluster is overused: insufficient nvidia.com/gpu (64 asked, 0 of 8 taken, overcommit 1.2)"
    )


def test_a_missing_queue_is_named() -> None:
    world = small_world()
    job = world.job("lost", cpu=1, more={"queue": "nowhere"})
    assert why(world.policy, job).sentence() == (
        'queue "nowhere" does not exist; create it, or name another in spec.queue'
    )


def test_a_gang_that_must_be_together_hears_which_domain_has_room_for_how_many() -> None:
    world = small_world()
    for rack, node in (("a", "n1"), ("b", "n2")):
        world.cluster.put_domain(DomainSpec(name=rack, tier=1, members=(Members(name=node),)))
    job = world.job("train", tasks=6, cpu=1, more={"closeness": Closeness(is_hard=True, highest_tier=1)})
    document = document_of("podgroup.train", job, why(world.policy, job), (), None, None, lambda _: True)
    assert document["nodes"]["message"].startswith("0/2 hypernodes up to tier 1 have room for all 6 pods of the gang")
    assert "0/2 hypernodes up to tier 1" in why_text(document)
    check(world.cluster)


def test_the_room_that_is_kept_for_a_gang_is_printed() -> None:
    world = World(plugins=(("gang", "reservation"), ("predicates", "binpack")))
    world.node("n1", cpu=4)
    world.running("old", "n1", cpu=4, more={"estimate_s": 100.0})
    name = "big-fa49e8d6-b271-4448-b68a-28f89fcd7392"
    job = world.job(name, cpu=4)
    world.schedule()
    document = document_of("vcjob.big", job, why(world.policy, job), (), None, None, lambda _: True)
    assert "n1 is reserved for default/big, which is to start in 100 s, when default/old has ended" in why_text(
        document
    )
    del document["reserved"]
    assert "is reserved for" not in why_text(document), "a server of an older version says nothing of it"
