"""Whether policies are completed and refused as Kthena's webhook does it, and those of Kthena 0.3 let in with a warning."""

from typing import Any

import pytest

from hekla.api.kthena import AutoscalingPolicy, AutoscalingPolicyBinding
from hekla.serving.admission_autoscaling import (
    default_autoscaling_policy,
    refuse_autoscaling_policy,
    refuse_binding,
)  # fmt: skip
from serving.admissionkit import refused, request

NOBODY: Any = None
METRICS = [{"name": "load", "targetValue": "10"}]
STABLE = {"instances": 4, "percent": 100, "period": "1m0s", "selectPolicy": "Or", "stabilizationWindow": "0s"}
DOWN = {"instances": 0, "percent": 100, "period": "1m0s", "selectPolicy": "Or", "stabilizationWindow": "5m0s"}
PANIC = {"percent": 0, "period": "0s", "panicThresholdPercent": 200, "panicModeHold": "0s"}


def policy(**spec: Any) -> dict[str, Any]:
    return {"spec": {"metrics": METRICS, "homogeneousTarget": one(), **spec}}


def one(name: str = "llama", least: int = 1, most: int = 4, **reference: Any) -> dict[str, Any]:
    return {"target": {"targetRef": {"name": name, **reference}}, "minReplicas": least, "maxReplicas": most}


def roles(ratio: Any = None, *, metrics: Any = METRICS, **said: Any) -> dict[str, Any]:
    target = {"targetRef": {"name": "llama"}, "roles": said}
    target |= {"ratioConstraint": {"numeratorRole": "p", "denominatorRole": "d", **ratio}} if ratio else {}
    return {"spec": {"metrics": metrics, "disaggregatedTarget": target}}


def role(least: int = 1, most: int = 4, **more: Any) -> dict[str, Any]:
    sources = {"load": {"pod": {}}}
    return {"minReplicas": least, "maxReplicas": most, "metricSources": sources, **more}


def ratio(least: Any = "0.5", most: Any = "2", **more: Any) -> dict[str, Any]:
    return {"minRatio": least, "maxRatio": most, **more}


D = "spec.disaggregatedTarget"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            policy(metrics=[{"name": "a", "targetValue": "0"}]),
            'spec.metrics[0].targetValue: Invalid value: "0": metric target value must be greater than 0 and not equal',
        ),
        (
            policy(metrics=[{"name": "a", "targetValue": "1e400"}]),
            'spec.metrics[0].targetValue: Invalid value: "1e400": metric target value must be greater than 0 and not equal',
        ),
        (
            policy(metrics=METRICS * 2),
            'spec.metrics[1].name: Invalid value: "load": duplicate metric name load is not allowed',
        ),
        (
            policy(homogeneousTarget=None),
            "spec: Invalid value: 0: exactly one of homogeneousTarget, heterogeneousTarget, or disaggregatedTarget must be set",
        ),
        (policy(heterogeneousTarget={"params": [one()]}), "spec: Invalid value: 2: exactly one of"),
        (
            policy(homogeneousTarget=one(kind="Deployment")),
            'spec.homogeneousTarget.target.targetRef.kind: Invalid value: "Deployment": targetRef.kind must be ModelServing, '
            "but got Deployment",
        ),
        (
            policy(homogeneousTarget=None, heterogeneousTarget={"params": [one("")]}),
            'spec.heterogeneousTarget.params[0].target.targetRef.name: Invalid value: "": targetRef.name must be set, but got',
        ),
        (policy(metrics=[]), "spec.metrics: Required value: at least one metric must be set"),
        (
            policy(homogeneousTarget=one(least=5)),
            "spec.homogeneousTarget.minReplicas: Invalid value: 5: minReplicas must be",
        ),
        (
            roles(**{"": role()}),
            f'{D}.roles: Invalid value: "": role name must refer to a ModelServing.spec.template.roles',
        ),
        (roles(p=role(5)), f"{D}.roles[p].minReplicas: Invalid value: 5: minReplicas must be <= maxReplicas"),
        (
            roles(metrics=[], p=role()),
            f"{D}.roles[p].metrics: Required value: metrics must be set on every non-fixed role when spec.metrics is empty",
        ),
        (
            roles(p=role(metricSources={})),
            f"{D}.roles[p].metricSources: Invalid value: 0: metricSources must be set on every non-fixed role when metrics",
        ),
        (
            roles(p=role(metricSources={"other": {"pod": {}}})),
            f'{D}.roles[p].metricSources[other]: Invalid value: "other": metricSources key must match an effective metric',
        ),
        (
            roles(p=role(metrics=[{"name": "a", "targetValue": -1}] * 2, metricSources={"a": {"pod": {}}})),
            f'{D}.roles[p].metrics[1].name: Invalid value: "a": duplicate metric name a is not allowed',
        ),
        (
            roles(ratio(denominatorRole="p"), p=role(), d=role()),
            f'{D}.ratioConstraint.denominatorRole: Invalid value: "p": numeratorRole and denominatorRole must differ',
        ),
        (
            roles(ratio(), d=role()),
            f'{D}.ratioConstraint.numeratorRole: Invalid value: "p": numeratorRole must exist in roles',
        ),
        (
            roles(ratio(), p=role()),
            f'{D}.ratioConstraint.denominatorRole: Invalid value: "d": denominatorRole must exist in',
        ),
        (
            roles(ratio("3", "2"), p=role(), d=role()),
            f'{D}.ratioConstraint.minRatio: Invalid value: "3": minRatio must be <=',
        ),
        (
            roles(ratio(), p=role(0), d=role(1)),
            f'{D}.ratioConstraint: Invalid value: "scale-to-zero bounds": ratio roles must be scalable-to-zero together',
        ),
        (roles(ratio("-1"), p=role(), d=role()), "minRatio must be >= 0 and maxRatio must be > 0"),
        (
            roles(ratio("8", "9"), p=role(), d=role()),
            f'{D}.ratioConstraint: Invalid value: "bounds": ratioConstraint is not achievable within role replica bounds',
        ),
        (
            policy(behavior={"scaleDown": {"period": "31m"}}),
            "spec.behavior.scaleDown.period: Invalid value: 31m0s: stable policy period must be between 0 and 30 minutes",
        ),
        (
            policy(behavior={"scaleUp": {"stablePolicy": {"stabilizationWindow": "-1s"}}}),
            "spec.behavior.scaleUp.stablePolicy.stabilizationWindow: Invalid value: -1s: stable policy stabilization window",
        ),
        (
            policy(behavior={"scaleUp": {"panicPolicy": {"period": "2h"}}}),
            "spec.behavior.scaleUp.panicPolicy.period: Invalid value: 2h0m0s: panic policy period must be between 0 and 30",
        ),
        (
            policy(behavior={"scaleUp": {"panicPolicy": {"period": "1m", "panicModeHold": "1h"}}}),
            "spec.behavior.scaleUp.panicPolicy.panicModeHold: Invalid value: 1h0m0s: panic policy panic mode hold must be",
        ),
    ],
)
def test_what_the_webhook_refuses(document: dict[str, Any], said: str) -> None:
    sentence = refused(refuse_autoscaling_policy, AutoscalingPolicy, document)
    assert sentence.startswith("validation failed:\n  - ")
    assert said in sentence


