"""What would become of a request, told without sending it: the route, the targets by weight, the choice among engines."""

import asyncio

from hekla.serving.router.annotations import SKIP_PREFILL
from hekla.serving.router.foretelling import foretell
from hekla.serving.router.plan import Refusal
from serving.router import worldkit
from serving.router.test_pairs import desk, part
from serving.router.worldkit import attempt_of, director, plan_of, pod, question, server

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


def told(at, body=BODY, path="/v1/chat/completions"):
    return asyncio.run(foretell(at, path, body, {}, lambda: 0.0))


def test_a_request_is_told_its_route_its_engines_and_the_choice():
    at = director(
        worldkit.route("r", {"modelServerName": "s"}, model="m"),
        server("s"),
        pod("a", {"app": "s"}),
        pod("b", {"app": "s"}),
    )
    answer = told(at)
    assert (answer["route"], answer["target"]) == ("ml/r", "ml/s")
    assert [one["name"] for one in answer["candidates"]] == ["a", "b"]
    assert answer["tied"] == ["a", "b"]
    assert all(one.in_flight == 0 for pool in at.world.pools() for one in pool.members), "nothing was sent"


def test_targets_are_told_by_their_weight():
    heavy, light = ({"modelServerName": name, "weight": weight} for name, weight in (("big", 90), ("small", 10)))
    at = director(worldkit.route("r", light, heavy, model="m"), server("big"), pod("a", {"app": "big"}))
    answer = told(at)
    assert (answer["target"], answer["weight"], answer["share"], answer["chosen"]) == ("ml/big", 90, 0.9, "a")
    [other] = answer["otherTargets"]
    said = "there is no model server ml/small, so these are answered 404; create it or take it out of the route"
    assert (other["target"], other["because"]) == ("ml/small", said)
    assert other["share"] == 0.1


def test_a_pair_is_told_with_both_its_engines():
    made = desk(
        part("p0", "prefill", "g0"), part("p1", "prefill", "g1"), part("d0", "decode", "g0"), part("x", "decode", "gx")
    )
    answer = told(made)
    assert answer["pair"] == {"prefill": ["p0"], "decode": ["d0"]}
    assert [(one["name"], one["refused"]) for one in answer["prefill"]["candidates"]] == [
        ("p0", None),
        ("p1", 'no decode engine of group "g1" may be asked'),
    ]
    assert [(one["name"], one["refused"]) for one in answer["candidates"]] == [
        ("d0", None),
        ("x", 'it is not of group "g0", as p0 is'),
    ]
    assert answer["because"] == "d0: most room in its KV cache of those that belong with p0"
    assert attempt_of(plan_of(made, question("m"))).target.name == "p0", "what was told is what happens"


def test_a_pair_of_which_one_half_is_missing_is_told_so():
    assert told(desk(part("d0", "decode")))["because"] == "no prefill engine is ready"
    alone = told(desk(part("p0", "prefill")))
    assert (alone["because"], alone["pair"]) == ("no decode engine is ready", None)
    assert alone["prefill"]["candidates"][0]["refused"] == 'no decode engine of group "g0" may be asked'
    apart = told(desk(part("p0", "prefill", "g0"), part("d1", "decode", "g1")))
    assert apart["because"] == "no prefill engine belongs with a decode engine"


def test_a_short_prompt_that_is_decoded_alone_is_told_so():
    answer = told(desk(part("p0", "prefill"), part("d0", "decode"), annotations={SKIP_PREFILL: "100"}))
    assert (answer["chosen"], answer["pair"], answer["prefill"]) == ("d0", None, None)
    assert answer["because"] == "d0 decodes alone: fewer than 100 tokens are not cached there"


def test_what_would_be_refused_is_told_as_a_refusal():
    at = director()
    assert told(at).status == 404
    broken = told(at, b"{")
    assert isinstance(broken, Refusal)
    assert broken.status == 400
