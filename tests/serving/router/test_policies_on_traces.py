"""The default policy on an hour of real conversations (Mooncake), against its rivals: hits, load per replica, and no collapse.

Arrivals and prompts are the trace's; engines are the plainest there can be, so that the test takes seconds: one prefill
after the other at a fixed rate, a cache of so many blocks. `hekla route replay` and `bench/serving_routing.py` have the
simulator of a whole engine. The trace is kept in `bench/data/llm/`.
"""

import gzip
import heapq
import json
from collections import OrderedDict, deque
from functools import cache
from itertools import count

import pytest

from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Destination, Usage
from hekla.serving.router.question import Question
from hekla.serving.router.recipes import RECIPES

BLOCK_TOKENS, BLOCK_BYTES = 512, 64
"""A trace's block, and the bytes that stand for it here, where real text would have two thousand."""
RATE, OVERHEAD_S, PER_TOKEN_S = 15_000.0, 0.02, 0.02


@cache
def conversations(repository):
    with gzip.open(repository / "bench" / "data" / "llm" / "mooncake-conversation.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


class PlainEngine:
    """Prefills one prompt after the other; remembers the blocks that it was sent most recently."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.queue = deque()
        self.is_busy = False
        self.cached = OrderedDict()
        self.uncached_tokens = 0

    def hits(self, ids):
        return next((depth for depth, one in enumerate(ids) if one not in self.cached), len(ids))

    def remember(self, ids):
        for one in reversed(ids):
            self.cached[one] = True
            self.cached.move_to_end(one)
        while len(self.cached) > self.capacity:
            self.cached.popitem(last=False)


def replay(requests, replicas, recipe, *, capacity):
    """Hits in percent, the busiest replica's uncached tokens over the mean, TTFT at the 90th percentile."""
    throws = count()
    pool = RECIPES[recipe].pool("ns/p", Fleet(), lambda: next(throws) * 0.6180339887 % 1)
    pool.block_bytes, pool.index.capacity = BLOCK_BYTES, capacity
    engines = [PlainEngine(capacity) for _ in range(replicas)]
    for number in range(replicas):
        pool.join(Endpoint(f"e{number}", "h", number))
    order, plans, ttft, hit = count(), {}, [], 0
    events = [(one["timestamp"] / 1000, next(order), "arrives", at, None) for at, one in enumerate(requests)]

    def begin(now, engine):
        nonlocal hit
        at = engine.queue.popleft()
        engine.is_busy = True
        ids = requests[at]["hash_ids"]
        hits = engine.hits(ids)
        hit += hits
        uncached = max(1, requests[at]["input_length"] - hits * BLOCK_TOKENS)
        engine.uncached_tokens += uncached
        heapq.heappush(events, (now + OVERHEAD_S + uncached / RATE, next(order), "first byte", at, engine))

    while events:
        now, _, what, at, engine = heapq.heappop(events)
        one = requests[at]
        if what == "arrives":
            text = b"".join(b"%064d" % block for block in one["hash_ids"])
            plan = plans[at] = LocalPlan(pool, Question("/", "m", text, one["input_length"]), Destination("m"))
            engine = engines[plan.next(now).target.port]
            engine.queue.append(at)
            if not engine.is_busy:
                begin(now, engine)
        elif what == "first byte":
            plans[at].first_byte(now)
            ttft.append(now - one["timestamp"] / 1000)
            engine.remember(one["hash_ids"])
            engine.is_busy = False
            if engine.queue:
                begin(now, engine)
            heapq.heappush(events, (now + one["output_length"] * PER_TOKEN_S, next(order), "ends", at, engine))
        else:
            plans.pop(at).ended(Usage(one["input_length"], one["output_length"], 0), now)
    loads = [engine.uncached_tokens for engine in engines]
    asked = sum(len(one["hash_ids"]) for one in requests)
    return 100 * hit / asked, max(loads) * replicas / sum(loads), sorted(ttft)[int(len(ttft) * 0.9)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_replicas_reach_what_is_known_to_be_reachable(repository):
    """36.6 % is the ideal of one endless cache; 33 % was the target."""
    hits, imbalance, ttft = replay(conversations(repository), 8, "soonest", capacity=5000)
    assert hits > 33.0
    assert imbalance < 1.15
    assert ttft < replay(conversations(repository), 8, "llm-d", capacity=5000)[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thirty_two_replicas_are_evenly_loaded_and_still_hit(repository):
    hits, imbalance, _ = replay(conversations(repository), 32, "soonest", capacity=2000)
    assert hits > 33.0
    assert imbalance < 1.15


def test_a_prefix_that_all_share_does_not_send_all_to_one(repository):
    """Every conversation begins with the same block: by the longest match alone, one replica of eight gets them all."""
    requests = conversations(repository)[:1500]
    assert replay(requests, 8, "longest-prefix", capacity=5000)[1] > 4.0
    assert replay(requests, 8, "soonest", capacity=5000)[1] < 1.2
