"""What the router decides for a request, in CPU time: reading it, looking its prompt up, choosing, counting; beside plain versions.

The plain versions are what one would write first: a whole JSON decode, SHA-256 of the blocks, sets of endpoints by block,
scores in dictionaries. A budget stands beside a figure where the specification gives one.
"""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Callable

import msgspec
import numpy as np

from bench.report import Report
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.kernel.loading import load
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Destination
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.blocks import BLOCK_BYTES, Blocks
from hekla.serving.router.prefix.index import PrefixIndex
from hekla.serving.router.prefix.kv_events import Batch, Stored, read_batch
from hekla.serving.router.prefix.precise import PreciseIndex
from hekla.serving.router.prefix.token_blocks import chain, chain_plainly
from hekla.serving.router.question import Question
from hekla.serving.router.reading import read
from hekla.serving.router.recipes import RECIPES

PATH = "/v1/chat/completions"
LONG_TOKENS, ENGINES, BLOCK_TOKENS = 100_000, 64, 16
ROUNDS = 7


def run(report: Report) -> None:
    """Deciding where requests go: reading, hashing, choosing, KV events."""
    reading(report)
    hashing(report)
    choosing(report)
    long_prompts(report)
    events(report)


def reading(report: Report) -> None:
    """Bodies into questions."""
    for size, count in ((3_500, 5_000), (400_000, 100)):
        body = chat(size)
        plain = cpu_us(lambda body=body: json.loads(body)["messages"], report.scaled(count))
        ours = cpu_us(lambda body=body: read(PATH, body), report.scaled(count))
        report.add(f"read a chat of {len(body) / 1000:.1f} kB (plain: json.loads)", ours, "us", baseline=plain)


def hashing(report: Report) -> None:
    """Prompts into blocks."""
    text, count = random.Random(1).randbytes(4 * LONG_TOKENS), report.scaled(100)
    plain = cpu_us(lambda: sha256_chain(text), count)
    ours = cpu_us(lambda: Blocks(text, 1).first(1 << 20), count)
    report.add("hash 400 kB in blocks of 512 bytes (plain: SHA-256)", ours, "us", baseline=plain)
    tokens = token_ids(LONG_TOKENS)
    listed = tokens.tolist()
    plain = cpu_us(lambda: chain_plainly(listed, BLOCK_TOKENS, 1), report.scaled(10))
    ours = cpu_us(lambda: chain(tokens, BLOCK_TOKENS, 1), count)
    report.add("hash 100,000 token ids in blocks of 16 (plain: block by block)", ours, "us", baseline=plain)


def choosing(report: Report) -> None:
    """An ordinary chat over a pool: look up, choose, count, count off."""
    for engines in (8, ENGINES):
        choosing_among(report, engines)


def choosing_among(report: Report, engines: int) -> None:
    count, pool, questions, turn = report.scaled(10_000), warm_pool(engines), chats(200), iter(range(1 << 40))
    policy, kthena = Soonest(), RECIPES["kthena"].make()

    def decide() -> None:
        number = next(turn)
        look = pool.look(questions[number % len(questions)], number * 1e-3)
        pool.choose(look, pool.candidates(number * 1e-3))

    def whole() -> None:
        number = next(turn)
        plan = LocalPlan(pool, questions[number % len(questions)], Destination("m"))
        plan.next(number * 1e-3)
        plan.first_byte(number * 1e-3 + 1e-4)
        plan.ended(None, number * 1e-3 + 2e-4)

    budget = "budget 8 us" if engines == 8 else ""
    report.add(f"choose for a chat of 3.5 kB, {engines} engines", cpu_us(decide, count), "us", note=budget)
    plain = cpu_us(whole, count)
    if (kernel := asyncio.run(load(niceness=0))) is not None:
        pool.use(kernel)
    ours = cpu_us(whole, count)
    report.add(f"  with its counts, from plan to end, {engines} engines, in machine code (plain: without it)", ours, "us", baseline=plain)  # fmt: skip
    look = pool.look(questions[0], 0.0)
    plain = cpu_us(lambda: lowest(policy.weigh(look, pool.members).totals), report.scaled(2_000))
    ours = cpu_us(lambda: policy.choose(look, pool.members), count)
    report.add(f"  the policy alone, {engines} engines (plain: what explains it)", ours, "us", baseline=plain)
    theirs = cpu_us(lambda: kthena.choose(look, pool.members), report.scaled(2_000))
    report.add(f"  Kthena's chain of five plug-ins, {engines} engines", theirs, "us")


