"""Whether requests go where routes say, with the body that the engine expects, and what is said when they cannot."""

import msgspec

from hekla.serving.router.plan import LEADS_NOWHERE, NOBODY_READY, Destination, Fault, Refusal
from hekla.serving.router.proxy.answers import refusal_bytes
from serving.router.worldkit import (
    attempt_of,
    director,
    plan_of,
    pod,
    provider,
    question,
    refusal_of,
    route,
    sent,
    server,
    to,
)


def test_a_request_goes_to_an_engine_of_its_routes_server() -> None:
    desk = director(route("r", to("llama"), model="m"), server("llama"), pod("a", {"app": "llama"}, ip="10.1.1.1"))
    plan = plan_of(desk, question("m"))
    attempt = attempt_of(plan)
    assert (attempt.target.name, attempt.target.host, attempt.target.port) == ("a", "10.1.1.1", 8000)
    assert attempt.body is None
    assert plan.destination == Destination("m", "ml/r", "model_server", "ml/llama", "m", "vllm")
    assert desk.models() == ["m"]


def test_the_engine_gets_its_own_name_for_the_model_and_the_client_keeps_its_bytes() -> None:
    desk = director(route("r", to("llama"), model="m"), server("llama", model="org/llama"), pod("a", {"app": "llama"}))
    asked = question(
        "m", body=b'{"messages":[{"role":"user","content":"\\"model\\":\\"m\\""}], "model" : "m","x":1.50}'
    )
    before = bytes(asked.body)
    attempt = attempt_of(plan_of(desk, asked))
    assert (
        attempt.body
        == b'{"messages":[{"role":"user","content":"\\"model\\":\\"m\\""}], "model" : "org/llama","x":1.50}'
    )
    assert asked.body == before


def test_a_model_named_twice_is_renamed_at_the_top_only() -> None:
    desk = director(route("r", to("llama"), model="m"), server("llama", model="org/llama"), pod("a", {"app": "llama"}))
    asked = question("m", body=b'{"metadata":{"model":"mine"},"model":"m","temperature":0.10}')
    attempt = attempt_of(plan_of(desk, asked))
    assert attempt.body == b'{"metadata":{"model":"mine"},"model":"org/llama","temperature":0.10}'


def test_an_adapters_name_is_left_alone() -> None:
    """Kthena ModelRouteLora: the LoRA name is untouched, unknown ones are 404."""
    desk = director(
        route("r", to("llama"), model="m", loraAdapters=["lora-a", "lora-b"]),
        server("llama", model="org/llama"),
        pod("a", {"app": "llama"}),
    )
    plan = plan_of(desk, question("lora-b"))
    assert attempt_of(plan).body is None
    assert plan.destination.upstream_model == "lora-b"
    assert refusal_of(desk, question("lora-c")).status == 404


def test_what_cannot_be_found_is_said_in_kthenas_words() -> None:
    """Kthena 2.3: 404 route not found; 404 can't find model server; 503 no available pods. Those that name objects are for operators."""
    desk = director(
        route("r", to("gone"), model="dangling"),
        route("s", to("llama"), model="empty"),
        route("t", {"externalModelProviderName": "gone"}, model="nobody"),
        server("llama"),
    )
    unknown, dangling, empty = (refusal_of(desk, question(name)) for name in ("unknown", "dangling", "empty"))
    assert unknown.status == 404
    assert unknown.message.startswith('route not found: no route takes model "unknown" at /v1/chat/completions')
    do = "create it or take it out of the route"
    assert dangling.status == 404
    assert dangling.for_operators == f'can\'t find model server: ml/gone, which ModelRoute "ml/r" names; {do}'
    assert (empty.status, empty.for_operators) == (503, "no available pods for model server: ml/llama")
    assert refusal_of(desk, question("nobody")).status == 404


def test_a_client_is_told_no_name_of_the_clusters() -> None:
    desk = director(
        route("r", to("gone"), model="dangling"),
        route("s", to("llama"), model="empty"),
        route("t", {"externalModelProviderName": "gone"}, model="nobody"),
        server("llama"),
    )
    refused = [refusal_of(desk, question(name)) for name in ("dangling", "empty", "nobody")]
    assert [one.message for one in refused] == [LEADS_NOWHERE, NOBODY_READY, LEADS_NOWHERE]
    for one in refused:
        assert "ml/" in one.for_operators
        assert b"ml/" not in refusal_bytes(one, "/v1/chat/completions", keeps_alive=True)


def test_a_misspelt_model_is_told_the_nearest_and_a_flood_of_them_is_not() -> None:
    guarded = {"targetModels": [to("llama")], "modelMatch": {"headers": {"x-tier": {"exact": "gold"}}}}
    desk = director(
        route("r", to("llama"), model="org/Llama-8B", loraAdapters=["sql-adapter"]),
        route("s", model="guarded", rules=[guarded]),
        server("llama"),
    )

    def told(name: str, now: float) -> str:
        refusal = desk.plan(question(name), now)
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.param) == (404, "model")
        return refusal.message

    assert 'no route takes model "org/lama-8b" at /v1/chat/completions; did you mean "org/Llama-8B"?; GET' in told(
        "org/lama-8b", 1.0
    )
    assert 'did you mean "org/Llama-8B"?' in told("llama-8b", 2.0), "without its owner, and in another case"
    assert 'did you mean "sql-adapter"?' in told("sql-adaptor", 3.0)
    assert "did you mean" not in told("gpt-4", 4.0)
    assert "did you mean" not in told("org/lama-8b", 4.0), "at the same moment"
    assert 'no rule of a route for "guarded" takes this request' in told("guarded", 5.0)


