"""Say why a request would go to a prefill and a decode engine: which of each were looked at, which pair was chosen, or why there is none.

Follows `pairs.choose_pair` step by step, by the policies' `weigh`, so that nothing is counted and no turn is taken.
"""

from collections.abc import Sequence
from typing import Any

from hekla.serving.router.choosing import Chain, Look, Weighed
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.explaining import because_of, best_of, reasons_out, told_of
from hekla.serving.router.pair_plan import Pairing
from hekla.serving.router.pairs import bond, share_taken
from hekla.serving.router.question import Question


def explain_pair(pairing: Pairing, question: Question, now: float) -> dict[str, Any]:
    """The explanation of the decode engine, as of any, with that of the prefill engine beside it, and the pair."""
    prefill, decode = pairing.prefill, pairing.decode
    prefill_look, decode_look = prefill.look(question, now), decode.look(question, now)
    decodes, prefills = decode.candidates(now), prefill.candidates(now)
    if alone := _alone(pairing, decode_look, decodes):
        weighed = _weigh_decode(pairing, decode_look, alone)
        chosen = best_of(weighed)
        said = (
            f"{' and '.join(chosen)} decodes alone: fewer than {pairing.skip_below_tokens} tokens are not cached there"
        )
        out = {one.name: "too much of the prompt is not cached there to decode alone" for one in decode.members}
        return {**told_of(decode, decode_look, weighed, chosen, said, out), "prefill": None, "pair": None}
    passed = _weigh_decode(pairing, decode_look, decodes)
    bonds = {bond(one) for one in decodes if one.name in passed.totals}
    eligible = [one for one in prefills if bond(one) in bonds]
    weighed = prefill.policy.weigh(prefill_look, eligible)
    first = best_of(weighed)
    out = reasons_out(prefill, prefills) | {
        one.name: f"no decode engine {_of(one)} may be asked" for one in prefills if one not in eligible
    }
    told = told_of(prefill, prefill_look, weighed, first, because_of(prefill_look, weighed, eligible, first), out)
    beginner = next((one for one in eligible if first and one.name == first[0]), None)
    decoded = _decode(pairing, decode_look, decodes, beginner)
    pair = (
        {"prefill": first, "decode": [decoded["chosen"]] if decoded["chosen"] else decoded["tied"]} if first else None
    )
    return {**decoded, "prefill": told, "pair": pair}


def _alone(pairing: Pairing, look: Look, candidates: Sequence[Endpoint]) -> list[Endpoint]:
    """Those that need no prefill engine."""
    most = pairing.skip_below_tokens
    return [one for one in candidates if look.tokens - look.matched[one.slot] < most] if most else []


def _decode(pairing: Pairing, look: Look, candidates: Sequence[Endpoint], first: Endpoint | None) -> dict[str, Any]:
    """What becomes of the decode engines, given the prefill engine."""
    decode = pairing.decode
    if first is None:
        said = (
            "no prefill engine is ready"
            if not pairing.prefill.members
            else "no prefill engine belongs with a decode engine"
        )
        if not decode.members:
            said = "no decode engine is ready"
        return told_of(decode, look, Weighed(), [], said, dict.fromkeys((one.name for one in decode.members), said))
    peers = [one for one in candidates if bond(one) == bond(first)]
    alike = [one for one in peers if one.revision == first.revision] or peers
    weighed = _weigh_decode(pairing, look, alike)
    chosen = best_of(weighed)
    out = reasons_out(decode, candidates)
    out |= {one.name: f"it is not {_of(first)}, as {first.name} is" for one in candidates if one not in peers}
    out |= {one.name: f"it is of another revision than {first.name}" for one in peers if one not in alike}
    return told_of(decode, look, weighed, chosen, _decode_because(weighed, chosen, first), out)


def _decode_because(weighed: Weighed, chosen: Sequence[str], first: Endpoint) -> str:
    if not chosen:
        return f"no decode engine that belongs with {first.name} passes the filters"
    word = "most room in its KV cache" if weighed.is_cost else "highest score"
    return f"{' and '.join(chosen)}: {word} of those that belong with {first.name}"


def _weigh_decode(pairing: Pairing, look: Look, candidates: Sequence[Endpoint]) -> Weighed:
    """As `choose_decode` does: by a chain where one is configured, else by how full caches are, then by requests in flight."""
    if isinstance(pairing.decode.policy, Chain):
        return pairing.decode.policy.weigh(look, candidates)
    taken = {one.name: share_taken(one) for one in candidates}
    least = min(taken.values(), default=0.0)
    in_flight = {one.name: float(one.in_flight) for one in candidates}
    totals = {name: (share - least) * 1e6 + in_flight[name] for name, share in taken.items()}
    return Weighed(columns={"KV taken": taken}, totals=totals, is_cost=True)


def _of(one: Endpoint) -> str:
    return f'of group "{one.group}"' + (f' in "{one.domain}"' if one.domain else "")
