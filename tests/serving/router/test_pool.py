"""A pool: who may be asked, what is counted on whom, and what is remembered of prompts."""

import json

import pytest

from hekla.serving.router.choosing import Chain
from hekla.serving.router.endpoints import BENCH_S, Fleet, Sample, take_in
from hekla.serving.router.policies.least_request import LeastRequest
from hekla.serving.router.prefix.kv_events import Batch, Stored
from hekla.serving.router.question import Question
from serving.router.poolkit import counts, endpoint, pool_of, question


def sent(pool, asked, now=0.0, **more):
    look = pool.look(asked, now, **more)
    chosen = pool.choose(look, pool.candidates(now))
    return pool.charge(look, chosen)


def test_a_request_counts_until_its_end_and_its_prefill_until_its_first_byte():
    pool = pool_of(1)
    (one,) = pool.members
    charge = sent(pool, question("a", "b", output_tokens=10))
    assert counts(one) == (1, 256, 266, 10)
    assert charge.endpoint.unanswered == 1
    charge.first_byte(1.0)
    assert counts(one) == (1, 0, 266, 10)
    charge.end(1.0)
    assert counts(one) == (0, 0, 0, 0)
    assert charge.endpoint.unanswered == 0


def test_a_request_that_is_abandoned_before_its_first_byte_leaves_nothing():
    pool = pool_of(1)
    charge = sent(pool, question("a"))
    charge.end(1.0)
    charge.end(1.0)
    charge.first_byte(1.0)
    assert counts(pool.members[0]) == (0, 0, 0, 0)
    assert charge.endpoint.unanswered == 0


def test_what_is_cached_is_not_counted_as_work():
    pool = pool_of(2)
    first = sent(pool, question("a", "b"))
    first.first_byte(0.1)
    again = sent(pool, question("a", "b", "c"))
    assert again.endpoint is first.endpoint
    assert again.uncached == 128


def test_a_burst_of_siblings_lands_where_their_prefix_is_being_prefilled():
    pool = pool_of(8)
    shared = [f"s{number}" for number in range(40)]
    charges = [sent(pool, question(*shared, f"own {number}")) for number in range(64)]
    assert len({charge.endpoint.name for charge in charges}) <= 3, (
        "of eight: each more computes the shared part once more"
    )


def test_strangers_in_a_burst_are_spread():
    pool = pool_of(8)
    charges = [sent(pool, question(*(f"{number}/{block}" for block in range(9)))) for number in range(64)]
    load = [sum(1 for charge in charges if charge.endpoint is one) for one in pool.members]
    assert load == [8] * 8


def test_a_pod_that_changes_keeps_its_counts_and_metrics():
    pool = pool_of(1)
    (one,) = pool.members
    take_in(one, Sample(kv_usage=0.5, waiting=3, cache_tokens=1000))
    sent(pool, question("a"))
    again = pool.join(endpoint("e0", group="g2"))
    assert again is one
    assert (one.group, one.kv_usage, one.in_flight) == ("g2", 0.5, 1)


def test_a_pod_that_began_anew_is_believed_to_hold_nothing():
    pool = pool_of(1)
    sent(pool, question("a", "b"))
    pool.join(endpoint("e0", incarnation="uid/1"))
    assert pool.index.held(pool.members[0].slot) == 0
    assert pool.look(question("a", "b"), 1.0).matched == [0]


def test_an_endpoint_that_left_leaves_nothing_behind_and_its_slot_is_used_again():
    pool = pool_of(3)
    gone = pool.members[1]
    charge = sent(pool, question("a"))
    pool.leave(gone)
    pool.fleet.remove(gone)
    pool.leave(gone)
    new = pool.join(endpoint("new"))
    assert new.slot == gone.slot == 1
    assert gone not in pool.members
    charge.first_byte(1.0)
    charge.end(1.0)
    assert [counts(one) for one in pool.members] == [(0, 0, 0, 0)] * 3


def test_requests_in_flight_end_on_the_record_of_a_pod_that_is_gone():
    pool = pool_of(1)
    charge = sent(pool, question("a"))
    pool.leave(charge.endpoint)
    pool.fleet.remove(charge.endpoint)
    charge.end(1.0)
    assert counts(charge.endpoint) == (0, 0, 0, 0)


def test_a_pod_of_two_model_servers_is_counted_once():
    fleet = Fleet()
    one, other = pool_of(2, fleet=fleet), pool_of(2, fleet=fleet)
    assert one.members == other.members
    charge = sent(one, question("a"))
    assert charge.endpoint.in_flight == 1
    assert charge.endpoint in other.members
    other_choice = sent(other, question("b"))
    assert other_choice.endpoint is not charge.endpoint


def test_who_failed_sits_out_longer_each_time_and_an_answer_forgives_all():
    pool = pool_of(2)
    one, other = pool.members
    pool.fault(one, 0.0)
    assert list(pool.candidates(0.1)) == [other]
    assert list(pool.candidates(BENCH_S[0])) == [one, other]
    pool.fault(one, 1.0)
    assert list(pool.candidates(1.0 + BENCH_S[0])) == [other]
    assert list(pool.candidates(1.0 + BENCH_S[1])) == [one, other]
    one.answered(1.1)
    pool.fault(one, 9.0)
    assert list(pool.candidates(9.0 + BENCH_S[0])) == [one, other]


