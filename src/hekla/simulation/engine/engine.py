"""The engine: continuous batching step by step, as vLLM's scheduler does it, in whatever time the caller keeps.

A step first serves the requests that run, then lets in those that wait, within one budget of tokens; long prompts are
cut into chunks by it. Where blocks run out the request that came last gives its own back and starts over (preemption).
`begin_step` and `end_step` are for a caller that lives through every step (`hekla engine`); `advance` runs ahead to a
moment and takes runs of equal steps at once, so that a trace of an hour takes seconds.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf, sqrt

from hekla.simulation.engine.blocks import BlockPool
from hekla.simulation.engine.happenings import (
    AllBlocksCleared,
    BlockEvent,
    BlockRemoved,
    BlockStored,
    Emission,
    Ending,
    Happening,
    Reason,
)
from hekla.simulation.engine.sequence import Ask, Sequence, Writer
from hekla.simulation.engine.shape import EngineShape


class AskError(ValueError):
    """The engine can never serve this request; the sentence says why."""


@dataclass
class Totals:
    """What an engine has counted since it began, as vLLM's counters do."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    """Prompt tokens that were computed, those of preempted requests again."""
    generation_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    busy_s: float = 0.0
    endings: Counter[Reason] = field(default_factory=Counter)


@dataclass
class Step:
    """A step under way."""

    began_s: float
    ends_s: float
    work: list[tuple[Sequence, int]]
    """Who computes how many tokens."""
    prefill: int = 0
    is_plain: bool = False
    """Whether every request in it grows by one token, so that the step after it is like it."""


