"""Two roles kept in proportion, such as prefill to decode: whoever is short is raised; only if it cannot be, the other falls.

Both at zero stay there: nothing serves, and nothing has to. One at zero gets one, for a half serves nobody.
"""

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The fewest and the most of a role."""

    least: int
    most: int

    def clamp(self, replicas: int) -> int:
        """The nearest number within."""
        return min(max(replicas, self.least), self.most)


@dataclass(frozen=True)
class Proportion:
    """What the two roles come to."""

    numerator: int
    denominator: int
    is_adjusted: bool
    """Whether the ratio overruled the metrics."""
    is_violated: bool
    """Whether the bounds make the ratio impossible."""

    @property
    def ratio(self) -> float | None:
        """The ratio that there is; None where there is nothing below the line."""
        return self.numerator / self.denominator if self.denominator else None


def in_proportion(
    numerator: int, denominator: int, *, above: Bounds, below: Bounds, least: float, most: float
) -> Proportion:
    """Bring numerator / denominator between `least` and `most`."""
    num, den = above.clamp(numerator), below.clamp(denominator)
    if num == 0 and den == 0:
        return Proportion(0, 0, is_adjusted=False, is_violated=False)
    is_adjusted = num == 0 or den == 0
    num, den = num or above.clamp(1), den or below.clamp(1)
    if den and num / den < least:
        num, den, is_adjusted = *_raised_numerator(num, den, above, below, least), True
    elif den and num / den > most:
        num, den, is_adjusted = *_raised_denominator(num, den, above, below, most), True
    num, den = above.clamp(num), below.clamp(den)
    is_violated = den == 0 or not least <= num / den <= most
    return Proportion(num, den, is_adjusted=is_adjusted, is_violated=is_violated)


def _raised_numerator(num: int, den: int, above: Bounds, below: Bounds, least: float) -> tuple[int, int]:
    raised = math.ceil(_exactly(least) * den)
    if raised <= above.most:
        return max(raised, above.least), den
    return above.most, below.clamp(math.floor(above.most / _exactly(least)))


def _raised_denominator(num: int, den: int, above: Bounds, below: Bounds, most: float) -> tuple[int, int]:
    if most <= 0:
        return 0, den
    raised = math.ceil(num / _exactly(most))
    if raised <= below.most:
        return num, max(raised, below.least)
    return above.clamp(math.floor(_exactly(most) * below.most)), below.most


def _exactly(ratio: float) -> Fraction:
    """The ratio as it was written: in floats 0.1 of 30 is a little more than 3, and would be raised to 4."""
    return Fraction(ratio).limit_denominator(10**9)
