from hekla.quota.tree import Quota, QuotaTree
from hekla.quota.verdict import BROKEN_TREE, NOT_A_LEAF, OVER_LIMIT

HELD = {"a": {"cpu": 3}, "team": {"cpu": 5}}


def held(name: str) -> dict[str, int]:
    return HELD.get(name, {})


def tree() -> QuotaTree:
    return QuotaTree(
        [
            Quota(name="root"),
            Quota(name="team", parent="root", limit={"cpu": 6}),
            Quota(name="a", parent="team", deserved={"cpu": 9}, guarantee={"cpu": 2}),
            Quota(name="b", parent="team", deserved={"cpu": 1}, guarantee={"cpu": 3}),
            Quota(name="lost", parent="nowhere"),
            Quota(name="x", parent="y"),
            Quota(name="y", parent="x"),
        ],
        {"cpu": 10, "gpu": 8},
    )


def test_a_ceiling_is_what_is_above_less_what_is_kept_for_siblings() -> None:
    assert tree().shares["a"].ceiling == {"cpu": 3, "gpu": 8}
    assert tree().shares["b"].ceiling == {"cpu": 4, "gpu": 8}


def test_what_is_deserved_is_cut_to_the_ceiling_and_raised_to_the_guarantee() -> None:
    assert tree().shares["a"].deserved == {"cpu": 3}
    assert tree().shares["b"].deserved == {"cpu": 3}


def test_a_queue_may_take_what_every_queue_above_may_take() -> None:
    assert tree().allowance("b", {"cpu": 1}, held, 9) == 1
    assert tree().allowance("b", {"gpu": 1, "pods": 1}, held, 9) == 9
    no = tree().why_not("b", {"cpu": 2000}, held)
    assert no is not None
    assert no.code == OVER_LIMIT
    assert no.sentence.startswith("queue resource quota insufficient: insufficient cpu (2 asked, ")


def test_only_leaves_that_hang_together_with_a_root_take_jobs() -> None:
    made = tree()
    assert {name: no.code for name in made.quotas if (no := made.why_no_jobs(name))} == {
        "root": NOT_A_LEAF, "team": NOT_A_LEAF, "lost": BROKEN_TREE, "x": NOT_A_LEAF, "y": NOT_A_LEAF,
    }  # fmt: skip


def test_a_path_goes_from_below_the_root_to_the_queue() -> None:
    assert tree().path("a") == ["team", "a"]
    assert QuotaTree([Quota(name="q")], {}).path("q") == ["q"]
