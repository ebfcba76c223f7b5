"""Whether routes, servers and providers are refused as the router's webhook refuses them (webhook e2e of the router)."""

from typing import Any

import pytest

from hekla.api.kthena import ExternalModelProvider, ModelRoute, ModelServer
from hekla.serving.admission_routing import refuse_model_route, refuse_model_server, refuse_provider
from serving.admissionkit import refused, request

RULE = "spec.rules[0]"


def route(*targets: Any, match: Any = None, **spec: Any) -> dict[str, Any]:
    rule = {"targetModels": list(targets)} | ({"modelMatch": match} if match else {})
    return {"spec": {"modelName": "m", "rules": [rule], **spec}}


def server(**selector: Any) -> dict[str, Any]:
    labels = {"matchLabels": {"app": "a"}, **selector}
    return {"spec": {"inferenceEngine": "vLLM", "workloadSelector": labels, "workloadPort": {"port": 8000}}}


def sticky(**said: Any) -> dict[str, Any]:
    document = server()
    document["spec"]["trafficPolicy"] = {"sessionSticky": said}
    return document


def policy(**said: Any) -> dict[str, Any]:
    document = server()
    document["spec"]["trafficPolicy"] = said
    return document


def pairs(**more: Any) -> dict[str, Any]:
    return {"groupKey": "g", "prefillLabels": {"r": "p"}, "decodeLabels": {"r": "d"}, **more}


def provider(**spec: Any) -> dict[str, Any]:
    return {"spec": {"baseURL": "https://api.example.com/v1", **spec}}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            route({"modelServerName": "a"}, modelName=""),
            "spec: Required value: either modelName or loraAdapters must be",
        ),
        (
            route({"modelServerName": "a"}, loraAdapters=[""]),
            'spec.loraAdapters[0]: Invalid value: "": lora adapter name cannot be an empty string',
        ),
        (route(), f"{RULE}.targetModels: Required value: each rule must have at least one target model"),
        (
            route({}),
            f'{RULE}.targetModels[0]: Invalid value: "/": exactly one of modelServerName or '
            "externalModelProviderName must be set",
        ),
        (route({"modelServerName": "a", "externalModelProviderName": "b"}), 'Invalid value: "a/b": exactly one of'),
        (
            route({"externalModelProviderName": "b"}, loraAdapters=["l"]),
            f'{RULE}.targetModels[0].externalModelProviderName: Invalid value: "b": lora routes must target modelServerName',
        ),
        (
            route({"modelServerName": "a", "weight": 0}, {"modelServerName": "b", "weight": 0}),
            f"{RULE}.targetModels: Invalid value: 0: total weight must be greater than zero",
        ),
        (
            route({"modelServerName": "a"}, match={"headers": {"x": {"regex": "("}}}),
            f'{RULE}.modelMatch.headers[x].regex: Invalid value: "(": error parsing regexp: ',
        ),
        (
            route({"modelServerName": "a"}, match={"uri": {"regex": "["}}),
            f'{RULE}.modelMatch.uri.regex: Invalid value: "[": error parsing regexp: ',
        ),
        (
            route({"modelServerName": "a"}, rateLimit={"global": {"redis": {"address": "redis://cache:6379"}}}),
            'spec.rateLimit.global.redis.address: Invalid value: "redis://cache:6379": it must be host:port, such as',
        ),
    ],
)
def test_routes_that_are_refused(document: dict[str, Any], said: str) -> None:
    sentence = refused(refuse_model_route, ModelRoute, document)
    assert sentence.startswith("validation failed:\n  - ")
    assert said in sentence


