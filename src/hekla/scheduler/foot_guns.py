"""What can be used and is hardly meant: parts of a configuration that have no effect, or a harmful one, beside the others.

Each rule sees the whole file as what it names, and yields a line with a sentence that says what happens and what to do.
`configuration.py` reads the file and tells what is wrong with each part by itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Placed:
    """A plug-in of the file."""

    line: int
    tier: int
    """From 1."""

    switches: Mapping[str, bool] = field(default_factory=dict)
    """Its enabled flags, without the prefix."""

    arguments: frozenset[str] = frozenset()
    """Which arguments it is given."""

    def answers(self, point: str) -> bool:
        """Whether an extension point is not switched off."""
        return self.switches.get(point, True)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a file names."""

    actions: Sequence[str]
    actions_line: int
    plugins: Mapping[str, Placed]
    has_metrics: bool = False
    """Whether a source of measurements is named."""

    def named(self, *names: str) -> Iterator[tuple[str, Placed]]:
        """Those of these plug-ins that are there."""
        return ((name, self.plugins[name]) for name in names if name in self.plugins)

    def has(self, *names: str) -> bool:
        """Whether any of these plug-ins is there."""
        return any(True for _ in self.named(*names))

    def acts(self, *names: str) -> list[str]:
        """Those of these actions that are there."""
        return [name for name in names if name in self.actions]


class Advice(NamedTuple):
    """What to say."""

    line: int
    sentence: str
    is_harmful: bool = True
    """Whether it is hardly ever meant; else it is only worth knowing."""


def foot_guns(layout: Layout) -> Iterator[Advice]:
    """All that is hardly meant."""
    for rule in RULES:
        yield from rule(layout)


def _nobody_says_what_queues_deserve(layout: Layout) -> Iterator[Advice]:
    for action in layout.acts("reclaim", "gangreclaim"):
        if not layout.has("proportion", "capacity"):
            yield Advice(
                layout.actions_line, f"{action} gives queues back what they deserve, and no plug-in says what that is; "
                "add proportion or capacity",
            )  # fmt: skip


def _two_say_what_queues_deserve(layout: Layout) -> Iterator[Advice]:
    if layout.has("proportion") and layout.has("capacity"):
        at = layout.plugins["capacity"].line
        other = layout.plugins["proportion"].line
        yield Advice(at, f"capacity and proportion (line {other}) both say what queues deserve; keep one of them")


def _nobody_says_who_starves(layout: Layout) -> Iterator[Advice]:
    evicting = layout.acts("preempt", "gangpreempt", "reclaim", "gangreclaim")
    if evicting and not any(placed.answers("JobStarving") for _, placed in layout.named("gang", "priority", "tdm")):
        yield Advice(
            layout.actions_line, f"{evicting[0]} evicts for jobs that starve, and no plug-in says which do: nobody is ever "
            "evicted; add gang or priority",
        )  # fmt: skip


def _gangs_are_torn(layout: Layout) -> Iterator[Advice]:
    for action in layout.acts("preempt", "reclaim"):
        if not layout.has("gang"):
            yield Advice(
                layout.actions_line, f"{action} without plug-in gang evicts pods that their jobs cannot do without; add gang"
            )  # fmt: skip
            return


def _nobody_is_let_in_by_them(layout: Layout) -> Iterator[Advice]:
    if "enqueue" in layout.actions:
        return
    for name, placed in layout.named("overcommit", "sla", "resourcequota"):
        sentence = f"{name} has a say in who is let in, and there is no action enqueue: everybody is; add enqueue"
        yield Advice(placed.line, sentence)


def _sla_comes_too_late(layout: Layout) -> Iterator[Advice]:
    sla = layout.plugins.get("sla")
    if sla is None or "enqueue" not in layout.actions:
        return
    for name, placed in layout.named("overcommit", "proportion", "capacity", "resourcequota"):
        if placed.tier <= sla.tier and placed.answers("JobEnqueued"):
            yield Advice(
                sla.line, f"sla stands in tier {sla.tier}, and {name} in tier {placed.tier} turns jobs away before sla can let "
                "them in: nobody enters for having waited; put sla into an earlier tier",
            )  # fmt: skip
            return


def _nothing_is_placed(layout: Layout) -> Iterator[Advice]:
    if layout.actions and "allocate" not in layout.actions:
        yield Advice(layout.actions_line, "there is no action allocate: no pod that asks for anything gets a node")
    if layout.actions and "backfill" not in layout.actions:
        sentence = "there is no action backfill: pods that ask for nothing get no node"
        yield Advice(layout.actions_line, sentence, is_harmful=False)


def _actions_in_a_poor_order(layout: Layout) -> Iterator[Advice]:
    actions = list(layout.actions)
    if "allocate" not in actions:
        return
    at = actions.index("allocate")
    if "enqueue" in actions[at:]:
        yield Advice(
            layout.actions_line, "enqueue stands after allocate: who is let in waits for another cycle; put it first"
        )
    for action in actions[:at]:
        if action in ("preempt", "reclaim", "gangpreempt", "gangreclaim"):
            yield Advice(
                layout.actions_line, f"{action} stands before allocate: pods are evicted for jobs that may fit as it is; put "
                "it after allocate",
            )  # fmt: skip


def _nobody_names_whom_to_shuffle(layout: Layout) -> Iterator[Advice]:
    if "shuffle" in layout.actions and not layout.has("tdm", "rescheduling"):
        yield Advice(
            layout.actions_line, "shuffle evicts whom tdm or rescheduling name, and neither is there; it does nothing"
        )
    if "shuffle" not in layout.actions and layout.has("rescheduling"):
        yield Advice(
            layout.plugins["rescheduling"].line, "rescheduling names pods that are to move, and there is no action shuffle that "
            "moves them; add shuffle",
        )  # fmt: skip
    if "shuffle" not in layout.actions and layout.has("tdm"):
        sentence = "tdm: without action shuffle pods stay on revocable nodes when their hours are over"
        yield Advice(layout.plugins["tdm"].line, sentence, is_harmful=False)


def _nodes_say_nothing(layout: Layout) -> Iterator[Advice]:
    if layout.plugins and not layout.has("predicates"):
        yield Advice(
            0, "there is no plug-in predicates: selectors, affinities, taints, ports and volumes of pods are not heeded"
        )
    if layout.plugins and not layout.has("gang"):
        sentence = "there is no plug-in gang: jobs start pod by pod, whatever their minimum"
        yield Advice(0, sentence, is_harmful=False)


def _nobody_measures(layout: Layout) -> Iterator[Advice]:
    for name, placed in layout.named("usage", "rescheduling"):
        if not layout.has_metrics:
            sentence = f"{name} goes by measurements, and metrics names no source; only nodes count that carry hekla.dev/node-usage"
            yield Advice(placed.line, sentence, is_harmful=False)


def _an_extender_is_asked_nothing(layout: Layout) -> Iterator[Advice]:
    extender = layout.plugins.get("extender")
    if extender is not None and not any(key.endswith("Verb") for key in extender.arguments):
        yield Advice(extender.line, "extender is asked nothing; name what, like extender.predicateVerb: predicate")


RULES: Sequence[Callable[[Layout], Iterator[Advice]]] = (
    _nothing_is_placed, _actions_in_a_poor_order, _nobody_is_let_in_by_them, _sla_comes_too_late,
    _nobody_says_what_queues_deserve, _two_say_what_queues_deserve, _nobody_says_who_starves, _gangs_are_torn,
    _nobody_names_whom_to_shuffle, _nodes_say_nothing, _nobody_measures, _an_extender_is_asked_nothing,
)  # fmt: skip
