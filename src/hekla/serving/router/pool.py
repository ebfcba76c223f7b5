"""The endpoints of one model server with their policy and memory: who may be asked, who is chosen, and what is counted on whom.

Pure: time and dice come in. `local_plan.py` takes one request through it; `endpoints.py` has the records.
"""

from collections.abc import Sequence

from hekla.serving.router.choosing import Dice, Look, Policy
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.pace import Pace
from hekla.serving.router.prefix.blocks import BLOCK_BYTES, MOST_BLOCKS, Blocks, seed_of
from hekla.serving.router.prefix.index import PrefixIndex
from hekla.serving.router.question import Question

HALF_LIFE_S = 300.0
"""How fast what was assigned is forgotten."""
SETTLE_EVERY_S = 1.0


class Pool:
    """One model server's endpoints."""

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        policy: Policy,
        dice: Dice,
        *,
        index: PrefixIndex | None = None,
        block_bytes: int = BLOCK_BYTES,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        self.name = name
        self.fleet = fleet
        self.policy = policy
        self.pace = Pace()
        self.members: list[Endpoint] = []
        self.waiting = 0
        """Requests of this pool that are sent and have no first byte yet."""
        self.index = index if index is not None else PrefixIndex()
        self._dice = dice
        self._block_bytes = block_bytes
        self._most_blocks = most_blocks
        self._mask = 0
        self._nothing: list[int] = []
        self._seeds: dict[str, int] = {}
        self._benched: set[Endpoint] = set()
        self._settled = 0.0

    def join(self, endpoint: Endpoint) -> Endpoint:
        """An engine is ready, or its pod changed; counts and metrics are kept, a cache that began anew is not."""
        known = self.fleet.by_name.get(f"{endpoint.namespace}/{endpoint.name}")
        before = known.incarnation if known else endpoint.incarnation
        one = self.fleet.add(endpoint)
        if one.incarnation != before:
            self.index.forget(one.slot)
        if one not in self.members:
            self.members.append(one)
            self._mask |= 1 << one.slot
            self._nothing = [0] * (self._mask.bit_length())
        return one

    def leave(self, endpoint: Endpoint) -> None:
        """It takes no more requests of this pool; those in flight end on its record."""
        if endpoint in self.members:
            self.members.remove(endpoint)
            self._benched.discard(endpoint)
            self._mask &= ~(1 << endpoint.slot)
            self.index.forget(endpoint.slot)

    def candidates(self, now: float, without: Sequence[Endpoint] = ()) -> Sequence[Endpoint]:
        """Who may be asked: nobody twice, nobody who failed a moment ago, unless nobody else is left."""
        if self._benched:
            self._benched = {one for one in self._benched if one.benched_until > now}
        if not self._benched and not without:
            return self.members
        left = [one for one in self.members if one not in without]
        return [one for one in left if one not in self._benched] or left

    def look(self, question: Question, now: float, *, adapter: str = "", session: str = "") -> Look:
        """What policies look at for this request."""
        if now - self._settled >= SETTLE_EVERY_S:
            self._settle(now)
        matched: Sequence[int] = self._nothing
        blocks = None
        if self.policy.wants_prefix:
            blocks = Blocks(question.prompt, self._seed(question.model), self._block_bytes, self._most_blocks)
            found = self.index.match(blocks, self._mask)
            if found:
                matched = self._by_slot(found, question)
        return Look(
            question,
            question.input_tokens,
            matched,
            blocks,
            now,
            self._dice,
            self.pace.prefill_rate,
            self.waiting / (len(self.members) or 1),
            adapter=adapter,
            session=session,
        )

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """The policy's choice."""
        return self.policy.choose(look, candidates)

    def charge(self, look: Look, endpoint: Endpoint) -> "Charge":
        """Count a request on the endpoint that it is sent to, and remember that it will hold the prompt."""
        if look.blocks is not None and look.blocks.count:
            self.index.insert(look.blocks, endpoint.slot, look.now)
        return Charge(self, endpoint, look)

    def fault(self, endpoint: Endpoint, now: float) -> None:
        """An attempt failed: it sits out for a while."""
        endpoint.fault(now)
        if endpoint in self.members:
            self._benched.add(endpoint)

    def _seed(self, model: str) -> int:
        seed = self._seeds.get(model)
        if seed is None:
            if len(self._seeds) > 1024:  # names of adapters come from clients
                self._seeds.clear()
            seed = self._seeds[model] = seed_of(model)
        return seed

    def _by_slot(self, found: list[tuple[int, int]], question: Question) -> list[int]:
        """Matched tokens by slot; the same share of the tokens as of the bytes."""
        matched = self._nothing[:]
        per_block = self._block_bytes * question.input_tokens / len(question.prompt)
        for holders, depth in found:
            tokens = int(depth * per_block)
            while holders:
                bit = holders & -holders
                matched[bit.bit_length() - 1] = tokens
                holders ^= bit
        return matched

    def _settle(self, now: float) -> None:
        """Let what was assigned fade, and forget prompts that are too old."""
        fade = 0.5 ** ((now - self._settled) / HALF_LIFE_S)
        for one in self.members:
            one.assigned *= fade
        self.index.expire(now)
        self._settled = now


class Charge:
    """What one request counts on one endpoint, taken back exactly once."""

    __slots__ = ("_ahead", "_answer", "_context", "_pool", "_sent", "_state", "_uncached", "endpoint")

    def __init__(self, pool: Pool, endpoint: Endpoint, look: Look) -> None:
        self._pool = pool
        self.endpoint = endpoint
        self._sent = look.now
        self._uncached = max(1, look.tokens - look.matched[endpoint.slot])
        asked = look.question.output_tokens
        self._answer = int(min(asked or 1 << 30, pool.pace.answer_tokens))
        self._context = look.tokens + self._answer
        endpoint.in_flight += 1
        endpoint.prefill_tokens += self._uncached
        endpoint.context_tokens += self._context
        endpoint.decode_tokens += self._answer
        endpoint.assigned += self._uncached
        pool.waiting += 1
        self._ahead = endpoint.prefill_tokens
        self._state = 0

    def first_byte(self, now: float) -> None:
        """Prefill is over."""
        if self._state:
            return
        self._state = 1
        self._pool.waiting -= 1
        self.endpoint.prefill_tokens -= self._uncached
        self.endpoint.answered()
        self._pool.pace.first_byte(self._ahead, now - self._sent)
        self._sent = now

    def end(self) -> None:
        """The request is over, however it went."""
        if self._state == 2:
            return
        one = self.endpoint
        if not self._state:
            self._pool.waiting -= 1
            one.prefill_tokens -= self._uncached
        one.in_flight -= 1
        one.context_tokens -= self._context
        one.decode_tokens -= self._answer
        self._state = 2

    def answered_for(self, now: float) -> float:
        """Seconds since the first byte; 0 where there was none."""
        return now - self._sent if self._state == 1 else 0.0
