"""What a policy comes to, by what was measured. Kthena: TestHighLoad…, TestToleranceHigh…, DoDisaggregatedScale…"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hekla.api.core import Pod
from hekla.api.kthena import AutoscalingPolicy, ModelServing
from hekla.api.meta import Document
from hekla.api.volcano import PodGroup
from hekla.serving.autoscaler.algorithms.histogram import histogram_of
from hekla.serving.autoscaler.collector import first_sample
from hekla.serving.autoscaler.decision import (
    AWAKE_S,
    HISTORY,
    Decision,
    Measured,
    decide,
    write_histories,
)
from hekla.serving.autoscaler.exposition import read
from hekla.serving.autoscaler.measuring import looks, measured, without_source
from hekla.serving.autoscaler.policy_status import is_worth_writing, status_of
from hekla.serving.autoscaler.rivals import key_of, rivals
from hekla.serving.autoscaler.units import units_of
from hekla.testing.serving_world import role, serving

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOAD = [{"name": "load", "targetValue": "1"}]
EAGER = {
    "scaleUp": {"stablePolicy": {"instances": 100, "percent": 1000, "period": "15s"}},
    "scaleDown": {"instances": 100, "percent": 100, "period": "15s", "stabilizationWindow": "0s"},
}


def policy(*, annotations: dict[str, str] | None = None, **spec: Any) -> AutoscalingPolicy:
    whole = {"tolerancePercent": 0, "metrics": LOAD, "behavior": EAGER, **spec}
    metadata = {"name": "p", "namespace": "default", "generation": 1, "annotations": annotations or {}}
    return msgspec.convert({"metadata": metadata, "spec": whole}, AutoscalingPolicy)


def target(name: str = "llama") -> Document:
    return {"targetRef": {"name": name}, "metricSources": {"load": {"pod": {"port": 8000}}}}


def homogeneous(least: int = 1, most: int = 10, **more: Any) -> AutoscalingPolicy:
    return policy(homogeneousTarget={"target": target(), "minReplicas": least, "maxReplicas": most}, **more)


def disaggregated(**ratio: Any) -> AutoscalingPolicy:
    roles = {
        "prefill": {"minReplicas": 0, "maxReplicas": 8, "metricSources": {}},
        "decode": {"minReplicas": 0, "maxReplicas": 16, "metricSources": {}},
    }
    constraint = {"numeratorRole": "prefill", "denominatorRole": "decode", **ratio}
    return policy(disaggregatedTarget={"targetRef": {"name": "llama"}, "roles": roles, "ratioConstraint": constraint})


def seen(current: int, *loads: float, **more: Any) -> Measured:
    return Measured(current=current, ready=[{"load": load} for load in loads], **more)


def replicas(decision: Decision) -> list[int]:
    return [one.replicas for one in decision.outcomes]


def test_high_load_asks_for_the_most() -> None:
    """Kthena: TestHighLoad_then_DoScale_expect_Replicas10."""
    decision = decide(homogeneous(), {"llama": seen(1, 10.0)}, NOW)
    [scaling] = decision.scalings
    assert (scaling.before, scaling.after) == (1, 10)
    assert scaling.reason == "load is 10 a replica, target 1"


def test_a_load_within_the_tolerance_changes_nothing() -> None:
    """Kthena: TestToleranceHigh_then_DoScale_expect_NoUpdateActions."""
    assert decide(homogeneous(tolerancePercent=100), {"llama": seen(3, 1, 1, 1)}, NOW).scalings == []


def test_two_backends_get_the_cheapest_mix() -> None:
    """Kthena: TestTwoBackendsHighLoad_then_DoOptimize_expect_DistributionA5B4."""
    params = [
        {"target": target("a"), "minReplicas": 1, "maxReplicas": 5, "cost": 10},
        {"target": target("b"), "minReplicas": 2, "maxReplicas": 4, "cost": 20},
    ]
    found = policy(heterogeneousTarget={"params": params, "costExpansionRatePercent": 100})
    decision = decide(found, {"a": seen(1, 100.0), "b": seen(2, 100.0, 100.0)}, NOW)
    assert replicas(decision) == [5, 4]
    status = status_of(found, decision, NOW)
    assert [(one["name"], one["desiredReplicas"]) for one in status["heterogeneousStatus"]] == [("a", 5), ("b", 4)]
    assert replicas(decide(found, {"a": seen(5, *[0.8] * 5), "b": seen(4, *[0.2] * 4)}, NOW)) == [3, 2]


def test_the_ratio_raises_the_role_that_is_short() -> None:
    """Kthena: TestDoDisaggregatedScale_RatioRaisesDecode."""
    found = disaggregated(minRatio="0.25", maxRatio="1")
    decision = decide(found, {"prefill": seen(2, 3.0, 3.0), "decode": seen(2, 1.0, 1.0)}, NOW)
    assert {one.unit.role: one.replicas for one in decision.outcomes} == {"prefill": 6, "decode": 6}
    status = status_of(found, decision, NOW)["disaggregatedStatus"]
    assert status["ratioAdjusted"] is True
    assert status["ratioStatus"] == {"numeratorRole": "prefill", "denominatorRole": "decode", "currentRatio": "1"}
    assert [one["desiredReplicas"] for one in status["roles"]] == [6, 2]
    reasons = [scaling.reason for scaling in decision.scalings]
    assert reasons[1] == "load is 1 a replica, target 1; 2 by metrics, but prefill:decode must be 0.25 to 1"


def test_a_role_that_is_fixed_stays() -> None:
    roles = {
        "prefill": {"minReplicas": 2, "maxReplicas": 2},
        "decode": {"minReplicas": 1, "maxReplicas": 8},
    }
    found = policy(disaggregatedTarget={"targetRef": {"name": "llama"}, "roles": roles})
    decision = decide(found, {"prefill": seen(2, 9.0, 9.0), "decode": seen(2, 2.0, 2.0)}, NOW)
    assert {one.unit.role: one.replicas for one in decision.outcomes} == {"prefill": 2, "decode": 4}


def test_each_role_holds_its_objective() -> None:
    ttft, inter_token = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    roles = {
        "prefill": {"minReplicas": 1, "maxReplicas": 8, "metrics": [{"name": ttft, "targetValue": "500m"}]},
        "decode": {"minReplicas": 1, "maxReplicas": 8, "metrics": [{"name": inter_token, "targetValue": "50m"}]},
    }
    found = policy(
        metrics=[], disaggregatedTarget={"targetRef": {"name": "llama"}, "roles": roles}, tolerancePercent=10
    )
    measured_now = {
        "prefill": Measured(current=2, ready=[{ttft: 1.0}, {ttft: 1.0}]),
        "decode": Measured(current=4, ready=[{inter_token: 0.05}] * 4),
    }
    decision = decide(found, measured_now, NOW)
    assert {one.unit.role: one.replicas for one in decision.outcomes} == {"prefill": 4, "decode": 4}


def test_nothing_is_done_without_metrics_and_the_condition_says_so() -> None:
    found = homogeneous()
    decision = decide(found, {"llama": seen(3, unready=3)}, NOW)
    assert decision.scalings == []
    ready = next(one for one in status_of(found, decision, NOW)["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "MetricsUnavailable")


def test_a_target_that_is_not_there_is_told() -> None:
    found = homogeneous()
    decision = decide(found, {}, NOW)
    told = {one["type"]: (one["status"], one["message"]) for one in status_of(found, decision, NOW)["conditions"]}
    assert told["TargetFound"] == ("False", "llama does not exist; create it or name another")
    assert decide(disaggregated(minRatio="0", maxRatio="1"), {}, NOW).missing == "role prefill of llama"
    assert told["Ready"][0] == "False"


# ---- zero


def test_an_idle_model_goes_to_zero_and_stays_there() -> None:
    assert replicas(decide(homogeneous(least=0), {"llama": seen(1, 0.0)}, NOW)) == [0]
    decision = decide(homogeneous(least=0), {"llama": seen(0)}, NOW)
    assert decision.scalings == []
    assert decision.outcomes[0].is_measured


def test_a_request_that_waits_wakes_a_model() -> None:
    [scaling] = decide(homogeneous(least=0), {"llama": seen(0, wanted_at=NOW - timedelta(seconds=2))}, NOW).scalings
    assert (scaling.after, scaling.reason) == (1, f"a request waits for it, or did within {AWAKE_S:g} s")


@pytest.mark.parametrize("up", [{"stabilizationWindow": "1m"}, {"instances": 0}, {"selectPolicy": "And"}])
def test_the_pace_of_growing_does_not_keep_a_model_asleep_that_somebody_asks_for(up: Document) -> None:
    """A window of one second had its requests wait ten, until their wish was written again; `And` for ever: twice nothing is nothing."""
    behavior = {**EAGER, "scaleUp": {"stablePolicy": {"period": "2s", **up}}}
    asleep = decide(homogeneous(least=0, behavior=behavior), {"llama": seen(1, 0.0)}, NOW)
    assert replicas(asleep) == [0]
    kept = {HISTORY: write_histories(asleep.histories)}
    later = NOW + timedelta(seconds=1)
    asked = decide(
        homogeneous(least=0, behavior=behavior, annotations=kept), {"llama": seen(0, wanted_at=later)}, later
    )
    assert replicas(asked) == [1]


def test_a_model_that_was_just_asked_for_does_not_fall_asleep() -> None:
    wanted = {"wanted_at": NOW - timedelta(seconds=100)}
    assert decide(homogeneous(least=0), {"llama": seen(1, 0.0, **wanted)}, NOW).scalings == []
    assert replicas(decide(homogeneous(least=0), {"llama": seen(1, 0.0, wanted_at=NOW - timedelta(hours=1))}, NOW)) == [
        0
    ]


def test_kinds_without_replicas_are_no_metric_that_cannot_be_read() -> None:
    params = [
        {"target": target("a"), "minReplicas": 0, "maxReplicas": 4, "cost": 1},
        {"target": target("b"), "minReplicas": 0, "maxReplicas": 4, "cost": 2},
    ]
    found = policy(heterogeneousTarget={"params": params})
    idle, one = decide(found, {"a": seen(0), "b": seen(0)}, NOW), decide(found, {"a": seen(1, 1.0), "b": seen(0)}, NOW)
    assert [one.reason for one in idle.outcomes] == ["it has no replicas, and nobody asks for it"] * 2
    assert ready_of(idle)[:2] == ready_of(one)[:2] == ("True", "Steady")
    [unit] = units_of(homogeneous(least=0))
    nothing = measured(unit, llama(replicas=0), [], [], {}, {}, NOW)
    assert nothing is not None
    assert nothing.unread == ""


# ---- room


def test_a_model_that_waits_for_room_says_so_and_leaves_the_queue_when_nobody_asks_for_it_any_more() -> None:
    slow = {**EAGER, "scaleDown": {"instances": 0, "percent": 100, "period": "1m", "stabilizationWindow": "5m"}}
    woken = decide(homogeneous(least=0), {"llama": seen(0, wanted_at=NOW)}, NOW)
    found = homogeneous(least=0, behavior=slow, annotations={HISTORY: write_histories(woken.histories)})
    waits = {"unready": 1, "waits_for": "llama-0: no room", "unread": "no replica is ready yet"}
    wanted = decide(found, {"llama": seen(1, wanted_at=NOW - timedelta(seconds=100), **waits)}, NOW)
    assert ready_of(wanted) == ("True", "WaitsForRoom", "llama: 1, it waits for room: llama-0: no room")
    [scaling] = decide(found, {"llama": seen(1, wanted_at=NOW - timedelta(seconds=301), **waits)}, NOW).scalings
    assert (scaling.after, scaling.reason) == (0, "nobody asks for it any more, and it waits: llama-0: no room")
    starts = {"unready": 1, "wanted_at": NOW - timedelta(hours=1)}
    assert decide(found, {"llama": seen(1, **starts)}, NOW).scalings == []
    assert decide(homogeneous(least=1), {"llama": seen(1, **waits)}, NOW).scalings == []


def test_of_two_kinds_the_one_that_waits_is_why_none_serves() -> None:
    params = [{"target": target(name), "minReplicas": 0, "maxReplicas": 4} for name in "ab"]
    found = policy(heterogeneousTarget={"params": params})
    waits = seen(1, unready=1, waits_for="a-0: no room", wanted_at=NOW - timedelta(hours=1))
    [scaling] = decide(found, {"a": waits, "b": seen(0)}, NOW).scalings
    assert (scaling.unit.key, scaling.after) == ("a", 0)


def two_kinds(least: int = 1) -> AutoscalingPolicy:
    params = [
        {"target": target("cheap"), "minReplicas": least, "maxReplicas": 4, "cost": 1},
        {"target": target("dear"), "minReplicas": 0, "maxReplicas": 4, "cost": 4},
    ]
    return policy(heterogeneousTarget={"params": params, "costExpansionRatePercent": 100})


def test_a_kind_that_has_room_stands_in_for_one_that_waits_for_it() -> None:
    """The cheap kind was asked for alone, and what has room was not."""
    found = two_kinds()
    assert replicas(decide(found, {"cheap": seen(1, 4.0), "dear": seen(0)}, NOW)) == [4, 0]
    waits = {"unready": 3, "waits_for": "cheap-1: no room", "waiting": 3}
    asked = decide(found, {"cheap": seen(4, 4.0, **waits), "dear": seen(0)}, NOW)
    assert replicas(asked) == [4, 3]
    serves = decide(found, {"cheap": seen(4, 1.0, **waits), "dear": seen(3, 1.0, 1.0, 1.0)}, NOW)
    assert replicas(serves) == [4, 3]
    assert ready_of(serves)[1] == "WaitsForRoom"
    assert (
        "cheap: 4, load is 1 a replica, target 1; its part of 4 in all; but the last ones wait: cheap-1: no room"
        in (ready_of(serves)[2])
    )
    fits = decide(found, {"cheap": seen(4, *[0.6] * 4), "dear": seen(3, *[0.5] * 3)}, NOW)
    assert replicas(fits) == [4, 0]
    falls = decide(found, {"cheap": seen(4, 0.2, **waits), "dear": seen(3, 0.2, 0.2, 0.2)}, NOW)
    assert replicas(falls) == [1, 0]


def test_where_all_kinds_wait_no_more_is_asked_for() -> None:
    waits = {"unready": 1, "waiting": 1}
    cheap, dear = (
        seen(2, 9.0, waits_for="cheap-1: no room", **waits),
        seen(2, 9.0, waits_for="dear-1: no room", **waits),
    )
    assert replicas(decide(two_kinds(), {"cheap": cheap, "dear": dear}, NOW)) == [2, 2]


def test_a_kind_that_has_room_is_woken_where_the_cheaper_one_waits() -> None:
    waits = seen(1, unready=1, waits_for="cheap-0: no room", waiting=1, wanted_at=NOW - timedelta(seconds=20))
    assert replicas(decide(two_kinds(least=0), {"cheap": waits, "dear": seen(0)}, NOW)) == [1, 1]


def test_no_more_is_asked_for_while_a_gang_waits_for_room() -> None:
    waits = "llama-2: 0/4 nodes are available"
    decision = decide(homogeneous(), {"llama": seen(3, 4.0, 4.0, unready=1, waits_for=waits)}, NOW)
    assert decision.scalings == []
    assert decision.outcomes[0].reason.endswith("but the last ones wait: llama-2: 0/4 nodes are available")
    assert replicas(decide(homogeneous(), {"llama": seen(3, 0.1, 0.1, 0.1, waits_for=waits)}, NOW)) == [1]


# ---- what is remembered


def test_windows_outlive_the_controller() -> None:
    slow = {**EAGER, "scaleDown": {"instances": 0, "percent": 100, "period": "1m", "stabilizationWindow": "5m"}}
    first = decide(homogeneous(behavior=slow), {"llama": seen(6, *[1.0] * 6)}, NOW)
    written = write_histories(first.histories)
    later = homogeneous(behavior=slow, annotations={HISTORY: written})
    calm = {"llama": seen(6, *[0.1] * 6)}
    assert decide(later, calm, NOW + timedelta(minutes=4)).scalings == []
    assert replicas(decide(homogeneous(behavior=slow), calm, NOW + timedelta(minutes=4))) == [1]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"llama": {"r": 1}}', '{"llama": {}}'])
def test_a_history_that_cannot_be_read_is_none(text: str) -> None:
    assert replicas(decide(homogeneous(annotations={HISTORY: text}), {"llama": seen(1, 3.0)}, NOW)) == [3]


def test_a_status_that_says_the_same_is_not_written_again() -> None:
    found = homogeneous()
    status = status_of(found, decide(found, {"llama": seen(2, 1.0, 1.0)}, NOW), NOW)
    assert is_worth_writing(found, status)
    written = msgspec.structs.replace(found, status=msgspec.convert({"status": status}, AutoscalingPolicy).status)
    again = status_of(written, decide(written, {"llama": seen(2, 1.0, 1.0)}, NOW), NOW + timedelta(seconds=15))
    assert not is_worth_writing(written, again)
    grown = status_of(written, decide(written, {"llama": seen(2, 3.0, 3.0)}, NOW), NOW)
    assert is_worth_writing(written, grown)


# ---- measuring


def pod(name: str, group: int, role_name: str = "server", ordinal: int = 0, *, is_ready: bool = True) -> Pod:
    told = {
        "modelserving.volcano.sh/name": "llama",
        "modelserving.volcano.sh/group-name": f"llama-{group}",
        "modelserving.volcano.sh/role": role_name,
        "modelserving.volcano.sh/role-id": f"{role_name}-{ordinal}",
        "modelserving.volcano.sh/entry": "true",
    }
    status = {
        "phase": "Running",
        "podIP": f"10.0.{group}.{ordinal}",
        "conditions": [{"type": "Ready", "status": str(is_ready)}],
    }
    return msgspec.convert({"metadata": {"name": name, "labels": told}, "status": status}, Pod)


def llama(**spec: Any) -> ModelServing:
    return msgspec.convert(serving(**spec), ModelServing)


def test_a_replica_is_a_group_and_its_pods_count_together() -> None:
    [unit] = units_of(homogeneous())
    pods = [pod("a", 0), pod("b", 0, ordinal=1), pod("c", 1), pod("d", 2, is_ready=False)]
    answers = {("a", "load"): 2.0, ("b", "load"): 3.0, ("c", "load"): 4.0}
    found = measured(unit, llama(replicas=4), pods, [], answers, {}, NOW)
    assert found is not None
    assert list(found.ready) == [{"load": 5.0}, {"load": 4.0}]
    assert (found.current, found.unready) == (4, 2)


def test_an_instance_of_a_role_is_the_mean_of_its_like_in_all_groups() -> None:
    unit = next(one for one in units_of(disaggregated(minRatio="0", maxRatio="9")) if one.role == "decode")
    pods = [pod("a", 0, "decode"), pod("b", 1, "decode"), pod("p", 0, "prefill")]
    answers = {("a", "load"): 2.0, ("b", "load"): 4.0, ("p", "load"): 99.0}
    found = measured(unit, llama(roles=[role("prefill"), role("decode")], replicas=2), pods, [], answers, {}, NOW)
    assert found is not None
    assert list(found.ready) == [{"load": 3.0}]
    assert measured(unit, llama(), pods, [], answers, {}, NOW) is None


def test_a_quantile_is_taken_over_all_pods() -> None:
    [unit] = units_of(homogeneous())
    fast, slow = histogram_of({0.1: 100, 1.0: 100}), histogram_of({0.1: 0, 1.0: 100})
    found = measured(
        unit, llama(), [pod("a", 0), pod("b", 0, ordinal=1)], [], {("a", "load"): fast, ("b", "load"): slow}, {}, NOW
    )
    assert found is not None
    assert found.ready[0]["load"] == pytest.approx(0.91)


def test_a_gang_that_does_not_fit_is_what_a_unit_waits_for() -> None:
    status = {"phase": "Inqueue", "conditions": [{"type": "Unschedulable", "status": "True", "message": "no room"}]}
    group = msgspec.convert({"metadata": {"name": "llama-1"}, "status": status}, PodGroup)
    [unit] = units_of(homogeneous())
    found = measured(unit, llama(), [], [group], {}, {}, NOW)
    assert found is not None
    assert found.waits_for == "llama-1: no room"


@pytest.mark.parametrize(("since", "waiting"), [("2025-12-31T23:59:45Z", 0), ("2025-12-31T23:59:30Z", 1)])
def test_who_has_waited_for_a_while_may_be_stood_in_for(since: str, waiting: int) -> None:
    told = {"type": "Unschedulable", "status": "True", "message": "no room"}
    meta = {"name": "llama-1", "creationTimestamp": since}
    group = msgspec.convert({"metadata": meta, "status": {"phase": "Inqueue", "conditions": [told]}}, PodGroup)
    [unit] = units_of(homogeneous())
    found = measured(unit, llama(replicas=2), [], [group], {}, {}, NOW)
    assert found is not None
    assert (found.waits_for, found.waiting) == ("llama-1: no room", waiting)


def test_an_old_gang_whose_pods_were_evicted_waits_since_they_came_anew() -> None:
    """It was stood in for at once, as if it had waited since it was made."""
    told = {"type": "Unschedulable", "status": "True", "message": "no room"}
    meta = {"name": "llama-1", "creationTimestamp": "2025-12-31T00:00:00Z"}
    [unit] = units_of(homogeneous())

    def waiting(pods: list[Pod], seconds: int, *, told_since: str | None = None) -> int:
        conditions = [{**told, "lastTransitionTime": told_since}]
        status = {"phase": "Inqueue", "conditions": conditions}
        group = msgspec.convert({"metadata": meta, "status": status}, PodGroup)
        found = measured(unit, llama(replicas=2), pods, [group], {}, {}, NOW + timedelta(seconds=seconds))
        assert found is not None
        return found.waiting

    one = msgspec.to_builtins(pod("a", 1, is_ready=False))
    one["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    anew = [msgspec.convert(one, Pod)]
    assert [waiting(anew, 29), waiting(anew, 30)] == [0, 1]
    assert waiting(anew, 30, told_since="2026-01-01T00:00:25Z") == 1, "it waits for another reason by now"
    assert [waiting([], second, told_since="2026-01-01T00:00:00Z") for second in (29, 30)] == [0, 1]


def test_a_gang_whose_pods_are_refused_is_waited_for_likewise() -> None:
    [unit] = units_of(homogeneous())
    meta = {"name": "llama-1", "creationTimestamp": "2025-12-31T23:59:00Z"}
    group = msgspec.convert({"metadata": meta, "status": {"phase": "Inqueue"}}, PodGroup)

    def waits_for(pods: list[Pod], now: datetime) -> str:
        found = measured(unit, llama(replicas=2), pods, [group], {}, {}, now)
        assert found is not None
        return found.waits_for

    assert waits_for([pod("a", 0)], NOW).startswith("llama-1: none of its pods is there")
    assert waits_for([pod("a", 0)], NOW - timedelta(seconds=55)) == "", "they may be on their way"
    assert waits_for([pod("a", 0), pod("b", 1, is_ready=False)], NOW) == ""


def test_a_pod_is_asked_once_for_all_that_it_shows_in_one_place() -> None:
    sources = {
        "load": {"pod": {"name": "vllm:num_requests_waiting", "port": 8000}},
        "kv": {"pod": {"port": 8000, "labelSelector": {"matchLabels": {"modelserving.volcano.sh/role": "server"}}}},
    }
    metrics = [*LOAD, {"name": "kv", "targetValue": "800m"}]
    whole = {"target": {"targetRef": {"name": "llama"}, "metricSources": sources}, "minReplicas": 1, "maxReplicas": 2}
    [unit] = units_of(policy(metrics=metrics, homogeneousTarget=whole))
    [look] = looks(unit, [pod("a", 0), pod("b", 1, is_ready=False)])
    assert look.url == "http://10.0.0.0:8000/metrics"
    assert look.metrics == {"load": "vllm:num_requests_waiting", "kv": "kv"}


def test_metrics_are_read_from_text() -> None:
    text = """
