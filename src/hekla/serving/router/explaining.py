"""Say why a request would go where it would: each candidate with what it holds, what it has to do, its scores, and the choice.

Asks the policy itself (`weigh`) and changes nothing: no turn is taken and nothing is counted. `explaining_pairs.py` goes on where a
request goes to two engines; `hekla route explain` prints both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hekla.serving.router.choosing import Look, Weighed
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.plugin_times import name_of
from hekla.serving.router.pool import Pool
from hekla.serving.router.question import Question

NEAR = 1e-9


def explain(pool: Pool, question: Question, now: float, *, adapter: str = "", session: str = "") -> dict[str, Any]:
    """The decision that a request would meet now, as JSON's types."""
    candidates = pool.candidates(now)
    look = pool.look(question, now, adapter=adapter, session=session)
    eligible = pool.eligible(look, candidates)
    weighed = pool.policy.weigh(look, eligible)
    home = pool.sessions.home(session, candidates, now) if session else None
    chosen = [home.name] if home else best_of(weighed)
    because = f"its session is with {home.name}" if home else because_of(look, weighed, eligible, chosen)
    if not pool.members:
        because += pool.absence
    return told_of(pool, look, weighed, chosen, because, reasons_out(pool, eligible))


def reasons_out(pool: Pool, eligible: Sequence[Endpoint]) -> dict[str, str]:
    """Why endpoints are not even looked at."""
    said = "it failed a moment ago, or does not list the adapter that others do"
    return {one.name: said for one in pool.members if one not in eligible}


def told_of(
    pool: Pool, look: Look, weighed: Weighed, chosen: Sequence[str], because: str, out: Mapping[str, str]
) -> dict[str, Any]:
    """An explanation, from its parts; `out` says why endpoints were not weighed."""
    return {
        "pool": pool.name,
        "policy": name_of(pool.policy),
        "model": look.question.model,
        "tokens": look.tokens,
        "prefill_rate": round(look.rate, 1),
        "answer_tokens": round(pool.pace.answer_tokens),
        "waiting_per_endpoint": round(sum(one.unanswered for one in pool.members) / (len(pool.members) or 1), 3),
        "candidates": [_candidate(one, pool, look, weighed, out) for one in pool.members],
        "chosen": chosen[0] if len(chosen) == 1 else None,
        "tied": list(chosen) if len(chosen) > 1 else [],
        "because": because,
    }


def _candidate(one: Endpoint, pool: Pool, look: Look, weighed: Weighed, out: Mapping[str, str]) -> dict[str, Any]:
    """What is known of an engine. Its time per token is what it or its like took lately, so what speculation saves is in it."""
    asked, mean = look.question.output_tokens, round(pool.pace.answer_tokens)
    per_token_s = one.tpot_s if one.tpot_s is not None else pool.pace.tpot_s
    cached = look.matched[one.slot] if one.slot < len(look.matched) else 0
    queued = one.prefill_tokens + one.elsewhere_prefill_tokens
    return {
        "name": one.name,
        "cached_tokens": cached,
        "queued_tokens": queued,
        "in_flight": one.in_flight,
        "estimated_ttft_s": round((queued + max(1, look.tokens - cached)) / look.rate, 4),
        "estimated_answer_s": round((min(asked, mean) if asked else mean) * per_token_s, 4),
        "accepted_speculation": None if one.acceptance is None else round(one.acceptance, 3),
        "scores": {name: round(column[one.name], 3) for name, column in weighed.columns.items() if one.name in column},
        "total": round(weighed.totals[one.name], 3) if one.name in weighed.totals else None,
        "refused": weighed.refused.get(one.name) or out.get(one.name),
    }


def best_of(weighed: Weighed) -> list[str]:
    """The names with the best total; several where dice decide."""
    if not weighed.totals:
        return []
    best = (min if weighed.is_cost else max)(weighed.totals.values())
    return [name for name, total in weighed.totals.items() if abs(total - best) <= NEAR * max(1.0, abs(best))]


def because_of(look: Look, weighed: Weighed, eligible: Sequence[Endpoint], chosen: Sequence[str]) -> str:
    """The choice in a sentence."""
    if not chosen:
        return "no endpoint is ready" if not eligible else "every endpoint is refused"
    word = "lowest cost" if weighed.is_cost else "highest score"
    names = " and ".join(chosen)
    cached = {one.name: look.matched[one.slot] for one in eligible if one.slot < len(look.matched)}
    return f"{names}: {word}, {cached.get(chosen[0], 0)} of {look.tokens} tokens cached"
