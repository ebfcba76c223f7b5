import itertools

import pytest

from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.apiserver.admission_rules.webhooks import WebhookCaller
from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.apiserver.auth.rbac_source import StoredRoles
from hekla.apiserver.backend import random_uid
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.strategies import builtin_strategies
from hekla.app.admission import platform_rules
from hekla.app.settings import Settings

POD = {"metadata": {"name": "x"}, "spec": {"runtimeClassName": "fast"}}


def rules():
    webhooks = WebhookCaller(lambda namespace, name, port: None, random_uid)
    return platform_rules(RbacAuthorizer(StoredRoles(MemoryStore())), Settings(), webhooks)


@pytest.mark.parametrize(
    "rule", [one for one in rules() if getattr(one, "is_by_kind", False)], ids=lambda one: one.name
)
def test_a_rule_that_is_asked_once_for_a_kind_would_not_answer_otherwise_for_another_object(rule):
    kinds = [strategy.kind for strategy in builtin_strategies().values()]
    requests = (("", "", None, None), ("ns", "x", POD, None), ("kube-system", "default", None, POD))
    for kind, operation, subresource in itertools.product(kinds, Operation, ("", "status", "binding")):
        answers = {
            rule.wants(AdmissionRequest(kind, operation, namespace, name, subresource, new, old, User("ann")))
            for namespace, name, new, old in requests
        }
        assert len(answers) == 1, f"{rule.name} wants to see some {kind.kind} and others not"


def test_who_was_just_taken_from_a_pool_is_kept_on_every_platform_with_agents():
    assert [one.name for one in rules()].count("TakenSandboxes") == 1
