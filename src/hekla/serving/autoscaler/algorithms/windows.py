"""What was recommended and what was done, for as long as anybody asks: a value holds until the next one.

    1, 1, 1, 4, 4, 2    is kept as    1 from 0:00, 4 from 0:45, 2 from 1:15

so that it is short enough to be kept in an annotation, and a controller that starts anew knows what the last one knew.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

MOST_CHANGES = 512
"""Changes that are kept; the oldest goes. At one each 15 s that is two hours, and windows are bounded to 30 minutes."""


@dataclass(frozen=True)
class Line:
    """Values by the time from which they hold, oldest first."""

    changes: tuple[tuple[float, int], ...] = ()

    def with_value(self, now_s: float, value: int, *, keep_s: float) -> "Line":
        """The line continued; what nobody asks for any more is dropped, but for the value that held at the border."""
        if self.changes and self.changes[-1][1] == value:
            return Line(tuple(self._since(now_s - keep_s)))
        return Line((*self._since(now_s - keep_s), (now_s, value))[-MOST_CHANGES:])

    def best(self, choose: Callable[[Iterable[int]], int], now_s: float, window_s: float, default: int) -> int:
        """The largest or smallest value that held within the window; `default` if none did."""
        values = [value for _, value in self._since(now_s - window_s)] if window_s > 0 else []
        return choose(values) if values else default

    def _since(self, start_s: float) -> Iterator[tuple[float, int]]:
        for number, (_, value) in enumerate(self.changes):
            ends_s = self.changes[number + 1][0] if number + 1 < len(self.changes) else None
            if ends_s is None or ends_s > start_s:
                yield self.changes[number][0], value


def line_of(changes: Sequence[Sequence[float]]) -> Line:
    """A line as it was written down."""
    return Line(tuple((float(at), int(value)) for at, value in changes))
