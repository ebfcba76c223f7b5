"""Choose a prefill and a decode engine that belong together: the same group, the same topology domain, one revision if there is one.

Prefill by the pool's policy (who has the prompt, who has least to prefill), decode by room in the KV cache; where a chain of
Kthena's plug-ins is configured, it chooses both. `pair_plan.py` sends the request to the pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Chain, Look
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.pool import Pool

Bond = tuple[str, str]
"""What a pair has in common: group and topology domain."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines for one request."""

    prefill: Endpoint
    decode: Endpoint
    prefill_look: Look
    decode_look: Look


def bond(endpoint: Endpoint) -> Bond:
    """What the other half must have, too."""
    return endpoint.group, endpoint.domain


def choose_pair(
    prefill: Pool,
    decode: Pool,
    looks: tuple[Look, Look],
    without: tuple[Sequence[Endpoint], Sequence[Endpoint]],
) -> Pair | None:
    """The best pair that was not tried; None: there is none."""
    prefill_look, decode_look = looks
    prefills = prefill.candidates(prefill_look.now, without[0])
    decodes = decode.candidates(decode_look.now, without[1])
    passed = decodes
    if isinstance(decode.policy, Chain):
        for one in decode.policy.filters:
            passed = one.keep(decode_look, passed)
    bonds = {bond(one) for one in passed}
    first = prefill.choose(prefill_look, [one for one in prefills if bond(one) in bonds])
    if first is None:
        return None
    peers = [one for one in passed if bond(one) == bond(first)]
    peers = [one for one in peers if one.revision == first.revision] or peers
    second = choose_decode(decode, decode_look, peers)
    return Pair(first, second, prefill_look, decode_look) if second is not None else None


def choose_decode(pool: Pool, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
    """The engine with most room for the answer's KV blocks; dice among equals."""
    if not candidates:
        return None
    if isinstance(pool.policy, Chain):
        return pool.policy.choose(look, candidates)
    taken = [(share_taken(one), one.in_flight) for one in candidates]
    least = min(taken)
    best = [one for one, share in zip(candidates, taken, strict=True) if share == least]
    return best[int(look.dice() * len(best))]


def share_taken(endpoint: Endpoint) -> float:
    """How full its KV cache is: what we sent against its size, else what it says; tokens where neither is known."""
    if endpoint.cache_tokens:
        return endpoint.context_tokens / endpoint.cache_tokens
    return float(endpoint.context_tokens)


class DecodeCharge:
    """What a request counts on the engine that decodes it: tokens held and answered, no prefill."""

    __slots__ = ("_answer", "_context", "_is_over", "endpoint")

    def __init__(self, pool: Pool, endpoint: Endpoint, look: Look) -> None:
        self.endpoint = endpoint
        self._answer = int(min(look.question.output_tokens or 1 << 30, pool.pace.answer_tokens))
        self._context = look.tokens + self._answer
        self._is_over = False
        endpoint.begin(look.now)
        endpoint.context_tokens += self._context
        endpoint.decode_tokens += self._answer
        if look.blocks is not None and look.blocks.count:
            pool.index.insert(look.blocks, endpoint.slot, look.now)

    def end(self, now: float) -> None:
        """The request is over."""
        if not self._is_over:
            self._is_over = True
            self.endpoint.end(now)
            self.endpoint.context_tokens -= self._context
            self.endpoint.decode_tokens -= self._answer