# TYPE load gauge
load{model="a",pod="x"} 2
load{model="b"} 3.5
load_total 9
wait_bucket{le="0.1",model="a"} 1
wait_bucket{model="b",le="0.1"} 2
wait_bucket{le="+Inf"} 7
wait_sum 3
broken
load NaN
"""
    found = read(text, ["load", "wait"])
    assert found.values == {"load": 5.5}
    assert found.histograms["wait"].buckets == ((0.1, 3.0), (float("inf"), 7.0))


# ---- what a policy says of what keeps it from scaling


def ready_of(decision: Decision) -> tuple[str, str, str]:
    told = {one["type"]: one for one in status_of(homogeneous(), decision, NOW)["conditions"]}["Ready"]
    return told["status"], told["reason"], told["message"]


def test_a_metric_that_cannot_be_read_says_why() -> None:
    nothing = Measured(current=2, ready=[{}, {}], unread="http://10.0.0.1:8100/metrics answers 404")
    assert ready_of(decide(homogeneous(), {"llama": nothing}, NOW)) == (
        "False", "MetricsUnavailable", "llama: no metric could be read: http://10.0.0.1:8100/metrics answers 404",
    )  # fmt: skip
    both = homogeneous(metrics=[*LOAD, {"name": "laod", "targetValue": "1"}])
    one = seen(2, 1.0, 1.0, unread="http://10.0.0.1:8100/metrics shows no laod; did you mean load?")
    status, reason, message = ready_of(decide(both, {"llama": one}, NOW))
    assert (status, reason) == ("True", "SomeMetricsUnavailable")
    assert message.endswith(
        "llama goes without a metric: http://10.0.0.1:8100/metrics shows no laod; did you mean load?"
    )
    assert "load is 1 a replica" in message


def test_a_metric_without_a_source_is_told_by_its_name() -> None:
    [unit] = units_of(homogeneous(metrics=[*LOAD, {"name": "queue", "targetValue": "1"}]))
    assert without_source(unit) == {
        "queue": "metricSources has no queue, so nobody knows where it is read; "
        'write metricSources: {"queue": {pod: {uri: /metrics, port: 8000}}}'
    }


def test_replicas_that_wait_for_room_are_no_steady_state() -> None:
    waits = seen(3, 4.0, 4.0, unready=1, waits_for="llama-2: no room")
    status, reason, message = ready_of(decide(homogeneous(), {"llama": waits}, NOW))
    assert (status, reason) == ("True", "WaitsForRoom")
    assert "but the last ones wait: llama-2: no room" in message
    at_most = seen(3, 4.0, 4.0, unready=1, waits_for="llama-2: no room")
    status, reason, message = ready_of(decide(homogeneous(most=3), {"llama": at_most}, NOW))
    assert (reason, message.count("llama-2: no room")) == ("WaitsForRoom", 1)
    fewer = seen(3, 0.1, 0.1, unready=1, waits_for="llama-2: no room")
    assert ready_of(decide(homogeneous(), {"llama": fewer}, NOW))[1] == "Scaling"


def test_another_wrong_is_worth_writing_and_another_number_is_not() -> None:
    def told(**measured_: Any) -> Document:
        return status_of(homogeneous(), decide(homogeneous(), {"llama": Measured(current=2, **measured_)}, NOW), NOW)

    def worth(before: Document, after: Document) -> bool:
        found = msgspec.structs.replace(homogeneous(), status=msgspec.convert(before, type(homogeneous().status)))
        return is_worth_writing(found, after)

    assert worth(told(unread="no replica is ready yet"), told(unread="http://10.0.0.1:8100/metrics answers 404"))
    assert not worth(told(unread="the same"), told(unread="the same"))
    assert not worth(told(ready=[{"load": 1.0}] * 2), told(ready=[{"load": 0.99}] * 2))


@pytest.mark.parametrize("load", [0.5, 4.0])
def test_what_is_waited_for_is_told_anew_when_it_changes_and_not_for_another_number(load: float) -> None:
    def told(number: float, waits_for: str) -> Document:
        waits = seen(3, number, number, unready=1, waits_for=waits_for)
        return status_of(homogeneous(least=3), decide(homogeneous(least=3), {"llama": waits}, NOW), NOW)

    def worth(before: Document, after: Document) -> bool:
        found = msgspec.structs.replace(homogeneous(), status=msgspec.convert(before, type(homogeneous().status)))
        return is_worth_writing(found, after)

    full, quota = "llama-2: 0/4 nodes are available: 4 insufficient gpu", "llama-2: the queue has no room: gpu 8 of 8"
    assert not worth(told(load, full), told(load + 0.01, full))
    assert worth(told(load, full), told(load, quota))
    assert worth(told(load, quota), told(load, ""))


def rival_of(policy: AutoscalingPolicy, policies: Sequence[AutoscalingPolicy]) -> str:
    return rivals([*policies, *([policy] if policy not in policies else [])]).get(key_of(policy), "")


@pytest.mark.parametrize("value", ["1e400", "1e1.5"])
def test_a_number_that_nobody_can_use_is_one_policys_trouble_and_not_all_others(value: str) -> None:
    """The second is a quantity to the schema alone."""
    odd = homogeneous(metrics=[{"name": "load", "targetValue": value}])
    one = {"target": target("mistral"), "minReplicas": 0, "maxReplicas": 5}
    assert rivals([odd, policy(homogeneousTarget=one)]) == {}


def test_of_two_policies_for_the_same_replicas_the_younger_does_nothing() -> None:
    def made(name: str, at: str, found: AutoscalingPolicy) -> AutoscalingPolicy:
        meta = msgspec.structs.replace(found.metadata, name=name, creation_timestamp=at)
        return msgspec.structs.replace(found, metadata=meta)

    old, young = made("z", "2026-01-01T00:00:00Z", homogeneous()), made("a", "2026-01-02T00:00:00Z", homogeneous())
    other, roles = made("c", "2025-01-01T00:00:00Z", policy()), made("d", "2025-01-01T00:00:00Z", disaggregated())
    everyone = [young, other, roles, old]
    assert rival_of(old, everyone) == ""
    assert 'llama is scaled by the older policy "z" already, so this one does nothing' in rival_of(young, everyone)
    assert rival_of(made("e", "2026-01-01T00:00:00Z", disaggregated()), everyone).startswith("prefill is scaled by")
    twin = made("zz", "2026-01-01T00:00:00Z", homogeneous())
    assert rival_of(old, [old, twin]) == ""
    assert rival_of(twin, [old, twin]) != ""
    params = [{"target": target(name), "minReplicas": 0, "maxReplicas": 5} for name in ("llama", "mistral")]
    idle = made("idle", "2026-01-01T12:00:00Z", policy(heterogeneousTarget={"params": params}))
    mistral = {"target": target("mistral"), "minReplicas": 0, "maxReplicas": 5}
    late = made("late", "2026-01-03T00:00:00Z", policy(homogeneousTarget=mistral))
    assert rival_of(idle, [old, idle, late]) != ""
    assert rival_of(late, [old, idle, late]) == "", "the policy before it does nothing itself"
    taken = Decision(outcomes=[], histories={}, rival=rival_of(young, everyone))
    assert ready_of(taken)[:2] == ("False", "TargetTaken")


@pytest.mark.parametrize("load", [float("-inf"), -1e308, float("nan")])
def test_less_than_nothing_asks_for_the_least(load: float) -> None:
    assert replicas(decide(homogeneous(), {"llama": seen(3, load, load)}, NOW)) == [1]


def test_numbers_without_end_are_as_if_they_were_not_there() -> None:
    """An engine that divides by zero; of a rise and a fall without end the sum is no number, which asked for nothing."""
    page = 'load{a="1"} +Inf\nload{a="2"} -Inf\nload{a="3"} 4\nother +Inf\n'
    assert read(page, ["load", "other"]).values == {"load": 4.0}
    for text in ("NaN", "+Inf", "-Inf", "1e999"):
        body = f'{{"data":{{"resultType":"scalar","result":[0,"{text}"]}}}}'.encode()
        with pytest.raises(ValueError, match="not a number"):
            first_sample(body)
