"""Whether pools are sized by what is to come: timers, bursts, silence, and a promised share of cold starts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.agents import SandboxWarmPool, names
from hekla.api.meta import ObjectMeta
from hekla.sandbox.pools.sizer import PolicyError, policy_of
from hekla.sandbox.pools.sizing import BURSTS, Adaptive, Histogram, Sizing
from hekla.sandbox.pools.slo import ColdStarts


def play(sizing: Sizing, starts: dict[int, int], until_s: int, lead_s: int = 1) -> tuple[int, int, list[int]]:
    """One pool through time, second by second: cold starts, idle seconds, and what was wanted in each second."""
    ready, cold, idle, sizes = 0, 0, 0, []
    coming = [0] * lead_s
    for second in range(until_s):
        coming.append(0)
        ready += coming.pop(0)
        if count := starts.get(second, 0):
            warm = min(count, ready)
            cold, ready = cold + count - warm, ready - warm
            sizing.see(float(second), np.array([count]), np.array([count - warm]))
        size = int(sizing.wanted(float(second))[0])
        sizes.append(size)
        missing = size - ready - sum(coming)
        coming[-1] += max(missing, 0)
        ready -= min(max(-missing, 0), ready)
        idle += ready
    return cold, idle, sizes


@pytest.mark.parametrize(
    "sizing", [Adaptive(pools=1, lead_s=1), Histogram(pools=1, lead_s=1)], ids=["adaptive", "histogram"]
)
def test_a_pool_nobody_has_asked_for_is_empty(sizing: Sizing) -> None:
    assert play(sizing, {}, 100)[2] == [0] * 100


def test_a_timer_is_met_and_nobody_waits_in_between() -> None:
    every_ten_minutes = dict.fromkeys(range(0, 12_000, 600), 1)
    cold, idle, _ = play(Histogram(pools=1, lead_s=1), every_ten_minutes, 12_000)
    assert cold <= 3
    # a fixed pool of one would have waited for 12,000 s
    assert idle < 12_000 / 2


def test_bursts_of_four_find_four() -> None:
    bursts = dict.fromkeys(range(0, 6_000, 60), 4)
    cold, _, _ = play(Histogram(pools=1, lead_s=1), bursts, 6_000)
    assert cold <= 4 * 3


def test_a_pool_that_is_not_asked_any_more_lets_go() -> None:
    busy = dict.fromkeys(range(0, 600, 3), 2)
    for sizing in (Histogram(pools=1, lead_s=1), Adaptive(pools=1, lead_s=1)):
        sizes = play(sizing, busy, 6_000)[2]
        assert max(sizes[300:600]) >= 2
        assert sizes[-1] == 0


def test_a_promise_of_few_cold_starts_is_kept_and_a_lax_one_costs_less() -> None:
    dice = np.random.default_rng(4)
    at = np.cumsum(dice.exponential(20.0, 1_500))
    starts: dict[int, int] = {}
    for second in at.astype(int):
        starts[int(second)] = starts.get(int(second), 0) + 1
    until_s, total = int(at[-1]) + 1, sum(starts.values())
    shares, idles = [], []
    for promised in (0.02, 0.2):
        cold, idle, _ = play(Histogram(pools=1, lead_s=1, max_cold_share=promised), starts, until_s)
        shares.append(cold / total)
        idles.append(idle)
    assert shares[0] == pytest.approx(0.02, abs=0.02)
    assert idles[1] < idles[0]


def test_99_of_100_starts_are_as_quick_as_promised_with_no_more_idle_than_that_needs() -> None:
    """Half of the cold starts take 400 ms, half 100 ms, a warm one none: what may be cold follows from what is promised."""
    cold_starts = ColdStarts()
    assert cold_starts.share_for(50) == 0.01, "nothing is known: a cold start counts as slow"
    for number in range(200):
        cold_starts.see(400 if number % 2 else 100)
    assert [cold_starts.share_for(ms) for ms in (50, 200, 500)] == [0.01, 0.02, 0.999]

    dice = np.random.default_rng(5)
    at = np.cumsum(dice.exponential(20.0, 1_000)).astype(int)
    starts = {int(second): int(count) for second, count in zip(*np.unique(at, return_counts=True), strict=True)}
    slow, idles = {}, []
    for promised, of_cold in ((50, 1.0), (200, 0.5), (500, 0.0)):
        sizing = Histogram(pools=1, lead_s=1)
        sizing.aim(cold_starts.share_for(promised))
        cold, idle, _ = play(sizing, starts, int(at[-1]) + 1)
        slow[promised] = cold / len(at) * of_cold
        idles.append(idle)
    assert all(share <= 0.02 for share in slow.values()), slow
    assert idles[0] > idles[1] > 3 * idles[2]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=40),
    st.sampled_from(["adaptive", "histogram"]),
)
def test_sizes_stay_in_bounds_whatever_comes(events: list[tuple[int, int]], kind: str) -> None:
    sizing: Sizing = (
        Adaptive(pools=1, lead_s=1) if kind == "adaptive" else Histogram(pools=1, lead_s=1, max_cold_share=0.05)
    )
    sizes = play(sizing, dict(events), 320)[2]
    assert all(0 <= size <= BURSTS[-1] for size in sizes)


def test_pools_do_not_learn_from_one_another() -> None:
    both, alone = Histogram(pools=2, lead_s=1), Histogram(pools=1, lead_s=1)
    for second in range(0, 500, 7):
        both.see(second, np.array([1, second % 3]), np.array([0, 0]))
        alone.see(second, np.array([1]), np.array([0]))
        assert both.wanted(second)[0] == alone.wanted(second)[0]


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({names.POOL_POLICY: "magic"}, "say fixed, adaptive or histogram"),
        ({names.POOL_POLICY: "adaptive", names.POOL_BOUNDS: "9-3"}, "say the least and the most"),
        ({names.POOL_POLICY: "histogram", names.POOL_COLD_SHARE: "5%"}, "say a share from 0.001 to 0.999"),
        ({names.POOL_POLICY: "histogram", names.POOL_P99_START: "50ms"}, "say milliseconds from 1 to 3600000"),
        ({names.POOL_POLICY: "adaptive", names.POOL_P99_START: "50"}, "histogram alone, and that is 'adaptive'"),
        ({names.POOL_POLICY: "adaptive", names.POOL_COLD_SHARE: "0.1"}, "histogram alone, and that is 'adaptive'"),
    ],
)
def test_annotations_that_make_no_sense_are_told(annotations: dict[str, str], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy_of(SandboxWarmPool(metadata=ObjectMeta(annotations=annotations)))