def test_a_route_with_weights_that_do_not_sum_to_a_hundred_is_let_in() -> None:
    """Kthena ModelRouteSubset/WeightSumNot100Percent."""
    document = route({"modelServerName": "a", "weight": 30}, {"modelServerName": "b", "weight": 50})
    assert refuse_model_route(request(ModelRoute, document), _nobody()) == ""


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (server(matchLabels={}), "spec.workloadSelector.matchLabels: Required value: labels must contain at least one"),
        (
            server(matchLabels={"a b": "c"}),
            'spec.workloadSelector.matchLabels: Invalid value: {"a b":"c"}: invalid selector',
        ),
        (
            server(pdGroup=pairs(groupKey="")),
            "spec.workloadSelector.pdGroup.groupKey: Required value: groupKey must be",
        ),
        (
            server(pdGroup=pairs(prefillLabels={})),
            "spec.workloadSelector.pdGroup.prefillLabels: Required value: labels",
        ),
        (
            server(pdGroup=pairs(decodeLabels={})),
            "spec.workloadSelector.pdGroup.decodeLabels: Required value: labels must",
        ),
        (
            sticky(sources=[]),
            "spec.trafficPolicy.sessionSticky.sources: Required value: sources must be non-empty when sessionSticky is set",
        ),
        (
            sticky(sources=[{"type": "Header", "name": "x"}], sessionAffinitySeconds=0),
            "spec.trafficPolicy.sessionSticky.sessionAffinitySeconds: Invalid value: 0: sessionAffinitySeconds must be at",
        ),
        (
            sticky(sources=[{"type": "Body", "name": "x"}]),
            'sources[0].type: Unsupported value: "Body": supported values: "Header", "Query", "Cookie", "JWTClaim"',
        ),
        (
            sticky(sources=[{"type": "Header", "name": ""}]),
            "sources[0].name: Required value: source name must be non-empty",
        ),
        (
            policy(timeout="5"),
            'spec.trafficPolicy.timeout: Invalid value: "5": "5" is not a duration; write it like "90s", "1h30m" or "250ms"',
        ),
        (
            policy(timeout="-5s"),
            'spec.trafficPolicy.timeout: Invalid value: "-5s": it must not be negative; leave it out for no bound',
        ),
        (
            policy(retry={"retryInterval": "soon"}),
            'spec.trafficPolicy.retry.retryInterval: Invalid value: "soon": "soon" is not a duration',
        ),
        (
            policy(connectionPool={"idleTimeout": "٥s"}),
            'spec.trafficPolicy.connectionPool.idleTimeout: Invalid value: "٥s": "٥s" is not a duration',
        ),
    ],
)
def test_servers_that_are_refused(document: dict[str, Any], said: str) -> None:
    sentence = refused(refuse_model_server, ModelServer, document)
    assert sentence.startswith("validation failed:   - ")
    assert said in sentence


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            provider(providerType="Gemini"),
            'spec.providerType: Unsupported value: "Gemini": supported values: "OpenAI", "Anth',
        ),
        (provider(baseURL="http://x"), 'spec.baseURL: Invalid value: "http://x": baseURL must use https'),
        (provider(baseURL="https://u@x"), "baseURL must not contain userinfo, query, or fragment"),
        (provider(baseURL="https://x?a=b"), "baseURL must not contain userinfo, query, or fragment"),
        (provider(headers={"a b": "c"}), 'spec.headers[a b]: Invalid value: "a b": header name is invalid'),
        (
            provider(headers={"authorization": "c"}),
            'spec.headers[authorization]: Invalid value: "authorization": header is reserved and cannot be configured as a',
        ),
        (provider(headers={"X-A": "a\nb"}), "header value must not contain CR or LF"),
        (provider(headers={"X-A": "a\x00b"}), "header value must not contain control characters"),
        (
            provider(auth={"scheme": "Basic", "secretRef": {"name": "s", "key": "k"}}),
            'spec.auth.scheme: Unsupported value: "Basic": supported values: "Bearer", "APIKey"',
        ),
        (
            provider(auth={"secretRef": {"key": "k"}}),
            "spec.auth.secretRef.name: Required value: secret name is required",
        ),
        (
            provider(auth={"secretRef": {"name": "s"}}),
            "spec.auth.secretRef.key: Required value: secret key is required",
        ),
        (
            provider(auth={"secretRef": {"name": "s", "key": "k", "optional": True}}),
            "spec.auth.secretRef.optional: Invalid value: true: optional must be false or unset",
        ),
    ],
)
def test_providers_that_are_refused(document: dict[str, Any], said: str) -> None:
    sentence = refused(refuse_provider, ExternalModelProvider, document)
    assert sentence.startswith("validation failed:\n  - ")
    assert said in sentence


def test_what_is_right_is_let_in() -> None:
    assert refuse_model_server(request(ModelServer, server(pdGroup=pairs())), _nobody()) == ""
    patient = policy(timeout="1m30s", retry={"retryInterval": "0"})
    assert refuse_model_server(request(ModelServer, patient), _nobody()) == ""
    assert refuse_provider(request(ExternalModelProvider, provider(headers={"X-Org": "me"})), _nobody()) == ""


def _nobody() -> Any:
    return None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("data-parallel-ranks", "two", 'Invalid value: "two": write a number from 0 to 256'),
        ("data-parallel-ranks", "257", 'Invalid value: "257": write a number from 0 to 256'),
        ("kv-events-port", "99999", 'Invalid value: "99999": write a number from 0 to 65535'),
        ("kv-replay-port", "-1", 'Invalid value: "-1": write a number from 0 to 65535'),
        ("decode-only-below-tokens", "1k", 'Invalid value: "1k": write a number from 0 to 2147483647'),
        ("topology-key", "a b", 'Invalid value: "a b": it names a label of the pods: '),
        ("tokenizer", "tokenizer.json", "write engine, or the path of a tokenizer.json in the router's file system"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_refused(name: str, value: str, said: str) -> None:
    document = server()
    document["metadata"] = {"name": "s", "namespace": "ml", "annotations": {f"router.hekla.dev/{name}": value}}
    sentence = refused(refuse_model_server, ModelServer, document)
    assert f"metadata.annotations[router.hekla.dev/{name}]: " in sentence
    assert said in sentence


def test_an_annotation_that_nobody_reads_is_warned_of_and_those_that_are_read_are_let_in() -> None:
    document, known = (
        server(),
        {"data-parallel-ranks": "8", "tokenizer": "engine", "topology-key": "topology.k8s.io/zone"},
    )
    annotations = {f"router.hekla.dev/{name}": value for name, value in known.items()}
    document["metadata"] = {"name": "s", "namespace": "ml", "annotations": annotations}
    asked = request(ModelServer, document)
    assert (refuse_model_server(asked, _nobody()), asked.warnings) == ("", [])
    annotations["router.hekla.dev/ranks"] = "8"
    asked = request(ModelServer, document)
    assert refuse_model_server(asked, _nobody()) == ""
    assert asked.warnings[0].startswith(
        "annotation router.hekla.dev/ranks is read by nobody; there are router.hekla.dev/"
    )


def test_an_annotation_for_the_router_on_a_route_is_warned_of() -> None:
    document = {"spec": {"modelName": "m", "rules": [{"targetModels": [{"modelServerName": "a"}]}]}}
    document["metadata"] = {"name": "r", "namespace": "ml", "annotations": {"router.hekla.dev/tokenizer": "engine"}}
    asked = request(ModelRoute, document)
    assert refuse_model_route(asked, _nobody()) == ""
    assert asked.warnings[0].startswith("annotation router.hekla.dev/tokenizer is read by nobody; a ModelServer has ")
