"""What an external provider gets of a request, and that its answers are the client's, through the router's own sockets."""

from typing import Any

import pytest

from hekla.serving.router.director import Director
from serving.router import proxykit as kit
from serving.router.test_providers import AUTH, secret
from serving.router.worldkit import provider, route, world

pytestmark = pytest.mark.usefixtures("lane")

SECRETS = "Authorization: Bearer mine\r\nCookie: a=b\r\nX-Api-Key: mine\r\nX-Mine: yes\r\n"
WELCOME = "X-Request-Id: r1\r\ntraceparent: 00-1\r\nAnthropic-Version: 2023-06-01\r\n"


def desk_of(**spec: Any) -> Any:
    def made(engines: Any) -> Director:
        to = {"externalModelProviderName": "far"}
        desk = Director(world(route("r", to, model="m"), provider("far", auth=AUTH, **spec), secret()), lambda: 0.0)
        far = desk.world.providers["ml/far"]
        far.host, far.port, far.is_tls = "127.0.0.1", engines[0].port, False
        return desk

    return made


def test_a_provider_gets_its_own_credential_and_few_headers() -> None:
    """Kthena TestExternalProvider*: opaque forwarding; the client's credentials stay here."""

    async def story() -> None:
        async with kit.plane(kit.says(kit.whole()), desk=desk_of(headers={"X-Org": "us"})) as it:
            asked = kit.chat(headers=SECRETS + WELCOME)
            assert (await it.ask(asked)).body == kit.DOCUMENT
            [got] = it.engines[0].asked
            assert got.body == asked.partition(b"\r\n\r\n")[2]
            assert got.headers["authorization"] == "Bearer s3cret"
            assert got.headers["host"] == "api.example.com"
            assert (got.headers["x-org"], got.headers["x-request-id"]) == ("us", "r1")
            assert got.headers["traceparent"].startswith("00-")
            assert not {"cookie", "x-api-key", "x-mine", "anthropic-version"} & got.headers.keys()

    kit.run(story())


def test_anthropics_messages_go_to_anthropic_with_its_headers() -> None:
    async def story() -> None:
        made = desk_of(providerType="Anthropic", model="claude-x")
        async with kit.plane(kit.says(kit.whole()), desk=made) as it:
            body = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}'
            answer = await it.ask(kit.request(body, headers=SECRETS + WELCOME, path="/v1/messages"))
            assert answer.status == 200
            [got] = it.engines[0].asked
            assert got.line == "POST /v1/messages HTTP/1.1"
            assert (got.headers["x-api-key"], got.headers["anthropic-version"]) == ("s3cret", "2023-06-01")
            assert got.body == body.replace(b'"m"', b'"claude-x"')
            assert "authorization" not in got.headers

    kit.run(story())


def test_a_providers_refusal_is_passed_on_as_it_is() -> None:
    """Kthena TestExternalProvider*: non-2xx passthrough."""

    async def story() -> None:
        for status in (400, 401, 429, 503):
            said = b'{"error":{"message":"no","type":"x"}}'
            script = kit.says(kit.whole(said, status, "retry-after: 7\r\n"))
            async with kit.plane(script, desk=desk_of()) as it:
                answer = await it.ask(kit.chat())
                assert (answer.status, answer.body, answer.headers["retry-after"]) == (status, said, "7")
                assert len(it.engines[0].asked) == 1

    kit.run(story())


def test_a_provider_that_hangs_up_is_a_bad_gateway() -> None:
    async def story() -> None:
        async with kit.plane(kit.says_and_closes(b""), desk=desk_of()) as it:
            answer = await it.ask(kit.chat())
            assert answer.status == 502
            assert answer.error["message"] == "the request to the model's provider failed"

    kit.run(story())