@pytest.mark.parametrize(
    "document",
    [
        policy(),
        roles(ratio(), p=role(), d=role()),
        roles(metrics=[], p=role(2, 2, metricSources={})),
        policy(homogeneousTarget=one(kind="ModelServing")),
    ],
)
def test_what_it_lets_in(document: dict[str, Any]) -> None:
    asked = request(AutoscalingPolicy, document)
    assert refuse_autoscaling_policy(asked, NOBODY) == ""
    assert asked.warnings == []


@pytest.mark.parametrize(
    ("behavior", "completed"),
    [
        (None, {"scaleUp": {"stablePolicy": STABLE, "panicPolicy": PANIC}, "scaleDown": DOWN}),
        (
            {"scaleDown": {"period": "15s"}},
            {
                "scaleUp": {"stablePolicy": STABLE, "panicPolicy": PANIC},
                "scaleDown": {"period": "15s", "stabilizationWindow": "5m"},
            },
        ),
        (
            {"scaleUp": {"stablePolicy": {"period": "15s"}}},
            {
                "scaleUp": {"stablePolicy": {"period": "15s", "stabilizationWindow": "0s"}, "panicPolicy": PANIC},
                "scaleDown": DOWN,
            },
        ),
        (
            {"scaleUp": {"panicPolicy": {"period": "10s"}}},
            {"scaleUp": {"stablePolicy": STABLE, "panicPolicy": {"period": "10s"}}, "scaleDown": DOWN},
        ),
    ],
)
def test_the_pace_is_completed_where_it_is_not_said(behavior: Any, completed: Any) -> None:
    document = policy(**({"behavior": behavior} if behavior else {}))
    default_autoscaling_policy(request(AutoscalingPolicy, document), NOBODY)
    assert document["spec"]["behavior"] == completed


def test_a_policy_of_kthena_0_3_is_let_in_and_its_metrics_are_named() -> None:
    document = {"spec": {"metrics": [{"metricName": "load", "targetValue": "10"}]}}
    asked = request(AutoscalingPolicy, document)
    default_autoscaling_policy(asked, NOBODY)
    assert document["spec"]["metrics"][0]["name"] == "load"
    assert refuse_autoscaling_policy(asked, NOBODY) == ""
    assert "write name instead" in asked.warnings[0]


def test_a_binding_is_let_in_and_told_how_it_is_written_today() -> None:
    document = {"metadata": {"name": "b"}, "spec": {"policyRef": {"name": "p"}, "homogeneousTarget": one()}}
    asked = request(AutoscalingPolicyBinding, document)
    assert refuse_binding(asked, NOBODY) == ""
    assert asked.warnings == [
        'AutoscalingPolicyBinding was removed in Kthena 1.0; Hekla makes the AutoscalingPolicy "b-bound" from it. To write it '
        'today, put spec.homogeneousTarget of this binding into the AutoscalingPolicy "p", with metricEndpoint as '
        "target.metricSources[<metric>].pod, and delete the binding"
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"policyRef": {}, "homogeneousTarget": one()},
            "spec.policyRef.name: Required value: the AutoscalingPolicy must",
        ),
        (
            {"policyRef": {"name": "p"}, "homogeneousTarget": one("")},
            'spec.homogeneousTarget.target.targetRef.name: Invalid value: "": targetRef.name must be set',
        ),
        (
            {"policyRef": {"name": "p"}, "heterogeneousTarget": {"params": [one(least=9)]}},
            "spec.heterogeneousTarget.params[0].minReplicas: Invalid value: 9: minReplicas must be <= maxReplicas",
        ),
    ],
)
def test_bindings_that_are_refused(spec: dict[str, Any], said: str) -> None:
    assert said in refused(refuse_binding, AutoscalingPolicyBinding, {"spec": spec})
