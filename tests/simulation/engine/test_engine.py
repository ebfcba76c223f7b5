"""The simulated engine: what it conserves, what it shares, and that running ahead is the same as living through it."""

from dataclasses import replace
from itertools import accumulate
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hekla.simulation.engine.engine import AskError, Engine
from hekla.simulation.engine.happenings import BlockRemoved, BlockStored, Emission, Ending, Reason
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.shape import EngineShape, Speculation, StepTime
from hekla.simulation.engine.tokens import Scribe, hash_blocks

SMALL = EngineShape(
    block_size=4, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=200, max_loras=2
)


def ask(name, prompt=8, output=4, *, family=0, **more):
    """Prompts of one family share their beginning."""
    return Ask(id=name, prompt_tokens=prompt, output_tokens=output,
               hashes=tuple(hash((family, place)) for place in range(prompt // 4)), **more)  # fmt: skip


def endings(happened):
    return {one.request: one for one in happened if isinstance(one, Ending)}


def firsts(happened):
    return {one.request: one.at_s for one in happened if isinstance(one, Emission) and one.is_first}


def served(*asks, shape=SMALL, **more):
    engine = Engine(shape, **more)
    for one in asks:
        engine.submit(one, 0.0)
    return engine, engine.advance(inf)


shapes = st.builds(
    lambda blocks, seqs, budget, drafted: replace(
        SMALL, num_blocks=blocks, max_num_seqs=seqs, max_num_batched_tokens=budget, speculation=Speculation(tokens=drafted)
    ),
    st.integers(52, 300), st.integers(1, 8), st.integers(8, 300), st.sampled_from([0, 0, 3]),
)  # fmt: skip
arrivals = st.lists(
    st.tuples(
        st.floats(0, 0.2), st.integers(1, 150), st.integers(1, 50), st.integers(0, 3), st.sampled_from(["", "", "a", "b", "c"]),
        st.sampled_from(["", "", "", "remote", "kept"]),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


def traffic(rows):
    times = accumulate(row[0] for row in rows)
    for number, (at, (_, prompt, output, family, lora, role)) in enumerate(zip(times, rows, strict=True)):
        yield at, ask(str(number), prompt, output, family=family, lora=lora, is_remote=role == "remote", is_kept=role == "kept")  # fmt: skip


def run_ahead(shape, rows, seed=1):
    engine, happened = Engine(shape, seed=seed), []
    for at, one in traffic(rows):
        happened += engine.advance(at)
        engine.pool.check()
        engine.submit(one, at)
    return engine, happened + engine.advance(inf)


@given(shapes, arrivals)
def test_every_request_ends_with_what_it_asked_for_and_every_block_comes_back(shape, rows):
    engine, happened = run_ahead(shape, rows)
    ended = endings(happened)
    assert ended.keys() == {str(number) for number in range(len(rows))}
    for number, row in enumerate(rows):
        tokens = sum(one.tokens for one in happened if isinstance(one, Emission) and one.request == str(number))
        assert tokens == ended[str(number)].output_tokens == row[2]
    engine.pool.check()
    kept = [number for number in ended if engine.keeps(number)]
    for number in kept:
        engine.release(number)
    assert engine.pool.free == shape.num_blocks
    assert engine.is_idle


@given(shapes, arrivals)
def test_the_same_seed_gives_the_same_run(shape, rows):
    assert run_ahead(shape, rows)[1] == run_ahead(shape, rows)[1]


PREEMPTED = [(0.0, 1, 1, 0, "", ""), (0.0, 148, 3, 0, "", ""), (0.0, 125, 1, 1, "", "")]
"""The third is preempted in a step of nothing but decoding, and let in again in the next."""


@example(replace(SMALL, num_blocks=69, max_num_seqs=2, max_num_batched_tokens=92), PREEMPTED)
@given(shapes, arrivals)
def test_running_ahead_is_the_same_as_living_through_every_step(shape, rows):
    """Runs of equal steps are taken at once; nobody can tell by when tokens come first and requests end."""
    ahead = run_ahead(shape, rows)[1]
    waiting, engine, happened, now = list(traffic(rows)), Engine(shape, seed=1), [], 0.0
    while waiting or not engine.is_idle:
        while waiting and waiting[0][0] <= now:
            engine.submit(waiting.pop(0)[1], now)
        ends = engine.begin_step(now)
        if ends is not None:
            while waiting and waiting[0][0] <= ends:
                at, one = waiting.pop(0)
                engine.submit(one, at)
            happened += engine.end_step()
            now = ends
        else:
            now = min([at for at, _ in waiting[:1]] + [engine.wakes_at or inf])
    assert firsts(happened) == pytest.approx(firsts(ahead))
    assert {name: one.at_s for name, one in endings(happened).items()} == pytest.approx(
        {name: one.at_s for name, one in endings(ahead).items()}
    )


@given(shapes, arrivals)
def test_hits_are_never_more_than_what_was_there_before(shape, rows):
    """The ideal is one cache without end that knows every prompt so far."""
    engine, _ = run_ahead(shape, rows)
    known, ideal = set(), 0
    for _, one in traffic(rows):
        whole = next((place for place, name in enumerate(one.hashes) if name not in known), len(one.hashes))
        ideal += min(whole, (one.prompt_tokens - 1) // 4) * 4
        known |= set(one.hashes)
    # preempted requests are counted once, and those that wait may overtake: at most one turn of each family is early
    assert engine.totals.prefix_hits <= sum((one.prompt_tokens - 1) // 4 * 4 for _, one in traffic(rows))
    assert engine.totals.prefix_queries == sum(row[1] for row in rows)
    if shape.max_num_batched_tokens >= 200 and not any(row[4] or row[5] for row in rows):
        assert engine.totals.prefix_hits <= ideal


def test_a_second_request_with_the_same_prompt_computes_only_its_last_block():
    engine, _ = served(ask("a", 16))
    engine.submit(ask("b", 16), 5.0)
    ended = endings(engine.advance(inf))["b"]
    assert ended.cached_tokens == 12  # of 16: the last token is always computed, and with it its block
    assert engine.totals.prefix_hits == 12


def test_adapters_do_not_share_blocks():
    one, other = (hash_blocks(range(8), 4, salt) for salt in (0, 1))
    assert not set(one) & set(other)


def test_what_was_used_least_recently_is_forgotten_first():
    engine, _ = served(ask("old", 100, 1, family=1), ask("new", 100, 1, family=2), shape=replace(SMALL, num_blocks=52))
    assert engine.pool.match([hash((2, place)) for place in range(25)], 25) == 25
    engine.submit(ask("next", 40, 1, family=3), 9.0)
    engine.advance(inf)
    assert engine.pool.match([hash((1, place)) for place in range(25)], 25) < 25
    assert engine.pool.match([hash((2, place)) for place in range(25)], 25) == 25


def test_a_long_prompt_is_cut_into_chunks_and_others_go_on_between_them():
    shape = replace(SMALL, step=StepTime(fixed_s=0.01, prefill_s=0.001, decode_s=0.0, context_s=0.0))
    engine = Engine(shape)
    engine.submit(ask("talks", 4, 40), 0.0)
    engine.advance(0.015)
    engine.submit(ask("long", 100, 1, family=1), 0.015)
    engine.advance(0.1)
    assert engine.totals.generation_tokens > 3, "the answer grew while the prompt was read"
    assert firsts(engine.advance(inf)).keys() == {"long"}


def test_where_blocks_run_out_the_last_one_starts_over():
    engine, happened = served(*(ask(str(n), 40, 60, family=n) for n in range(4)), shape=replace(SMALL, num_blocks=50))
    assert engine.totals.preemptions > 0
    assert endings(happened)["0"].preemptions == 0
    assert endings(happened)["0"].at_s == min(one.at_s for one in endings(happened).values())


def test_adapters_wait_for_a_slot_and_others_pass_them():
    shape = replace(SMALL, max_loras=1)
    _, happened = served(ask("a", lora="a", output=20), ask("b", lora="b"), ask("plain"), shape=shape)
    ended = endings(happened)
    assert ended["plain"].scheduled_s < ended["b"].scheduled_s
    assert ended["b"].scheduled_s >= ended["a"].at_s


def test_drafted_tokens_end_an_answer_in_fewer_steps():
    plain, _ = served(ask("a", 8, 60))
    for acceptance in (0.0, 1.0):
        drafting, _ = served(ask("a", 8, 60), shape=replace(SMALL, speculation=Speculation(tokens=3, acceptance=acceptance)))  # fmt: skip
        assert drafting.totals.steps == (plain.totals.steps if acceptance == 0 else 16)
    assert plain.totals.steps == 60


def test_blocks_kept_for_another_engine_come_back_when_fetched_or_when_their_time_is_up():
    for is_fetched in (True, False):
        engine, _ = served(ask("p", 100, 1, is_kept=True))
        held = engine.pool.free
        assert engine.keeps("p")
        if is_fetched:
            assert engine.release("p")
        else:
            engine.submit(ask("later", 8, 1, family=7), 31.0)
            engine.advance(inf)
        assert engine.pool.free == SMALL.num_blocks > held


def test_a_fetched_prompt_costs_its_way_and_one_token():
    local = endings(served(ask("d", 100, 1))[1])["d"].at_s
    shape = replace(SMALL, transfer_s=1e-6)
    engine, happened = served(ask("d", 100, 1, is_remote=True), shape=shape)
    assert endings(happened)["d"].at_s < local
    assert engine.totals.computed_tokens == 1


def test_a_request_that_is_dropped_leaves_nothing():
    for until in (0.0, 0.03):
        engine = Engine(SMALL)
        for name in "abcdef":
            engine.submit(ask(name, 30, 20, family=ord(name)), 0.0)
        engine.advance(until)
        for name in "abcdef":
            ended = engine.abort(name, until)
            assert ended is not None
            assert ended.reason is Reason.ABORT
        assert engine.abort("a", until) is None
        assert engine.advance(inf) == []
        assert engine.pool.free == SMALL.num_blocks


def test_what_can_never_be_served_is_refused_with_the_reason():
    engine = Engine(SMALL)
    with pytest.raises(AskError, match="maximum context length is 200 tokens"):
        engine.submit(ask("long", 190, 20), 0.0)
    with pytest.raises(AskError, match="needs 180 tokens of cache and the engine has 40"):
        Engine(replace(SMALL, num_blocks=10)).submit(ask("big", 160, 20), 0.0)
    engine.submit(ask("twice"), 0.0)
    with pytest.raises(AskError, match="being served already"):
        engine.submit(ask("twice"), 0.0)


@given(arrivals)
def test_block_events_tell_exactly_what_the_cache_holds(rows):
    engine = Engine(replace(SMALL, num_blocks=60), writer=Scribe(), tells=True)
    for number, (_, prompt, output, family, _, _) in enumerate(rows):
        tokens = tuple(range(family * 1000, family * 1000 + prompt))
        engine.submit(Ask(id=str(number), prompt_tokens=prompt, output_tokens=output, tokens=tokens,
                          hashes=tuple(hash_blocks(tokens, 4))), 0.0)  # fmt: skip
    engine.advance(inf)
    held, parents = set(), {}
    for event in engine.block_events:
        if isinstance(event, BlockStored):
            assert len(event.tokens) == 4 * len(event.hashes)
            assert not held & set(event.hashes), "stored once"
            assert event.hashes == tuple(hash_blocks(event.tokens, 4, event.parent or 0)), "tokens and parent name it"
            held |= set(event.hashes)
            parents[event.hashes[0]] = event.parent
        elif isinstance(event, BlockRemoved):
            assert set(event.hashes) <= held
            held -= set(event.hashes)
    assert len(held) == engine.pool.cached


def test_an_answer_in_the_next_prompt_finds_its_blocks():
    engine = Engine(SMALL, writer=Scribe())
    tokens = tuple(range(10))
    engine.submit(
        Ask(id="1", prompt_tokens=10, output_tokens=21, tokens=tokens, hashes=tuple(hash_blocks(tokens, 4))), 0.0
    )
    answer = [token for one in engine.advance(inf) if isinstance(one, Emission) for token in one.written]
    longer = (*tokens, *answer, 7, 8, 9)
    engine.submit(
        Ask(id="2", prompt_tokens=34, output_tokens=1, tokens=longer, hashes=tuple(hash_blocks(longer, 4))), 9.0
    )
    assert endings(engine.advance(inf))["2"].cached_tokens == 28  # 30 of 31 tokens were computed: 7 whole blocks
