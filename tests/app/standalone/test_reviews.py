import base64
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.meta import KINDS
from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.apiserver.patch import json_patch
from hekla.apiserver.status import StatusError
from hekla.apiserver.webhook_calls import Webhook, review_of, verdict_of
from hekla.app.standalone.reviews import ReviewError, answered, difference, path_of, rules_by_path
from hekla.serving.admission import ADMISSION_RULES as OF_SERVING
from hekla.workloads.admission import ADMISSION_RULES

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "a/b", "~1", "~"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a/b", "~"]), inner, max_size=3)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["spec", "metadata", "x/y"]), JSON, max_size=3)

POD_SPEC = {"containers": [{"name": "c", "image": "i"}]}
JOB = {
    "metadata": {"name": "j", "namespace": "ns"},
    "spec": {"tasks": [{"replicas": 2, "template": {"spec": POD_SPEC}}]},
}
OBJECTS = {
    "jobs.batch.volcano.sh": [JOB, {**JOB, "spec": {"minAvailable": 9, "tasks": JOB["spec"]["tasks"]}}, {"spec": {}}],
    "cronjobs.batch.volcano.sh": [{"metadata": {"name": "c"}, "spec": {"schedule": "nonsense", "jobTemplate": JOB}}],
    "queues.scheduling.volcano.sh": [
        {"metadata": {"name": "q"}},
        {"metadata": {"name": "q"}, "spec": {"parent": "none"}},
    ],
    "podgroups.scheduling.volcano.sh": [
        {"metadata": {"name": "g"}, "spec": {"queue": "gone"}},
        {"metadata": {"name": "g"}},
    ],
    "hypernodes.topology.volcano.sh": [{"metadata": {"name": "h"}, "spec": {"tier": 1, "members": []}}],
    "jobflows.flow.volcano.sh": [
        {"metadata": {"name": "f"}, "spec": {"flows": [{"name": "a", "dependsOn": {"targets": ["a"]}}]}}
    ],
    "pods": [
        {
            "metadata": {"name": "p", "annotations": {"volcano.sh/jdb-min-available": "-1"}},
            "spec": {"schedulerName": "volcano", **POD_SPEC},
        }
    ],
}


class World:
    QUEUES = (
        {"metadata": {"name": "default"}, "spec": {"parent": "root"}, "status": {"state": "Open"}},
        {"metadata": {"name": "root"}},
    )

    def get(self, resource, namespace, name):
        return next((one for one in self.list(resource) if one["metadata"]["name"] == name), None)

    def list(self, resource, namespace=""):
        return self.QUEUES if resource.startswith("queues") else ({"metadata": {"name": "ns"}},)


def kind_of(resource):
    return next(one.kind_info for one in KINDS.values() if one.kind_info.resource == resource)


def cases():
    for rule in ADMISSION_RULES:
        for number, document in enumerate(OBJECTS[rule.resource]):
            for operation in sorted(rule.operations):
                yield pytest.param(rule, operation, document, id=f"{rule.name}-{operation}-{number}")


@pytest.mark.parametrize(("rule", "operation", "document"), list(cases()))
def test_a_webhook_decides_as_the_same_rule_does_within_the_server(rule, operation, document):
    def request():
        old = copy.deepcopy(document) if operation is not Operation.CREATE else None
        new = copy.deepcopy(document) if operation is not Operation.DELETE else None
        name = document["metadata"]["name"] if "metadata" in document else ""
        return AdmissionRequest(kind_of(rule.resource), operation, "ns", name, "", new, old, User("ann"))

    inside, outside = request(), request()
    said = ""
    try:
        rule.mutate(inside, World())
        rule.validate(inside, World())
    except StatusError as error:
        said = error.message
    review = answered(rule, json.dumps(review_of(outside, "u1")).encode(), World())
    verdict = verdict_of(json.dumps(review).encode(), "u1")
    assert verdict.is_allowed == (not said)
    if said:
        webhook = Webhook("c", {"name": rule.name})
        assert said == f'admission webhook "{webhook.name}" denied the request: {verdict.message}'
    elif outside.object is not None:
        assert json_patch(outside.object, list(verdict.patch)) == inside.object


def test_every_rule_has_a_path_of_volcanos():
    assert sorted(rules_by_path()) == sorted(["/cronjobs/validate", "/hypernodes/validate", "/jobflows/validate", "/jobs/mutate", "/jobs/validate", "/podgroups/mutate", "/podgroups/validate", "/pods/mutate", "/pods/validate", "/queues/mutate", "/queues/validate", *sorted(map(path_of, OF_SERVING))])  # fmt: skip
    assert all(rules_by_path()[path_of(rule)] is rule for rule in (*ADMISSION_RULES, *OF_SERVING))


@given(DOCUMENTS, DOCUMENTS)
def test_the_patch_makes_one_document_of_the_other(before, after):
    patch = list(difference(before, after))
    assert json_patch(copy.deepcopy(before), json.loads(json.dumps(patch))) == after
    assert bool(patch) == (json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"null", b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', b"[" * 100_000,
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"EAT",'
        b'"resource":{"group":"batch.volcano.sh","version":"v1alpha1","resource":"jobs"}}}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",'
        b'"resource":{"group":"x","version":"v1","resource":"y"}}}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",'
        b'"resource":{"group":"batch.volcano.sh","version":"v1alpha1","resource":"jobs"},"object":[]}}',
    ],
)  # fmt: skip
def test_what_is_no_review_is_refused_with_a_sentence(body):
    with pytest.raises(ReviewError):
        answered(rules_by_path()["/jobs/mutate"], body, World())


@pytest.mark.parametrize("path", sorted(rules_by_path()))
def test_an_object_of_another_shape_is_denied_and_breaks_nothing(path):
    rule = rules_by_path()[path]
    request = AdmissionRequest(kind_of(rule.resource), Operation.CREATE, "ns", "x", "", {"spec": []}, None, User("ann"))
    response = answered(rule, json.dumps(review_of(request, "u")).encode(), World())["response"]
    assert response["uid"] == "u"
    assert response["allowed"] == (rule.resource == "pods"), "Kubernetes checks its own kinds itself"


def test_a_patch_is_sent_as_kubernetes_reads_it():
    rule = rules_by_path()["/queues/mutate"]
    request = AdmissionRequest(
        kind_of(rule.resource), Operation.CREATE, "", "q", "", {"metadata": {"name": "q"}}, None, User("ann")
    )
    response = answered(rule, json.dumps(review_of(request, "u")).encode(), World())["response"]
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == [
        {"op": "add", "path": "/spec", "value": {"reclaimable": True, "weight": 1}}
    ]
