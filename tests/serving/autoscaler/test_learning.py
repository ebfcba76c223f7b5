"""Whether replicas that are scaled by a latency alone come to rest under a load that does not change, and follow one that does."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hekla.api.kthena import AutoscalingPolicy
from hekla.serving.autoscaler.algorithms.learning import HOLD_S, Learned, Lesson, advised, after
from hekla.serving.autoscaler.algorithms.recommendation import Load, Recommendation, recommend
from hekla.serving.autoscaler.decision import HISTORY, Measured, decide, write_histories

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOK_S = 15.0
HOUR_S = 3600.0
MOST = 12


def latency_policy() -> AutoscalingPolicy:
    target = {"targetRef": {"name": "m"}, "metricSources": {"ttft_seconds": {"pod": {"port": 8000}}}}
    spec = {
        "tolerancePercent": 10,
        "metrics": [{"name": "ttft_seconds", "targetValue": "2"}],
        "homogeneousTarget": {"target": target, "minReplicas": 1, "maxReplicas": MOST},
    }
    return msgspec.convert({"metadata": {"name": "p", "namespace": "ml"}, "spec": spec}, AutoscalingPolicy)


@dataclass
class Queue:
    """Replicas that answer one request a second each, behind one queue; what is too much waits."""

    load: Callable[[float], float]
    ready_after_s: float
    noise: random.Random
    base_s: float = 0.5
    backlog: float = 0.0
    ready_s: list[float] = field(default_factory=lambda: [0.0])
    counts: list[int] = field(default_factory=list)
    broken: list[float] = field(default_factory=list)

    def run(self, until_s: float) -> "Queue":
        policy, now = latency_policy(), 0.0
        while now < until_s:
            now += LOOK_S
            decision = decide(policy, {"m": self._lived(now)}, NOW + timedelta(seconds=now))
            told = {HISTORY: write_histories(decision.histories)}
            policy = msgspec.structs.replace(
                policy, metadata=msgspec.structs.replace(policy.metadata, annotations=told)
            )
            for scaling in decision.scalings:
                self.ready_s = sorted(self.ready_s)[: scaling.after]
                self.ready_s += [now + self.ready_after_s] * (scaling.after - scaling.before)
            self.counts.append(len(self.ready_s))
        return self

    def _lived(self, now: float) -> Measured:
        """What was measured in the time since the last look: an M/M/1's mean, and the wait of what was left over."""
        ready, load = sum(at < now for at in self.ready_s), self.load(now)
        self.backlog = max(0.0, self.backlog + (load - ready) * LOOK_S)
        busy = min(load / ready, 0.95)
        seen_s = self.base_s * (1 + 0.3 * busy / (1 - busy)) * self.noise.uniform(0.9, 1.1) + self.backlog / ready
        self.broken += [now] if seen_s > 2.2 else []  # the target and its tolerance
        return Measured(
            current=len(self.ready_s), ready=[{"ttft_seconds": seen_s}] * ready, unready=len(self.ready_s) - ready
        )

    def changes(self, since_s: float) -> int:
        return sum(a != b for a, b in pairwise(self.counts[int(since_s / LOOK_S) :]))


