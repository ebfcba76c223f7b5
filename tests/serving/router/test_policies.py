"""Each policy by its formula, on endpoints whose numbers are chosen so that the answer is plain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.choosing import Chain
from hekla.serving.router.plan import Usage
from hekla.serving.router.policies.kv_cache_usage import KvCacheUsage
from hekla.serving.router.policies.kvcache_aware import KvCacheAware
from hekla.serving.router.policies.least_latency import LeastLatency
from hekla.serving.router.policies.least_request import LeastRequest
from hekla.serving.router.policies.lora_affinity import LoraAffinity
from hekla.serving.router.policies.prefix import Prefix
from hekla.serving.router.policies.prefix_affinity import PrefixAffinity
from hekla.serving.router.policies.random import Random
from hekla.serving.router.policies.round_robin import RoundRobin
from hekla.serving.router.policies.session_affinity import MOST_SESSIONS, Sessions
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.policies.token_load import TokenLoad
from serving.router.poolkit import endpoint, no_dice, pool_of, question


def look(pool, tokens=1000, matched=None, **more):
    seen = pool.look(question("x", tokens=tokens), 0.0, **more)
    seen.matched = matched or [0] * len(pool.members)
    return seen


def test_least_request_counts_what_was_sent_and_what_does_not_run_yet_a_hundredfold():
    pool = pool_of(3)
    for one, (in_flight, running) in zip(pool.members, [(4, 4), (5, 3), (0, 0)], strict=True):
        one.in_flight, one.running = in_flight, running
    # bases: 4, 5 + 100 * 2 = 205, 0
    assert LeastRequest().scores(look(pool), pool.members) == [int(201 / 205 * 100), 0, 100]


def test_least_request_likes_all_idle_engines_and_does_not_take_silence_for_a_queue():
    pool = pool_of(2)
    assert LeastRequest().scores(look(pool), pool.members) == [100, 100]
    pool.members[0].in_flight = 2
    assert LeastRequest().scores(look(pool), pool.members) == [0, 100]


def test_least_request_leaves_out_queues_and_says_so():
    pool = pool_of(3)
    pool.members[0].waiting, pool.members[1].waiting = 10, 9
    one = LeastRequest()
    assert one.keep(look(pool), pool.members) == pool.members[1:]
    assert one.reason(look(pool), pool.members[0]) == "10 requests wait in it; fewer than 10 are allowed"


def test_gpu_usage_is_what_is_left_of_the_cache():
    pool = pool_of(3)
    pool.members[0].kv_usage, pool.members[1].kv_usage = 0.25, 1.0
    assert KvCacheUsage().scores(look(pool), pool.members) == [75, 0, 50]


def test_least_latency_norms_both_latencies_between_the_best_and_the_worst():
    pool = pool_of(4)
    for one, ttft, tpot in zip(pool.members, [1.0, 3.0, 2.0, None], [0.02, 0.01, 0.02, None], strict=True):
        one.ttft_s, one.tpot_s = ttft, tpot
    assert LeastLatency().scores(look(pool), pool.members) == [50, 50, 25, 50]
    assert LeastLatency(ttft_weight=1).scores(look(pool), pool.members) == [100, 0, 50, 50]


def test_prefix_scores_the_share_that_is_held_and_only_the_best_few():
    pool = pool_of(4)
    seen = look(pool, matched=[1000, 500, 250, 0])
    assert Prefix(top_k=2).scores(seen, pool.members) == [100, 50, 0, 0]
    assert Prefix(seen_tokens=500).scores(seen, pool.members) == [100, 100, 50, 0]
    assert KvCacheAware().scores(seen, pool.members) == [100, 50, 25, 0]


def test_lora_affinity_keeps_who_lists_the_adapter():
    pool = pool_of(2)
    pool.members[1].adapters = frozenset({"sql"})
    one = LoraAffinity()
    assert one.keep(look(pool, adapter="sql"), pool.members) == [pool.members[1]]
    assert one.keep(look(pool, adapter="law"), pool.members) == []
    assert one.keep(look(pool), pool.members) == pool.members
    assert one.reason(look(pool, adapter="law"), pool.members[1]) == 'it does not list the adapter "law"; it lists sql'


def test_lora_affinity_scores_running_over_room_over_waiting_over_full():
    pool = pool_of(4)
    a, b = frozenset({"a"}), frozenset({"b"})
    for one, running, waiting in zip(pool.members, [a, b, b, b], [b, frozenset(), a, frozenset()], strict=True):
        one.running_adapters, one.waiting_adapters, one.max_adapters = running, waiting, 2
    pool.members[3].max_adapters = 1
    assert LoraAffinity().scores(look(pool, adapter="a"), pool.members) == [100.0, 80.0, 60.0, 0.0]


def test_token_load_looks_ahead_at_this_prompt():
    pool = pool_of(3)
    pool.members[0].prefill_tokens = 1000
    assert TokenLoad().scores(look(pool, matched=[1000, 0, 500]), pool.members) == [0.0, 0.0, 50.0]


def test_prefix_affinity_stays_warm_until_patience_ends():
    pool = pool_of(3)
    one = PrefixAffinity(patience_s=1.0, rate=1000.0)
    warm = look(pool, matched=[900, 0, 300])
    assert one.keep(warm, pool.members) == [pool.members[0]]
    assert "holds 30% of the prompt" in one.reason(warm, pool.members[2])
    pool.members[0].prefill_tokens = 1000
    assert one.keep(warm, pool.members) == [pool.members[0]]
    pool.members[0].prefill_tokens = 1001
    assert one.keep(warm, pool.members) == pool.members


def test_prefix_affinity_has_no_opinion_where_all_are_cold_or_all_are_warm():
    pool = pool_of(2)
    for matched in ([0, 0], [1000, 1000]):
        assert PrefixAffinity().keep(look(pool, matched=matched), pool.members) == pool.members


def test_round_robin_goes_on_in_turn_when_somebody_leaves():
    pool = pool_of(3, RoundRobin())
    turns = [pool.choose(look(pool), pool.candidates(0.0)).name for _ in range(4)]
    assert turns == ["e0", "e1", "e2", "e0"]
    pool.leave(pool.members[1])
    assert pool.choose(look(pool), pool.candidates(0.0)).name == "e2"
    assert RoundRobin().choose(look(pool), []) is None


def test_random_spreads_by_its_dice():
    throws = iter([0.1, 0.9, 0.5])
    pool = pool_of(3, dice=lambda: next(throws))
    assert Random().scores(look(pool), pool.members) == [10.0, 90.0, 50.0]


def test_a_chain_weighs_scores_and_throws_dice_among_the_best():
    pool = pool_of(2)
    pool.members[0].kv_usage, pool.members[1].kv_usage = 0.0, 0.1
    pool.members[0].in_flight, pool.members[1].in_flight = 10, 1
    light, heavy = ((LeastRequest(), 1.0), (KvCacheUsage(), 1.0)), ((LeastRequest(), 1.0), (KvCacheUsage(), 20.0))
    assert Chain(scorers=light).choose(look(pool), pool.members).name == "e1"
    assert Chain(scorers=heavy).choose(look(pool), pool.members).name == "e0"
    tied = pool_of(4, dice=lambda: 0.99)
    assert Chain().choose(look(tied), tied.members).name == "e3"
    assert Chain().choose(look(tied), []) is None


def test_a_chain_says_who_was_refused_by_what_and_scores_the_others():
    pool = pool_of(2)
    pool.members[0].waiting = 50
    weighed = Chain(filters=(LeastRequest(),), scorers=((KvCacheUsage(), 2.0),)).weigh(look(pool), pool.members)
    assert weighed.refused == {"e0": "50 requests wait in it; fewer than 10 are allowed"}
    assert weighed.columns == {"gpu-usage": {"e1": 50.0}}
    assert weighed.totals == {"e1": 100.0}


@pytest.mark.parametrize(
    ("queued", "waiting", "chosen"),
    [
        (0, 0, "e0"),  # its cache saves a thousand tokens
        (2499, 0, "e0"),  # a token saved is worth two and a half that wait
        (2501, 0, "e1"),
        (2501, 2, "e0"),  # two requests wait at the other, and would wait for this one: it is worth one more
        (3501, 2, "e1"),
    ],
)
def test_soonest_waits_for_a_cache_as_long_as_that_helps_all(queued, waiting, chosen):
    pool = pool_of(2)
    pool.members[0].prefill_tokens = queued
    pool.members[1].unanswered = waiting
    assert Soonest(context=0, evenness=0).choose(look(pool, matched=[1000, 0]), pool.members).name == chosen


def test_soonest_leaves_a_cache_that_is_in_demand_all_the_time():
    """At a load of 0.8 four requests stand in the queue, on average: what is not cached there costs eight times as much more."""
    pool = pool_of(2)
    one = Soonest(context=0, evenness=0, busyness=0)
    seen = look(pool, tokens=3000, matched=[2000, 0])
    seen.token_load = 1 / 100_000
    assert one.choose(seen, pool.members).name == "e0"
    pool.members[0].prefilled_lately = 80_000
    assert one.weigh(seen, pool.members).columns["uncached"] == pytest.approx({"e0": 10_500.0, "e1": 7_500.0})
    assert one.choose(seen, pool.members).name == "e1"
    pool.members[1].prefilled_lately = 80_000
    assert one.choose(seen, pool.members).name == "e0", "the same demand everywhere is no reason"


claims = st.fixed_dictionaries(
    {
        "running": st.none() | st.integers(0, 10**6),
        "waiting": st.none() | st.integers(0, 10**6),
        "kv_usage": st.none() | st.floats(0, 1),
        "ttft_s": st.none() | st.floats(0, 1e6),
        "tpot_s": st.none() | st.floats(0, 1e6),
    }
)


@given(claimed=st.lists(claims, min_size=3, max_size=3), queued=st.lists(st.integers(0, 9000), min_size=3, max_size=3))
def test_what_an_engine_claims_of_itself_moves_nothing_in_the_default_policy(claimed, queued):
    """An engine that lies in its metrics draws no requests, and is spared none: what was sent is counted here."""
    pool = pool_of(3)
    for one, tokens in zip(pool.members, queued, strict=True):
        one.prefill_tokens = tokens
    honest = Soonest().choose(look(pool), pool.members)
    for one, lies in zip(pool.members, claimed, strict=True):
        for name, value in lies.items():
            assert hasattr(one, name)
            setattr(one, name, value)
    assert Soonest().choose(look(pool), pool.members) is honest


def test_soonest_sends_to_the_one_that_rested_among_equals():
    pool = pool_of(2)
    seen = look(pool)
    pool.members[0].busy_s = 1.0
    assert Soonest().choose(seen, pool.members).name == "e1"


@given(
    st.lists(
        st.tuples(
            *(st.integers(0, 50_000) for _ in range(5)), st.integers(0, 20), st.floats(0, 300), st.floats(0, 0.02)
        ),
        min_size=1,
        max_size=9,
    ),
    st.floats(1e-7, 1e-4),
)
def test_what_soonest_tells_is_what_it_does(numbers, token_load):
    pool = pool_of(len(numbers))
    seen = look(pool, tokens=60_000, matched=[one[0] for one in numbers])
    seen.token_load, seen.now, seen.step_s = token_load, 0.02, 0.02
    for one, (_, queued, held, assigned, lately, waiting, busy_s, heard_at) in zip(pool.members, numbers, strict=True):
        one.prefill_tokens, one.context_tokens, one.assigned, one.prefilled_lately = queued, held, assigned, lately
        one.unanswered, one.busy_s, one.heard_at, one.in_flight = waiting, busy_s, heard_at, waiting
    totals = Soonest().weigh(seen, pool.members).totals
    assert totals[Soonest().choose(seen, pool.members).name] == pytest.approx(min(totals.values()))


@pytest.mark.parametrize(
    ("heard_s_ago", "in_flight", "chosen"),
    [
        (0.0, 2, "e1"),  # its next step has just begun: who comes now waits for all of it
        (0.009, 2, "e1"),
        (0.011, 2, "e0"),  # half through, as the others are on average
        (0.0, 0, "e0"),  # nothing runs there, so no step is under way
    ],
)
def test_soonest_passes_over_an_engine_whose_step_has_just_begun(heard_s_ago, in_flight, chosen):
    pool = pool_of(2)
    one, other = pool.members
    seen = look(pool)
    seen.now, seen.step_s, one.heard_at, one.in_flight, other.in_flight = 50.0, 0.02, 50.0 - heard_s_ago, in_flight, 2
    assert Soonest().choose(seen, pool.members).name == chosen
    waits_s = max(0.0, 0.01 - heard_s_ago) if in_flight else 0.0
    told = Soonest(underway=2.0).weigh(seen, pool.members).columns["step"]
    assert told == pytest.approx({"e0": 2 * seen.rate * waits_s, "e1": 0.0})


def test_a_step_is_seen_to_end_where_an_answer_begins_or_was_whole_and_not_where_it_broke():
    pool = pool_of(1)
    [one] = pool.members
    charge = pool.charge(pool.look(question("x", is_stream=True), 1.0), one)
    charge.first_byte(2.0)
    assert one.heard_at == 2.0
    pool.learn(charge, 100, Usage(100, 5), 3.0)
    charge.end(3.0)
    assert one.heard_at == 3.0
    whole = pool.charge(pool.look(question("x"), 4.0), one)
    whole.first_byte(5.0)  # of an answer that is no stream: its head may come long before or after
    whole.end(6.0)  # the client left
    assert one.heard_at == 3.0


def test_soonest_takes_turns_among_idle_equals():
    pool = pool_of(4)
    chosen = []
    for number in range(8):
        seen = pool.look(question(f"{number}"), number * 0.01)
        charge = pool.charge(seen, pool.choose(seen, pool.members))
        chosen.append(charge.endpoint.name)
        charge.first_byte(number * 0.01)
        charge.end(number * 0.01)
    assert sorted(chosen[:4]) == sorted(chosen[4:]) == ["e0", "e1", "e2", "e3"]


def test_soonest_counts_what_other_replicas_of_the_router_sent():
    pool = pool_of(2)
    pool.members[0].elsewhere_prefill_tokens = 10
    assert Soonest().choose(look(pool), pool.members).name == "e1"


def test_sessions_are_bounded():
    sessions, one = Sessions(), endpoint("e")
    for number in range(MOST_SESSIONS + 10):
        sessions.settle(str(number), one, 0.0)
    assert sessions.home("0", [one], 0.0) is None
    assert sessions.home(str(MOST_SESSIONS + 9), [one], 0.0) is one
    assert sessions.home(str(MOST_SESSIONS + 9), [], 0.0) is None
    assert no_dice() == 0.0
