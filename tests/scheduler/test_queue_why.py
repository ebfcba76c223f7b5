from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.queue_why import queue_document, queue_why
from hekla.testing.cluster import World, check


def office() -> World:
    world = World(plugins=(("priority", "gang"), ("capacity", "predicates", "nodeorder")))
    world.node("n1", cpu=16, gpu=8)
    world.queue("research", weight=3, capability={"nvidia.com/gpu": 4}, deserved={"nvidia.com/gpu": 4})
    world.running("old", "n1", gpu=3, more={"queue": "research"})
    return world


def told(world, name="research", may_see=lambda _: True):
    document = queue_document(f"queue.{name}", "default", queue_why(Rehearsal(world.policy), name, may_see), may_see)
    check(world.cluster)
    return document


def test_a_queue_tells_what_it_holds_who_waits_and_why():
    world = office()
    world.job("large", tasks=2, cpu=1, gpu=2, more={"queue": "research"})
    world.job("next", cpu=1, gpu=2, more={"queue": "research", "priority": 5})
    found = told(world)
    assert found["amounts"] == [
        {"resource": "cpu", "asked": "3"},
        {"resource": "nvidia.com/gpu", "held": "3", "asked": "9", "deserved": "4", "capability": "4"},
    ]
    assert found["queue"]["waiting"] == 2
    assert [one["job"] for one in found["jobs"]] == ["default/next", "default/large"]
    assert found["message"].startswith(
        'queue "research" holds 3 nvidia.com/gpu of the 4 that it deserves; 2 jobs wait, first default/next: '
    )
    assert {one["change"] for one in found["remedies"]} >= {"FewerPerPod", "AnotherQueue", "MoreQuota"}


def test_jobs_that_may_not_be_seen_are_counted_and_not_named():
    world = office()
    world.job("secret", cpu=1, gpu=2, more={"queue": "research"})
    found = told(world, may_see=lambda _: False)
    assert found["jobs"] == [{"job": "a job of another namespace", "message": ""}]
    assert "secret" not in str(found)


def test_a_queue_in_which_nobody_waits_says_so():
    assert (
        told(office())["message"] == 'queue "research" holds 3 nvidia.com/gpu of the 4 that it deserves; nobody waits'
    )


def test_a_closed_queue_says_so():
    world = office()
    world.queue("research", is_open=False)
    world.job("late", cpu=1, more={"queue": "research"})
    found = told(world)
    assert found["verdict"] == "Closed"
    assert found["message"] == 'queue "research" is not open: what runs goes on, and nothing new starts'
    assert "is not open" in found["jobs"][0]["message"]
