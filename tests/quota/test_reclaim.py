from hekla.quota.reclaim import may_lose, may_reclaim
from hekla.quota.tree import QueueShare, Quota, QuotaTree


def share(deserved: dict[str, int], guarantee: dict[str, int] | None = None) -> QueueShare:
    return QueueShare(guarantee=guarantee or {}, deserved=deserved, ceiling={}, bounds={})


def reclaims(deserved: dict[str, int], held: dict[str, int], asked: dict[str, int]) -> bool:
    tree = QuotaTree([Quota(name="q", deserved=deserved)], {"cpu": 100, "memory": 100, "gpu": 100})
    return may_reclaim(tree, "q", asked, lambda _: held)


def test_one_resource_within_what_is_deserved_is_enough() -> None:  # C4
    assert reclaims({"cpu": 2, "memory": 2}, {"cpu": 1, "memory": 3}, {"cpu": 1, "memory": 1})


def test_with_no_resource_within_what_is_deserved_nothing_is_taken_back() -> None:  # C5
    assert not reclaims({"cpu": 1, "memory": 2}, {"cpu": 1, "memory": 1}, {"cpu": 1, "memory": 2})


def test_only_pods_that_have_what_is_asked_for_go() -> None:  # C6
    held, deserved = {"cpu": 2, "memory": 2, "gpu": 1}, share({"cpu": 2, "memory": 2})
    asked = {"cpu": 1, "gpu": 1, "pods": 1}
    assert not may_lose(deserved, held, {"memory": 1, "pods": 1}, asked)
    assert not may_lose(deserved, held, {"cpu": 1, "pods": 1}, asked)
    assert may_lose(deserved, held, {"gpu": 1, "pods": 1}, asked), "it was only borrowed"


def test_a_queue_that_deserves_a_gpu_keeps_the_pod_on_it() -> None:  # C7
    held = {"cpu": 4, "memory": 4, "gpu": 1}
    assert not may_lose(share({"gpu": 1}), held, held, {"cpu": 1, "memory": 1})


def test_a_guarantee_is_never_taken() -> None:
    assert not may_lose(share({"cpu": 1}, {"cpu": 2}), {"cpu": 3}, {"cpu": 2}, {"cpu": 1})
    assert may_lose(share({"cpu": 1}, {"cpu": 1}), {"cpu": 3}, {"cpu": 2}, {"cpu": 1})