def test_who_sits_out_is_asked_all_the_same_if_nobody_else_is_left():
    pool = pool_of(2)
    for one in pool.members:
        pool.fault(one, 0.0)
    assert list(pool.candidates(0.1)) == pool.members
    assert list(pool.candidates(0.1, [pool.members[0]])) == [pool.members[1]]


def test_an_empty_pool_has_no_candidates_and_no_division_by_its_size():
    pool = pool_of(0)
    assert list(pool.candidates(0.0)) == []
    assert pool.choose(pool.look(question("a"), 0.0), []) is None


def test_models_do_not_share_prefixes():
    pool = pool_of(1)
    sent(pool, question("a", model="base"))
    assert pool.look(question("a", model="base"), 0.0).matched == [128]
    assert pool.look(question("a", model="adapter"), 0.0).matched == [0]


def test_the_memory_of_prompts_is_sized_from_the_engines_cache():
    pool = pool_of(1)
    (one,) = pool.members
    one.cache_tokens = 512  # four blocks of 512 bytes at four bytes a token
    sent(pool, question(*range(9)), now=2.0)
    assert pool.index.held(one.slot) == 4


def test_who_lists_the_adapter_is_asked_and_all_are_where_nobody_tells():
    pool = pool_of(3)
    assert sent(pool, question("a"), adapter="sql").endpoint is pool.members[0]
    pool.members[2].adapters = frozenset({"sql"})
    assert sent(pool, question("b"), adapter="sql").endpoint is pool.members[2]


def test_a_session_stays_until_its_endpoint_is_gone_or_it_is_over():
    pool = pool_of(3)
    home = sent(pool, question("a"), session="s").endpoint
    for number in range(5):
        assert sent(pool, question(f"other {number}"), now=number, session="s").endpoint is home
    assert sent(pool, question("b"), now=4.0 + pool.sessions.ttl_s + 1, session="s").endpoint is not home
    home = sent(pool, question("c"), session="t").endpoint
    pool.leave(home)
    assert sent(pool, question("c"), session="t").endpoint is not home


def test_nobody_will_do_when_a_filter_leaves_nobody():
    pool = pool_of(2, Chain(filters=(LeastRequest(max_waiting=1),)))
    for one in pool.members:
        one.waiting = 1
    assert pool.choose(pool.look(question("a"), 0.0), pool.members) is None


@pytest.mark.parametrize("field", ["kv_usage", "waiting", "running", "cache_tokens", "ttft_s"])
def test_what_a_scrape_leaves_out_stays_unknown_or_as_it_was(field):
    one = endpoint("e")
    take_in(one, Sample())
    assert getattr(one, field) is None
    take_in(one, Sample(**{field: 0}))
    take_in(one, Sample())
    assert getattr(one, field) == 0


def told(pool, one, ids):
    """An engine's own word: it holds these token ids, in blocks of 16."""
    hashes = [b"%d/%d" % (one.slot, number) for number in range(len(ids) // 16)]
    one.has_events = True
    pool.fleet.precise.apply(one.slot, Batch([Stored(hashes, None, ids, 16)]))


def test_an_engines_own_word_goes_before_guesses_where_token_ids_are_known():
    pool = pool_of(3)
    ids = list(range(256))
    sent(pool, question("a", "b"), now=0.0)
    guessed = pool.members[0]
    told(pool, guessed, ids[:16])
    told(pool, pool.members[1], ids)
    known = question("a", "b", token_ids=ids)
    assert pool.look(known, 100.0).matched == [16, 256, 0]
    as_ids = Question("/v1/completions", "m", json.dumps(ids).encode(), len(ids), is_tokens=True)
    assert pool.look(as_ids, 100.0).matched == [16, 256, 0]


def test_guesses_count_for_a_prompt_whose_token_ids_nobody_knows():
    pool = pool_of(2)
    sent(pool, question("a", "b"), now=0.0)
    told(pool, pool.members[0], list(range(16)))
    assert pool.look(question("a", "b"), 100.0).matched == [256, 0]


def test_what_was_sent_a_moment_ago_counts_until_the_engines_own_word_must_have_come():
    pool = pool_of(2)
    for one in pool.members:
        told(pool, one, list(range(1000, 1016)))
    known = question("a", "b", token_ids=list(range(256)))
    chosen = sent(pool, known, now=10.0).endpoint
    assert pool.look(known, 11.0).matched[chosen.slot] == 256
    assert pool.look(known, 20.0).matched == [0, 0]


def test_a_prompt_of_several_lists_of_token_ids_is_guessed_at():
    pool = pool_of(1)
    told(pool, pool.members[0], list(range(16)))
    several = Question("/v1/completions", "m", b"[[1,2],[3]]", 3, is_tokens=True)
    assert pool.look(several, 0.0).matched == [0]
