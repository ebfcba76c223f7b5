"""Whether external providers are asked in their own words, and get nothing of the client's that is not theirs."""

import base64
from typing import Any

import pytest

from hekla.api.core import Secret
from hekla.api.kthena import labels
from hekla.api.meta import ObjectMeta
from hekla.serving.router.director import Director
from hekla.serving.router.plan import NO_PROVIDER, Fault, Refusal
from hekla.serving.router.providers import Provider, upstream_path
from serving.router.worldkit import attempt_of, director, plan_of, provider, question, refusal_of, route, sent

AUTH = {"secretRef": {"name": "key", "key": "token"}}


def secret(token: bytes = b"s3cret\n", key: str = "token") -> Secret:
    meta = ObjectMeta(name="key", namespace="ml", labels={labels.PROVIDER_CREDENTIAL: "true"})
    return Secret(metadata=meta, data={key: base64.b64encode(token).decode()})


def desk(*objects: Any, **spec: Any) -> Director:
    to = {"externalModelProviderName": "far"}
    return director(route("r", to, model="m"), provider("far", **spec), *objects)


def test_openai_gets_a_bearer_token_and_the_bytes_of_the_client() -> None:
    """Kthena TestExternalProvider*: opaque forwarding, raw body preserved."""
    plan = plan_of(desk(secret(), auth=AUTH), question("m"))
    attempt = attempt_of(plan)
    assert attempt.body is None
    assert dict(attempt.headers) == {b"authorization": b"Bearer s3cret", b"host": b"api.example.com"}
    assert attempt.keep_headers is not None
    assert b"content-type" in attempt.keep_headers
    assert not {b"authorization", b"cookie", b"anthropic-version"} & attempt.keep_headers
    assert (attempt.target.host, attempt.target.port, attempt.target.is_tls) == ("api.example.com", 443, True)
    assert attempt.target.verifies


def test_anthropic_gets_its_key_in_its_own_header() -> None:
    made = desk(secret(), auth=AUTH, providerType="Anthropic", model="claude-x")
    attempt = attempt_of(plan_of(made, question("m", path="/v1/messages")))
    assert dict(attempt.headers)[b"x-api-key"] == b"s3cret"
    assert attempt.keep_headers is not None
    assert b"anthropic-version" in attempt.keep_headers
    assert sent(attempt)["model"] == "claude-x"


def test_schemes_and_static_headers_are_as_the_object_says() -> None:
    made = desk(secret(), auth={**AUTH, "scheme": "APIKey"}, headers={"X-Org": "me"}, insecureSkipVerify=True)
    attempt = attempt_of(plan_of(made, question("m")))
    assert dict(attempt.headers) == {b"x-org": b"me", b"x-api-key": b"s3cret", b"host": b"api.example.com"}
    assert not attempt.target.verifies


@pytest.mark.parametrize(
    ("kind", "path"),
    [("OpenAI", "/v1/messages"), ("OpenAI", "/v1/embeddings"), ("Anthropic", "/v1/chat/completions")],
)
def test_a_protocol_that_does_not_know_the_path_is_said_so(kind: str, path: str) -> None:
    """Kthena TestExternalProvider*: protocol mismatch."""
    refused = refusal_of(desk(providerType=kind), question("m", path=path))
    assert (refused.status, refused.reason) == (400, "provider_config")
    assert refused.message == f'provider type "{kind}" does not support path "{path}"'


@pytest.mark.parametrize(
    ("base", "kind", "path", "goes_to"),
    [
        ("https://a", "OpenAI", "/v1/chat/completions", "/v1/chat/completions"),
        ("https://a/v1", "OpenAI", "/v1/chat/completions", "/v1/chat/completions"),
        ("https://a/openai/", "OpenAI", "/v1/completions", "/openai/completions"),
        ("https://a/api", "Anthropic", "/v1/messages", "/api/v1/messages"),
        ("https://a/api/v1", "Anthropic", "/v1/messages", "/api/v1/messages"),
    ],
)
def test_the_base_url_goes_before_the_path_without_a_second_version(
    base: str, kind: str, path: str, goes_to: str
) -> None:
    assert upstream_path(Provider.of(provider("far", baseURL=base, providerType=kind), {}), path) == goes_to


def test_a_headers_letters_go_as_they_are_written_and_a_secrets_bytes_as_they_are() -> None:
    made = desk(secret(b"s\xfc\n"), auth=AUTH, headers={"X-Team": "Küche 模型"})
    headers = dict(attempt_of(plan_of(made, question("m"))).headers)
    assert headers[b"x-team"] == "Küche 模型".encode()
    assert headers[b"authorization"] == b"Bearer s\xfc"


def test_what_a_path_may_not_hold_is_written_as_clients_write_it() -> None:
    made = Provider.of(provider("far", baseURL="https://x/ü a%20b/v1/"), {})
    assert upstream_path(made, "/v1/chat/completions") == "/%C3%BC%20a%20b/v1/chat/completions"


def test_a_port_of_the_base_url_is_dialled_and_named() -> None:
    one = Provider.of(provider("far", baseURL="https://a.example:8443/x"), {})
    assert (one.port, dict(one.headers)[b"host"]) == (8443, b"a.example:8443")


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], "Credential Secret is not found or does not have label"),
        ([secret(key="other")], "Credential Secret key is not found"),
        ([secret(b" \n")], "provider credential is empty after trimming whitespace"),
        ([secret(b"a\nb")], "provider credential contains invalid HTTP header characters"),
    ],
)
def test_a_provider_without_its_credential_is_not_ready(objects: list[Any], reason: str) -> None:
    """Kthena TestExternalProvider*: missing secret."""
    refused = refusal_of(desk(*objects, auth=AUTH), question("m"))
    assert (refused.status, refused.reason) == (503, "provider_config")
    assert reason in refused.for_operators
    assert refused.message == NO_PROVIDER
    assert "s3cret" not in refused.for_operators


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"baseURL": "http://a"}, "provider base URL must use https and include a host"),
        ({"baseURL": "https://u@a"}, "must not contain userinfo, query, or fragment"),
        ({"baseURL": "https://a:x"}, "invalid provider base URL"),
        ({"headers": {"Host": "b"}}, 'static header "Host" is reserved'),
        ({"headers": {"a b": "b"}}, 'static header "a b" has an invalid name'),
        ({"headers": {"a": "b\r\nc: d"}}, 'static header "a" has an invalid value'),
        ({"providerType": "X"}, 'unsupported provider type "X"'),
        ({"auth": {**AUTH, "scheme": "X"}}, 'unsupported provider auth scheme "X"'),
    ],
)
def test_an_object_that_cannot_be_used_says_why(spec: Any, complaint: str) -> None:
    one = Provider.of(provider("far", **spec), {})
    assert one.trouble == "ConfigurationInvalid"
    assert complaint in one.complaint
    assert refusal_of(desk(**spec), question("m")).status == 503


@pytest.mark.parametrize(("fault", "status"), [(Fault.CONNECT, 502), (Fault.TIMEOUT, 504), (Fault.GARBAGE, 502)])
def test_there_is_one_attempt_and_then_the_client_is_told(fault: Fault, status: int) -> None:
    plan = plan_of(desk(), question("m"))
    plan.failed(attempt_of(plan), fault, 0.0)
    refused = plan.next(0.0)
    assert isinstance(refused, Refusal)
    assert refused.status == status


def test_the_query_goes_along() -> None:
    assert (
        attempt_of(plan_of(desk(), question("m", query="api-version=1"))).path == "/v1/chat/completions?api-version=1"
    )
