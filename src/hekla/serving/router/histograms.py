"""Small histograms and counters by label, as Prometheus reads them: for what is measured apart from requests.

Labels hold names that clients make up, so rows are bounded; what comes beyond is counted under `_other`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

MOST_ROWS: Final = 1024
OTHER: Final = "_other"


class Histograms:
    """One histogram for each model, or by several labels, of which the first is a client's."""

    def __init__(self, name: str, told: str, bounds: Sequence[float], labels: Sequence[str] = ("model",)) -> None:
        self._name, self._told, self._bounds, self._labels = name, told, tuple(bounds), tuple(labels)
        self._rows: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def note(self, labels: tuple[str, ...], value: float) -> None:
        """One was measured."""
        row = self._rows.get(labels)
        if row is None:
            labels = labels if len(self._rows) < MOST_ROWS else (OTHER, *labels[1:])
            row = self._rows.setdefault(labels, ([0] * (len(self._bounds) + 1), [0.0]))
        row[0][next((at for at, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))] += 1
        row[1][0] += value

    def lines(self) -> Iterator[str]:
        """As text."""
        yield f"# HELP {self._name} {self._told}"
        yield f"# TYPE {self._name} histogram"
        for row, (counts, total) in self._rows.items():
            labels, seen = _written(self._labels, row), 0
            for bound, count in zip((*(f"{one:g}" for one in self._bounds), "+Inf"), counts, strict=True):
                seen += count
                yield f'{self._name}_bucket{{{labels},le="{bound}"}} {seen}'
            yield f"{self._name}_sum{{{labels}}} {total[0]:.9g}"
            yield f"{self._name}_count{{{labels}}} {seen}"


class Counts:
    """Counters by several labels, of which the first is a client's."""

    def __init__(self, name: str, told: str, labels: Sequence[str]) -> None:
        self._name, self._told, self._labels = name, told, tuple(labels)
        self._rows: dict[tuple[str, ...], int] = {}

    def add(self, labels: tuple[str, ...]) -> None:
        """One more."""
        if labels not in self._rows and len(self._rows) >= MOST_ROWS:
            labels = (OTHER, *labels[1:])
        self._rows[labels] = self._rows.get(labels, 0) + 1

    def lines(self) -> Iterator[str]:
        """As text."""
        yield f"# HELP {self._name} {self._told}"
        yield f"# TYPE {self._name} counter"
        for row, count in self._rows.items():
            yield f"{self._name}{{{_written(self._labels, row)}}} {count}"


def _written(names: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