@given(
    needed=st.integers(1, 9),
    slack=st.floats(0.2, 0.85),
    ready_after_s=st.sampled_from([30.0, 60.0, 120.0]),
    base_s=st.floats(0.1, 0.9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=4, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_under_a_constant_load_the_count_comes_to_rest(
    needed: int, slack: float, ready_after_s: float, base_s: float, seed: int
) -> None:
    """With some slack: at the very edge what has queued up never drains, and no number holds."""
    load = needed - slack
    it = Queue(lambda _: load, ready_after_s, random.Random(seed), base_s=base_s).run(8 * HOUR_S)
    assert it.changes(4 * HOUR_S) <= 4, "one trial fits into the last hold: a step down, and back"
    settled = it.counts[int(4 * HOUR_S / LOOK_S) :]
    assert max(settled) - min(settled) <= 2
    assert max(settled.count(one) for one in set(settled)) >= 0.9 * len(settled), "it stands nearly always"
    assert needed <= max(set(settled), key=settled.count) <= needed + 2
    late = [at for at in it.broken if at > 4 * HOUR_S]
    assert len(late) <= 0.05 * 4 * HOUR_S / LOOK_S, "and so does the target"


@given(needed=st.integers(2, 9), slack=st.floats(0.1, 0.9), seed=st.integers(0, 1000))
@settings(max_examples=4, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_engines_that_start_slowly_are_given_up_ever_more_rarely(needed: int, slack: float, seed: int) -> None:
    """What queues up in the five minutes of a start may still be answered by more replicas than are needed."""
    it = Queue(lambda _: needed - slack, 300.0, random.Random(seed)).run(8 * HOUR_S)
    dips = [
        at * LOOK_S for at, (a, b) in enumerate(pairwise(it.counts)) if b < needed <= a
    ]  # fmt: skip
    assert sum(at > 4 * HOUR_S for at in dips) <= 2
    assert sum(at > HOUR_S for at in dips) <= 6


def test_replicas_go_when_the_load_goes_though_fewer_were_too_few_before() -> None:
    it = Queue(lambda now: 5.6 if now < 2 * HOUR_S else 1.5, 60.0, random.Random(1)).run(4 * HOUR_S)
    busy = it.counts[int(HOUR_S / LOOK_S) : int(2 * HOUR_S / LOOK_S)]
    assert min(busy) >= 5
    assert it.counts[-1] <= 3


def test_replicas_come_when_the_load_comes_though_a_trial_is_on() -> None:
    it = Queue(lambda now: 2.5 if now < HOUR_S else 8.5, 60.0, random.Random(1)).run(3 * HOUR_S)
    grown = it.counts[int((HOUR_S + 900) / LOOK_S)]
    assert grown >= 9, "within a quarter of an hour, engines' start included"
    assert not [at for at in it.broken if at > 2 * HOUR_S][5:]


def of_times(replicas: int, ratio: float, *, only: bool = True) -> Recommendation:
    return Recommendation(replicas, "ttft_seconds", ratio, is_time=True, only_times=only)


def test_a_time_far_below_its_target_gives_up_one_replica_and_a_load_as_many_as_it_says() -> None:
    load = Load(current=6, ready=[{"ttft_seconds": 0.1, "requests": 1.0}] * 6)
    alone = recommend(load, {"ttft_seconds": 2.0}, least=1, most=9, tolerance=0.1)
    both = recommend(load, {"ttft_seconds": 2.0, "requests": 3.0}, least=1, most=9, tolerance=0.1)
    assert alone is not None
    assert both is not None
    assert advised(alone, 6, Learned(), 0.0).replicas == 5
    assert advised(both, 6, Learned(), 0.0).replicas == 2


def test_what_held_comes_back_before_anything_larger() -> None:
    tried = after(Learned(), of_times(1, 0.3), 3, 2, 1000.0)
    back = advised(of_times(9, 4.0), 2, tried, 1030.0)
    assert back.replicas == 3
    assert "2 are too few, 3 held it" in back.reason
    learned = after(tried, back, 2, 3, 1030.0)
    assert learned.lesson == Lesson(replicas=2, ratio=0.3, until_s=1030.0 + HOLD_S)
    assert advised(of_times(9, 4.0), 3, learned, 1060.0).replicas == 3, "it is given time to hold again"
    assert advised(of_times(9, 4.0), 3, learned, 1160.0).replicas == 9, "and then no more"


def test_what_was_too_few_is_not_tried_again_at_the_same_load_and_each_time_for_longer() -> None:
    learned = Learned(lesson=Lesson(replicas=2, ratio=0.3, until_s=1000.0 + HOLD_S))
    blocked = advised(of_times(1, 0.29), 3, learned, 1100.0)
    assert (blocked.replicas, blocked.reason) == (3, "ttft_seconds; 2 were too few at this load")
    assert advised(of_times(1, 0.2), 3, learned, 1100.0).replicas == 2, "there is clearly less to do"
    late = 1001.0 + HOLD_S
    assert advised(of_times(1, 0.29), 3, learned, late).replicas == 2
    again = after(learned, of_times(1, 0.29), 3, 2, late)
    twice = after(again, of_times(4, 2.0), 2, 3, late + 60.0)
    assert twice.lesson is not None
    assert twice.lesson.until_s == late + 60.0 + 2 * HOLD_S


def test_a_target_that_breaks_long_after_a_trial_was_broken_by_the_load() -> None:
    tried = after(Learned(), of_times(1, 0.3), 3, 2, 1000.0)
    assert advised(of_times(9, 4.0), 2, tried, 2000.0).replicas == 9
    assert after(tried, of_times(9, 4.0), 2, 9, 2000.0).lesson is None


def test_what_was_learned_outlives_the_controller() -> None:
    policy = latency_policy()
    decision = decide(policy, {"m": Measured(current=4, ready=[{"ttft_seconds": 0.3}] * 4)}, NOW)
    written = write_histories(decision.histories)
    again = msgspec.structs.replace(
        policy, metadata=msgspec.structs.replace(policy.metadata, annotations={HISTORY: written})
    )
    broken = decide(again, {"m": Measured(current=3, ready=[{"ttft_seconds": 9.0}] * 3)}, NOW + timedelta(seconds=30))
    [scaling] = broken.scalings
    assert scaling.after == 4
    assert "4 held it" in scaling.reason
