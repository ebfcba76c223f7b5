"""What would become of a request, told without sending it: the route, the targets by weight, the choice among engines."""

from hekla.serving.router.foretelling import foretell
from hekla.serving.router.plan import Refusal
from serving.router import worldkit
from serving.router.worldkit import director, pod, server

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


def told(at, body=BODY, path="/v1/chat/completions"):
    return foretell(at, path, body, {}, 0.0)


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
    assert (answer["target"], answer["weight"], answer["chosen"]) == ("ml/big", 90, "a")
    [other] = answer["otherTargets"]
    assert (other["target"], other["because"]) == ("ml/small", "there is no model server ml/small")


def test_what_would_be_refused_is_told_as_a_refusal():
    at = director()
    assert told(at).status == 404
    broken = told(at, b"{")
    assert isinstance(broken, Refusal)
    assert broken.status == 400
