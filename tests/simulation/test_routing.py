"""Traces through simulated engines by the router's own policies: the same run for the same seed, and no rule broken."""

import pytest

from hekla.serving.router.recipes import RECIPES
from hekla.simulation.engine.shape import EngineShape
from hekla.simulation.llm_traces import TraceError, Turn, ideal_hits, pace_for, read_trace
from hekla.simulation.routing import QWEN3_32B, Replay, Slo

MOONCAKE = [
    '{"timestamp": 3000, "input_length": 1100, "output_length": 20, "hash_ids": [0, 5, 6]}',
    '{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}',
    '{"timestamp": 9000, "input_length": 1600, "output_length": 1, "hash_ids": [0, 5, 7, 8]}',
]
AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,600,109",
]


def conversations(count, turns=4, every_s=0.05, prompt=2048):
    """Each conversation comes back with everything said before; all begin with the same block."""
    for turn in range(turns):
        for number in range(count):
            length = prompt * (turn + 1)
            blocks = (0, *(number * 1000 + place + 1 for place in range(length // 512 - 1)))
            yield Turn((turn * count + number) * every_s, length, 30, blocks)


def replayed(recipe, turns, replicas=4, **more):
    return Replay(RECIPES[recipe], replicas, **more).run(list(turns))


def test_a_trace_of_mooncake_keeps_its_blocks():
    turns = read_trace(MOONCAKE)
    assert [turn.at_s for turn in turns] == [0.0, 3.0, 9.0]
    assert [len(turn.prompt_bytes()) for turn in turns] == [2400, 4400, 6400]
    assert turns[1].prompt_bytes()[:4096] == turns[2].prompt_bytes()[:4096] != turns[0].prompt_bytes()[:4096]
    assert ideal_hits(turns) == pytest.approx((512 + 1024) / 3300)
    assert pace_for(turns, 1764 / 4.5) == pytest.approx(2.0)


def test_requests_of_azure_share_nothing():
    turns = read_trace(AZURE)
    assert turns[1].at_s == pytest.approx(4.314579, abs=1e-5)
    assert (turns[1].prompt_tokens, turns[1].output_tokens) == (600, 109)
    assert ideal_hits(turns) == 0
    assert not set(turns[0].blocks) & set(turns[1].blocks)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "neither JSON"),
        (["a,b"], "neither JSON"),
        (['{"timestamp": 1}'], "line 1 has no hash_ids; a request is"),
        ([AZURE[0], "yesterday,1,2"], 'line 2: "yesterday,1,2" is no request'),
        ([AZURE[0]], "has no requests"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(lines, words):
    with pytest.raises(TraceError, match=words):
        read_trace(lines)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_policy_serves_every_request_the_same_way_twice(recipe):
    one, again = (replayed(recipe, conversations(12)) for _ in range(2))
    assert one.asked == len(one.endings) + one.refused == 48
    assert one.endings == again.endings
    assert one.hit_rate <= ideal_hits(list(conversations(12)))
    assert 0 <= one.goodput(Slo()) <= 1


def test_conversations_stay_where_their_caches_are():
    turns = list(conversations(41, turns=6))
    ours, theirs = replayed("soonest", turns), replayed("round-robin", turns)
    assert ours.hit_rate > 0.9 * ideal_hits(turns)
    assert theirs.hit_rate < 0.5 * ours.hit_rate
    assert ours.first_token_s(90) < theirs.first_token_s(90)


def test_conversations_spread_over_idle_replicas_and_still_stay_where_their_caches_are():
    """Two of four replicas could serve these: packed on them, one in ten waited 0.74 s for its first token."""
    found = replayed("soonest", conversations(41, turns=6))
    assert found.first_token_s(90) < 0.2
    assert found.imbalance < 1.15
    assert found.hit_rate > 0.95 * ideal_hits(list(conversations(41, turns=6)))


def test_a_prefix_that_all_share_does_not_pull_them_to_one_replica():
    """The conversation trace begins with one block everywhere: the longest prefix alone sends everything to one engine."""
    turns = [Turn(number * 0.02, 4096, 10, (0, *range(number * 10 + 1, number * 10 + 8))) for number in range(300)]
    assert replayed("soonest", turns).prefill_imbalance < 1.15


def test_a_decision_in_the_middle_of_a_trace_is_explained():
    told = Replay(RECIPES["soonest"], 4).explain(list(conversations(12)), 30)
    assert told["policy"] == "soonest"
    assert told["chosen"] in {one["name"] for one in told["candidates"]}
    assert max(one["cached_tokens"] for one in told["candidates"]) > 0


def test_a_prompt_that_no_engine_can_hold_is_counted_as_refused():
    small = EngineShape(block_size=512, num_blocks=4, max_model_len=1 << 20, step=QWEN3_32B.step)
    result = replayed("soonest", [Turn(0.0, 10_000, 5, tuple(range(20)))], shape=small)
    assert (result.refused, result.asked, result.goodput(Slo())) == (1, 1, 0.0)
