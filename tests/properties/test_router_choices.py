"""Whatever happens to a router's pool: counts end at zero, indexes equal plain dictionaries, the fast choice is the plain one."""

from collections import OrderedDict

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.explaining import explain
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Attempt, Destination, Fault, Usage
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.blocks import Blocks
from hekla.serving.router.prefix.following import Apply, Following, Forget
from hekla.serving.router.prefix.index import PrefixIndex
from hekla.serving.router.prefix.kv_events import Batch, Cleared, Removed, Stored, read_batch
from hekla.serving.router.prefix.precise import PreciseIndex
from hekla.serving.router.question import Question
from hekla.serving.router.recipes import RECIPES

BLOCK, MANY = 16, 1 << 30
letters = st.lists(st.sampled_from("abc"), max_size=12)


def prompt(names):
    return b"".join(name.encode() * BLOCK for name in names)


def asked(names, output=0):
    body = prompt(names) or b"x"
    return Question("/v1/completions", "m", body, -(-len(body) // 4), output, is_stream=output % 2 == 0)


def new_pool(count, recipe="soonest"):
    throws = iter(range(MANY))
    pool = RECIPES[recipe].pool("ns/p", Fleet(), lambda: (next(throws) * 0.618) % 1)
    pool.block_bytes = BLOCK
    for number in range(count):
        pool.join(Endpoint(f"e{number}", "h", 1))
    return pool


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "fail", "first", "end", "end with usage", "join", "leave", "forget", "bench"]),
        st.integers(0, 7),
        letters,
    ),
    max_size=60,
)


@given(steps, st.sampled_from(sorted(RECIPES)))
@settings(max_examples=80)
def test_whatever_happens_counts_are_never_negative_and_end_at_zero(story, recipe):
    pool = new_pool(3, recipe)
    everybody = list(pool.members)
    open_plans = []
    for number, (what, which, names) in enumerate(story):
        now = number * 0.3
        if what == "ask":
            plan = LocalPlan(pool, asked(names, which), Destination("m"))
            attempt = plan.next(now)
            if isinstance(attempt, Attempt):
                open_plans.append((plan, attempt))
        elif what == "join":
            everybody.append(pool.join(Endpoint(f"e{which}", "h", 1, incarnation=str(number))))
        elif what in ("leave", "forget", "bench") and pool.members:
            one = pool.members[which % len(pool.members)]
            if what == "leave":
                pool.leave(one)
                pool.fleet.remove(one)
            elif what == "forget":
                pool.forget(one)
            else:
                pool.fault(one, now)
        elif open_plans:
            plan, attempt = open_plans[which % len(open_plans)]
            if what == "fail":
                plan.failed(attempt, Fault.CLOSED, now)
                again = plan.next(now)
                open_plans.remove((plan, attempt))
                if isinstance(again, Attempt):
                    assert again.target is not attempt.target
                    open_plans.append((plan, again))
            elif what == "first":
                plan.first_byte(now)
            else:
                plan.ended(Usage(100, 10, 0) if what == "end with usage" else None, now)
                open_plans.remove((plan, attempt))
        for one in everybody:
            assert min(one.in_flight, one.prefill_tokens, one.context_tokens, one.decode_tokens, one.unanswered) >= 0
        assert sum(one.in_flight for one in {id(one): one for one in everybody}.values()) == len(open_plans)
    for plan, _ in open_plans:
        plan.ended(None, 99.0)
    for one in everybody:
        assert (one.in_flight, one.prefill_tokens, one.context_tokens, one.decode_tokens) == (0, 0, 0, 0)
        assert one.unanswered == 0


@given(
    st.lists(st.tuples(*[st.integers(0, 5000)] * 4, st.integers(0, 3000)), min_size=1, max_size=12),
    st.integers(0, 40),
    st.integers(1, 3000),
)
def test_the_fast_choice_is_the_one_that_is_explained(engines, waiting, tokens):
    pool = new_pool(len(engines))
    for one, (queued, elsewhere, held, recent, _) in zip(pool.members, engines, strict=True):
        one.prefill_tokens, one.elsewhere_prefill_tokens, one.context_tokens = queued, elsewhere, held
        one.assigned = float(recent)
    pool.waiting = waiting
    question = Question("/v1/completions", "m", b"x" * tokens * 4, tokens)
    look = pool.look(question, 0.0)
    look.matched = [min(tokens, matched) for *_, matched in engines]
    pool.look = lambda *_, **__: look
    told = explain(pool, question, 0.0)
    chosen = Soonest().choose(look, pool.members).name
    assert chosen == told["chosen"] or chosen in told["tied"]


