"""Reads the few metrics that are asked for from Prometheus' text format. What cannot be read is left out, never guessed."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from hekla.serving.autoscaler.algorithms.histogram import Histogram, histogram_of

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_BOUND = re.compile(r'(?:^|,)\s*le="([^"]*)"')
MOST_BYTES = 2_000_000
"""Of an answer; engines give some 100 kB."""
MOST_COMPARED = 1_000
"""Names that one which is not there is compared with: a comparison takes some 30 us, and whoever shares the loop waits."""


@dataclass(frozen=True)
class Reading:
    """What one process shows."""

    values: Mapping[str, float] = field(default_factory=dict)
    """Counters and gauges, added over their label sets."""
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """Histograms, added likewise."""


def read(text: str, names: Sequence[str]) -> Reading:
    """The metrics of these names."""
    values: dict[str, float] = {}
    counts: dict[str, dict[float, float]] = {}
    for name, labels, value in _samples(text, names):
        if name.endswith("_bucket") and (found := _BOUND.search(labels)) is not None:
            bound = _number(found[1])
            of = counts.setdefault(name.removesuffix("_bucket"), {})
            if bound is not None:
                of[bound] = of.get(bound, 0.0) + value
        else:
            values[name] = values.get(name, 0.0) + value
    return Reading(values, {name: histogram_of(of) for name, of in counts.items()})


def nearest(text: str, name: str) -> list[str]:
    """What a page has that is called much the same, for whoever misspelt a name."""
    names: set[str] = set()
    for line in text.splitlines():
        if len(names) >= MOST_COMPARED:
            break
        if (match := _LINE.match(line)) is not None:
            names.add(match[1].removesuffix("_bucket"))
    return get_close_matches(name, sorted(names), n=2, cutoff=0.7)


def _samples(text: str, names: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    wanted = {*names, *(f"{name}_bucket" for name in names)}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match[1] not in wanted:
            continue
        value = _number(match[3])
        if value is not None and math.isfinite(
            value
        ):  # +Inf and -Inf added up to NaN, by which a model was scaled down
            yield match[1], match[2] or "", value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value != value else value  # NaN says nothing