def test_a_failed_engine_is_left_for_another_and_then_nobody_is_left() -> None:
    desk = director(
        route("r", to("llama"), model="m"), server("llama"), pod("a", {"app": "llama"}), pod("b", {"app": "llama"})
    )
    plan = plan_of(desk, question("m"))
    first = attempt_of(plan)
    plan.failed(first, Fault.CONNECT, 0.0)
    second = attempt_of(plan)
    assert {first.target.name, second.target.name} == {"a", "b"}
    plan.failed(second, Fault.CONNECT, 0.0)
    assert plan.next(0.0).message == "request to all pods failed"  # type: ignore[union-attr]


def test_routes_that_change_are_obeyed_at_once() -> None:
    desk = director(
        route("r", to("old"), model="m"),
        server("old"),
        server("new"),
        pod("a", {"app": "old"}),
        pod("b", {"app": "new"}),
    )
    assert attempt_of(plan_of(desk, question("m"))).target.name == "a"
    desk.world.note(None, route("r", to("new"), model="m"))
    assert attempt_of(plan_of(desk, question("m"))).target.name == "b"
    desk.world.note(route("r", to("new"), model="m"), None)
    assert refusal_of(desk, question("m")).status == 404


def test_a_session_is_handed_on_from_header_or_cookie() -> None:
    from hekla.serving.router.stickiness import session_of

    sources = [{"type": "Header", "name": "X-Session"}, {"type": "Cookie", "name": "sid"}]
    one = server("s", trafficPolicy={"sessionSticky": {"sources": sources}}).spec.traffic_policy
    assert one is not None
    assert one.session_sticky is not None
    assert session_of(one.session_sticky, question("m", headers={"x-session": "h", "cookie": "sid=c"})) == "h"
    assert session_of(one.session_sticky, question("m", headers={"cookie": "a=1; sid=c"})) == "c"
    assert session_of(one.session_sticky, question("m")) == ""
    more = {"sessionSticky": {"sources": [{"type": "Query", "name": "s"}, {"type": "JWTClaim", "name": "sub"}]}}
    other = server("s", trafficPolicy=more).spec.traffic_policy
    assert other is not None
    assert other.session_sticky is not None
    assert session_of(other.session_sticky, question("m", query="a=b&s=q%20r", user="ann")) == "q r"
    assert session_of(other.session_sticky, question("m", user="ann")) == "ann"


def test_a_session_is_any_claim_of_a_token_that_was_believed() -> None:
    from hekla.serving.router.stickiness import session_of

    said = {"sessionSticky": {"sources": [{"type": "JWTClaim", "name": "sid"}, {"type": "JWTClaim", "name": "team"}]}}
    one = server("s", trafficPolicy=said).spec.traffic_policy
    assert one is not None
    assert one.session_sticky is not None
    for claims, session in (
        ({"sid": "s-1", "team": 7}, "s-1"),
        ({"team": 7}, "7"),
        ({"sid": ["no", "text"], "team": True}, ""),
        ({"sub": "ann"}, ""),
        ({}, ""),
    ):
        assert session_of(one.session_sticky, question("m", user="ann", claims=claims)) == session


def test_a_provider_is_asked_with_its_own_name_for_the_model() -> None:
    desk = director(route("r", {"externalModelProviderName": "openai"}, model="m"), provider("openai", model="gpt-x"))
    plan = plan_of(desk, question("m"))
    attempt = attempt_of(plan)
    assert sent(attempt)["model"] == "gpt-x"
    assert plan.destination.backend_type == "external_provider"
    assert msgspec.json.decode(question("m").body)["model"] == "m"


def test_a_server_says_how_many_engines_are_asked() -> None:
    one = server("llama", trafficPolicy={"retry": {"attempts": 1}})
    pods = [pod(name, {"app": "llama"}) for name in "abcd"]
    plan = plan_of(director(route("r", to("llama"), model="m"), one, *pods), question("m"))
    for _ in range(2):
        plan.failed(attempt_of(plan), Fault.CONNECT, 0.0)
    assert plan.next(0.0).message == "request to all pods failed"  # type: ignore[union-attr]


def test_a_session_stays_with_its_engine_as_long_as_the_server_says() -> None:
    sticky = {"sessionSticky": {"sources": [{"type": "Header", "name": "x-session"}], "sessionAffinitySeconds": 60}}
    pods = [pod(name, {"app": "llama"}) for name in "ab"]
    desk = director(route("r", to("llama"), model="m"), server("llama", trafficPolicy=sticky), *pods)
    asked = question("m", headers={"x-session": "s"})
    first = attempt_of(plan_of(desk, asked)).target.name
    assert attempt_of(plan_of(desk, question("m"))).target.name != first, (
        "others go to the one that has fewer in flight"
    )
    assert attempt_of(plan_of(desk, asked, 50.0), 50.0).target.name == first
    assert desk.world.servers["ml/llama"].decode.sessions.ttl_s == 60.0
