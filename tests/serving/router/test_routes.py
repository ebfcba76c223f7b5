"""Whether requests find the rule that Kthena's router would find: oldest route, first rule, target by weight."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.kthena.route import StringMatch
from hekla.serving.router.routes import Found, RouteTable, compile_route, text_match
from serving.router.worldkit import route, to

EVERYWHERE: Any = lambda _: True  # noqa: E731 - a listener that takes all


def table(*routes: Any) -> RouteTable:
    made = RouteTable()
    for one in routes:
        made.put(one)
    return made


def found(made: RouteTable, model: str, path: str = "/v1/chat/completions", **headers: str) -> Found | None:
    return made.find(model, path, headers, EVERYWHERE)


def rule(target: str, **match: Any) -> dict[str, Any]:
    return {"targetModels": [to(target)], **({"modelMatch": match} if match else {})}


def chosen(made: RouteTable, model: str, path: str = "/v1/chat/completions", **headers: str) -> str:
    one = found(made, model, path, **headers)
    return one.rule.pick(0.0).key if one else "nobody"


PREMIUM = route(
    "r",
    model="m",
    rules=[rule("premium", headers={"User-Type": {"exact": "premium"}}), rule("usual")],
)


def test_rules_are_asked_in_order_and_headers_without_case() -> None:
    """Kthena ModelRouteMultiModels: PremiumHeaderRoutesTo7BModel, DefaultRequestsRouteTo1_5BModel, EmptyHeaderValue…"""
    made = table(PREMIUM)
    assert chosen(made, "m", **{"user-type": "premium"}) == "ml/premium"
    assert chosen(made, "m") == "ml/usual"
    assert chosen(made, "m", **{"user-type": ""}) == "ml/usual"


def test_a_request_that_no_rule_takes_is_nobodys() -> None:
    """Kthena ModelRouteMultiModels/DefaultBehaviorWhenNoRulesMatch."""
    made = table(route("r", model="m", rules=[rule("a", headers={"x": {"exact": "1"}})]))
    assert chosen(made, "m") == "nobody"
    assert chosen(made, "other") == "nobody"


def test_all_parts_of_a_match_must_hold() -> None:
    match = {
        "headers": {"x": {"prefix": "a"}, "y": {"regex": "^[0-9]+$"}},
        "uri": {"prefix": "/v1/"},
        "body": {"model": "m"},
    }
    made = table(route("r", model="m", rules=[rule("a", **match)]))
    assert chosen(made, "m", x="ab", y="12") == "ml/a"
    assert chosen(made, "m", x="ba", y="12") == "nobody"
    assert chosen(made, "m", x="ab", y="1b") == "nobody"
    assert chosen(made, "m", "/v2/chat", x="ab", y="12") == "nobody"
    assert chosen(table(route("r", model="m", rules=[rule("a", body={"model": "other"})])), "m") == "nobody"


@pytest.mark.parametrize(
    ("said", "text", "holds"),
    [
        ({"exact": "a"}, "a", True),
        ({"exact": "a"}, "ab", False),
        ({"prefix": "a"}, "ab", True),
        ({"regex": "b"}, "abc", True),
        ({"regex": "^b"}, "abc", False),
        ({"regex": "("}, "(", False),
        ({}, "anything", True),
    ],
)
def test_texts_are_asked_exactly_by_prefix_or_by_expression(said: Any, text: str, holds: bool) -> None:
    assert text_match(msgspec.convert(said, StringMatch))(text) is holds


def test_an_expression_cannot_make_the_router_wait() -> None:
    """`(a+)+$` takes Python's engine 2^40 steps for this header; the suite's time limit judges."""
    rules = [rule("slow", headers={"x": {"regex": "^(a+)+$"}}), rule("open")]
    made = table(route("r", model="m", rules=rules))
    assert chosen(made, "m", x="a" * 40_000 + "!") == "ml/open"
    assert chosen(made, "m", x="a" * 40_000) == "ml/slow"


def test_the_oldest_route_wins_and_a_younger_one_takes_over_when_it_goes() -> None:
    """Kthena ModelRouteDuplicatePreferOldest, NewerTakesOverAfterOldestDeleted."""
    young = route("young", to("b"), model="m", created="2026-02-01T00:00:00Z")
    old = route("old", to("a"), model="m", created="2026-01-01T00:00:00Z")
    for order in ((young, old), (old, young)):
        made = table(*order)
        assert chosen(made, "m") == "ml/a"
        made.drop("ml/old")
        assert chosen(made, "m") == "ml/b"
        made.drop("ml/young")
        assert chosen(made, "m") == "nobody"
        assert made.names() == []


def test_a_younger_route_is_asked_when_no_rule_of_the_older_matches() -> None:
    old = route("old", model="m", rules=[rule("a", headers={"x": {"exact": "1"}})])
    young = route("young", to("b"), model="m", created="2026-02-01T00:00:00Z")
    made = table(old, young)
    assert chosen(made, "m") == "ml/b"
    assert chosen(made, "m", x="1") == "ml/a"


def test_a_name_is_a_models_before_it_is_an_adapters() -> None:
    made = table(
        route("adapters", to("a"), model="base", loraAdapters=["lora", "m"]),
        route("model", to("b"), model="m", created="2026-02-01T00:00:00Z"),
    )
    assert chosen(made, "m") == "ml/b"
    one = found(made, "lora")
    assert one is not None
    assert one.is_adapter
    assert made.names() == ["base", "lora", "m"]


def test_a_rule_without_targets_is_passed_over() -> None:
    """Kthena TestMatchModelTarget_EmptyTargetModels_FallsThrough, TestSelectFromWeightedSlice_ZeroTotalWeight."""
    made = table(route("r", model="m", rules=[{"targetModels": []}, {"targetModels": [to("z", weight=0)]}, rule("a")]))
    assert chosen(made, "m") == "ml/a"


def test_weights_share_the_traffic() -> None:
    """Kthena ModelRouteSubset: WeightedTrafficDistribution 70/30, WeightSumNot100Percent."""
    shares = compile_route(route("r", to("a", weight=35), to("b", weight=15), model="m")).rules[0]
    picked = Counter(shares.pick(number / 1000).key for number in range(1000))
    assert picked == {"ml/a": 700, "ml/b": 300}


def test_a_target_that_names_two_destinations_or_none_gets_nothing() -> None:
    both = {"modelServerName": "a", "externalModelProviderName": "b"}
    assert compile_route(route("r", both, {}, to("c"), model="m")).rules[0].pick(0.99).key == "ml/c"


def test_only_what_needs_no_look_at_the_request_is_settled() -> None:
    assert not found(table(PREMIUM), "m").is_settled  # type: ignore[union-attr]
    assert found(table(route("r", to("a"), model="m")), "m").is_settled  # type: ignore[union-attr]


NAMES = st.sampled_from(["a", "b", "c"])
CHANGES = st.lists(st.tuples(NAMES, NAMES, st.integers(1, 3), st.booleans()), max_size=30)


@given(CHANGES)
def test_any_changes_leave_the_table_that_the_last_state_makes(changes: list[tuple[str, str, int, bool]]) -> None:
    """Kthena TestStore_RandomOperations."""
    changed, last = RouteTable(), {}
    for name, model, day, is_there in changes:
        if is_there:
            last[name] = route(
                name, to(name), model=model, created=f"2026-01-0{day}T00:00:00Z", loraAdapters=[f"l{model}"]
            )
            changed.put(last[name])
        else:
            last.pop(name, None)
            changed.drop(f"ml/{name}")
    fresh = table(*last.values())
    assert changed.names() == fresh.names()
    for asked in ("a", "b", "c", "la", "lb", "lc"):
        assert chosen(changed, asked) == chosen(fresh, asked)
