"""The compiled decision chooses, counts and remembers as the plain one does, to the last bit; and does without where it cannot be had."""

import asyncio
import contextlib
import importlib.util
import os
import random
import subprocess
import sys

import pytest
import structlog
from bench import serving_budget as bench
from llvmlite import binding

from hekla.serving.router.endpoints import Fleet
from hekla.serving.router.kernel import keeping, loading, upgrading
from hekla.serving.router.kernel.object_code import undefined_symbols
from hekla.serving.router.kernel.upgrading import WORTH_IT_PROMPTS, Upgrading
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Attempt, Destination, Fault, Usage
from hekla.serving.router.plugin_times import PluginTimes, timed
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.blocks import BLOCK_BYTES, Blocks, seed_of
from hekla.serving.router.prefix.flat_index import FlatIndex
from hekla.serving.router.prefix.index import PrefixIndex
from hekla.serving.router.question import Question
from serving.router.poolkit import counts, endpoint, no_dice, pool_of, question

ALL = (1 << 200) - 1
CALLS_OF_A_CHAT = 72
"""Of today with a tenth to spare, as `test_budget.py` has them for the plain form."""


@pytest.fixture(scope="module")
def kernel():
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    found = asyncio.run(loading.load(niceness=0))  # the other workers wait for it, so it is not polite
    assert found is not None, "the log says why"
    return found


@pytest.fixture(scope="module")
def code(kernel):
    kept = keeping.kept_at()
    return (kept and keeping.read(kept)) or asyncio.run(loading.compiled_in_child(0))


@pytest.mark.parametrize("size", [241, 256, 512, 1024, 1025, 3000])
def test_blocks_are_hashed_as_by_the_library(kernel, size):
    text, seed = random.Random(size).randbytes(size * 6 + 5), seed_of("llama")
    flat = FlatIndex(kernel)
    flat.see(size, 100)
    kernel.hash_blocks(flat.state, text, 6, seed)
    assert flat.hashes(6) == Blocks(text, seed, size).first(6)


