"""Stay with the engines that hold most of the prompt, until waiting for them costs too much: llm-d's `prefix-cache-affinity-filter`.

    warm: holds at least `share` of the prompt        estimated TTFT = uncached tokens in flight / prefill rate

Warm engines only, unless the best of them would answer later than the best cold one by more than `patience_s`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint


@dataclass(frozen=True, kw_only=True)
class PrefixAffinity:
    """A filter that gives way under saturation."""

    share: float = 0.8
    patience_s: float = 18.0
    """`maxTTFTPenaltyMs` in seconds."""
    rate: float | None = None
    """`peakPrefillThroughput` in tokens per second; None: what the pool has learned."""

    name = "prefix-affinity"
    wants_prefix = True

    def keep(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """The warm ones, or all."""
        least = self.share * look.tokens
        warm = [one for one in candidates if look.matched[one.slot] >= least]
        if not warm or len(warm) == len(candidates):
            return candidates
        cold = min(_queued(one) for one in candidates if look.matched[one.slot] < least)
        later_s = (min(map(_queued, warm)) - cold) / (self.rate or look.rate)
        return candidates if later_s > self.patience_s else warm

    def reason(self, look: Look, endpoint: Endpoint) -> str:
        """What it holds."""
        share = look.matched[endpoint.slot] / max(1, look.tokens)
        return f"it holds {share:.0%} of the prompt, and others hold {self.share:.0%} or more"


def _queued(one: Endpoint) -> int:
    return one.prefill_tokens + one.elsewhere_prefill_tokens
