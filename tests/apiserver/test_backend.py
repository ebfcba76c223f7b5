import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from hekla.api.meta import Kind, Scope
from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.apiserver.admission_rules.webhooks import WebhookCaller
from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.apiserver.auth.rbac_source import StoredRoles
from hekla.apiserver.backend import Backend, random_uid
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.registry import Registry
from hekla.app.admission import platform_rules
from hekla.app.settings import Settings

PODS = Kind(group="", version="v1", kind="Pod", plural="pods", singular="pod", scope=Scope.NAMESPACED)
NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


@dataclass
class Wants:
    """A rule that looks into the object, or answers for all of them alike."""

    name: str
    is_by_kind: bool = False
    asked: int = 0

    def wants(self, request):
        self.asked += 1
        return self.is_by_kind or self.name in request.object

    def mutate(self, request, reader):
        return None

    def validate(self, request, reader):
        return None


def backend(*rules, clock=lambda: NOON):
    return Backend(MemoryStore(), Registry(), rules, clock=clock)


def writing(subresource="", **document):
    return AdmissionRequest(PODS, Operation.CREATE, "ns", "x", subresource, document, None, User("ann"))


def names(of, request):
    return [rule.name for rule in asyncio.run(of.mutate(request))]


def test_a_rule_that_looks_into_the_object_is_asked_each_time_and_keeps_its_place():
    of = backend(Wants("first", is_by_kind=True), Wants("odd"), Wants("last", is_by_kind=True))
    assert names(of, writing()) == ["first", "last"]
    assert names(of, writing(odd=1)) == ["first", "odd", "last"]
    assert names(of, writing()) == ["first", "last"]


def test_a_rule_that_answers_by_kind_is_asked_once_for_a_kind_and_a_subresource():
    rule = Wants("all", is_by_kind=True)
    of = backend(rule)
    for subresource in ("", "", "binding", "binding"):
        assert names(of, writing(subresource)) == ["all"]
    assert rule.asked == 2


def test_no_rule_of_the_platform_is_asked_about_each_pod_that_is_made_or_bound():
    webhooks = WebhookCaller(lambda namespace, name, port: None, random_uid)
    rules = platform_rules(RbacAuthorizer(StoredRoles(MemoryStore())), Settings(), webhooks)
    assert [rule.name for rule in rules if not getattr(rule, "is_by_kind", False)] == []


@pytest.mark.parametrize("steps_s", [(0, 0.9, 1.0, 1.9, 2.0), (5.5, 0.2, 5.5, -86_400)], ids=["on", "back"])
def test_the_time_of_an_object_is_the_second_it_was_made_in_though_the_clock_be_set_back(steps_s):
    moments = [NOON + timedelta(seconds=step_s) for step_s in steps_s]
    left = list(moments)
    of = backend(clock=lambda: left.pop(0))
    assert [of.now() for _ in moments] == [one.strftime("%Y-%m-%dT%H:%M:%SZ") for one in moments]
