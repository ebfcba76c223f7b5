"""The arithmetic of autoscaling. Cases of Kthena's own unit tests carry its name for them."""

import math
from typing import Any

import pytest

from hekla.serving.autoscaler.algorithms.histogram import (
    Histogram,
    HistogramError,
    histogram_of,
    merged,
    quantile,
    since,
)
from hekla.serving.autoscaler.algorithms.mix import Hardware, spread
from hekla.serving.autoscaler.algorithms.pace import History, Pace, Panic, Rate, Step, corrected
from hekla.serving.autoscaler.algorithms.ratio import Bounds, in_proportion
from hekla.serving.autoscaler.algorithms.recommendation import Load, is_ratio, recommend, together
from hekla.serving.autoscaler.algorithms.windows import Line, line_of

A = {"a": 1.0}


def each(*values: tuple[int, float | None]) -> list[dict[str, float]]:
    return [{} if value is None else {"a": value} for count, value in values for _ in range(count)]


# ---- recommendation


@pytest.mark.parametrize(
    ("load", "targets", "bounds", "tolerance", "wanted"),
    [
        (Load(current=4, unready=4), {}, (5, 10), 0.1, 5),
        (Load(current=11), {}, (5, 10), 0.1, 10),
        (Load(current=7, unready=7), {"a": 0.5, "b": 8.0}, (5, 10), 0.1, None),
        (
            Load(current=3, ready=[{"a": 6.0, "b": 500.0, "c": 20.0}] * 3),
            {"a": 3.0, "b": 5.0, "c": 4.0},
            (1, 10**6),
            0.0,
            300,
        ),
        (Load(current=1, ready=each((1, 1.0))), {"a": 0.0}, (1, 100), 0.0, 100),
        (Load(current=1, ready=each((1, 1e100))), {"a": 1e-100}, (1, 100), 0.0, 100),
        (Load(current=3, ready=each((1, 19.1), (1, 3.1), (1, 7.1))), A, (1, 100), 0.0, 30),
        (Load(current=10, ready=each((10, 0.1))), A, (5, 20), 0.0, 5),
        (Load(current=10, ready=each((10, 3.0))), A, (5, 20), 0.0, 20),
        (Load(current=9, ready=each((10, 0.51))), A, (1, 100), 0.5, 9),
        (Load(current=9, ready=each((10, 0.49))), A, (1, 100), 0.5, 5),
        (Load(current=9, ready=each((10, 1.49))), A, (1, 100), 0.5, 9),
        (Load(current=9, ready=each((10, 1.51))), A, (1, 100), 0.5, 16),
        (Load(current=58, unready=50, ready=each((8, 0.15))), A, (1, 100), 0.0, 2),
        (Load(current=18, unready=10, ready=each((8, 3.9))), A, (1, 100), 0.0, 32),
        (Load(current=58, unready=50, ready=each((8, 3.9))), A, (1, 100), 0.0, 58),
        (Load(current=10, ready=each((2, None), (8, 0.5))), A, (1, 100), 0.0, 6),
        (Load(current=10, ready=each((2, None), (8, 2.9))), A, (1, 100), 0.0, 24),
        (Load(current=58, ready=each((50, None), (8, 2.9))), A, (1, 100), 0.0, 58),
        (Load(current=58, ready=each((4, None), (8, 2.9))), A, (1, 100), 0.0, 58),
        (Load(current=10, whole={"a": 14.9}), {"a": 3.0}, (1, 100), 0.51, 10),
        (Load(current=10, whole={"a": 14.9}), {"a": 3.0}, (1, 100), 0.49, 5),
        (Load(current=10, whole={"a": 44.9}), {"a": 3.0}, (1, 100), 0.51, 10),
        (Load(current=10, whole={"a": 44.9}), {"a": 3.0}, (1, 100), 0.49, 15),
        (Load(current=1, whole={"a": 1.0}), {"a": 0.0}, (1, 100), 0.0, 100),
        (Load(current=1, whole={"a": 1e100}), {"a": 1e-100}, (1, 100), 0.0, 100),
    ],
)
def test_recommendation(
    load: Load, targets: dict[str, float], bounds: tuple[int, int], tolerance: float, wanted: int | None
) -> None:
    found = recommend(load, targets, least=bounds[0], most=bounds[1], tolerance=tolerance)
    assert (None if found is None else found.replicas) == wanted