class PlainIndex:
    """For each endpoint, an ordered dictionary of prompts' beginnings: what the index must equal."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.held = {}

    def insert(self, names, slot):
        held = self.held.setdefault(slot, OrderedDict())
        for end in range(min(len(names), self.capacity), 0, -1):
            held[tuple(names[:end])] = True
            held.move_to_end(tuple(names[:end]))
        while len(held) > self.capacity:
            held.popitem(last=False)

    def match(self, names):
        found = {}
        for slot, held in self.held.items():
            depth = next((end for end in range(len(names), 0, -1) if tuple(names[:end]) in held), 0)
            if depth:
                found[slot] = depth
        return found


def by_slot(found, slots=4):
    return {slot: depth for holders, depth in found for slot in range(slots) if holders >> slot & 1}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.lists(st.sampled_from("ab"), max_size=40)), max_size=30),
    st.integers(1, 30),
)
def test_the_index_of_guesses_equals_a_plain_one(story, capacity):
    index, plain = PrefixIndex(capacity), PlainIndex(capacity)
    for number, (slot, is_forgotten, names) in enumerate(story):
        if is_forgotten:
            index.forget(slot)
            plain.held.pop(slot, None)
        else:
            index.insert(Blocks(prompt(names), 1, BLOCK), slot, float(number))
            plain.insert(names, slot)
        assert by_slot(index.match(Blocks(prompt(names), 1, BLOCK), 0b1111)) == plain.match(names)
    for slot in range(4):
        index.forget(slot)
    assert index.holders == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "store", "store", "remove", "clear", "forget"]),
            st.integers(0, 2),
            st.integers(0, 1),
            st.lists(st.integers(0, 2), min_size=1, max_size=6),
            st.sampled_from(["GPU", "CPU"]),
        ),
        max_size=40,
    ),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
def test_the_index_of_events_equals_a_plain_one(story, wanted):
    """One block is one token here; an engine's hash of a block is its whole prefix."""
    index, plain = PreciseIndex(), {}
    for what, slot, rank, path, medium in story:
        names = [bytes(path[: end + 1]) for end in range(len(path))]
        held = plain.setdefault((slot, rank, medium), set())
        if what == "store":
            index.apply(slot, Batch([Stored(names, None, path, 1, medium=medium)], rank))
            held.update(tuple(path[: end + 1]) for end in range(len(path)))
        elif what == "remove":
            index.apply(slot, Batch([Removed(names[-1:], medium)], rank))
            held.discard(tuple(path))
        else:
            if what == "clear":
                index.apply(slot, Batch([Cleared()], rank))
            else:
                index.forget(slot)
            for key in plain:
                if key[0] == slot and (what == "forget" or key[1] == rank):
                    plain[key].clear()
        expected = {}
        for one in range(3):
            blocks = set().union(*(held for key, held in plain.items() if key[0] == one))
            depth = 0
            while depth < len(wanted) and tuple(wanted[: depth + 1]) in blocks:
                depth += 1
            if depth:
                expected[one] = depth
        assert by_slot(index.match(wanted, 0b111)) == expected
        assert index.held(slot) == sum(len(held) for key, held in plain.items() if key[0] == slot)
    for slot in range(3):
        index.forget(slot)
    assert index.holders == {}


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=5), st.booleans()), max_size=30),
    st.integers(1, 12),
)
def test_after_any_gaps_and_replays_the_index_is_what_it_is_without_gaps_or_says_that_it_began_anew(story, kept):
    """The publisher keeps its last `kept` messages; whoever misses more than those forgets what it knew before."""
    messages = []
    for _, path, is_removal in story:
        names = [bytes(path[: end + 1]) for end in range(len(path))]
        messages.append(["BlockRemoved", names[-1:]] if is_removal else ["BlockStored", names, None, path, 1])
    payloads = [msgspec.msgpack.encode([0.0, [one]]) for one in messages]
    following, index, since = Following(), PreciseIndex(), 0
    for number, (arrives, _, _) in enumerate(story):
        steps = following.received(number, payloads[number]) if arrives else []
        while steps:
            step = steps.pop(0)
            if isinstance(step, Apply):
                index.apply(0, read_batch(step.payload))
            elif isinstance(step, Forget):
                index.forget(0)
                since = following.next - sum(isinstance(one, Apply) for one in steps)
            else:
                for again in range(max(step.start, number + 1 - kept), number + 1):
                    steps += following.replayed(again, payloads[again])
                steps += following.replay_ended()
    plain = PreciseIndex()
    for payload in payloads[since : following.next or 0]:
        plain.apply(0, read_batch(payload))
    assert index.holders == plain.holders


def test_a_pool_of_any_size_can_be_asked():
    for count in (0, 1, 65, 200):
        pool = new_pool(count)
        plan = LocalPlan(pool, asked(list("abc")), Destination("m"))
        assert isinstance(plan.next(0.0), Attempt) == bool(count)
        assert isinstance(pool, Pool)
