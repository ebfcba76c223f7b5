import asyncio
import base64
import json
from dataclasses import replace

import pytest

from hekla.api.meta import Kind, Scope
from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.apiserver.admission_rules.webhooks import MutatingWebhooks, ValidatingWebhooks, WebhookCaller
from hekla.apiserver.status import StatusError
from hekla.apiserver.webhook_calls import WebhookAnswerError, matches_selector, verdict_of
from hekla.testing.api_server import ApiCaller, api_server
from hekla.wire.messages import Response
from hekla.wire.server import Server

PODS = Kind(group="", version="v1", kind="Pod", plural="pods", singular="pod", scope=Scope.NAMESPACED)
ALL_PODS = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}


class Objects:
    def __init__(self, kind, *webhooks, namespace_labels=None):
        self.kind, self.webhooks, self.labels = kind, webhooks, namespace_labels or {}

    def get(self, resource, namespace, name):
        return {"metadata": {"name": name, "labels": self.labels}}

    def list(self, resource, namespace=""):
        wanted = f"{self.kind}webhookconfigurations.admissionregistration.k8s.io"
        return [{"metadata": {"name": "c"}, "webhooks": list(self.webhooks)}] if resource == wanted else []


def creating(**more):
    document = {"metadata": {"name": "x", "labels": {"app": "web"}}, "spec": {}}
    return AdmissionRequest(
        kind=PODS,
        operation=Operation.CREATE,
        namespace="ns",
        name="x",
        subresource="",
        object=document,
        old=None,
        user=User("ann"),
        **more,
    )


def run(kind, answer, request=None, namespace_labels=None, then=None, **spec):
    """Ask one webhook, and `then` another, of a real HTTP server that answers `answer(review request)`."""
    request = request or creating()
    asked = []

    async def main():
        server = Server()

        def handle(got):
            question = json.loads(got.body)["request"]
            asked.append(question)
            said = answer(question)
            body = (
                said if isinstance(said, bytes) else json.dumps({"response": {"uid": question["uid"], **said}}).encode()
            )
            return Response(200, body)

        await server.start(handle)
        caller = WebhookCaller(lambda *_: None, lambda: "u1")
        webhook = {"name": "w.example.com", "rules": [ALL_PODS], "sideEffects": "None", **spec}
        webhook.setdefault("clientConfig", {"url": f"http://127.0.0.1:{server.port}/"})
        others = [] if then is None else [{**webhook, **then, "name": "v.example.com"}]
        reader = Objects(kind, webhook, *others, namespace_labels=namespace_labels)
        rule = (MutatingWebhooks if kind == "mutating" else ValidatingWebhooks)(caller)
        try:
            for step in (rule.mutate, rule.validate):
                waiting = step(request, reader)
                if waiting is not None:
                    await waiting
        finally:
            await caller.close()
            await server.stop(0)

    asyncio.run(main())
    return request, asked


def patch(*operations):
    return {
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(json.dumps(operations).encode()).decode(),
    }


def test_a_mutating_webhook_changes_the_object():
    request, asked = run("mutating", lambda q: patch({"op": "add", "path": "/spec/nodeName", "value": "n1"}))
    assert request.object["spec"] == {"nodeName": "n1"}
    assert asked[0]["userInfo"] == {"username": "ann", "groups": []}
    assert asked[0]["operation"] == "CREATE"


def test_a_denial_is_told_in_kubernetes_words():
    with pytest.raises(StatusError) as refused:
        run("validating", lambda q: {"allowed": False, "status": {"message": "no web on fridays"}})
    assert (refused.value.code, refused.value.message) == (
        403,
        'admission webhook "w.example.com" denied the request: no web on fridays',
    )
    with pytest.raises(StatusError, match="without explanation"):
        run("validating", lambda q: {"allowed": False})


def test_warnings_reach_the_user():
    request, _ = run("validating", lambda q: {"allowed": True, "warnings": ["old field"]})
    assert request.warnings == ["old field"]


@pytest.mark.parametrize("answer", [b"nonsense", b'{"response": {"uid": "other", "allowed": true}}', b"[]"])
def test_a_webhook_that_answers_nonsense_refuses_unless_it_may_fail(answer):
    with pytest.raises(StatusError, match=r'failed calling webhook "w\.example\.com"'):
        run("validating", lambda q: answer)
    run("validating", lambda q: answer, failurePolicy="Ignore")


def test_a_webhook_that_nobody_serves_refuses_unless_it_may_fail():
    nowhere = {"clientConfig": {"service": {"namespace": "ns", "name": "gone"}}}
    with pytest.raises(StatusError) as refused:
        run("validating", lambda q: {"allowed": True}, **nowhere)
    assert refused.value.code == 500
    run("validating", lambda q: {"allowed": True}, failurePolicy="Ignore", **nowhere)


