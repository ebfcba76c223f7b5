"""The endpoints of one model server with their policy and memory: who may be asked, who is chosen, and what is counted on whom.

Pure: time and dice come in. `local_plan.py` takes one request through it; `endpoints.py` has the records.
"""

from collections.abc import Callable, Sequence
from ctypes import addressof
from math import exp, inf

import msgspec
from msgspec import Struct

from hekla.serving.router.choosing import Dice, Look, Policy
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.kernel.layout import LONG, NO_ROOM, SLOT_BITS
from hekla.serving.router.pace import Pace
from hekla.serving.router.plan import Usage
from hekla.serving.router.plugin_times import SCORE, PluginTimes, TimedPolicy
from hekla.serving.router.policies.lora_affinity import LoraAffinity
from hekla.serving.router.policies.session_affinity import Sessions
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.prefix.blocks import BLOCK_BYTES, MOST_BLOCKS, Blocks, seed_of
from hekla.serving.router.prefix.flat_index import FlatIndex
from hekla.serving.router.prefix.index import PrefixIndex, PromptMemory
from hekla.serving.router.prefix.tally import MatchTally
from hekla.serving.router.prefix.token_blocks import Tokens
from hekla.serving.router.question import Question
from hekla.serving.router.reckoning import Wheel

HALF_LIFE_S = 300.0
"""How fast what was assigned is forgotten."""
LATELY_S = 30.0
"""The time constant with which prompts sent are forgotten where it is asked how busy an endpoint is."""
ANSWER_WEIGHT = 16
"""Uncached tokens that a token of an answer is as much work as, when work is to be even over minutes."""
SETTLE_EVERY_S = 1.0
GUESS_S = 5.0
"""How long a guess counts beside an endpoint's own word: until that must have arrived."""
MOST_SEEDS = 1024
MOST_SETS = 1024
FEW = 16
SOONEST = Soonest.__name__.lower()
_SLOT = (1 << SLOT_BITS) - 1

_ADAPTERS = LoraAffinity()
_token_ids = msgspec.json.Decoder(list[int]).decode


