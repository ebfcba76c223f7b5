"""One request over the endpoints of one pool: failover, counts, and what the client is told."""

from hekla.serving.router.local_plan import MOST_ATTEMPTS, LocalPlan
from hekla.serving.router.plan import NOBODY_READY, Attempt, Destination, Fault, Refusal, Usage
from hekla.serving.router.reckoning import TICKS_PER_S
from serving.router.poolkit import counts, pool_of, question

TO = Destination("m")


def plan(pool, *blocks, **more):
    return LocalPlan(pool, question(*blocks), TO, **more)


def nothing_is_counted(pool):
    return all(one.unanswered == 0 and counts(one) == (0, 0, 0, 0) for one in pool.members)


def test_an_answer_is_counted_from_first_to_last():
    pool = pool_of(2)
    one = plan(pool, "a", body=b"other", head_timeout_s=3.0)
    attempt = one.next(0.0)
    assert isinstance(attempt, Attempt)
    assert (attempt.body, attempt.head_timeout_s, attempt.target.in_flight) == (b"other", 3.0, 1)
    one.first_byte(1.0)
    one.ended(Usage(128, 50, 0), 2.0)
    assert nothing_is_counted(pool)


def test_a_fault_goes_on_to_another_and_never_to_the_same_twice():
    pool = pool_of(3)
    one = plan(pool, "a")
    asked = []
    for number in range(3):
        attempt = one.next(float(number))
        asked.append(attempt.target.name)
        one.failed(attempt, Fault.CONNECT, float(number))
    assert sorted(asked) == ["e0", "e1", "e2"]
    assert one.next(3.0) == Refusal(503, "proxy", "request to all pods failed", 1.0)
    one.ended(None, 4.0)
    assert nothing_is_counted(pool)


def test_no_more_than_five_are_asked():
    pool = pool_of(9)
    one = plan(pool, "a")
    for _ in range(MOST_ATTEMPTS):
        one.failed(one.next(0.0), Fault.CLOSED, 0.0)
    assert isinstance(one.next(0.0), Refusal)


def test_without_endpoints_the_model_server_is_named_to_operators():
    refused = plan(pool_of(0), "a").next(0.0)
    said = "no available pods for model server: ns/model"
    assert refused == Refusal(503, "pod_discovery", NOBODY_READY, 1.0, detail=said)


def test_a_client_that_leaves_before_the_first_byte_is_counted_off():
    pool = pool_of(1)
    one = plan(pool, "a")
    one.next(0.0)
    one.ended(None, 0.5)
    one.ended(None, 0.6)
    assert nothing_is_counted(pool)


def test_a_plan_that_nobody_asked_counts_nothing():
    pool = pool_of(1)
    plan(pool, "a").ended(None, 0.0)
    assert nothing_is_counted(pool)


def test_others_keep_away_from_who_failed():
    pool = pool_of(2)
    one = plan(pool, "a")
    first = one.next(0.0)
    one.failed(first, Fault.BUSY, 0.0)
    assert plan(pool, "a", "b").next(0.1).target is not first.target


def test_the_pool_learns_from_what_the_engine_counted():
    pool = pool_of(1)
    before = pool.pace.answer_tokens
    one = LocalPlan(pool, question(*range(8), is_stream=True), TO)
    one.next(0.0)
    one.first_byte(0.5)
    one.ended(Usage(input_tokens=2048, output_tokens=1000, cached_tokens=0), 10.5)
    assert pool.pace.answer_tokens > before
    assert pool.pace.bytes_per_token < 4.0
    assert pool.pace.prefill_rate == 2048.0


def test_an_answer_that_comes_as_a_whole_says_nothing_about_prefill():
    pool = pool_of(1)
    rate, pace_s = pool.pace.prefill_rate, pool.pace.tpot_s
    one = plan(pool, *range(8))
    one.next(0.0)
    one.first_byte(30.0)
    one.ended(Usage(1024, 1000, 0), 30.0)
    assert (pool.pace.prefill_rate, pool.pace.tpot_s) == (rate, pace_s)
    assert nothing_is_counted(pool)


def test_an_embedding_is_all_prefill():
    pool = pool_of(1)
    one = plan(pool, *range(8))
    one.next(0.0)
    one.first_byte(0.25)
    one.ended(Usage(1024, 0, 0), 0.25)
    assert pool.pace.prefill_rate == 4096.0


def test_the_prefill_of_an_answer_that_comes_as_a_whole_is_reckoned():
    pool = pool_of(1)
    (engine,) = pool.members
    one, other = plan(pool, *range(8)), plan(pool, *range(8, 16))
    one.next(0.0)
    other.next(0.0)
    assert (engine.prefill_tokens, engine.unanswered) == (2048, 2)
    soon = 1 / TICKS_PER_S
    pool.look(question("x"), 1024 / pool.pace.prefill_rate + soon)
    assert (engine.prefill_tokens, engine.unanswered) == (1024, 1)
    pool.look(question("x"), 2048 / pool.pace.prefill_rate + soon)
    assert (engine.prefill_tokens, engine.in_flight, engine.unanswered) == (0, 2, 0)
    for plan_ in (one, other):
        plan_.first_byte(9.0)
        plan_.ended(None, 9.0)
    assert nothing_is_counted(pool)
