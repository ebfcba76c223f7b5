"""Send a request where its first token comes soonest, and charge for prefill that a cache elsewhere would have saved. The default.

    cost(endpoint) = tokens waiting for prefill there
                   + price * tokens of this prompt that it has not cached
                   + context * tokens that its running requests hold
                   + evenness * tokens sent there in the last minutes

in tokens; the lowest wins. The first two are the time to first token times the prefill rate, so a cached prefix is worth just
the queue that it saves, and a crowd on one prefix spreads by itself: no threshold, no calibration to wait for. `price` above 1
stands for others: prefill done twice delays whoever comes next. The last two decide among equals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look, Weighed
from hekla.serving.router.endpoints import Endpoint


@dataclass(frozen=True, kw_only=True)
class Soonest:
    """The least work before the first token, counted in tokens."""

    price: float = 1.5
    """What an uncached token of this prompt costs beside one that waits already."""
    context: float = 0.01
    """What a token held by a running request costs: it slows every step a little and fills the cache."""
    evenness: float = 0.01
    """What a token sent in the last minutes costs."""

    wants_prefix = True

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """One pass; `weigh` says the same in words, and a property test holds the two together."""
        matched, price, context, evenness = look.matched, self.price, self.context, self.evenness
        best, lowest = None, float("inf")
        for one in candidates:
            cost = (
                one.prefill_tokens
                + one.elsewhere_prefill_tokens
                - price * matched[one.slot]
                + context * one.context_tokens
                + evenness * one.assigned
            )
            if cost < lowest:
                best, lowest = one, cost
        return best

    def weigh(self, look: Look, candidates: Sequence[Endpoint]) -> Weighed:
        """The parts of each cost."""
        columns = {
            "queued tokens": {e.name: float(e.prefill_tokens + e.elsewhere_prefill_tokens) for e in candidates},
            "uncached tokens": {e.name: self.price * (look.tokens - look.matched[e.slot]) for e in candidates},
            "held tokens": {e.name: self.context * e.context_tokens for e in candidates},
            "recent tokens": {e.name: self.evenness * e.assigned for e in candidates},
        }
        totals = {e.name: sum(column[e.name] for column in columns.values()) for e in candidates}
        return Weighed(columns=columns, totals=totals, is_cost=True)