def test_five_replicas_at_the_load_of_one_shrink() -> None:
    """Kthena compares the total with one target: a total within a tenth of it changes nothing."""
    found = recommend(Load(current=5, ready=each((5, 0.2))), A, least=1, most=10, tolerance=0.1)
    assert found is not None
    assert found.replicas == 1
    assert found.reason == "a is 0.2 a replica, target 1"
    found = recommend(Load(current=5, ready=each((5, 9.0))), A, least=1, most=10, tolerance=0.1)
    assert found is not None
    assert found.reason == "a is 9 a replica, target 1; that asks for more than the 10 that there may be"


def test_a_load_within_the_tolerance_does_not_flap_at_any_size() -> None:
    for replicas in (2, 10, 100):
        found = recommend(Load(current=replicas, ready=each((replicas, 1.05))), A, least=1, most=1000, tolerance=0.1)
        assert found is not None
        assert found.replicas == replicas


def test_what_floats_add_to_a_quotient_asks_for_no_replica() -> None:
    found = recommend(Load(current=5, whole={"a": 1.1}), {"a": 0.1}, least=1, most=100, tolerance=0.1)
    assert found is not None
    assert found.replicas == 11


def test_a_ratio_of_the_whole_is_no_amount() -> None:
    """90 % of ten replicas where 60 % are wanted are 15 replicas, not two."""
    load = Load(current=10, whole={"gpu_utilization": 0.9})
    found = recommend(load, {"gpu_utilization": 0.6}, least=1, most=100, tolerance=0.1)
    assert found is not None
    assert found.replicas == 15


def test_an_objective_of_latency_asks_for_replicas_in_proportion() -> None:
    ttft = "vllm:time_to_first_token_seconds"
    found = recommend(Load(current=4, ready=[{ttft: 0.75}] * 4), {ttft: 0.5}, least=1, most=100, tolerance=0.1)
    assert found is not None
    assert found.replicas == 6


@pytest.mark.parametrize("name", ["gpu_utilization", "Cache_Usage", "fill_ratio", "load_percent", "queue_saturation"])
def test_ratios_are_known_by_their_names(name: str) -> None:
    assert is_ratio(name)


@pytest.mark.parametrize("name", ["queue_length", "request_rate", "gpu_utilization_rate", "pending_requests"])
def test_amounts_are_known_by_their_names(name: str) -> None:
    assert not is_ratio(name)


@pytest.mark.parametrize(
    ("name", "samples", "wanted"),
    [
        ("queue_length", [(100, 3), (200, 1)], 300),
        ("request_rate", [(50, 2), (70, 2)], 120),
        ("gpu_utilization", [(60, 3), (70, 1)], 62.5),
        ("gpu_utilization", [(60, 4), (70, 6)], 66),
        ("cache_usage", [(60, 0), (80, 0)], 70),
    ],
)
def test_values_of_several_backends_together(name: str, samples: list[tuple[float, int]], wanted: float) -> None:
    assert together(name, samples) == pytest.approx(wanted)


# ---- pace


def paced(recommended: int, current: int, **more: Any) -> int:
    return step_of(recommended, current, **more).replicas


def step_of(recommended: int, current: int, *, bounds: tuple[int, int] = (1, 100), **more: Any) -> Step:
    given = {"up": Rate(instances=2), "down": Rate(instances=2, percent=20), "panic": Panic(), **more}
    history = given.pop("history", History())
    return corrected(
        recommended, current, pace=Pace(**given), history=history, now_s=1e6, least=bounds[0], most=bounds[1]
    )  # fmt: skip


def did(value: int) -> History:
    return History(corrected=Line(((0.0, value),)))


def was_told(value: int) -> History:
    return History(recommended=Line(((0.0, value),)))


PANIC = {"panic": Panic(percent=100, hold_s=60, period_s=60)}


@pytest.mark.parametrize(
    ("recommended", "current", "more", "wanted"),
    [
        (7, 7, {}, 7),
        (5, 10, {"down": Rate(instances=1, percent=40)}, 6),
        (5, 10, {"down": Rate(instances=1, percent=40, takes_both=True)}, 9),
        (5, 10, {"down": Rate(instances=2, percent=20, window_s=300), "history": was_told(9)}, 9),
        (3, 10, {"down": Rate(instances=3, percent=25), "history": did(12)}, 9),
        (20, 5, {"up": Rate(instances=3, percent=100)}, 10),
        (20, 5, {"up": Rate(instances=3, percent=100, takes_both=True)}, 8),
        (20, 5, {"up": Rate(instances=3, percent=100, window_s=300), "history": was_told(12)}, 10),
        (50, 10, {"up": Rate(instances=2, percent=50), "history": did(6)}, 10),
        (15, 5, {"panic": Panic(percent=1000, hold_s=60)}, 15),
        (15, 5, PANIC, 10),
        (30, 10, {**PANIC, "history": did(6)}, 12),
        (5, 0, {**PANIC, "bounds": (0, 100)}, 5),
        (5, 0, {**PANIC, "bounds": (0, 100), "history": did(0)}, 5),
        (2, 10, {"bounds": (8, 20)}, 8),
        (50, 30, {"bounds": (1, 20)}, 20),
    ],
)
def test_pace(recommended: int, current: int, more: dict[str, Any], wanted: int) -> None:
    """Kthena: TestGetCorrectedInstances."""
    assert paced(recommended, current, **more) == wanted


