"""A decision told: the same as the one that would be taken, and nothing changed by telling."""

import json

from hekla.serving.router.choosing import Chain
from hekla.serving.router.explaining import explain
from hekla.serving.router.policies.kv_cache_usage import KvCacheUsage
from hekla.serving.router.policies.least_request import LeastRequest
from hekla.serving.router.policies.round_robin import RoundRobin
from serving.router.poolkit import counts, pool_of, question


def test_the_default_policy_tells_the_parts_of_each_cost():
    pool = pool_of(2)
    pool.charge(pool.look(question("a", "b"), 0.0), pool.members[1]).first_byte(0.2)
    told = explain(pool, question("a", "b", "c"), 1.0)
    first, second = told["candidates"]
    assert told["chosen"] == "e1"
    assert told["because"] == "e1: lowest cost, 256 of 384 tokens cached"
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 256)
    assert set(second["scores"]) == {"queue", "uncached", "held", "recent", "busy", "step"}
    assert second["total"] == min(one["total"] for one in told["candidates"])
    assert second["estimated_ttft_s"] < first["estimated_ttft_s"]
    json.dumps(told)


def test_the_rest_of_an_answer_is_estimated_with_what_speculation_saves():
    pool = pool_of(2)
    slow, quick = pool.members
    pool.pace.tpot_s, pool.pace.answer_tokens = 0.05, 200.0
    quick.tpot_s, quick.acceptance = 0.02, 0.8
    told = explain(pool, question("a"), 0.0)
    assert told["answer_tokens"] == 200
    assert [one["estimated_answer_s"] for one in told["candidates"]] == [10.0, 4.0]
    assert [one["accepted_speculation"] for one in told["candidates"]] == [None, 0.8]
    short = explain(pool, question("a", output_tokens=10), 0.0)
    assert [one["estimated_answer_s"] for one in short["candidates"]] == [0.5, 0.2]
    assert slow.acceptance is None


def test_telling_changes_nothing():
    pool = pool_of(3, RoundRobin())
    turns = [explain(pool, question("a"), 0.0)["chosen"] for _ in range(3)]
    assert turns == ["e0"] * 3
    assert pool.choose(pool.look(question("a"), 0.0), pool.members).name == "e0"
    assert explain(pool, question("a"), 0.0)["chosen"] == "e1"
    assert [counts(one) for one in pool.members] == [(0, 0, 0, 0)] * 3


def test_refusals_and_ties_are_told():
    pool = pool_of(3, Chain(filters=(LeastRequest(),), scorers=((KvCacheUsage(), 1.0),)))
    pool.members[0].waiting = 99
    told = explain(pool, question("a"), 0.0)
    assert told["candidates"][0]["refused"] == "99 requests wait in it; fewer than 10 are allowed"
    assert told["candidates"][0]["total"] is None
    assert (told["chosen"], told["tied"]) == (None, ["e1", "e2"])


def test_nobody_is_told_as_nobody():
    pool = pool_of(0)
    assert explain(pool, question("a"), 0.0)["because"] == "no endpoint is ready"
    full = pool_of(1, Chain(filters=(LeastRequest(max_waiting=1),)))
    full.members[0].waiting = 5
    told = explain(full, question("a"), 0.0)
    assert (told["chosen"], told["because"]) == (None, "every endpoint is refused")


def test_who_sits_out_and_who_lacks_the_adapter_is_told():
    pool = pool_of(2)
    pool.fault(pool.members[0], 0.0)
    told = explain(pool, question("a"), 0.1)
    assert told["chosen"] == "e1"
    assert told["candidates"][0]["refused"].startswith("it failed a moment ago")


def test_a_session_is_told():
    pool = pool_of(2)
    look = pool.look(question("a"), 0.0, session="s")
    pool.charge(look, pool.members[1])
    told = explain(pool, question("z"), 1.0, session="s")
    assert (told["chosen"], told["because"]) == ("e1", "its session is with e1")