def long_prompts(report: Report) -> None:
    """100,000 tokens over 64 engines, which hold more and more of them."""
    text, tokens = random.Random(2).randbytes(4 * LONG_TOKENS), token_ids(LONG_TOKENS)
    question = Question(PATH, "m", text, LONG_TOKENS)
    count = report.scaled(50)
    pool = pool_of(ENGINES)
    for one in pool.members:
        part = text[: (one.slot + 1) * len(text) // ENGINES]
        pool.index.insert(Blocks(part, pool._seed("m")), one.slot, 0.0)
    plain = cpu_us(lambda: longest_by_sets(sets_of(pool.index), Blocks(text, pool._seed("m"))), report.scaled(10))
    ours = cpu_us(lambda: pool.choose(pool.look(question, 0.0), pool.members), count)
    report.add("choose for 100,000 tokens, 64 engines (plain: sets by block)", ours, "us", baseline=plain, note="budget 2,000 us")  # fmt: skip

    def whole() -> None:
        plan = LocalPlan(pool, question, Destination("m"))
        plan.next(0.0)
        plan.ended(None, 0.0)

    plain = cpu_us(whole, count)
    report.add("  with its counts and what is remembered of it", plain, "us", note="budget 2,000 us")
    if (kernel := asyncio.run(load(niceness=0))) is not None:
        pool.use(kernel)
        report.add("  the same in machine code", cpu_us(whole, count), "us", baseline=plain, note="budget 2,000 us")
    for one in pool.members:
        one.has_events = True
        store(pool.fleet.precise, one.slot, tokens[: (one.slot + 1) * LONG_TOKENS // ENGINES])
    known = Question(PATH, "m", text, LONG_TOKENS, token_ids=tokens)
    ours = cpu_us(lambda: pool.choose(pool.look(known, 0.0), pool.members), count)
    report.add("  with KV events of all 64 engines as well", ours, "us", note="budget 2,000 us")


def events(report: Report) -> None:
    """KV events: 32 blocks of 16 tokens each, as a prompt of 512 tokens is stored."""
    dice, payloads = random.Random(3), []
    for number in range(report.scaled(2_000)):
        tokens = [dice.randrange(150_000) for _ in range(32 * BLOCK_TOKENS)]
        hashes = [dice.getrandbits(64) for _ in range(32)]
        payloads.append(
            msgspec.msgpack.encode([0.0, [["BlockStored", hashes, None, tokens, BLOCK_TOKENS]], number % 1])
        )
    index = PreciseIndex()
    start = time.process_time()
    for payload in payloads:
        index.apply(0, read_batch(payload))
    spent = time.process_time() - start
    report.add(
        "KV events read and indexed", 32 * len(payloads) / spent, "blocks/s", note="an H100 stores 1,280 per second"
    )


def cpu_us(work: Callable[[], object], count: int) -> float:
    """CPU microseconds of one call: the best of several rounds, as other work only ever adds."""
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(count):
            work()
        best = min(best, time.process_time() - start)
    return best / count * 1e6


def chat(size: int, salt: str = "") -> bytes:
    turns = 6
    words = ("The quick brown fox jumps over the lazy dog. " * (size // 45 + 1))[: size // turns]
    messages = [{"role": ("assistant", "user")[number % 2], "content": f"{salt}{words}"} for number in range(turns)]
    return json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": 256}).encode()


def chats(count: int) -> list[Question]:
    """Chats that share a system prompt of 600 bytes."""
    system = {"role": "system", "content": "s" * 600}
    found = []
    for number in range(count):
        own = {"role": "user", "content": f"{number} " + "some words of its own " * 130}
        question = read(PATH, json.dumps({"model": "m", "messages": [system, own]}).encode())
        assert isinstance(question, Question)
        found.append(question)
    return found


def pool_of(engines: int) -> Pool:
    pool = RECIPES["soonest"].pool("bench", Fleet(), random.Random(0).random)
    for number in range(engines):
        pool.join(Endpoint(f"e{number}", "127.0.0.1", 8000))
    return pool


def warm_pool(engines: int) -> Pool:
    pool = pool_of(engines)
    for question in chats(200):
        plan = LocalPlan(pool, question, Destination("m"))
        plan.next(0.0)
        plan.ended(None, 0.0)
    return pool


def token_ids(count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    return np.random.default_rng(0).integers(0, 150_000, count).astype(np.uint32)


def store(index: PreciseIndex, slot: int, tokens: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> None:
    count = len(tokens) // BLOCK_TOKENS
    listed = tokens[: count * BLOCK_TOKENS].tolist()
    index.apply(slot, Batch([Stored(list(range(1, count + 1)), None, listed, BLOCK_TOKENS)]))


def lowest(totals: dict[str, float]) -> str:
    return min(totals, key=totals.__getitem__)


def sha256_chain(text: bytes) -> list[bytes]:
    last, found = b"", []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = hashlib.sha256(last + text[start : start + BLOCK_BYTES]).digest()
        found.append(last)
    return found


_sets: dict[int, dict[int, set[int]]] = {}


def sets_of(index: PrefixIndex) -> dict[int, set[int]]:
    """The same knowledge as sets of endpoints, made once."""
    if id(index) not in _sets:
        _sets[id(index)] = {
            one: {slot for slot in range(ENGINES) if holders >> slot & 1} for one, holders in index.holders.items()
        }
    return _sets[id(index)]


def longest_by_sets(holders: dict[int, set[int]], blocks: Blocks) -> dict[int, int]:
    """How deep each endpoint goes, block by block."""
    depths: dict[int, int] = {}
    left = set(range(ENGINES))
    for depth, one in enumerate(blocks.first(1 << 20), 1):
        left = left & holders.get(one, set())
        if not left:
            break
        for slot in left:
            depths[slot] = depth
    return depths