class Twins:
    """One pool that decides in machine code and one that does not, told the same."""

    def __init__(self, kernel, dice, *, engines, policy=None):
        self.dice = dice
        self.now = 100.0
        self.pools = [pool_of(engines, policy, fleet=Fleet()) for _ in range(2)]
        self.pools[0].use(kernel)
        self.under_way = []

    def both(self, do):
        return [do(pool) for pool in self.pools]

    def ask(self):
        dice = self.dice
        depth = dice.choice([0, 1, 2, 5, 7, 9, 20])
        text = b"".join(b"%d/%d " % (dice.randrange(3), at) * 200 for at in range(depth))[: depth * BLOCK_BYTES + 17]
        asked = {"output_tokens": dice.choice([0, 5, 4000]), "is_stream": dice.random() < 0.5}
        tokens = dice.choice([1, max(1, len(text) // 4), 3 * len(text) + 1])
        model = dice.choice(["m", "lora"])
        plans = self.both(
            lambda pool: LocalPlan(pool, Question("/p", model, text or b"x", tokens, **asked), Destination(model))
        )
        steps = [plan.next(self.now) for plan in plans]
        assert len({step.target.name if isinstance(step, Attempt) else step.reason for step in steps}) == 1
        self.under_way.append(list(zip(plans, steps, strict=True)))

    def go_on(self):
        if not self.under_way:
            return
        deed, one = self.dice.random(), self.dice.randrange(len(self.under_way))
        if deed < 0.5:
            for plan, _ in self.under_way[one]:
                plan.first_byte(self.now)
        elif deed < 0.9:
            usage = self.dice.choice([None, Usage(900, 1), Usage(100, 50), Usage(5000, 700)])
            for plan, _ in self.under_way.pop(one):
                plan.ended(usage, self.now)
        elif all(isinstance(step, Attempt) for _, step in self.under_way[one]):
            again = []
            for plan, step in self.under_way[one]:
                plan.failed(step, Fault.BUSY, self.now)
                again.append((plan, plan.next(self.now)))
            self.under_way[one] = again
            assert len({getattr(step, "target", step).name if isinstance(step, Attempt) else step for _, step in again}) == 1  # fmt: skip

    def change(self):
        deed, number = self.dice.randrange(6), self.dice.randrange(12)
        if deed == 0:
            self.both(lambda pool: pool.join(endpoint(f"e{number}")))
        elif deed == 1:
            for pool in self.pools:
                for one in [one for one in pool.members if one.name == f"e{number}"]:
                    pool.leave(one)
                    pool.fleet.remove(one)
        elif deed == 2:
            self.both(lambda pool: pool.join(endpoint(f"e{number}", incarnation=f"{self.now}")))
        elif deed == 3:
            size = self.dice.choice([512, 5_000, 10**9])
            for pool in self.pools:
                for one in pool.members[:2]:
                    one.cache_tokens = size
        elif deed == 4:
            load = self.dice.randrange(9000)
            for pool in self.pools:
                for one in pool.members[1:3]:
                    one.elsewhere_prefill_tokens = load
        else:
            self.now += self.dice.choice([0.001, 0.2, 1.5, 700.0, 4000.0])

    def assert_equal(self):
        told = self.both(
            lambda pool: [
                (one.name, counts(one), one.unanswered, one.assigned, one.prefilled_lately, one.busy_s, one.heard_at, pool.index.held(one.slot))
                for one in pool.members
            ]
        )  # fmt: skip
        assert told[0] == told[1]
        assert self.pools[0].index.entries == self.pools[1].index.entries
        assert self.pools[0].index.evicted == self.pools[1].index.evicted
        assert self.pools[0].matches.by_model == self.pools[1].matches.by_model


@pytest.mark.parametrize("seed", range(6))
def test_both_forms_choose_alike_whatever_happens(kernel, seed):
    dice = random.Random(seed)
    twins = Twins(kernel, dice, engines=dice.choice([1, 3, 8, 70]), policy=Soonest(base=dice.choice([0.5, 2.5])))
    for _ in range(250):
        twins.now += dice.random() * 0.02
        twins.ask()
        for _ in range(dice.randrange(3)):
            twins.go_on()
        if dice.random() < 0.15:
            twins.change()
        twins.assert_equal()
    assert isinstance(twins.pools[0].index, FlatIndex)


def depths(index, blocks, among=ALL):
    return {slot: depth for bits, depth in index.match(blocks, among) for slot in range(200) if bits >> slot & 1}


@pytest.mark.parametrize("seed", range(5))
def test_both_memories_remember_alike(kernel, seed):
    dice = random.Random(seed)
    plain, flat = PrefixIndex(capacity=40, ttl_s=50.0), FlatIndex(kernel, 40, 50.0)
    slots = dice.choice([3, 64, 150])
    now = 0.0
    for step in range(400):
        now += dice.random()
        text = b"".join(bytes([65 + dice.randrange(2)]) * 32 for _ in range(dice.randrange(1, 12)))
        blocks, slot = Blocks(text, 1, 32), dice.randrange(slots)
        deed = dice.random()
        for index in (plain, flat):
            if deed < 0.85:
                index.insert(blocks, slot, now)
            elif deed < 0.9:
                index.forget(slot)
            elif deed < 0.95:
                index.resize(slot, int(deed * 1000) % 60, 10.0 if deed > 0.92 else None)
            else:
                index.expire(now)
        among = ALL if step % 3 else dice.getrandbits(150)
        assert depths(plain, blocks, among) == depths(flat, blocks, among)
        assert (plain.held(slot), plain.entries, plain.evicted) == (flat.held(slot), flat.entries, flat.evicted)


def test_what_a_pool_remembers_is_known_to_the_compiled_form_and_goes_in_the_same_order(kernel):
    plain = PrefixIndex(capacity=6)
    for number in range(3):
        plain.insert(Blocks(b"%d" % number * 1024, 1, 512), number % 2, float(number))
    plain.resize(0, 4)
    flat = FlatIndex.of(plain, kernel)
    for index in (plain, flat):
        index.insert(Blocks(b"x" * 1024, 1, 512), 0, 9.0)
    for number in range(3):
        blocks = Blocks(b"%d" % number * 1024, 1, 512)
        assert depths(plain, blocks) == depths(flat, blocks)


def test_the_memory_grows_with_what_is_sent(kernel):
    flat = FlatIndex(kernel, capacity=20_000)
    blocks = Blocks(random.Random(1).randbytes(512 * 8000), 1)
    for slot in range(3):
        flat.insert(blocks, slot, 0.0)
    assert depths(flat, blocks) == {0: 8000, 1: 8000, 2: 8000}


def test_a_policy_without_a_compiled_form_chooses_by_itself_and_back(kernel):
    class First:
        wants_prefix = True

        def choose(self, look, candidates):
            return candidates[0]

    pool = pool_of(3)
    pool.use(kernel)
    assert pool.send(question("a"), 0.0) is not None
    pool.policy = First()
    assert pool.send(question("a"), 0.0) is None
    assert pool.look(question("a"), 0.0).matched[0] == 128
    pool.policy = Soonest()
    assert pool.send(question("a"), 0.0) is not None


def test_one_choice_in_sixteen_is_measured(kernel):
    now = iter(range(1, 1000))
    times = PluginTimes(lambda: next(now) * 1e-3)
    pool = pool_of(2)
    pool.policy = timed(pool.policy, times)
    pool.use(kernel)
    for _ in range(33):
        assert pool.send(question("a"), 0.0) is not None
    assert 'plugin="soonest",type="score"} 3' in "\n".join(times.lines()).replace("_count{model=\"m\",", "{")  # fmt: skip


def test_a_chat_takes_fewer_calls_and_is_answered_all_the_same(kernel):
    rig = bench.warm(is_stream=False, kernel=kernel)
    calls, _ = bench.counted(rig.round, 1)
    assert calls.total() / bench.ROUND <= CALLS_OF_A_CHAT, calls
    for _ in range(bench.UNDER_WAY):
        rig.answer()
    rig.books()
    assert not rig.house.under_way


def test_an_empty_pool_sends_nothing(kernel):
    pool = Pool("p", Fleet(), Soonest(), no_dice)
    pool.use(kernel)
    assert pool.send(question("a"), 0.0) is None


def test_a_router_with_much_to_do_gets_it_and_its_later_pools_too(kernel, monkeypatch):
    async def load():
        return kernel

    async def story():
        busy, later = pool_of(2), pool_of(2)
        router = Upgrading(lambda: [busy])
        for _ in range(WORTH_IT_PROMPTS):
            look = busy.look(question("a"), 0.0)
            busy.charge(look, busy.choose(look, busy.members))
        running = asyncio.create_task(router.run())
        async with asyncio.timeout(60):
            while busy.send(question("a"), 0.0) is None:
                await asyncio.sleep(0.005)
        assert router.joined(later).send(question("a"), 0.0) is not None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    monkeypatch.setattr(upgrading, "load", load)
    asyncio.run(story())


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_memory_is_taken_over_with_its_order_and_goes_on(kernel, seed):
    dice = random.Random(seed)
    plain = PrefixIndex(capacity=60, ttl_s=50.0) if seed else PrefixIndex(capacity=8000)
    texts = [dice.randbytes(512 * dice.randrange(1, 10 if seed else 1500)) for _ in range(12)]
    for step in range(30):
        plain.insert(Blocks(dice.choice(texts), 1), dice.choice([0, 1, 70]), float(step))
    flat = FlatIndex.of(plain, kernel)
    for step in range(30, 80):
        blocks, slot = Blocks(dice.choice(texts), 1), dice.choice([0, 1, 2, 70])
        for index in (plain, flat):
            if step % 9:
                index.insert(blocks, slot, float(step))
            elif step % 2:
                index.forget(slot)
            else:
                index.expire(float(step))
        asked = Blocks(dice.choice(texts), 1)
        assert depths(plain, asked) == depths(flat, asked)
        assert (plain.held(slot), plain.entries, plain.evicted) == (flat.held(slot), flat.entries, flat.evicted)


# ---- how a router comes by it


def test_the_code_needs_nothing_from_outside(code):
    assert undefined_symbols(code.partition(b"\n\n")[2]) == set()


def test_what_object_code_needs_is_seen(kernel):
    text = "declare i64 @outside()\ndefine i64 @inside() {\n %1 = call i64 @outside()\n ret i64 %1\n}"
    object_code = loading.machine().emit_object(binding.parse_assembly(text))
    assert undefined_symbols(object_code) == ({"outside"} if object_code.startswith(b"\x7fELF") else set())


WITHOUT_NUMBA = """
import pathlib, sys
sys.modules["numba"] = None
from hekla.serving.router.kernel.loading import kernel_of
from serving.router.poolkit import pool_of, question
pool = pool_of(2)
pool.use(kernel_of(pathlib.Path(sys.argv[1]).read_bytes()))
for _ in range(3):
    assert pool.send(question("a", "b", "c"), 0.0) is not None
print(pool.index.entries, [name for name in sys.modules if name.startswith("numba.")])
"""


def test_the_code_runs_in_a_process_without_numba(code, tmp_path):
    (tmp_path / "code").write_bytes(code)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_NUMBA, tmp_path / "code"], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert ran.stdout == "3 []\n", ran.stderr


def test_without_numba_choosing_stays_plain(monkeypatch):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    assert asyncio.run(loading.load()) is None


@pytest.mark.parametrize(
    ("child", "limit_s", "why"),
    [
        ("import sys; sys.exit('no room')", 60.0, "no room"),
        ("import os; os.kill(os.getpid(), 9)", 60.0, "the compiler ended with -9"),
        ("import time; time.sleep(600)", 0.0, "the compiler did not end within 0 s"),
        ("pass", 60.0, None),
    ],
)
def test_a_compiler_that_fails_leaves_choosing_plain_and_says_why(kernel, monkeypatch, tmp_path, child, limit_s, why):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "_CHILD", child)
    monkeypatch.setattr(loading, "COMPILING_LIMIT_S", limit_s)
    with structlog.testing.capture_logs() as told:
        assert asyncio.run(loading.load()) is None
    assert [one["event"] for one in told] == ["choosing stays plain"]
    assert why is None or told[0]["why"] == why
    assert not list(tmp_path.glob("hekla/router-*")), "what does not load is not kept"


def test_what_lies_in_the_current_directory_and_what_a_library_prints_is_no_part_of_the_code(monkeypatch, tmp_path):
    for folder, text in (("here", "raise SystemExit('foreign')"), ("lib", "print('hello')\nmain = lambda out: os.write(out, b'code')")):  # fmt: skip
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "some_compiler.py").write_text(f"import os\n{text}\n")
    monkeypatch.setattr(loading, "MODULE", "some_compiler")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.chdir(tmp_path / "here")
    assert asyncio.run(loading.compiled_in_child(0)) == b"code"


