"""Budgets: what passes within a period stays within the limit, per route and per tenant; a limit that is taken away ends."""

import msgspec
import pytest

from hekla.api.kthena import ModelRoute
from hekla.serving.router.limits import Limit, Limits, TenantLimitError, limits_of, read_tenants
from hekla.serving.router.plan import NOT_ASKED, Usage
from hekla.serving.router.question import Question


def route(name, *, model="", adapters=(), limit=None, created="2026-01-01T00:00:00Z"):
    document = {
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": created},
        "spec": {
            "modelName": model,
            "loraAdapters": list(adapters),
            "rules": [],
            **({"rateLimit": limit} if limit else {}),
        },
    }
    return msgspec.convert(document, ModelRoute)


def ask(model="llama", tokens=10, user=""):
    return Question(path="/v1/chat/completions", model=model, prompt=b"", input_tokens=tokens, user=user)


def limited(*routes):
    limits = Limits()
    limits.set_routes(limits_of(routes), 0.0)
    return limits


def test_input_tokens_are_refused_until_they_flow_in_again():
    limits = limited(route("r", model="llama", limit={"inputTokensPerUnit": 20, "unit": "second"}))
    assert limits.admit(ask(tokens=20), 0.0) is None
    refusal = limits.admit(ask(tokens=10), 0.0)
    assert (refusal.status, refusal.reason, refusal.message) == (
        429,
        "input_rate_limit",
        'input token rate limit exceeded: the route of "llama" has 20 input tokens a second, and this prompt takes about 10; '
        "try again in 1 s",
    )
    assert refusal.retry_after_s == 0.5
    assert limits.admit(ask(tokens=10), 0.5) is None


def test_a_prompt_over_the_whole_budget_is_not_told_to_come_again():
    limits = limited(route("r", model="llama", limit={"inputTokensPerUnit": 20}))
    refusal = limits.admit(ask(tokens=21), 0.0)
    assert refusal.retry_after_s is None
    assert refusal.message.endswith("takes about 21; send a shorter prompt, or have the limit raised")


def test_an_answer_over_the_budget_does_not_pass_free():
    """Kthena counts nothing for an answer larger than what is left."""
    limits = limited(route("r", model="llama", limit={"outputTokensPerUnit": 100, "unit": "minute"}))
    assert limits.admit(ask(), 0.0) is None
    limits.ended(ask(), Usage(10, 250), 1.0)
    refusal = limits.admit(ask(), 60.0)
    said = 'output token rate limit exceeded: the route of "llama" has 100 output tokens a minute; try again in 32 s'
    assert (refusal.reason, refusal.message) == ("output_rate_limit", said)
    assert limits.admit(ask(), 95.0) is None


def test_an_estimate_is_put_right_when_the_engine_has_counted():
    limits = limited(route("r", model="llama", limit={"inputTokensPerUnit": 100, "unit": "hour"}))
    question = ask(tokens=80)
    assert limits.admit(question, 0.0) is None
    limits.ended(question, Usage(20, 5), 0.0)
    assert limits.admit(ask(tokens=80), 0.0) is None


def test_a_request_that_no_engine_was_asked_gives_its_tokens_back_and_still_is_a_request():
    """A tenant whose requests met a model that did not start had nothing left when it did."""
    limits = Limits()
    limits.set_tenants({"ann": Limit(input_tokens=100, requests=2, period_s=3_600.0, key="ann")})
    for _ in range(2):
        assert limits.admit(ask(tokens=80, user="ann"), 0.0) is None
        limits.ended(ask(tokens=80, user="ann"), NOT_ASKED, 0.0)
    assert limits.admit(ask(tokens=1, user="ann"), 0.0).reason == "rate_limit"


def test_adapters_share_the_budget_of_their_route_and_no_other():
    """Kthena gives every route without a modelName the key ""."""
    limits = limited(
        route("a", adapters=["x", "y"], limit={"inputTokensPerUnit": 10}),
        route("b", adapters=["z"], limit={"inputTokensPerUnit": 10}),
    )
    assert limits.admit(ask("x"), 0.0) is None
    assert limits.admit(ask("y"), 0.0) is not None
    assert limits.admit(ask("z"), 0.0) is None


def test_the_older_route_of_a_name_sets_its_limit():
    limits = limits_of(
        [
            route("new", model="llama", limit={"inputTokensPerUnit": 1}, created="2026-02-01T00:00:00Z"),
            route("old", model="llama"),
        ]
    )
    assert limits == {}


def test_a_limit_that_is_taken_away_ends_and_one_that_stays_keeps_what_is_left():
    keep = route("keep", model="keep", limit={"inputTokensPerUnit": 10, "unit": "day"})
    limits = limited(keep, route("gone", model="gone", limit={"inputTokensPerUnit": 10, "unit": "day"}))
    for model in ("keep", "gone"):
        assert limits.admit(ask(model), 0.0) is None
    limits.set_routes(limits_of([keep, route("gone", model="gone")]), 1.0)
    assert limits.admit(ask("gone", tokens=1000), 1.0) is None
    assert limits.admit(ask("keep"), 1.0) is not None


def test_a_budget_kept_in_redis_is_not_kept_here_too():
    limit = {"inputTokensPerUnit": 1, "global": {"redis": {"address": "redis:6379"}}}
    limits = limited(route("r", model="llama", limit=limit))
    assert limits.admit(ask(tokens=100), 0.0) is None
    assert limits_of([route("r", model="llama", limit=limit)])["llama"].redis == "redis:6379"


