"""Send a request where its first token comes soonest, and let its prefill cost what it costs the others too. The default.

    cost(endpoint)  = tokens that wait for prefill there
                    + price(endpoint) * tokens of this prompt that it has not cached
                    + context * tokens that its running requests hold
                    + evenness * tokens of work sent there in the last minutes
                    + busyness * prefill rate * seconds in which it was at work in the last minutes
                    + underway * prefill rate * (half a step - seconds since one was seen to end there), while that is above 0
    price(endpoint) = base + company * requests that wait there + standing * load / (1 - load)

in tokens; the lowest wins. The first two are the time to first token times the prefill rate, so a cached prefix is worth the queue that
it saves, and there is no threshold to calibrate. A prompt's prefill also delays others, and the price is for them:

    those who wait there now    Engines take waiting prompts into one step and answer all of them at its end: each waits for all.
    those who will come         At a load of 0.3 about half a request stands in a queue, at 0.9 nine (rho / (1 - rho)): where much is
                                sent all the time, a hit is worth a little and work is better done elsewhere. `load` is the share of
                                the last half minute that prompts sent there took. Moments are noise; this is what tells a crowd that
                                stays from a burst, so that conversations spread over idle replicas and do not leave their caches
                                for a queue that is over soon.

An engine looks at who has come when a step ends. One whose answer began or ended a moment ago has just begun the next, so whoever is
sent there waits for nearly all of it, where the others are half through on average. It is also the one that has just got less to do, which
is how the other terms would find it. Only that much is known of a step: guessing when those after it end fails by the network's milliseconds.

`base` is what a hit is worth beyond its own time where nobody waits: cache that is not filled twice. `context`, `evenness` and `busyness` decide among
equals; without them idle endpoints would be filled in the order of their slots.

The numbers were chosen by `hekla route replay` on Mooncake's and Azure's traces, 4 to 32 replicas; docs/explanation/routing.md has the tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look, Weighed
from hekla.serving.router.endpoints import Endpoint

MOST_LOAD = 0.97
"""More than this is as good as always busy."""


@dataclass(frozen=True, kw_only=True)
class Soonest:
    """The least work before the first token, counted in tokens."""

    base: float = 2.5
    """What an uncached token of this prompt costs beside one that waits already, where nobody waits."""
    company: float = 0.5
    """What it costs more for each request that waits there."""
    standing: float = 2.0
    """What it costs more for each request that stands in the queue on average, by the load of the last half minute."""
    dearest: float = 32.0
    """What it costs at most."""
    context: float = 0.003
    """What a token held by a running request costs: it slows every step a little and fills the cache."""
    evenness: float = 0.003
    """What a token sent in the last minutes costs."""
    busyness: float = 0.0075
    """What the prefill that could have been done in the time at work in the last minutes costs, per token."""
    underway: float = 1.0
    """What the prefill costs, per token, that could be done while the rest of a step is waited for."""

    wants_prefix = True

    @property
    def weights(self) -> tuple[float, ...]:
        """For the compiled form, in the order of `kernel/layout.py`."""
        return (
            self.base,
            self.company,
            self.standing,
            self.dearest,
            self.context,
            self.evenness,
            self.busyness,
            self.underway,
        )

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """One pass; `weigh` says the same in parts, `kernel/compiled.py` in machine code, and property tests hold them together."""
        tokens, matched, base, company, dearest = look.tokens, look.matched, self.base, self.company, self.dearest
        context, evenness, busyness = self.context, self.evenness, self.busyness * look.rate
        token_load, standing = look.token_load, self.standing
        underway, last = self.underway * look.rate, look.now - look.step_s / 2
        best, lowest = None, float("inf")
        for one in candidates:
            load = one.prefilled_lately * token_load
            price = base + company * one.unanswered
            price += standing * load / (1 - load) if load < MOST_LOAD else dearest
            cost = (
                one.prefill_tokens
                + one.elsewhere_prefill_tokens
                + (price if price < dearest else dearest) * (tokens - matched[one.slot])
                + context * one.context_tokens
                + evenness * one.assigned
                + busyness * one.busy_s
            )
            if one.heard_at > last and one.in_flight:
                cost += underway * (one.heard_at - last)
            if cost < lowest:
                best, lowest = one, cost
        return best

    def weigh(self, look: Look, candidates: Sequence[Endpoint]) -> Weighed:
        """The parts of each cost."""
        busyness = self.busyness * look.rate
        columns = {
            "queue": {e.name: float(e.prefill_tokens + e.elsewhere_prefill_tokens) for e in candidates},
            "uncached": {e.name: self._price(look, e) * (look.tokens - look.matched[e.slot]) for e in candidates},
            "held": {e.name: self.context * e.context_tokens for e in candidates},
            "recent": {e.name: self.evenness * e.assigned for e in candidates},
            "busy": {e.name: busyness * e.busy_s for e in candidates},
            "step": {e.name: self._step(look, e) for e in candidates},
        }
        totals = {e.name: sum(column[e.name] for column in columns.values()) for e in candidates}
        return Weighed(columns=columns, totals=totals, is_cost=True)

    def _step(self, look: Look, one: Endpoint) -> float:
        waits_s = one.heard_at - (look.now - look.step_s / 2) if one.in_flight else 0.0
        return self.underway * look.rate * max(0.0, waits_s)

    def _price(self, look: Look, one: Endpoint) -> float:
        load = one.prefilled_lately * look.token_load
        standing = self.standing * load / (1 - load) if load < MOST_LOAD else self.dearest
        return min(self.dearest, self.base + self.company * one.unanswered + standing)
