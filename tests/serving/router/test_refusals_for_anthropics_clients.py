"""Refusals of the router have the shape of the API that was asked: `anthropic`'s clients read their sentence from `error.message`
of a document of type `error`, and from an event of that name.
"""

import json

import pytest

from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")

PATH = "/v1/messages"


def asks(path: str = PATH, model: str = "m", **fields: object) -> bytes:
    body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}], **fields}
    return kit.request(json.dumps(body).encode(), path=path)


def told(answer: kit.Answer) -> tuple[int, str, str]:
    document = answer.json()
    assert document["type"] == "error"
    return answer.status, document["error"]["type"], document["error"]["message"]


def test_what_the_router_says_itself_has_the_shape_of_the_api_that_was_asked() -> None:
    async def story() -> None:
        async with kit.plane(kit.says_and_closes(b"")) as plane:
            answer = await plane.ask(asks(model="gone"))
            assert told(answer)[:2] == (404, "not_found_error")
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
            assert told(await plane.ask(asks()))[:2] == (503, "overloaded_error")
            assert told(await plane.ask(kit.request(b"[]", path=PATH)))[:2] == (400, "invalid_request_error")
            counting = await plane.ask(asks("/v1/messages/count_tokens", "gone"))
            assert told(counting)[:2] == (404, "not_found_error")
            reading = await plane.ask(b"GET /v1/messages HTTP/1.1\r\nhost: a\r\n\r\n")
            assert told(reading) == (405, "invalid_request_error", "/v1/messages is asked with POST")
            openais = await plane.ask(kit.chat(model="gone"))
            assert openais.error["code"] == "route_not_found"
            assert "type" not in openais.json()

    kit.run(story())


@pytest.mark.parametrize("framing", ["Content-Length: 200000000", "Transfer-Encoding: chunked"])
def test_a_body_that_is_too_large_is_refused_in_it_too(framing: str) -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            client = await plane.client()
            body = b"" if framing.startswith("Content") else b"zz\r\n"
            await client.send(f"POST {PATH} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n".encode() + body)
            kind = "request_too_large" if framing.startswith("Content") else "invalid_request_error"
            assert told(await client.answer())[1] == kind

    kit.run(story())


def test_a_stream_that_breaks_names_its_error_event() -> None:
    async def story() -> None:
        begun = kit.STREAM_HEAD + kit.chunk(b"event: message_start\ndata: {}\n\n")
        async with kit.plane(kit.says_and_closes(begun)) as plane:
            client = await plane.client()
            await client.send(asks(stream=True))
            got = await client.closed()
            event = got.rpartition(b"event: error\ndata: ")[2].partition(b"\n\n")[0]
            document = json.loads(event)
            assert (document["type"], document["error"]["type"]) == ("error", "api_error")
            assert "cut short" in document["error"]["message"]

    kit.run(story())


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
def test_what_openai_has_and_engines_have_not_is_said_whatever_the_method(method: str, path: str) -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            answer = await plane.ask(f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".encode())
            said = f"{path} is no path that models are asked by; POST /v1/chat/completions asks one, GET /v1/models lists them"
            assert (answer.status, answer.error["message"]) == (404, said)

    kit.run(story())