def test_a_dry_run_does_not_reach_a_webhook_with_side_effects():
    with pytest.raises(StatusError, match="does not support dry run"):
        run("validating", lambda q: {"allowed": True}, request=creating(is_dry_run=True), sideEffects="Some")


@pytest.mark.parametrize(
    ("spec", "labels", "is_asked"),
    [
        ({}, {}, True),
        ({"rules": [{**ALL_PODS, "operations": ["UPDATE"]}]}, {}, False),
        ({"rules": [{**ALL_PODS, "operations": ["*"], "resources": ["*/*"]}]}, {}, True),
        ({"rules": [{**ALL_PODS, "resources": ["pods/status"]}]}, {}, False),
        ({"rules": [{**ALL_PODS, "resources": ["*"]}]}, {}, True),
        ({"rules": [{**ALL_PODS, "scope": "Cluster"}]}, {}, False),
        ({"objectSelector": {"matchLabels": {"app": "web"}}}, {}, True),
        ({"objectSelector": {"matchLabels": {"app": "db"}}}, {}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, {"team": "a"}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, {}, False),
    ],
)
def test_only_those_concerned_are_asked(spec, labels, is_asked):
    _, asked = run("validating", lambda q: {"allowed": True}, namespace_labels=labels, **spec)
    assert bool(asked) == is_asked


def conditions(*expressions):
    return [{"name": f"c{number}", "expression": text} for number, text in enumerate(expressions)]


@pytest.mark.parametrize(
    ("expressions", "is_asked"),
    [
        (["request.operation == 'CREATE' && oldObject == null && !request.dryRun", "request.name == 'x'"], True),
        (
            ["request.userInfo.username == 'ann'", "request.resource.resource == 'pods' && request.kind.kind == 'Pod'"],
            True,
        ),
        (["request.userInfo.username == 'bob'"], False),
        (["has(object.data) && object.data.a == 'c'"], False),
        (["object.metadata.labels.app == 'web'", "false"], False),
        (["object.spec.nope == 1", "false"], False),  # one that is false decides
        (["oldObject == null || object.spec != oldObject.spec"], True),
    ],
)
def test_one_whose_conditions_do_not_all_hold_is_not_asked(expressions, is_asked):
    _, asked = run("validating", lambda q: {"allowed": True}, matchConditions=conditions(*expressions))
    assert len(asked) == is_asked


def test_a_deletion_has_an_old_object_alone():
    request = creating()
    request = replace(request, operation=Operation.DELETE, object=None, old=request.object)
    rules = [{**ALL_PODS, "operations": ["DELETE"]}]
    told = conditions("object == null && oldObject.metadata.name == 'x'")
    _, asked = run("validating", lambda q: {"allowed": True}, request, rules=rules, matchConditions=told)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("expressions", "said"),
    [
        (["object.spec.nope == 1"], "expression 'object.spec.nope == 1' resulted in error: no such key: nope"),
        (
            ["object.x == 1", "object.y == 1"],
            "[expression 'object.x == 1' resulted in error: no such key: x, "
            "expression 'object.y == 1' resulted in error: no such key: y]",
        ),
    ],
)
def test_conditions_that_cannot_be_told_refuse_as_a_real_kubernetes_1_36_2_does_unless_it_may_fail(expressions, said):
    told = conditions(*expressions)
    with pytest.raises(StatusError) as refused:
        run("validating", lambda q: {"allowed": True}, matchConditions=told)
    assert (refused.value.code, refused.value.message) == (403, f'pods "x" is forbidden: {said}')
    _, asked = run("validating", lambda q: {"allowed": True}, matchConditions=told, failurePolicy="Ignore")
    assert asked == []


@pytest.mark.parametrize(("expression", "count"), [("has(object.spec.nodeName)", 2), ("!has(object.spec.nodeName)", 1)])
def test_a_mutating_one_is_meant_by_the_object_as_the_one_before_has_left_it(expression, count):
    change = patch({"op": "add", "path": "/spec/nodeName", "value": "n1"})
    _, asked = run("mutating", lambda q: change, then={"matchConditions": conditions(expression)})
    assert len(asked) == count


def test_a_condition_that_would_take_long_is_not_evaluated():
    request = creating()
    request.object["spec"]["list"] = list(range(3000))
    told = conditions("object.spec.list.all(a, object.spec.list.all(b, a + b >= 0))")
    with pytest.raises(StatusError, match="running out of cost budget"):
        run("validating", lambda q: {"allowed": True}, request, matchConditions=told)


