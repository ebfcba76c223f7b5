"""What an event must say is told by whether it has an `eventTime`, not by the API that it came by."""

import copy

import pytest

from hekla.api.meta import Document
from hekla.apiserver.strategies import builtin_strategies

BUILTIN = builtin_strategies()
TIME = "2020-01-01T00:00:00.000000Z"
OLDER: Document = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "n"}, "reason": "R", "type": "Normal"}
TIMED: Document = OLDER | {"eventTime": TIME, "reportingComponent": "a.b/c", "reportingInstance": "i", "action": "A"}
NEWER: Document = {
    "regarding": {"kind": "Pod", "name": "p", "namespace": "n"}, "reason": "R", "type": "Normal",
    "eventTime": TIME, "reportingController": "a.b/c", "reportingInstance": "i", "action": "A",
}  # fmt: skip
MISMATCH = "involvedObject.namespace: does not match event.namespace"
TOO_LONG = "message: can have at most 1024 characters"


def event(said: Document, namespace: str = "n") -> Document:
    return {"metadata": {"name": "x", "uid": "u", "namespace": namespace}, **copy.deepcopy(said)}


def refusals(resource: str, new: Document, old: Document | None = None) -> set[str]:
    strategy = BUILTIN[resource]
    if old is None:
        errors = strategy.validate_create(strategy.prepare_create(new))
    else:
        errors = strategy.validate_update(strategy.prepare_update(new, old), old)
    return {f"{error.field}: {error.message.rpartition(': ')[2]}" for error in errors}


@pytest.mark.parametrize(
    ("said", "namespace", "wrong"),
    [
        (OLDER, "n", set()),
        (OLDER, "other", {MISMATCH}),
        (OLDER | {"involvedObject": {"kind": "Node", "name": "a"}}, "default", set()),
        (OLDER | {"involvedObject": {"kind": "Node", "name": "a"}}, "kube-system", {MISMATCH}),
        (OLDER | {"message": "é" * 600, "reason": "R" * 129}, "n", set()),
        (TIMED, "other", set()),
        (TIMED | {"involvedObject": {"kind": "Node", "name": "a"}}, "kube-system", set()),
        (TIMED | {"involvedObject": {"kind": "Node", "name": "a"}}, "n", {MISMATCH}),
        (TIMED | {"message": "é" * 512, "series": {"count": 1}}, "n", set()),
        (TIMED | {"message": "é" * 600}, "n", {TOO_LONG}),
        (TIMED | {"action": "é" * 65}, "n", {"action: can have at most 128 characters"}),
    ],
)  # fmt: skip
def test_an_event_of_the_older_api_is_refused_as_by_kubernetes(said: Document, namespace: str, wrong: set[str]):
    assert refusals("events/v1", event(said, namespace)) == wrong


def test_an_event_of_the_older_api_with_a_time_says_who_reports_it():
    found = refusals("events/v1", event(OLDER | {"eventTime": TIME, "reason": ""}))
    wanted = {"reportingController", "reportingInstance", "action", "reason"}
    assert {f"{name}: Required value" for name in wanted} <= found


def test_a_note_of_the_newer_api_is_measured_in_bytes():
    assert refusals("events.events.k8s.io/v1", event(NEWER | {"note": "é" * 512})) == set()
    assert refusals("events.events.k8s.io/v1", event(NEWER | {"note": "é" * 600})) == {TOO_LONG}


def test_an_older_event_is_counted_through_the_newer_api():
    old = event({"regarding": NEWER["regarding"], "reason": "R", "deprecatedCount": 1})
    new = copy.deepcopy(old) | {"series": {"count": 2, "lastObservedTime": TIME}}
    assert refusals("events.events.k8s.io/v1", new, old) == set()


def test_a_series_is_looked_at_where_it_changed():
    old = event(NEWER | {"series": {"count": 1}})
    assert refusals("events.events.k8s.io/v1", copy.deepcopy(old) | {"note": ""}, old) == set()
    new = copy.deepcopy(old) | {"series": {"count": 0, "lastObservedTime": TIME}}
    assert refusals("events.events.k8s.io/v1", new, old) == {"series.count: should be at least 2"}