def test_a_refused_request_takes_nothing_of_any_budget():
    limits = limited(route("r", model="llama", limit={"inputTokensPerUnit": 10, "unit": "day"}))
    limits.set_tenants({"ann": Limit(requests=1, period_s=86_400.0, key="ann")})
    assert limits.admit(ask(tokens=11, user="ann"), 0.0) is not None
    assert limits.admit(ask(tokens=10, user="ann"), 0.0) is None


def test_tenants_have_budgets_of_their_own_and_everybody_else_the_common_rule():
    limits = Limits()
    limits.set_tenants(read_tenants([{"user": "ann", "requestsPerUnit": 2}, {"user": "*", "requestsPerUnit": 1}]))
    answers = [limits.admit(ask(user=user), 0.0) for user in ("ann", "ann", "ann", "bob", "bob", "eve")]
    assert [one is None for one in answers] == [True, True, False, True, False, True]
    assert answers[2].message == 'request rate limit exceeded: user "ann" has 2 requests a second; try again in 1 s'
    assert answers[4].message == 'request rate limit exceeded: user "bob" has 1 requests a second; try again in 1 s'


def test_tenants_beyond_the_bound_are_forgotten_idle_ones_first(monkeypatch):
    monkeypatch.setattr("hekla.serving.router.limits.MOST_TENANTS", 2)
    limits = Limits()
    limits.set_tenants({"*": Limit(requests=1, period_s=86_400.0)})
    for user in ("a", "b", "a", "c"):
        limits.admit(ask(user=user), 0.0)
    assert limits.admit(ask(user="a"), 0.0) is not None
    assert limits.admit(ask(user="b"), 0.0) is None


def test_a_tenant_whom_the_fast_lane_alone_serves_is_not_idle(monkeypatch):
    """He was forgotten first, and began with a full budget each time."""
    monkeypatch.setattr("hekla.serving.router.limits.MOST_TENANTS", 2)
    limits = Limits()
    limits.set_tenants({"*": Limit(requests=1, period_s=86_400.0)})
    _, budget = limits.budgets_of("m", "fast", 0.0)
    assert limits.admit(ask(user="slow"), 1.0) is None
    for number in range(5):
        budget.requests.take(1, 2.0 + number)  # as the lane does
        assert limits.admit(ask(user=f"new-{number}"), 2.5 + number) is None
    assert limits.admit(ask(user="fast"), 8.0).status == 429
    assert limits.admit(ask(user="slow"), 8.0) is None


def test_a_tenant_who_is_in_the_fast_lane_is_kept_so_that_it_need_not_look_its_ways_up_anew(monkeypatch):
    """With more than ten thousand tenants each new one did that."""
    monkeypatch.setattr("hekla.serving.router.limits.MOST_TENANTS", 3)
    limits = Limits()
    limits.set_tenants({"*": Limit(requests=1, period_s=86_400.0)})
    _, budget = limits.budgets_of("m", "fast", 0.0)
    budget.lent, before = 1, limits.changes
    for number in range(9):
        assert limits.admit(ask(user=f"new-{number}"), 1.0 + number) is None
    assert limits.changes == before
    assert limits.budgets_of("m", "fast", 20.0) == (None, budget)


def test_where_all_tenants_are_in_the_fast_lane_it_is_told_that_one_is_forgotten(monkeypatch):
    monkeypatch.setattr("hekla.serving.router.limits.MOST_TENANTS", 2)
    limits = Limits()
    limits.set_tenants({"*": Limit(requests=1, period_s=86_400.0)})
    for user in ("a", "b"):
        limits.budgets_of("m", user, 0.0)[1].lent = 1
    before = limits.changes
    assert limits.admit(ask(user="new"), 1.0) is None
    assert limits.changes > before


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({}, '"user" must be a name'),
        ({"user": "a"}, "limits nothing"),
        ({"user": "a", "requestsPerUnit": 0}, 'requestsPerUnit "0" must be a whole number of at least 1'),
        ({"user": "a", "requestsPerUnit": True}, "whole number"),
        ({"user": "a", "requestsPerUnit": 1, "unit": "week"}, 'unit "week" is none of second, minute'),
        ({"user": "a", "requestPerUnit": 1}, 'unknown field "requestPerUnit"'),
        ({"user": "b", "requestsPerUnit": 1}, "has a limit already"),
    ],
)
def test_a_tenants_list_that_cannot_be_read_is_said(entry, sentence):
    with pytest.raises(TenantLimitError, match="tenants entry 2: ") as error:
        read_tenants([{"user": "b", "requestsPerUnit": 1}, entry])
    assert sentence in str(error.value)


def test_who_keeps_budgets_by_address_is_told_that_other_processes_share_them_from_now_on():
    """The fast lane took from them without a word to a process that came later, and each let in all of the limit."""
    limits = limited(route("r", model="llama", limit={"inputTokensPerUnit": 20}))
    assert limits.budgets_of("llama", "", 0.0) is not None
    before = limits.changes
    limits.tell()
    assert limits.budgets_of("llama", "", 0.0) is None
    assert limits.budgets_of("no limit", "", 0.0) == (None, None)
    assert limits.changes > before
    before = limits.changes
    limits.tell()
    assert limits.changes == before