class Pool:
    """One model server's endpoints."""

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        policy: Policy,
        dice: Dice,
        *,
        index: PromptMemory | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.name = name
        self.fleet = fleet
        self._policy = policy
        self.pace = Pace()
        self.sessions = Sessions()
        self.matches = MatchTally()
        self.members: list[Endpoint] = []
        self.absence = ""
        """Why it has none, as an ending of a sentence; empty: it is not known. `holding.py` writes it for each that meets nobody."""
        self.index: PromptMemory = index if index is not None else PrefixIndex()
        self.on_sent: Callable[[Blocks, Endpoint], None] | None = None
        """Told of each prompt that is sent; other routers want to know."""
        self.block_bytes = block_bytes
        self.most_blocks = MOST_BLOCKS
        self.follows_cache = True
        """Whether the memory of prompts is sized from what engines tell of their caches."""
        self._dice = dice
        self._just_sent = PrefixIndex(ttl_s=GUESS_S)
        self._mask = 0
        self._nothing: list[int] = []
        self._seeds: dict[str, int] = {}
        self._slots: dict[int, tuple[int, ...]] = {}
        self._benched: set[Endpoint] = set()
        self._settled = -inf
        self._began = 0.0
        """When its first request came."""
        self._token_load = 0.0
        self._step_s = self.pace.tpot_s
        self._unseen: Wheel[Charge] = Wheel()
        """By when their prefill is reckoned to be over: requests whose answers come as a whole."""
        self._at: list[Endpoint | None] = []
        """Members by slot."""
        self._kernel: Kernel | None = None
        self._flat: FlatIndex | None = None
        """The index, where the policy has a compiled form and this is in use."""
        self._times: PluginTimes | None = None
        self.reckon: Callable[[float], None] | None = None
        """Brings what the fast lane counts up to now."""

    @property
    def policy(self) -> Policy:
        """How this pool chooses."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self._fit()

    def see(self, block_bytes: int, most_blocks: int, *, follows_cache: bool) -> None:
        """How prompts are remembered; what was remembered of other blocks is forgotten."""
        if (self.block_bytes, self.most_blocks, self.follows_cache) != (block_bytes, most_blocks, follows_cache):
            self.index = PrefixIndex()
        self.block_bytes, self.most_blocks, self.follows_cache = block_bytes, most_blocks, follows_cache
        self._fit()

    def use(self, kernel: Kernel) -> None:
        """Decide in machine code from now on, wherever the policy has that form: the same choices, sooner."""
        self._kernel = kernel
        self._fit()

    def _fit(self) -> None:
        """Have the compiled form know the policy, the memory and the members, or do without it."""
        self.fleet.changes += 1
        policy, kernel, self._flat, self._times = self._policy, self._kernel, None, None
        if isinstance(policy, TimedPolicy):
            self._times = policy.times
            policy = policy.policy
        if kernel is None or not isinstance(policy, Soonest) or self.block_bytes < LONG:
            return
        if isinstance(self.index, PrefixIndex):
            self.index = FlatIndex.of(self.index, kernel)
        assert isinstance(self.index, FlatIndex), "there are two forms"
        self._flat = flat = self.index
        flat.see(self.block_bytes, self.most_blocks)
        flat.weigh_by(policy.weights, self._token_load, self._step_s)
        flat.choose_among([(addressof(one), one.slot) for one in self.members])
        self._decide, self._state = kernel.decide, flat.state

    def join(self, endpoint: Endpoint) -> Endpoint:
        """An engine is ready, or its pod changed; counts and metrics are kept, a cache that began anew is not."""
        known = self.fleet.by_name.get(f"{endpoint.namespace}/{endpoint.name}")
        before = known.incarnation if known else endpoint.incarnation
        one = self.fleet.add(endpoint)
        if one.incarnation != before:
            self.forget(one)
        if one not in self.members:
            self.members.append(one)
            self._mask |= 1 << one.slot
            if one.benched_until:  # its pod was not ready for a while, or another pool has it, too
                self._benched.add(one)
            self._know_members()
        return one

    def leave(self, endpoint: Endpoint) -> None:
        """It takes no more requests of this pool; those in flight end on its record."""
        if endpoint in self.members:
            self.members.remove(endpoint)
            self._benched.discard(endpoint)
            self._mask &= ~(1 << endpoint.slot)
            self.index.forget(endpoint.slot)
            self._just_sent.forget(endpoint.slot)
            self._know_members()

    def _know_members(self) -> None:
        """What is kept of the members beside their list."""
        slots = max((one.slot + 1 for one in self.members), default=0)
        self._nothing = [0] * slots
        self._at = [None] * slots
        for one in self.members:
            self._at[one.slot] = one
        self._fit()

    def forget(self, endpoint: Endpoint) -> None:
        """Its cache began anew: nothing of what it held is left."""
        self.index.forget(endpoint.slot)
        self._just_sent.forget(endpoint.slot)
        self.fleet.precise.forget(endpoint.slot)

    def candidates(self, now: float, without: Sequence[Endpoint] = ()) -> Sequence[Endpoint]:
        """Who may be asked: nobody twice, nobody who failed a moment ago, unless nobody else is left."""
        if self._benched:
            self._benched = {one for one in self._benched if one.benched_until > now}
            self.fleet.changes += not self._benched
        if not self._benched and not without:
            return self.members
        left = [one for one in self.members if one not in without]
        return [one for one in left if one not in self._benched] or left

    def look(self, question: Question, now: float, *, adapter: str = "", session: str = "") -> Look:
        """What policies look at for this request."""
        self._keep_up(now)
        matched: Sequence[int] = self._nothing
        blocks = None
        if self._policy.wants_prefix:
            prompt, seed = question.prompt, self._seeds.get(question.model)
            if seed is None:
                seed = self._seed(question.model)
            blocks = Blocks(prompt, seed, self.block_bytes, self.most_blocks)
            found = self.index.match(blocks, self._mask)
            if found:
                matched = self._by_slot(found, self.block_bytes * question.input_tokens / len(prompt))
            if self.fleet.precise.holders:
                matched = self._as_told(matched, question, blocks, adapter)
        return Look(
            question,
            question.input_tokens,
            matched,
            blocks,
            now,
            self._dice,
            self.pace.prefill_rate,
            self._token_load,
            self._step_s,
            adapter,
            session,
        )

    def _keep_up(self, now: float) -> None:
        """What time has brought since the last request."""
        if self.reckon is not None:
            self.reckon(now)
        if now - self._settled >= SETTLE_EVERY_S:
            self._settle(now)
        if now >= self._unseen.next_s:
            for charge in self._unseen.over(now):
                charge.prefilled()

    def send(self, question: Question, now: float) -> "Charge | None":
        """The common request, looked up, weighed, counted and remembered in one call of machine code; None: it is no such one."""
        if self._flat is None or self._benched or self.fleet.precise.holders:
            return None
        if now - self._settled >= SETTLE_EVERY_S or now >= self._unseen.next_s:
            self._keep_up(now)
        times = self._times
        began = times.clock() if times is not None and times.is_due() else 0.0
        prompt, seed, tokens, pace = question.prompt, self._seeds.get(question.model), question.input_tokens, self.pace
        if seed is None:
            seed = self._seed(question.model)
        mean, asked = pace.answer_tokens, question.output_tokens
        answer = asked if 0 < asked < mean else int(mean)
        size, rate = len(prompt), pace.prefill_rate
        found = self._decide(self._state, prompt, size, seed, tokens, answer, now, rate)
        if found == NO_ROOM:
            self._flat.grow()
            found = self._decide(self._state, prompt, size, seed, tokens, answer, now, rate)
        if found < 0:
            return None
        if began and times is not None:
            times.note(question.model, SOONEST, SCORE, times.clock() - began)
        held, endpoint = found >> SLOT_BITS, self._at[found & _SLOT]
        assert endpoint is not None, "members are known by their slots"
        if size >= self.block_bytes:
            self.matches.note(question.model, held, tokens or 1)
            if self.on_sent is not None or endpoint.has_events:
                self._tell_of(Blocks(prompt, seed, self.block_bytes, self.most_blocks), endpoint, now)
        uncached = tokens - held if held < tokens else 1
        ahead, is_seen = endpoint.prefill_tokens, question.is_stream
        charge = Charge(self, endpoint, uncached, tokens + answer, answer, ahead, now, now, is_seen)
        if not is_seen:
            self._unseen.add(charge, now + ahead / rate)
        return charge

    @property
    def compiled(self) -> FlatIndex | None:
        """The memory of prompts by which machine code may decide for any plain request now; None: it may not."""
        if self._flat is None or self._benched or self.fleet.precise.holders or self.on_sent is not None:
            return None
        return None if any(one.has_events or one.headers for one in self.members) else self._flat

    @property
    def times(self) -> PluginTimes | None:
        """Where it is noted how long choices took."""
        return self._times

    def seed(self, model: str) -> int:
        """What a model's blocks are hashed with."""
        found = self._seeds.get(model)
        return self._seed(model) if found is None else found

    def keep_up(self, now: float) -> None:
        """What time has brought, without a request."""
        if now - self._settled >= SETTLE_EVERY_S or now >= self._unseen.next_s:
            self._keep_up(now)

    def await_prefill(self, charge: "Charge", due_s: float) -> None:
        """A request that others counted: by when its prefill is reckoned to be over."""
        self._unseen.add(charge, due_s)

    def _tell_of(self, blocks: Blocks, endpoint: Endpoint, now: float) -> None:
        """A prompt was sent."""
        if self.on_sent is not None:
            self.on_sent(blocks, endpoint)
        if endpoint.has_events:
            self._just_sent.insert(blocks, endpoint.slot, now)

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """Where its session is, or else the policy's choice, among those that have its adapter if any tells so."""
        if look.session and (home := self.sessions.home(look.session, candidates, look.now)):
            return home
        return self._policy.choose(look, self.eligible(look, candidates) if look.adapter else candidates)

    def eligible(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those with the adapter that is asked for, if any tells that it has it."""
        return _ADAPTERS.keep(look, candidates) or candidates

    def charge(self, look: Look, endpoint: Endpoint, *, is_leg: bool = False) -> "Charge":
        """Count a request on the endpoint that it is sent to, and remember that it will hold the prompt.

        A leg's answer comes when prefill is over, and so does the first byte of a stream. An answer that is no stream comes when
        all is over; the end of its prefill is reckoned.
        """
        question, tokens, matched, blocks, now = look.question, look.tokens, look.matched, look.blocks, look.now
        slot = endpoint.slot
        held = matched[slot] if slot < len(matched) else 0
        if blocks is not None and blocks.count:
            self.matches.note(question.model, held, tokens or 1)
            self.index.insert(blocks, slot, now)
            self._tell_of(blocks, endpoint, now)
        if look.session:
            self.sessions.settle(look.session, endpoint, now)
        mean, asked = self.pace.answer_tokens, question.output_tokens
        uncached = tokens - held if held < tokens else 1  # the last token is always computed
        answer = asked if 0 < asked < mean else int(mean)
        context = tokens + answer
        endpoint.begin(now)
        endpoint.unanswered += 1
        ahead = endpoint.prefill_tokens = endpoint.prefill_tokens + uncached
        endpoint.prefilled_lately += uncached
        endpoint.context_tokens += context
        endpoint.decode_tokens += answer
        endpoint.assigned += uncached + ANSWER_WEIGHT * answer
        is_seen = is_leg or question.is_stream
        charge = Charge(self, endpoint, uncached, context, answer, ahead, now, now, is_seen)
        if not is_seen:
            self._unseen.add(charge, now + ahead / self.pace.prefill_rate)
        return charge

    def learn(self, charge: "Charge", prompt_bytes: int, usage: Usage, now: float) -> None:
        """An answer ended whole, and its engine counted its tokens."""
        charge.endpoint.heard_at = now
        answering_s = now - charge.since if charge.is_seen and charge.is_answered else 0.0
        self.pace.ended(prompt_bytes, usage.input_tokens, usage.output_tokens, answering_s)
        if not charge.is_seen and usage.output_tokens <= 1:  # an embedding, a score: all of it was prefill
            self.pace.first_byte(charge.ahead, now - charge.sent)

    def fault(self, endpoint: Endpoint, now: float, *, is_busy: bool = False) -> None:
        """An attempt failed: it sits out for a while, and so do the other ranks of its engine.

        For longer where it has failed again and again lately; not a busy one, which has no room at the moment, nor one that is alone:
        nobody else would be asked, and whoever is held for it would wait on when it is back.
        """
        beside = [one for one in self.members if _is_of_same_engine(one, endpoint)] if endpoint.headers else []
        out = beside or [endpoint]
        is_ill = not is_busy and len(out) < len(self.members)
        for one in out:
            one.fault(now, is_ill=is_ill)
            if one in self.members:
                self._benched.add(one)
        self.fleet.changes += 1

    def _seed(self, model: str) -> int:
        if len(self._seeds) >= MOST_SEEDS:  # names of adapters come from clients
            self._seeds.clear()
        seed = self._seeds[model] = seed_of(model)
        return seed

    def _by_slot(self, found: list[tuple[int, int]], per_block: float) -> list[int]:
        """Matched tokens by slot; the same share of the tokens as of the bytes."""
        matched, most = self._nothing, 0
        if len(found) == 1 and found[0][0] == self._mask:  # a beginning that all were sent, and nobody more of it
            return [int(found[0][1] * per_block)] * len(matched)
        if len(self.members) > FEW:  # a system prompt that nearly all have: one fill instead of a step for each
            most, depth = max(found, key=_count)
            matched = [int(depth * per_block)] * len(matched)
            found.append((self._mask & ~_union(found), 0))
        else:
            matched = matched[:]
        for holders, depth in found:
            if holders != most:
                tokens = int(depth * per_block)
                for slot in self._slots.get(holders) or self._slots_of(holders):
                    matched[slot] = tokens
        return matched

    def _slots_of(self, holders: int) -> tuple[int, ...]:
        """The slots of a set of endpoints; few sets come up, so they are remembered: 0.1 us instead of 1."""
        if len(self._slots) >= MOST_SETS:
            self._slots.clear()
        slots = self._slots[holders] = tuple(slot for slot in range(holders.bit_length()) if holders >> slot & 1)
        return slots

    def _as_told(self, guessed: Sequence[int], question: Question, blocks: Blocks, adapter: str) -> Sequence[int]:
        """Where a prompt's token ids are known, what engines told goes before guesses, but for what was sent a moment ago."""
        tokens: Tokens | None = question.token_ids
        if tokens is None and question.is_tokens:
            tokens = _ids_of(question.prompt)
        if tokens is None:
            return guessed
        told = _tokens_by_slot(self.fleet.precise.match(tokens, self._mask, adapter), 1)
        per_block = self.block_bytes * question.input_tokens / len(question.prompt)
        young = _tokens_by_slot(self._just_sent.match(blocks, self._mask), per_block)
        matched = list(guessed)
        for one in self.members:
            if one.has_events:
                matched[one.slot] = max(told.get(one.slot, 0), young.get(one.slot, 0))
        return matched

    def _settle(self, now: float) -> None:
        """Once a second: let what was assigned fade, forget old prompts, and size the memory as engines tell their caches' sizes."""
        if self._settled == -inf:
            self._began = now
        passed_s = now - self._settled
        fade, fast = 0.5 ** (passed_s / HALF_LIFE_S), exp(-passed_s / LATELY_S)
        for one in self.members:
            if one.in_flight:
                one.busy_s += now - one.busy_since
                one.busy_since = now
            one.assigned *= fade
            one.busy_s *= fade
            one.prefilled_lately *= fast
            if one.cache_tokens and self.follows_cache:
                capacity = int(one.cache_tokens * self.pace.bytes_per_token / self.block_bytes)
                self.index.resize(one.slot, capacity)
        seen_s = LATELY_S * (1 - exp(-max(SETTLE_EVERY_S, now - self._began) / LATELY_S))
        self._token_load, self._step_s = 1 / (self.pace.prefill_rate * seen_s), self.pace.tpot_s
        if self._flat is not None:
            self._flat.load_by(self._token_load, self._step_s)
        self.index.expire(now)
        self._just_sent.expire(now)
        self._settled = now


class Charge(Struct, gc=False):
    """What one request counts on one endpoint, taken back exactly once."""

    pool: Pool
    endpoint: Endpoint
    uncached: int
    context: int
    answer: int
    ahead: int
    """Tokens to prefill until its own are done."""
    since: float
    """When it was sent, or when its first byte came."""
    sent: float
    is_seen: bool = True
    """Whether its first byte shows that prefill is over."""
    is_answered: bool = False
    """Whether its first byte came."""
    is_prefilled: bool = False
    is_over: bool = False

    def first_byte(self, now: float) -> None:
        """The answer began; of a stream, prefill is over."""
        if self.is_answered or self.is_over:
            return
        self.is_answered = True
        endpoint = self.endpoint
        if not self.is_prefilled:
            self.is_prefilled = True
            endpoint.unanswered -= 1
            endpoint.prefill_tokens -= self.uncached
        if endpoint.faults:
            endpoint.answered(now)
        if self.is_seen:
            endpoint.heard_at = now
            self.pool.pace.first_byte(self.ahead, now - self.since)
        self.since = now

    def prefilled(self) -> None:
        """Prefill is over, or must be."""
        if not self.is_prefilled and not self.is_over:
            self.is_prefilled = True
            self.endpoint.unanswered -= 1
            self.endpoint.prefill_tokens -= self.uncached

    def end(self, now: float) -> None:
        """The request is over, however it went."""
        if self.is_over:
            return
        if not self.is_prefilled:
            self.prefilled()
        self.is_over, one = True, self.endpoint
        one.end(now)
        one.context_tokens -= self.context
        one.decode_tokens -= self.answer


def _is_of_same_engine(one: Endpoint, other: Endpoint) -> bool:
    return (one.host, one.port, one.incarnation) == (other.host, other.port, other.incarnation)


def _tokens_by_slot(found: list[tuple[int, int]], per_depth: float) -> dict[int, int]:
    tokens = {}
    for holders, depth in found:
        while holders:
            tokens[(holders & -holders).bit_length() - 1] = int(depth * per_depth)
            holders &= holders - 1
    return tokens


def _count(pair: tuple[int, int]) -> int:
    return pair[0].bit_count()


def _union(found: list[tuple[int, int]]) -> int:
    union = 0
    for holders, _ in found:
        union |= holders
    return union


def _ids_of(prompt: bytes) -> list[int] | None:
    """The token ids of a prompt that came as such; None for several prompts in one request."""
    try:
        return _token_ids(prompt)
    except msgspec.DecodeError:
        return None