class Engine:
    """One engine."""

    def __init__(self, shape: EngineShape, *, seed: int = 0, writer: Writer | None = None, tells: bool = False) -> None:
        """`tells`: whether block events are recorded in `block_events`, which its reader empties."""
        self.shape = shape
        self.pool = BlockPool(shape.num_blocks)
        self.totals = Totals()
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.block_events: list[BlockEvent] = []
        self._arriving: list[tuple[float, int, Sequence]] = []
        self._kept: dict[str, tuple[float, list[int]]] = {}
        self._known: dict[str, Sequence] = {}
        self._slots: OrderedDict[str, None] = OrderedDict()
        self._step: Step | None = None
        self._writer = writer
        self._tells = tells
        self._dice = seed
        self._now = 0.0
        self._count = 0

    # asked from outside

    def submit(self, ask: Ask, now: float) -> None:
        """Take a request in; it is looked at when the next step begins."""
        limit = self.shape.max_model_len
        if ask.prompt_tokens + ask.output_tokens > limit:
            raise AskError(
                f"This model's maximum context length is {limit} tokens. However, you requested {ask.output_tokens} "
                f"output tokens and your prompt contains at least {ask.prompt_tokens} input tokens, for a total of at "
                f"least {ask.prompt_tokens + ask.output_tokens} tokens."
            )
        if self._blocks_for(ask.prompt_tokens + ask.output_tokens) > self.shape.num_blocks:
            raise AskError(
                f"the request needs {ask.prompt_tokens + ask.output_tokens} tokens of cache and the engine has "
                f"{self.shape.cache_tokens}"
            )
        if ask.id in self._known:
            raise AskError(f'request "{ask.id}" is being served already')
        assert ask.prompt_tokens > 0, "a prompt has at least one token"
        assert ask.output_tokens > 0, "an answer has at least one token"
        self._known[ask.id] = sequence = Sequence(ask, now)
        self.waiting.append(sequence)

    def abort(self, request: str, now: float) -> Ending | None:
        """Drop a request, whatever it is doing; None where there is no such request."""
        sequence = self._known.pop(request, None)
        if sequence is None:
            return None
        self._remove(sequence)
        self.pool.let_go(sequence.blocks)
        sequence.blocks = []
        return self._ending(sequence, Reason.ABORT, now)

    def release(self, request: str) -> bool:
        """Give back blocks that were kept for another engine; False where there are none."""
        kept = self._kept.pop(request, None)
        if kept is not None:
            self.pool.let_go(kept[1])
        return kept is not None

    def forget(self) -> bool:
        """Empty the prefix cache; False while requests hold blocks."""
        done = self.pool.forget()
        if done and self._tells:
            self.block_events.append(AllBlocksCleared())
        return done

    def keeps(self, request: str) -> bool:
        """Whether blocks of that request are kept for another engine."""
        return request in self._kept

    def unload(self, lora: str) -> None:
        """Take an adapter out of its slot."""
        self._slots.pop(lora, None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running, waiting or on its way."""
        return not (self.running or self.waiting or self._arriving)

    @property
    def usage(self) -> float:
        """The share of the cache that requests own."""
        return 1 - self.pool.free / self.shape.num_blocks

    def loras(self) -> tuple[set[str], set[str]]:
        """The adapters of requests that run and of requests that wait."""
        running = {one.ask.lora for one in self.running if one.ask.lora}
        return running, {one.ask.lora for one in self.waiting if one.ask.lora}

    # living through every step

    def begin_step(self, now: float) -> float | None:
        """Begin a step and tell when it ends; None where there is nothing to compute before `wakes_at`."""
        assert self._step is None, "one step at a time"
        self._now = now
        self._expire(now)
        self._land(now)
        step = self._schedule(now)
        if not step.work and self._make_room():
            step = self._schedule(now)
        self._step = step if step.work else None
        return step.ends_s if step.work else None

    @property
    def wakes_at(self) -> float | None:
        """When an engine that had nothing to compute looks again by itself: a request or a cache comes, or one kept is let go.

        A request may have come already: to a step whose end was noticed late, and after which the next one was to begin.
        """
        times = [one.arrived_s for one in self.waiting if one.arrived_s > self._now]
        if self._arriving:
            times.append(self._arriving[0][0])
        if self.waiting and self._kept:
            times.append(min(until for until, _ in self._kept.values()))
        return min(times, default=None)

    def _make_room(self) -> bool:
        """Whoever waits on a cache that was fetched gives it back, when otherwise nobody could go on."""
        holders = [one for one in self.waiting if one.blocks]
        for one in holders:
            self.pool.let_go(one.blocks)
            one.blocks, one.computed, one.learned = [], 0, 0
        return bool(holders) and not self._arriving

    def end_step(self) -> list[Happening]:
        """End the step that was begun: tokens are there."""
        step, self._step = self._step, None
        assert step is not None, "no step was begun"
        self._now = step.ends_s
        self.totals.steps += 1
        self.totals.busy_s += step.ends_s - step.began_s
        happened: list[Happening] = []
        for sequence, count in step.work:
            if self._known.get(sequence.ask.id) is sequence:  # not aborted while the step ran
                happened += self._computed(sequence, count, step.ends_s)
        return happened

    # running ahead

    def advance(self, until: float) -> list[Happening]:
        """Run to a moment and tell what happened; a step that would end later stays under way, one that would begin
        at that very moment does not begin yet: somebody may come in it.
        """
        happened: list[Happening] = []
        while True:
            step = self._step
            if step is None:
                start = self._next_start()
                if start >= until or (self.begin_step(start) is None and not self._sleep(until)):
                    return happened
                continue
            if step.ends_s > until:
                return happened
            if step.is_plain:
                self._stretch(step, until)
            happened += self.end_step()

    def _next_start(self) -> float:
        """When the next step can begin: at once, or when the first request comes to an idle engine."""
        if self.running or self._arriving:
            return self._now
        return max(self._now, min((one.arrived_s for one in self.waiting), default=inf))

    def _sleep(self, until: float) -> bool:
        """Pass the time in which nothing can be computed; False where it lasts longer than asked."""
        wakes_s = self.wakes_at
        if wakes_s is None or wakes_s > until:
            return False
        self._now = wakes_s
        return True

    def _stretch(self, step: Step, until: float) -> None:
        """Make one step of as many equal ones as fit before `until` and before anything changes."""
        running, size = len(step.work), self.shape.block_size
        most = min(one.ask.output_tokens - one.generated for one, _ in step.work)
        if self._arriving:
            until = min(until, self._arriving[0][0])
        if self._kept:
            until = min(until, min(end for end, _ in self._kept.values()))
        if self.waiting:
            until = min([until, *(one.arrived_s for one in self.waiting if one.arrived_s > step.began_s)])
        slower_s = self.shape.step.context_s * running
        count = min(most, _steps_within(until - step.began_s, step.ends_s - step.began_s, slower_s))
        while count > 1:
            new = sum(-(-(one.computed + count) // size) - len(one.blocks) for one, _ in step.work)
            if new <= self.pool.free:
                break
            count //= 2
        if count < 2:
            return
        length_s = step.ends_s - step.began_s
        step.ends_s = step.began_s + count * length_s + slower_s * count * (count - 1) / 2
        self.totals.steps += count - 1
        for place, (one, _) in enumerate(step.work):
            self._grow(one, one.computed + count)
            step.work[place] = (one, count)

    # one step

    def _schedule(self, now: float) -> Step:
        work: list[tuple[Sequence, int]] = []
        left = self._serve_running(work)
        if left > 0:
            work += self._let_in(left, now)
        step = self._timed(work, now)
        if left < 0:  # the next one lets in again whom this one has preempted, if there is room
            step.is_plain = False
        return step

    def _serve_running(self, work: list[tuple[Sequence, int]]) -> int:
        """Serve those that run, oldest first; the budget that is left, or -1 where one had to be preempted."""
        left, drafted, place, was_preempted = self.shape.max_num_batched_tokens, self.shape.speculation.tokens, 0, False
        while place < len(self.running):
            one = self.running[place]
            known = one.total - one.computed
            count = min(known, left)
            if count <= 0:
                break
            room = drafted if known == 1 else 0
            while not self._grow(one, one.computed + count + min(room, one.ask.output_tokens - one.generated - 1)):
                was_preempted = True
                self._preempt(self.running.pop())
                if place >= len(self.running):
                    break
            else:
                left -= count
                work.append((one, count))
                place += 1
                continue
            break
        return -1 if was_preempted else left

    def _let_in(self, left: int, now: float) -> Iterator[tuple[Sequence, int]]:
        """Let waiting requests in, in their order, while seats, budget, blocks and adapter slots last."""
        held: deque[Sequence] = deque()  # those whose adapter has no slot: others may pass
        active = {one.ask.lora for one in self.running if one.ask.lora}
        while self.waiting and left > 0 and len(self.running) < self.shape.max_num_seqs:
            one = self.waiting[0]
            if one.arrived_s > now:
                break
            if one.ask.lora and one.ask.lora not in active and len(active) >= self.shape.max_loras:
                held.append(self.waiting.popleft())
                continue
            count = self._admit(one, left, now)
            if count is None:
                break
            self.waiting.popleft()
            if count:
                if one.ask.lora:
                    active.add(one.ask.lora)
                left -= count
                self.running.append(one)
                yield one, count
        self.waiting.extendleft(reversed(held))

    def _admit(self, one: Sequence, left: int, now: float) -> int | None:
        """Give a waiting request its blocks; how many tokens it computes, 0 while its cache is fetched, None: no room."""
        size = self.shape.block_size
        if one.blocks:  # its cache came from elsewhere
            return min(one.total - one.computed, left) if self._grow(one, one.total) else None
        most = (one.total - 1) // size  # the last token is always computed: its output is wanted
        hits = self.pool.match(one.hashes, most) if self.shape.enable_prefix_caching else 0
        count = min(one.total - hits * size, left)
        end = one.total if one.ask.is_remote and not one.was_fetched else hits * size + count
        if not self.pool.can_take(one.hashes[:hits], self._blocks_for(end) - hits):
            return None
        self._count_lookup(one, hits * size, now)
        one.blocks = self.pool.share(one.hashes[:hits])
        one.learned = hits
        one.blocks += self.pool.take(self._blocks_for(end) - hits)
        one.computed = hits * size
        if one.ask.is_remote and not one.was_fetched:
            self._fetch(one, now)
            return 0
        self._learn(one, end)
        return count

    def _count_lookup(self, one: Sequence, found: int, now: float) -> None:
        if one.was_counted:
            return
        one.was_counted = True
        one.scheduled_s, one.cached = now, found
        self.totals.prefix_queries += one.total
        self.totals.prefix_hits += found
        self.totals.prompt_tokens += one.ask.prompt_tokens

    def _timed(self, work: list[tuple[Sequence, int]], now: float) -> Step:
        prefill = decodes = context = 0
        pairs = 0.0
        for one, count in work:
            if one.generated and count == 1 and one.total - one.computed == 1:
                decodes += 1
                context += one.computed
            else:
                prefill += count
                pairs += count * (one.computed + count / 2)
        tokens = self.shape.speculation.tokens
        step_s = self.shape.step.of(prefill, decodes * (1 + tokens), context, pairs)
        step_s += self.shape.speculation.draft_s * (tokens > 0 and decodes > 0) + self._load_loras(work)
        self.totals.computed_tokens += prefill
        return Step(now, now + step_s, work, prefill, is_plain=not prefill and not tokens and bool(work))

    def _load_loras(self, work: list[tuple[Sequence, int]]) -> float:
        """Bring adapters into slots, the one idle for longest out; the time that this takes."""
        loaded = 0
        for lora in {one.ask.lora: None for one, _ in work if one.ask.lora}:
            if lora not in self._slots:
                loaded += 1
            self._slots[lora] = None
            self._slots.move_to_end(lora)
        while len(self._slots) > self.shape.max_loras:
            self._slots.popitem(last=False)
        return loaded * self.shape.lora_load_s

    # blocks

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.shape.block_size)

    def _grow(self, one: Sequence, tokens: int) -> bool:
        """Own enough blocks for so many tokens; False where there are none left."""
        new = self._blocks_for(tokens) - len(one.blocks)
        if new > 0:
            if new > self.pool.free:
                return False
            one.blocks += self.pool.take(new)
        self._learn(one, min(tokens, one.total))
        return True

    def _learn(self, one: Sequence, tokens: int) -> None:
        """Make the whole blocks of the first so many tokens findable: they are computed by the end of this step."""
        self._tell_removed()
        size, whole = self.shape.block_size, tokens // self.shape.block_size
        if not self.shape.enable_prefix_caching or whole <= one.learned:
            return
        first = one.learned
        for place in range(first, whole):
            if place >= len(one.hashes) and not self._name(one, place, size):
                return
            is_new = self.pool.learn(one.blocks[place], one.hashes[place])
            one.learned = place + 1
            if not is_new:
                self._tell_stored(one, first, place)
                first = place + 1
        self._tell_stored(one, first, whole)

    def _name(self, one: Sequence, place: int, size: int) -> bool:
        """Name a block that the answer filled; False where nobody writes the answers."""
        if self._writer is None:
            return False
        parent = one.hashes[place - 1] if place else None
        tokens = one.tokens_of(place * size, (place + 1) * size)
        one.hashes.append(self._writer.next_hash(parent, tokens, one.ask.lora))
        return True

    def _tell_stored(self, one: Sequence, first: int, last: int) -> None:
        if not self._tells or last <= first:
            return
        size = self.shape.block_size
        self.block_events.append(
            BlockStored(
                tuple(one.hashes[first:last]),
                one.hashes[first - 1] if first else None,
                one.tokens_of(first * size, last * size),
                size,
                one.ask.lora,
            )
        )

    def _tell_removed(self) -> None:
        removed = self.pool.removed
        if removed:
            if self._tells:
                self.block_events.append(BlockRemoved(tuple(removed)))
            removed.clear()

    # what becomes of requests

    def _computed(self, one: Sequence, count: int, now: float) -> Iterator[Happening]:
        known = one.total - one.computed
        if count < known:
            one.computed += count
            return
        gained = count if known == 1 else 1  # a run of equal steps was taken at once
        if one.generated and known == count == 1:
            gained += self._drafted()
        yield self._gain(one, min(gained, one.ask.output_tokens - one.generated), now)
        if one.is_done:
            yield self._finish(one, now)

    def _gain(self, one: Sequence, gained: int, now: float) -> Emission:
        written: tuple[int, ...] = ()
        if self._writer is not None:
            written = tuple(self._writer.token(one.ask, one.generated + number) for number in range(gained))
            one.answer += written
        is_first = one.first_token_s < 0
        if is_first:
            one.first_token_s = now
        one.generated += gained
        one.computed = one.total - 1
        self.totals.generation_tokens += gained
        return Emission(now, one.ask.id, gained, is_first, written)

    def _drafted(self) -> int:
        """How many drafted tokens are right: each only if those before it were."""
        speculation, right = self.shape.speculation, 0
        if not speculation.tokens:
            return 0
        while right < speculation.tokens and self._chance() < speculation.acceptance:
            right += 1
        self.totals.drafted += speculation.tokens
        self.totals.accepted += right
        return right

    def _chance(self) -> float:
        """The next number in [0, 1) of this engine's own sequence (splitmix64)."""
        self._dice = (self._dice + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = self._dice
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)

    def _finish(self, one: Sequence, now: float) -> Ending:
        self._learn(one, one.computed)  # after a run of steps taken at once there is more than the last one told
        self.running.remove(one)
        del self._known[one.ask.id]
        if one.ask.is_kept:
            self._kept[one.ask.id] = (now + self.shape.lease_s, one.blocks)
        else:
            self.pool.let_go(one.blocks)
        one.blocks = []
        return self._ending(one, Reason.STOP if one.ask.ends_by_itself else Reason.LENGTH, now)

    def _ending(self, one: Sequence, reason: Reason, now: float) -> Ending:
        self.totals.endings[reason] += 1
        return Ending(
            now, one.ask.id, reason, one.ask.prompt_tokens, one.generated, one.cached, one.arrived_s, one.scheduled_s,
            one.first_token_s, one.preemptions,
        )  # fmt: skip

    def _preempt(self, one: Sequence) -> None:
        self.pool.let_go(one.blocks)
        one.blocks, one.computed, one.learned = [], 0, 0
        one.preemptions += 1
        self.totals.preemptions += 1
        self.waiting.appendleft(one)

    def _remove(self, one: Sequence) -> None:
        """Take a request off whichever list it stands on."""
        if one in self.running:
            self.running.remove(one)
        elif one in self.waiting:
            self.waiting.remove(one)
        else:
            self._arriving = sorted(entry for entry in self._arriving if entry[2] is not one)

    def _fetch(self, one: Sequence, now: float) -> None:
        """The prompt's cache comes over the network; the last token is computed here."""
        self._count += 1
        one.was_fetched = True
        missing = one.total - one.computed
        heappush(self._arriving, (now + missing * self.shape.transfer_s, self._count, one))

    def _land(self, now: float) -> None:
        """Caches that have come: their requests are next."""
        landed = []
        while self._arriving and self._arriving[0][0] <= now:
            one = heappop(self._arriving)[2]
            one.computed = one.total - 1
            self._learn(one, one.computed)
            landed.append(one)
        self.waiting.extendleft(reversed(landed))

    def _expire(self, now: float) -> None:
        """Blocks that nobody fetched in time come back."""
        for request in [name for name, (until, _) in self._kept.items() if until <= now]:
            self.release(request)


def _steps_within(room_s: float, first_s: float, slower_s: float) -> int:
    """How many steps fit, the first taking `first_s` and each `slower_s` more than the one before."""
    if room_s == inf:
        return 1 << 40
    if slower_s * room_s < first_s * first_s * 1e-12:
        return int(room_s / first_s)
    linear = first_s - slower_s / 2
    return int((sqrt(linear * linear + 2 * slower_s * room_s) - linear) / slower_s)
