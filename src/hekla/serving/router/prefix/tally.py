"""How much of the prompts the chosen engines were believed to hold, by model, for the metrics."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

SHARES: Final = tuple(number / 10 for number in range(11))
"""Upper bounds; the first is for prompts of which nothing was held."""
MOST_MODELS: Final = 1024
"""Names come from clients; further ones are counted under `_other`."""


class MatchTally:
    """Of one pool."""

    __slots__ = ("_by_model",)

    def __init__(self) -> None:
        self._by_model: dict[str, tuple[list[int], list[float]]] = {}

    def note(self, model: str, held: int, tokens: int) -> None:
        """A prompt was sent to an engine that is believed to hold `held` of its tokens."""
        found = self._by_model.get(model)
        if found is None:
            name = model if len(self._by_model) < MOST_MODELS else "_other"
            found = self._by_model.setdefault(name, ([0] * len(SHARES), [0.0]))
        held = min(held, tokens)
        found[0][-(-10 * held // tokens)] += 1
        found[1][0] += held / tokens

    @property
    def total(self) -> int:
        """Prompts noted."""
        return sum(sum(counts) for counts, _ in self._by_model.values())

    @property
    def by_model(self) -> Mapping[str, tuple[list[int], list[float]]]:
        """Counts by share, and the sum of the shares."""
        return self._by_model


def lines_of(tallies: Iterable[MatchTally], name: str) -> Iterator[str]:
    """As a histogram, over all pools."""
    summed: dict[str, tuple[list[int], float]] = {}
    for tally in tallies:
        for model, (counts, total) in tally.by_model.items():
            before, sum_before = summed.get(model, ([0] * len(SHARES), 0.0))
            summed[model] = [a + b for a, b in zip(before, counts, strict=True)], sum_before + total[0]
    yield f"# HELP {name} Share of a prompt that its engine was believed to hold"
    yield f"# TYPE {name} histogram"
    for model, (counts, shares) in summed.items():
        text, seen = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"), 0
        for bound, count in zip(SHARES, counts, strict=True):
            seen += count
            yield f'{name}_bucket{{model="{text}",le="{bound:g}"}} {seen}'
        yield f'{name}_bucket{{model="{text}",le="+Inf"}} {seen}'
        yield f'{name}_sum{{model="{text}"}} {shares:.9g}'
        yield f'{name}_count{{model="{text}"}} {seen}'