def test_a_long_text_is_nothing_that_loops_go_over():
    """Any pod that kubectl had applied was refused: what was applied last stands in its annotations, 2,000 characters long."""
    request = creating()
    request.object["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 100_000}
    request.object["spec"]["containers"] = [{"name": "a", "env": [{"name": "A", "value": "1"}]}]
    told = conditions("object.spec.containers.all(c, c.env.all(e, e.name != 'B'))")
    _, asked = run("validating", lambda q: {"allowed": True}, request, matchConditions=told)
    assert len(asked) == 1


def test_a_webhook_may_be_asked_again_after_a_change():
    request = creating()
    seen = []

    async def main():
        server = Server()

        def handle(got):
            question = json.loads(got.body)["request"]
            seen.append((got.path, dict(question["object"]["spec"])))
            said = patch({"op": "add", "path": "/spec/b", "value": 1}) if got.path == "/second" else {"allowed": True}
            return Response(200, json.dumps({"response": {"uid": question["uid"], **said}}).encode())

        await server.start(handle)
        url = f"http://127.0.0.1:{server.port}"
        hooks = [
            {
                "name": "first",
                "rules": [ALL_PODS],
                "sideEffects": "None",
                "reinvocationPolicy": "IfNeeded",
                "clientConfig": {"url": f"{url}/first"},
            },
            {"name": "second", "rules": [ALL_PODS], "sideEffects": "None", "clientConfig": {"url": f"{url}/second"}},
        ]
        caller = WebhookCaller(lambda *_: None, lambda: "u1")
        await MutatingWebhooks(caller).mutate(request, Objects("mutating", *hooks))
        await caller.close()
        await server.stop(0)

    asyncio.run(main())
    assert seen == [("/first", {}), ("/second", {}), ("/first", {"b": 1})]


def test_selectors_know_every_operator():
    labels = {"a": "1"}
    expressions = [
        ({"key": "a", "operator": "In", "values": ["1"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "a", "operator": "DoesNotExist"}, False),
    ]
    for expression, holds in expressions:
        assert matches_selector({"matchExpressions": [expression]}, labels) is holds


def test_a_patch_must_say_its_type():
    body = json.dumps({"response": {"uid": "u", "allowed": True, "patch": "W10="}}).encode()
    with pytest.raises(WebhookAnswerError, match="patchType"):
        verdict_of(body, "u")


def test_what_a_webhook_wrote_is_checked_and_completed_before_it_is_stored():
    patch = [
        {"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "s:1", "command": None}},
        {"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": {"cpu": 0.5}}},
    ]
    answer = {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}

    async def main():
        server, caller = Server(), WebhookCaller(lambda *_: None, lambda: "u1")
        await server.start(lambda _got: Response(200, json.dumps({"response": {"uid": "u1", **answer}}).encode()))
        webhook = {
            "name": "w.example.com",
            "rules": [ALL_PODS],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": f"http://127.0.0.1:{server.port}/"},
        }
        async with ApiCaller(api_server(rules=(MutatingWebhooks(caller),))) as api:
            # the API asks for https, so this one comes in behind its checks
            api.server.backend.list = Objects("mutating", webhook).list
            pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
            status, made = await api.post("/api/v1/namespaces/default/pods", {"apiVersion": "v1", **pod})
        await caller.close()
        await server.stop(0)
        return status, made["spec"]["containers"]

    status, (first, second) = asyncio.run(main())
    assert (status, first["resources"]) == (201, {"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}})
    assert second["imagePullPolicy"] == "IfNotPresent"
    assert second["terminationMessagePath"] == "/dev/termination-log"
    assert "command" not in second


class Relabelling:
    """What a mutating webhook does to a pod's label."""

    name = "Relabelling"

    def wants(self, request):
        return request.kind.resource == "pods"

    def mutate(self, request, reader):
        request.object["metadata"]["labels"]["version"] = "new"
        request.is_rewritten = True

    def validate(self, request, reader):
        return None


def test_a_label_that_a_webhook_changes_is_merged_into_selectors_as_it_becomes():
    spread = {
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["version"],
    }  # fmt: skip

    async def play():
        async with ApiCaller(api_server(rules=(Relabelling(),))) as api:
            spec = {"containers": [{"name": "c", "image": "i"}], "topologySpreadConstraints": [spread]}
            pod = {"metadata": {"name": "p", "labels": {"a": "b", "version": "old"}}, "spec": spec}
            return await api.post("/api/v1/namespaces/default/pods", pod)

    status, made = asyncio.run(play())
    assert status == 201, made
    (term,) = made["spec"]["topologySpreadConstraints"]
    assert term["labelSelector"]["matchExpressions"] == [{"key": "version", "operator": "In", "values": ["new"]}]
