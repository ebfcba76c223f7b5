import pytest

from hekla.apiserver.status import StatusError
from hekla.apiserver.strategies import builtin_strategies

BUILTIN = builtin_strategies()
PODS = BUILTIN["pods/v1"]


def refused(resource: str, body: str) -> str:
    with pytest.raises(StatusError) as caught:
        BUILTIN[resource].decode(body.encode(), "application/json")
    assert caught.value.code == 400
    return caught.value.message.partition(": ")[2]


@pytest.mark.parametrize(
    ("resource", "body", "sentence"),
    [
        ("configmaps/v1", '{"data":{"k":3}}', "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        ("configmaps/v1", '{"metadata":{"labels":{"a":true}}}', "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string"),
        ("pods/v1", '{"spec":{"containers":[{"image":3}]}}', "json: cannot unmarshal number into Go struct field Container.spec.containers.image of type string"),
        ("pods/v1", '{"spec":{"containers":{}}}', "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container"),
        ("pods/v1", '{"spec":3}', "json: cannot unmarshal number into Go struct field Pod.spec of type v1.PodSpec"),
        ("pods/v1", '{"spec":{"priority":3000000000}}', "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32"),
        ("pods/v1", '{"spec":{"priority":1.5}}', "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32"),
        ("deployments.apps/v1", '{"spec":{"strategy":{"rollingUpdate":{"maxSurge":true}}}}', "json: cannot unmarshal bool into Go value of type int32"),
        ("secrets/v1", '{"data":{"a":"%%"}}', "illegal base64 data at input byte 0"),
        ("leases.coordination.k8s.io/v1", '{"spec":{"renewTime":"now"}}', 'parsing time "now" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "now" as "2006"'),
    ],
)  # fmt: skip
def test_a_wrong_type_is_reported_as_gos_decoder_reports_it(resource: str, body: str, sentence: str):
    assert refused(resource, body) == sentence


def test_nulls_and_empty_optional_values_vanish_and_zero_pointers_stay():
    body = b'{"metadata":{"name":"a","labels":{},"annotations":null},"spec":{"hostNetwork":false,"priority":0,"nodeSelector":{},"containers":[{"name":"c","env":[],"stdin":false}]}}'
    document = PODS.decode(body, "application/json").document
    assert document["metadata"] == {"name": "a"}
    assert document["spec"] == {"priority": 0, "containers": [{"name": "c", "resources": {}}]}


def test_what_is_applied_is_not_filled_in():
    config = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "a"},
        "spec": {"hostNetwork": False, "containers": [{"name": "c"}]},
    }
    assert PODS.check_types(config, is_partial=True) == []
    assert config["spec"] == {"hostNetwork": False, "containers": [{"name": "c"}]}
    assert "status" not in config


def test_quantities_and_times_are_rewritten():
    body = b'{"metadata":{"creationTimestamp":"2026-01-01T02:00:00.5+02:00"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":0.5,"memory":"1024Mi","gpu/x":1}}}]}}'
    document = PODS.decode(body, "application/json").document
    assert document["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert document["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "500m", "memory": "1Gi", "gpu/x": "1"}


def test_unknown_and_duplicate_fields_are_named():
    body = b'{"metadata":{"name":"a","name":"b"},"spec":{"containers":[{"name":"c","imge":"x"}],"foo":1}}'
    found = PODS.decode(body, "application/json")
    assert found.unknown == [
        'duplicate field "metadata.name"',
        'unknown field "spec.containers[0].imge"',
        'unknown field "spec.foo"',
    ]
    assert found.document["metadata"]["name"] == "b"


def test_text_that_looks_like_a_key_is_no_duplicate():
    body = rb'{"metadata":{"name":"a","annotations":{"note":"say \"x\": 1"}},"spec":{}}'
    assert PODS.decode(body, "application/json").unknown == []


def test_a_document_that_is_too_deep_is_refused():
    deep = '{"spec":' * 300 + "1" + "}" * 300
    assert "depth" in refused_anyhow(deep)


def refused_anyhow(body: str) -> str:
    with pytest.raises(StatusError) as caught:
        PODS.decode(body.encode(), "application/json")
    return caught.value.message


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"kind":"Secret","apiVersion":"v1"}', 'Secret in version "v1" cannot be handled as a Pod: converting (v1.Secret) to (core.Pod): unknown conversion'),
        ('{"kind":"Pod","apiVersion":"apps/v1"}', "the API version in the data (apps/v1) does not match the expected API version (v1)"),
        ("[]", "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error: json: cannot unmarshal array"),
    ],
)  # fmt: skip
def test_another_kind_is_refused(body: str, sentence: str):
    assert refused_anyhow(body).startswith(sentence)