@pytest.fixture
def compiled(code, monkeypatch, tmp_path):
    """How often a user with an empty cache has compiled."""
    times = []

    async def compiled_in_child(niceness):
        times.append(niceness)
        return code

    monkeypatch.setattr(loading, "compiled_in_child", compiled_in_child)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return times


def test_routers_that_start_together_compile_once(compiled):
    async def story():
        return await asyncio.gather(*(loading.load() for _ in range(3)))

    assert None not in asyncio.run(story())
    assert len(compiled) == 1


@pytest.mark.parametrize("kept", [b"decide nothing\n\nno object", b"no names"])
def test_a_kept_file_that_does_not_load_is_replaced_once(compiled, code, kept):
    keeping.keep(keeping.kept_at(), kept)
    for _ in range(2):
        assert asyncio.run(loading.load()) is not None
    assert len(compiled) == 1
    assert keeping.read(keeping.kept_at()) == code


def test_a_user_without_a_home_compiles_at_each_start(compiled, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    for _ in range(2):
        assert asyncio.run(loading.load()) is not None
    assert len(compiled) == 2
    assert not list(tmp_path.iterdir())


CODE = b"names\n\nobject"


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "hekla" / "router-1.o"


def test_a_kept_file_that_was_cut_short_is_not_read_and_is_replaced(kept):
    keeping.keep(kept, CODE)
    whole = kept.read_bytes()
    for broken in (b"", whole[:-1], whole[1:]):
        kept.write_bytes(broken)
        assert keeping.read(kept) is None
        keeping.keep(kept, CODE)
        assert keeping.read(kept) == CODE


def test_a_file_that_others_may_have_written_is_not_read(kept):
    keeping.keep(kept, CODE)
    kept.chmod(0o620)
    assert keeping.read(kept) is None


def test_a_cache_that_cannot_be_written_is_done_without(kept):
    kept.parent.touch()
    keeping.keep(kept, CODE)
    assert keeping.read(kept) is None
    with contextlib.ExitStack() as stack:
        assert keeping.take_turn(kept, stack), "everybody compiles for himself"


def test_a_file_that_cannot_take_its_place_leaves_nothing_behind(kept):
    kept.mkdir(parents=True)
    keeping.keep(kept, CODE)
    assert list(kept.parent.iterdir()) == [kept]


def test_only_the_newest_four_are_kept(kept):
    for number in range(7):
        one = kept.with_name(f"router-{number}.o")
        keeping.keep(one, CODE)
        os.utime(one, (number, number))
    assert {one.name for one in kept.parent.iterdir()} == {f"router-{number}.o" for number in (3, 4, 5, 6)}
