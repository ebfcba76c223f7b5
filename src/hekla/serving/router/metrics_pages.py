"""The metrics pages of the processes of one router as one page; pure.

Counters and histograms are summed, and so are gauges, which count what each process has under way; save those that every
process reads from the same engine, of which the mean is told. A process that ends takes its counters with it, and a counter
must not fall: what it had counted is kept in `Pages`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

READ_FROM_ENGINES: Final = frozenset(
    {
        "hekla_router_engine_kv_usage",
        "hekla_router_engine_accepted_speculation",
        "hekla_router_prefill_rate",
        "hekla_router_replicas",
        "kthena_router_prefix_cache_entries",
    }
)
"""Gauges that are the same, or nearly, in every process."""


@dataclass
class Family:
    """One metric: what is said of it, and its samples by name and labels as they are written."""

    comments: list[str] = field(default_factory=list)
    kind: str = "untyped"
    samples: dict[str, float] = field(default_factory=dict)


Page = Mapping[str, Family]


def read_page(text: str) -> dict[str, Family]:
    """A page as Prometheus' text format has it."""
    families: dict[str, Family] = {}
    current = Family()
    for line in text.splitlines():
        if line.startswith("#"):
            words = line.split(maxsplit=3)
            if len(words) > 2 and words[1] in ("HELP", "TYPE"):
                current = families.setdefault(words[2], Family())
                current.comments.append(line)
                if words[1] == "TYPE":
                    current.kind = words[3]
        elif line:
            sample, _, value = line.rpartition(" ")
            current.samples[sample] = float(value)
    return families


def merged(pages: Iterable[Page]) -> dict[str, Family]:
    """The families of all pages."""
    found: dict[str, Family] = {}
    heard: dict[str, int] = {}
    for page in pages:
        for name, family in page.items():
            into = found.setdefault(name, Family(family.comments, family.kind))
            for sample, value in family.samples.items():
                into.samples[sample] = into.samples.get(sample, 0.0) + value
                heard[sample] = heard.get(sample, 0) + 1
    for name in READ_FROM_ENGINES & found.keys():
        samples = found[name].samples
        found[name].samples = {sample: value / heard[sample] for sample, value in samples.items()}
    return found


def text_of(page: Page) -> str:
    """A page to be read again."""
    lines = []
    for family in page.values():
        lines += family.comments
        lines += [f"{sample} {value:.15g}" for sample, value in family.samples.items()]
    return "\n".join(lines) + "\n"


class Pages:
    """The pages of processes that come and go."""

    def __init__(self) -> None:
        self._last: dict[str, Page] = {}
        self._ended: Page = {}
        """What processes that are gone had counted."""

    def heard(self, process: str, text: str) -> None:
        """A process told."""
        self._last[process] = read_page(text)

    def ended(self, process: str) -> None:
        """It is gone: its counters stay, as far as they were heard, and its gauges go."""
        page = self._last.pop(process, {})
        counted = {name: family for name, family in page.items() if family.kind in ("counter", "histogram")}
        self._ended = merged((self._ended, counted))

    def text(self) -> str:
        """All of them as one."""
        return text_of(merged((self._ended, *self._last.values())))
