"""`hekla why autoscalingpolicy/X`: bounds, counts and the autoscaler's own reasons, from the object alone."""

import msgspec

from hekla.api.kthena import AutoscalingPolicy
from hekla.cli.why_policy import policy_state, text

METRICS = [{"name": "vllm:num_requests_waiting", "targetValue": "2"}]


def said(spec, status):
    policy = msgspec.convert(
        {"metadata": {"name": "p"}, "spec": {"metrics": METRICS, **spec}, "status": status}, AutoscalingPolicy
    )
    return text(policy_state("autoscalingpolicy.p", "ml", policy))


def condition(kind, status, reason, message):
    return {"type": kind, "status": status, "reason": reason, "message": message}


ONE = {
    "homogeneousTarget": {
        "target": {"targetRef": {"kind": "ModelServing", "name": "qwen"}},
        "minReplicas": 0,
        "maxReplicas": 3,
    }
}
FOUND = condition("TargetFound", "True", "TargetFound", "what is scaled exists")


def test_a_policy_tells_its_bounds_its_counts_and_its_reason():
    ready = condition("Ready", "True", "Scaling", "qwen: 2, because 3 wait")
    unit = {
        "name": "ml/qwen",
        "currentReplicas": 1,
        "desiredReplicas": 2,
        "mode": "Stable",
        "lastScaleTime": "2026-01-01T00:00:00Z",
    }
    assert said(ONE, {"conditions": [FOUND, ready], "homogeneousStatus": unit}).splitlines() == [
        "autoscalingpolicy/p scales (Scaling) (namespace ml)",
        "  Ready is true (Scaling): qwen: 2, because 3 wait",
        "",
        "holds vllm:num_requests_waiting at 2",
        "qwen: between 0 and 3; 1 now, 2 wanted, last changed 2026-01-01T00:00:00Z",
    ]


def test_a_policy_whose_target_is_not_there_says_that_it_scales_nothing():
    lost = condition("TargetFound", "False", "TargetNotFound", "qwen does not exist; create it or name another")
    idle = condition("Ready", "False", "TargetNotFound", "there is nothing to scale")
    told = said(ONE, {"conditions": [lost, idle]})
    assert told.startswith(
        "autoscalingpolicy/p scales nothing now (TargetNotFound) (namespace ml)\n  TargetFound is false"
    )
    assert told.endswith("qwen: between 0 and 3")


def test_roles_are_told_one_by_one_and_a_ratio_that_holds_is_no_complaint():
    spec = {
        "disaggregatedTarget": {
            "targetRef": {"kind": "ModelServing", "name": "qwen"},
            "roles": {"prefill": {"minReplicas": 1, "maxReplicas": 4}, "decode": {"minReplicas": 2, "maxReplicas": 8}},
        }
    }
    holds = condition("RatioConstraintViolated", "False", "RatioHolds", "the ratio holds")
    ready = condition("Ready", "True", "Steady", "prefill: 1, steady")
    roles = [
        {"name": "prefill", "currentReplicas": 1, "desiredReplicas": 1},
        {"name": "decode", "currentReplicas": 2, "desiredReplicas": 3},
    ]
    told = said(spec, {"conditions": [FOUND, ready, holds], "disaggregatedStatus": {"roles": roles}})
    assert "RatioConstraintViolated" not in told
    assert told.endswith(
        "qwen/prefill: between 1 and 4; 1 now, 1 wanted\nqwen/decode: between 2 and 8; 2 now, 3 wanted"
    )


def test_a_policy_that_nobody_looked_at_says_so():
    assert said(ONE, {}).startswith("autoscalingpolicy/p has not been looked at yet: is an autoscaler running?")
