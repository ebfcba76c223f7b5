"""Properties of sharing a cluster by weight, over generated queues."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.quota.water_fill import Claim, water_fill

RESOURCES = ("cpu", "gpu")
amounts = st.fixed_dictionaries({}, optional={name: st.integers(0, 40) for name in RESOURCES})
totals = st.fixed_dictionaries({name: st.integers(0, 60) for name in RESOURCES})


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    return [
        Claim(
            name=f"q{number}",
            weight=draw(st.integers(1, 9)),
            request=draw(amounts),
            guarantee=draw(st.one_of(st.just({}), amounts)),
            ceiling=draw(st.one_of(st.just({}), amounts)),
            rank=(float(draw(st.integers(0, 2))), f"q{number}"),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


def most(claim: Claim, resource: str) -> int:
    request = claim.request.get(resource, 0)
    return max(min(request, claim.ceiling.get(resource, request)), claim.guarantee.get(resource, 0))


def guaranteed(made: list[Claim], resource: str) -> int:
    return sum(claim.guarantee.get(resource, 0) for claim in made)


@given(totals, claims())
@settings(max_examples=150, deadline=None)
def test_all_there_is_is_dealt_out_to_whoever_may_have_it_and_no_more(total: dict[str, int], made: list[Claim]) -> None:
    dealt = water_fill(total, made)
    for resource in RESOURCES:
        given_out = sum(share.get(resource, 0) for share in dealt.values())
        could_be = sum(most(claim, resource) for claim in made)
        assert given_out == max(min(total[resource], could_be), guaranteed(made, resource))


@given(totals, claims())
@settings(max_examples=150, deadline=None)
def test_nobody_is_below_the_guarantee_or_above_what_it_asks_for_and_may_have(
    total: dict[str, int], made: list[Claim]
) -> None:
    dealt = water_fill(total, made)
    for claim in made:
        for resource in RESOURCES:
            share = dealt[claim.name].get(resource, 0)
            assert claim.guarantee.get(resource, 0) <= share <= most(claim, resource)


@given(totals, claims(), st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_order_in_which_queues_come_is_irrelevant(total: dict[str, int], made: list[Claim], dice) -> None:
    shuffled = list(made)
    dice.shuffle(shuffled)
    assert water_fill(total, shuffled) == water_fill(total, made)


@given(totals, claims(), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_a_larger_cluster_costs_nobody_more_than_the_unit_that_cannot_be_divided(
    total: dict[str, int], made: list[Claim], more: int
) -> None:
    before = water_fill(total, made)
    after = water_fill({name: amount + more for name, amount in total.items()}, made)
    for name, shares in before.items():
        for resource, share in shares.items():
            assert after[name][resource] >= share - 1


@given(totals, claims())
@settings(max_examples=100, deadline=None)
def test_equal_queues_get_equal_shares_but_for_one_unit(total: dict[str, int], made: list[Claim]) -> None:
    first = made[0]
    twin = Claim(
        name="twin", weight=first.weight, request=first.request, guarantee=first.guarantee, ceiling=first.ceiling
    )
    dealt = water_fill(total, [*made, twin])
    for resource in dealt["twin"]:
        assert abs(dealt["twin"][resource] - dealt[first.name][resource]) <= 1


@given(totals, claims())
@settings(max_examples=100, deadline=None)
def test_who_wants_more_and_has_no_guarantee_has_no_less_per_weight_than_another_by_more_than_a_unit(
    total: dict[str, int], made: list[Claim]
) -> None:
    dealt = water_fill(total, made)
    for resource in RESOURCES:
        wanting = [c for c in made if dealt[c.name].get(resource, 0) < most(c, resource)]
        for poor in wanting:
            for rich in made:
                if rich.guarantee.get(resource, 0):
                    continue
                # The rich one's share, a unit of rounding aside, per weight is not above the poor one's.
                had = dealt[rich.name].get(resource, 0) - 1
                assert had * poor.weight <= (dealt[poor.name].get(resource, 0) + 1) * rich.weight
