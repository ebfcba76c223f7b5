"""How long filters and scores take: Kthena's `kthena_router_scheduler_plugin_duration_seconds`, of one choice in sixteen.

Two looks at a clock take as long as a score of three engines, so not every choice is measured: the first of a pool is, and then
every `ONE_IN`th. Counts are of what was measured. A policy that is no chain of plug-ins, as the default, counts as one score.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from hekla.serving.router.choosing import Chain, Look, Policy, Weighed
from hekla.serving.router.endpoints import Endpoint

NAME: Final = "kthena_router_scheduler_plugin_duration_seconds"
BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
"""Kthena's buckets."""
ONE_IN: Final = 16
MOST_ROWS: Final = 1024
"""Of models and plug-ins; further models are counted under `_other`."""
FILTER, SCORE = "filter", "score"


@dataclass(eq=False)
class PluginTimes:
    """Of all pools of one router."""

    clock: Callable[[], float]
    choices: int = -1
    _rows: dict[tuple[str, str, str], tuple[list[int], list[float]]] = field(default_factory=dict)

    def is_due(self) -> bool:
        """Whether this choice is measured."""
        self.choices += 1
        return self.choices % ONE_IN == 0

    def note(self, model: str, plugin: str, kind: str, took_s: float) -> None:
        """A plug-in was asked."""
        key = (model, plugin, kind)
        row = self._rows.get(key)
        if row is None:
            key = key if len(self._rows) < MOST_ROWS else ("_other", plugin, kind)
            row = self._rows.setdefault(key, ([0] * (len(BOUNDS_S) + 1), [0.0]))
        row[0][next((at for at, bound in enumerate(BOUNDS_S) if took_s <= bound), len(BOUNDS_S))] += 1
        row[1][0] += took_s

    def lines(self) -> Iterator[str]:
        """As a histogram, with Kthena's labels."""
        yield f"# HELP {NAME} How long a filter or score took, of one choice in {ONE_IN}"
        yield f"# TYPE {NAME} histogram"
        for (model, plugin, kind), (counts, total) in self._rows.items():
            text, seen = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"), 0
            labels = f'model="{text}",plugin="{plugin}",type="{kind}"'
            for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts, strict=True):
                seen += count
                yield f'{NAME}_bucket{{{labels},le="{bound}"}} {seen}'
            yield f"{NAME}_sum{{{labels}}} {total[0]:.9g}"
            yield f"{NAME}_count{{{labels}}} {seen}"


def name_of(policy: Policy) -> str:
    """Of the policy, whether or not a clock stands beside it."""
    if isinstance(policy, Chain):
        return Chain.__name__.lower()
    return type(policy.policy if isinstance(policy, TimedPolicy) else policy).__name__.lower()


def timed(policy: Policy, times: PluginTimes) -> Policy:
    """The same policy, now and then with a clock beside it."""
    if isinstance(policy, Chain):
        return TimedChain(policy.filters, policy.scorers, times=times)
    return TimedPolicy(policy, times)


@dataclass(frozen=True)
class TimedChain(Chain):
    """A chain; the choice is the chain's own, and what is measured is its parts asked once more."""

    times: PluginTimes = field(kw_only=True)

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """The chain's choice."""
        if self.times.is_due():
            self._measure(look, candidates)
        return super().choose(look, candidates)

    def _measure(self, look: Look, candidates: Sequence[Endpoint]) -> None:
        clock, note, model = self.times.clock, self.times.note, look.question.model
        for one in self.filters:
            began = clock()
            candidates = one.keep(look, candidates)
            note(model, one.name, FILTER, clock() - began)
        if not candidates:
            return
        for scorer, _ in self.scorers:
            began = clock()
            scorer.scores(look, candidates)
            note(model, scorer.name, SCORE, clock() - began)


@dataclass(frozen=True)
class TimedPolicy:
    """A policy of one part."""

    policy: Policy
    times: PluginTimes

    @property
    def wants_prefix(self) -> bool:
        """As the policy's."""
        return self.policy.wants_prefix

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """The policy's choice."""
        if not self.times.is_due():
            return self.policy.choose(look, candidates)
        began = self.times.clock()
        chosen = self.policy.choose(look, candidates)
        took_s = self.times.clock() - began
        self.times.note(look.question.model, name_of(self), SCORE, took_s)
        return chosen

    def weigh(self, look: Look, candidates: Sequence[Endpoint]) -> Weighed:
        """What the policy says."""
        return self.policy.weigh(look, candidates)
