"""Shares a cluster among queues by weight: what one does not need goes to the others, by weight again.

    first   clamp(total * weight / all weights, guarantee, most)      most = max(min(request, ceiling), guarantee)
    then    what is left over is poured on those below their most, in proportion to weight, until nothing is left over;
            if guarantees made it too much, "total / all weights" is lowered for all until it is not

This is where Volcano's proportion arrives by rounds of floating point. Here it is computed in whole numbers, resource
by resource: the shares add up to exactly what there is, and a unit that cannot be divided goes to the largest fraction,
then to the queue that ranks first. So of 8 GPUs three equal queues get 3, 3 and 2, where Volcano grants 2.67 each and
leaves two GPUs idle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hekla.quota.amounts import Amounts

Terms = tuple[int, int, int]
"""(weight, least, most) of a claim on one resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one queue brings to the sharing."""

    name: str
    weight: int = 1
    request: Amounts = field(default_factory=dict)
    """All that its pods ask for, running and waiting."""

    guarantee: Amounts = field(default_factory=dict)
    """What it gets whatever it asks for."""

    ceiling: Amounts = field(default_factory=dict)
    """The most it may get; a resource that is not named is not bounded."""

    rank: tuple[float, str] = (0.0, "")
    """Who gets a unit that cannot be divided: the smaller first. Usually (age, name)."""


def water_fill(total: Amounts, claims: Sequence[Claim]) -> Mapping[str, Mapping[str, int]]:
    """What each claim deserves, by name and resource."""
    ordered = sorted(claims, key=lambda claim: (claim.rank, claim.name))
    deserved: dict[str, dict[str, int]] = {claim.name: {} for claim in ordered}
    for resource in sorted({name for claim in ordered for name in (*claim.request, *claim.guarantee)}):
        shares = _one_resource(total.get(resource, 0), [_terms(claim, resource) for claim in ordered])
        for claim, share in zip(ordered, shares, strict=True):
            if resource in claim.request or resource in claim.guarantee:
                deserved[claim.name][resource] = share
    return deserved


def _terms(claim: Claim, resource: str) -> Terms:
    least = max(claim.guarantee.get(resource, 0), 0)
    request = claim.request.get(resource, 0)
    return max(claim.weight, 1), least, max(min(request, claim.ceiling.get(resource, request)), least)


def _one_resource(total: int, terms: Sequence[Terms]) -> list[int]:
    """The shares of one resource. All but the last step counts in units of 1 / sum of weights."""
    weights = sum(weight for weight, _, _ in terms)
    shares = [min(max(total * weight, least * weights), most * weights) for weight, least, most in terms]
    spare = total * weights - sum(shares)
    if spare < 0:
        return _lowered(total, terms)
    still = [number for number, share in enumerate(shares) if share < terms[number][2] * weights]
    while still and spare:
        weight = sum(terms[number][0] for number in still)
        # Those whose part of what is left takes them to their most stop there, and leave more for the others.
        done = [n for n in still if (terms[n][2] * weights - shares[n]) * weight <= spare * terms[n][0]]
        if not done:
            parts = {number: spare * terms[number][0] for number in still}
            return _rounded([share * weight + parts.get(n, 0) for n, share in enumerate(shares)], weights * weight)
        for number in done:
            spare -= terms[number][2] * weights - shares[number]
            shares[number] = terms[number][2] * weights
        still = [number for number in still if number not in done]
    return _rounded(shares, weights)


def _lowered(total: int, terms: Sequence[Terms]) -> list[int]:
    """The shares clamp(level * weight, least, most) for the level at which they add up to the total, or all least."""
    edges = sorted({Fraction(0), *(Fraction(edge, weight) for weight, least, most in terms for edge in (least, most))})
    reached = [level for level in edges if _sum(level, terms) <= total]
    level = reached[-1] if reached else edges[0]
    rising = sum(weight for weight, least, most in terms if least <= level * weight < most)
    lacking = total - _sum(level, terms)
    if rising and lacking > 0:
        level += lacking / rising
    return _rounded([int(share * level.denominator) for share in _at(level, terms)], level.denominator)


def _sum(level: Fraction, terms: Sequence[Terms]) -> Fraction:
    return sum(_at(level, terms), Fraction(0))


def _at(level: Fraction, terms: Sequence[Terms]) -> list[Fraction]:
    return [min(max(level * weight, Fraction(least)), Fraction(most)) for weight, least, most in terms]


def _rounded(numerators: Sequence[int], denominator: int) -> list[int]:
    """Whole numbers with the same sum: down, and what that leaves goes to the largest remainders."""
    down = [numerator // denominator for numerator in numerators]
    left = [numerator % denominator for numerator in numerators]
    for number in sorted(range(len(down)), key=lambda n: -left[n])[: sum(left) // denominator]:
        down[number] += 1
    return down
