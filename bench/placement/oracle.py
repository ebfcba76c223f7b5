"""The plain oracle: one job after the other, each pod by a pass over all nodes in NumPy, from the same state."""

from typing import Any
from unittest import mock

from bench.placement.measure import Fill, decisions, warmed
from hekla.placement import kernels
from hekla.placement.kernels import twin
from hekla.placement.lookahead import Lookahead
from hekla.placement.model import Task
from hekla.placement.placer import Placer
from hekla.placement.topology.venue import Venue
from hekla.testing.cluster import World


def disagreements(made: World, plain: World) -> int:
    """How many decisions about two equal worlds differ: one decided as ever, one by the oracle."""
    fast = decisions(made)
    slow, wrong = by_oracle(plain)
    return wrong + sum(a != b for a, b in zip(fast, slow, strict=False)) + abs(len(fast) - len(slow))


def equal_worlds(nodes: int, fill: Fill, count: int, **details: Any) -> tuple[World, World]:
    """Two worlds with the same work waiting."""
    pair = warmed(nodes, **details), warmed(nodes, **details)
    for made in pair:
        fill(made, count)
    return pair


def by_oracle(made: World) -> tuple[list[tuple[str, str]], int]:
    """(decisions, how many rows the compiled kernels would have chosen otherwise)."""
    placer, columns, wrong = made.policy.placer, made.cluster.nodes, 0
    place = placer.place

    def expected(task: Task) -> int:
        form = kernels.active()
        kernels._active = twin
        row = twin.best(placer.scores(task), columns.rank(), columns.height)
        kernels._active = form
        return row

    def checked(task: Task, venue: Venue | None = None) -> int:
        nonlocal wrong
        plain = expected(task) if venue is None else -2
        row = place(task, venue)
        wrong += venue is None and row != plain
        return row

    with (
        mock.patch.object(Lookahead, "place", return_value=[]),
        mock.patch.object(Placer, "goes_one_by_one", return_value=True),
        mock.patch.object(Placer, "place_apart", return_value=None),
        mock.patch.object(placer, "place", checked),
    ):
        return decisions(made), wrong
