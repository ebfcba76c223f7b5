"""What somebody had over time, the longer ago the less: an integral that is exact and the same on every machine.

    had(t) = integral over s <= t of  held(s) * 2 ** -((t - s) / half life)  ds          in amount-seconds

Between changes `held` is constant, so what was had at the last change is enough to tell it for any later time:

    had(t) = had(t0) * d + held * half life / ln 2 * (1 - d)        d = 2 ** -((t - t0) / half life)

How often somebody asks changes nothing, since only changes of `held` are written down. All numbers are integers: times in
microseconds, `d` in units of 2 ** -60, from square roots of two that are computed and not measured by a floating-point unit.
Without half life it is the plain sum: nothing is ever forgotten.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt

ONE = 1 << 60
"""The number 1 as factors are counted."""

_STEPS = 32
_LN2 = 799_144_290_325_165_978
"""ln 2, in the same units."""


def _roots() -> tuple[int, ...]:
    """2 ** -(1/2), 2 ** -(1/4), ... in units of 1 / ONE, each the root of the one before."""
    roots, value = [], ONE // 2
    for _ in range(_STEPS):
        value = isqrt(value * ONE)
        roots.append(value)
    return tuple(roots)


_ROOTS = _roots()


def faded(elapsed_us: int, half_life_us: int) -> int:
    """2 ** -(elapsed / half life) in units of 1 / ONE; 1 without a half life."""
    if half_life_us <= 0 or elapsed_us <= 0:
        return ONE
    whole, rest = divmod(elapsed_us, half_life_us)
    if whole > 60:
        return 0
    fraction, factor = (rest << _STEPS) // half_life_us, ONE
    for number, root in enumerate(_ROOTS, 1):
        if fraction >> (_STEPS - number) & 1:
            factor = factor * root // ONE
    return factor >> whole


def span_us(elapsed_us: int, half_life_us: int) -> int:
    """How long something that was held for so long, until now, counts."""
    if half_life_us <= 0:
        return max(elapsed_us, 0)
    return half_life_us * (ONE - faded(elapsed_us, half_life_us)) // _LN2


def had_by(had: Mapping[str, int], held: Mapping[str, int], elapsed_us: int, half_life_us: int) -> dict[str, int]:
    """What was had, so much later, of which so much was held all the time, in amount-microseconds."""
    factor, span = faded(elapsed_us, half_life_us), span_us(elapsed_us, half_life_us)
    return {name: had.get(name, 0) * factor // ONE + held.get(name, 0) * span for name in had.keys() | held.keys()}


@dataclass(frozen=True, slots=True)
class Past:
    """What one holder had up to a moment, and holds since."""

    at_us: int = 0
    had: Mapping[str, int] = field(default_factory=dict)
    """Amount-microseconds by resource."""

    held: Mapping[str, int] = field(default_factory=dict)

    def until(self, now_us: int, half_life_us: int) -> dict[str, int]:
        """What was had by then, in amount-microseconds; a clock that went back counts as one that stood still."""
        return had_by(self.had, self.held, now_us - self.at_us, half_life_us)

    def changed(self, now_us: int, half_life_us: int, held: Mapping[str, int]) -> "Past":
        """The same from a moment on at which something else is held; itself, if it is the same."""
        if held == self.held:
            return self
        return Past(max(now_us, self.at_us), self.until(now_us, half_life_us), dict(held))