@pytest.mark.parametrize(
    ("recommended", "current", "more", "why"),
    [
        (15, 5, {"panic": Panic(percent=1000, hold_s=60)}, "in panic, so at once"),
        (30, 10, {**PANIC, "history": did(6)}, "30 are recommended; panic bounds the growth"),
        (
            5,
            10,
            {"down": Rate(instances=9, window_s=300), "history": was_told(9)},
            "5 are recommended; the most of the last 300 s counts",
        ),
        (
            5,
            10,
            {"down": Rate(instances=9, window_s=300), "history": was_told(20)},
            "5 are recommended; the most of the last 300 s counts",
        ),
        (5, 10, {"down": Rate(instances=1, percent=0)}, "5 are recommended; the pace of shrinking bounds it"),
        (
            20,
            5,
            {"up": Rate(instances=30, window_s=30), "history": was_told(6)},
            "20 are recommended; the least of the last 30 s counts",
        ),
        (20, 5, {"up": Rate(instances=1, percent=0)}, "20 are recommended; the pace of growing bounds it"),
    ],
)
def test_what_holds_a_recommendation_back_is_said(
    recommended: int, current: int, more: dict[str, Any], why: str
) -> None:
    """A window that waits, a period that bounds, and panic were told alike, or not at all."""
    assert step_of(recommended, current, **more).why_less == why


def test_panic_holds_for_a_while_and_nothing_shrinks_in_it() -> None:
    pace = Pace(panic=Panic(percent=1000, hold_s=60, period_s=15))
    begun = corrected(10, 4, pace=pace, history=History(), now_s=100, least=1, most=50)
    assert (begun.replicas, begun.mode) == (10, "Panic")
    later = corrected(2, 10, pace=pace, history=begun.history, now_s=159, least=1, most=50)
    assert (later.replicas, later.mode, later.why_less) == (10, "Panic", "2 are recommended; nothing shrinks in panic")
    after = corrected(2, 10, pace=pace, history=later.history, now_s=161, least=1, most=50)
    assert after.mode == "Stable"


def test_without_a_hold_there_is_no_panic() -> None:
    assert corrected(10, 1, pace=Pace(), history=History(), now_s=0, least=1, most=50).mode == "Stable"


def test_shrinking_waits_for_its_window() -> None:
    pace = Pace(down=Rate(instances=0, percent=100, period_s=60, window_s=300))
    history, current, seen = History(), 10, []
    for tick in range(30):
        recommended = 10 if tick == 0 else 2
        step = corrected(recommended, current, pace=pace, history=history, now_s=15.0 * tick, least=1, most=50)
        history, current = step.history, step.replicas
        seen.append(current)
    # the last recommendation of 10 held until 0:15, so five minutes later nobody remembers it
    assert seen.index(2) * 15 == 315


def test_history_survives_a_restart() -> None:
    line = Line().with_value(0, 3, keep_s=100).with_value(10, 3, keep_s=100).with_value(20, 5, keep_s=100)
    assert line.changes == ((0, 3), (20, 5))
    assert line_of([list(one) for one in line.changes]) == line
    assert line.best(min, 25, 10, default=9) == 3
    assert line.best(min, 31, 10, default=9) == 5
    assert line.best(max, 31, 0, default=9) == 9
    assert Line().best(max, 31, 10, default=9) == 9


def test_history_is_bounded() -> None:
    line = Line()
    for tick in range(5000):
        line = line.with_value(float(tick), tick % 7, keep_s=10**9)
    assert len(line.changes) == 512


# ---- mix


