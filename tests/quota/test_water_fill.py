import pytest

from hekla.quota.water_fill import Claim, water_fill


def shares(total: int, *claims: tuple[int, int, int, int | None]) -> list[int]:
    """The shares of claims given as (weight, request, guarantee, ceiling)."""
    made = [
        Claim(
            name=f"q{number}", weight=weight, request={"gpu": request}, guarantee={"gpu": guarantee},
            ceiling={} if ceiling is None else {"gpu": ceiling}, rank=(float(number), ""),
        )
        for number, (weight, request, guarantee, ceiling) in enumerate(claims)
    ]  # fmt: skip
    return [share["gpu"] for share in water_fill({"gpu": total}, made).values()]


CASES = {
    "by weight": (8, [(3, 8, 0, None), (1, 8, 0, None)], [6, 2]),
    "what one does not need goes to the others by weight": (12, [(1, 2, 0, None), (2, 20, 0, None), (3, 20, 0, None)], [2, 4, 6]),
    "nobody gets more than is asked for": (10, [(1, 2, 0, None), (1, 3, 0, None)], [2, 3]),
    "a ceiling holds": (10, [(1, 10, 0, 3), (1, 10, 0, None)], [3, 7]),
    "a guarantee holds for one that asks for nothing": (10, [(1, 0, 4, None), (1, 10, 0, 6)], [4, 6]),
    "a guarantee beats weight and the others make room": (10, [(1, 10, 4, None), (1, 10, 0, None), (1, 10, 0, None)], [4, 3, 3]),
    "what is left over comes on top of a guarantee": (10, [(1, 10, 4, None), (1, 1, 0, None), (1, 10, 0, None)], [5, 1, 4]),
    "odd units go to the largest fraction, then to the first": (5, [(1, 9, 0, None), (1, 9, 0, None), (1, 9, 0, None)], [2, 2, 1]),
    "guarantees beyond the cluster are kept": (4, [(1, 9, 4, None), (1, 9, 3, None)], [4, 3]),
    "of nothing nobody gets anything": (0, [(1, 9, 0, None)], [0]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cluster_is_dealt_out(case: str) -> None:
    total, claims, expected = CASES[case]
    assert shares(total, *claims) == expected


def test_resources_are_dealt_out_one_by_one() -> None:
    claims = [
        Claim(name="a", request={"cpu": 10, "gpu": 1}),
        Claim(name="b", request={"cpu": 10}),
    ]
    assert water_fill({"cpu": 10, "gpu": 8}, claims) == {"a": {"cpu": 5, "gpu": 1}, "b": {"cpu": 5}}