@pytest.mark.parametrize(
    ("replicas", "kinds", "percent", "wanted"),
    [
        (9, [Hardware(least=1, most=5, cost=10), Hardware(least=2, most=4, cost=20)], 100, [5, 4]),
        (200, [Hardware(least=1, most=5, cost=10), Hardware(least=2, most=4, cost=20)], 100, [5, 4]),
        (6, [Hardware(least=1, most=5, cost=10), Hardware(least=2, most=4, cost=20)], 100, [4, 2]),
        (8, [Hardware(least=1, most=3, cost=100), Hardware(least=2, most=5, cost=60)], 100, [3, 5]),
        (6, [Hardware(least=1, most=3, cost=100), Hardware(least=2, most=5, cost=60)], 100, [1, 5]),
        (0, [Hardware(least=1, most=3), Hardware(least=2, most=5)], 200, [1, 2]),
        (3, [Hardware(least=0, most=8, cost=10), Hardware(least=0, most=8, cost=25)], 200, [3, 0]),
        (5, [Hardware(least=0, most=8, cost=10), Hardware(least=0, most=8, cost=25)], 200, [4, 1]),
    ],
)
def test_the_cheapest_mix(replicas: int, kinds: list[Hardware], percent: int, wanted: list[int]) -> None:
    """Kthena: TestTwoBackendsHighLoad_then_DoOptimize_expect_DistributionA5B4."""
    assert spread(replicas, kinds, expansion_percent=percent) == wanted


# ---- ratio


@pytest.mark.parametrize(
    ("roles", "prefill", "decode", "wanted", "adjusted"),
    [
        ((2, 4), (0, 8), (0, 16), (2, 4), False),
        ((1, 8), (0, 8), (0, 16), (2, 8), True),
        ((6, 2), (0, 8), (0, 16), (6, 6), True),
        ((2, 20), (0, 3), (0, 20), (3, 12), True),
        ((0, 4), (0, 8), (0, 16), (1, 4), True),
        ((4, 0), (0, 8), (0, 16), (4, 4), True),
        ((0, 0), (0, 8), (0, 16), (0, 0), False),
    ],
)
def test_prefill_and_decode_in_proportion(
    roles: tuple[int, int], prefill: tuple[int, int], decode: tuple[int, int], wanted: tuple[int, int], adjusted: bool
) -> None:
    """Kthena: TestEnforceRoleRatio."""
    above, below = Bounds(least=prefill[0], most=prefill[1]), Bounds(least=decode[0], most=decode[1])
    found = in_proportion(*roles, above=above, below=below, least=0.25, most=1.0)
    assert (found.numerator, found.denominator) == wanted
    assert found.is_adjusted is adjusted
    assert not found.is_violated


def test_a_proportion_is_kept_as_it_was_written_and_not_as_floats_have_it() -> None:
    wide = Bounds(least=1, most=100)
    found = in_proportion(2, 30, above=wide, below=wide, least=0.1, most=10.0)
    assert (found.numerator, found.denominator, found.is_violated) == (3, 30, False)
    found = in_proportion(60, 1, above=wide, below=wide, least=0.1, most=0.29)
    assert (found.numerator, found.denominator, found.is_violated) == (29, 100, False)


def test_a_ratio_that_the_bounds_forbid_is_told() -> None:
    fixed = Bounds(least=4, most=4)
    found = in_proportion(1, 4, above=Bounds(least=1, most=1), below=fixed, least=0.5, most=1.0)
    assert (found.numerator, found.denominator, found.is_violated) == (1, 4, True)


# ---- histogram

INF = math.inf
PAST = histogram_of({0.5: 2, 0.75: 4, INF: 5})


@pytest.mark.parametrize(
    ("now", "percent", "wanted"),
    [
        (PAST, 95, 0.0),
        (histogram_of({0.5: 4, 0.75: 8, INF: 10}), 100, 1.5),
        (histogram_of({0.5: 7, 0.75: 9, INF: 10}), 100, 0.5),
        (histogram_of({0.5: 6, 0.75: 10, INF: 11}), 50, 0.375),
    ],
)
def test_quantiles_of_what_came_since(now: Histogram, percent: int, wanted: float) -> None:
    assert quantile(since(now, PAST), percent) == pytest.approx(wanted)


def test_without_a_past_all_counts() -> None:
    assert quantile(since(histogram_of({0.5: 2, 0.75: 4, INF: 8}), None), 95) == pytest.approx(1.5)


@pytest.mark.parametrize("now", [{0.5: 2, INF: 4}, {0.5: 1, 0.75: 4, INF: 5}, {0.5: 9, 0.75: 9, INF: 9.5, 2.0: 9}])
def test_looks_that_do_not_belong_together_are_told(now: dict[float, float]) -> None:
    with pytest.raises(HistogramError):
        since(histogram_of(now), PAST)


def test_histograms_of_pods_become_one() -> None:
    both = merged([histogram_of({1.0: 9, INF: 10}), histogram_of({1.0: 0, INF: 10}), histogram_of({7.0: 1})])
    assert both.buckets == ((1.0, 9), (INF, 20))
