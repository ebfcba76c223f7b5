"""What engines answer reaches clients byte by byte, whatever its framing; what is added or left out is meant."""

import json

import pytest

from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")


def test_a_chat_comes_back_as_the_engine_wrote_it() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            answer = await plane.ask(kit.chat())
            assert (answer.status, answer.body) == (200, kit.DOCUMENT)
            assert kit.unnamed(answer.head) == kit.whole()[: -len(kit.DOCUMENT)]
            [asked] = plane.engines[0].asked
            assert asked.line == "POST /v1/chat/completions HTTP/1.1"
            assert asked.json()["messages"][0]["content"] == "hello"
            assert asked.headers["x-request-id"]
            await kit.until(lambda: bool(plane.over))
            assert plane.over[0].usage_told.input_tokens == 7
            assert plane.desk.plans[0].usages[0].output_tokens == 3

    kit.run(story())


def test_a_kept_connection_carries_many_requests_to_kept_connections(lane: bool) -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            client = await plane.client()
            for _ in range(20):
                assert (await client.ask(kit.chat())).status == 200
            assert plane.engines[0].connections == 1
            assert plane.listener.connections == 1
            assert len(plane.over) == 20
            assert (plane.lane.taken if plane.lane is not None else 0) == (20 if lane else 0)

    kit.run(story())


def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def story() -> None:
        async def script(asked: kit.Asked, writer: object) -> None:
            text = asked.json()["messages"][0]["content"]
            writer.write(kit.whole(json.dumps({"said": text}).encode()))  # type: ignore[attr-defined]

        async with kit.plane(script) as plane:
            client = await plane.client()
            await client.send(b"".join(kit.chat(text=str(n)) for n in range(50)))
            assert [(await client.answer()).json()["said"] for _ in range(50)] == [str(n) for n in range(50)]

    kit.run(story())


def test_a_stream_passes_untouched_when_the_client_asked_for_its_usage() -> None:
    async def story() -> None:
        sent = kit.stream(kit.event("a"), kit.event("b"), kit.USAGE_EVENT, kit.DONE)
        async with kit.plane(kit.says(sent)) as plane:
            client = await plane.client()
            await client.send(kit.chat(stream=True, close=True, stream_options={"include_usage": True}))
            got = await client.closed()
            assert got.partition(b"\r\n\r\n")[2] == sent.partition(b"\r\n\r\n")[2]
            assert plane.over[0].events == 4
            assert plane.over[0].usage_told.output_tokens == 3

    kit.run(story())


def test_usage_is_asked_for_and_left_out_for_a_client_that_had_not_asked() -> None:
    async def story() -> None:
        sent = kit.stream(kit.event("a"), kit.event("b"), kit.USAGE_EVENT, kit.DONE)
        async with kit.plane(kit.says(sent)) as plane:
            answer = await plane.ask(kit.chat(stream=True))
            assert answer.body == kit.event("a") + kit.event("b") + kit.DONE
            assert plane.engines[0].asked[0].json()["stream_options"] == {"include_usage": True}
            await kit.until(lambda: bool(plane.over))
            assert plane.over[0].usage_told.input_tokens == 7

    kit.run(story())


def test_other_stream_options_stay_when_usage_is_asked_for() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.stream(kit.DONE))) as plane:
            options = {"continuous_usage_stats": False, "include_usage": False}
            await plane.ask(kit.chat(stream=True, stream_options=options))
            asked = plane.engines[0].asked[0].json()
            assert asked["stream_options"] == {"continuous_usage_stats": False, "include_usage": True}
            assert asked["model"] == "m"

    kit.run(story())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_a_stream_in_any_pieces_leaves_out_the_usage_event_alone(size: int) -> None:
    async def story() -> None:
        sent = kit.stream(kit.event("a"), kit.event("b"), kit.USAGE_EVENT, kit.DONE)
        async with kit.plane(kit.says(kit.whole())) as plane:

            async def script(asked: kit.Asked, writer: object) -> None:
                for start in range(0, len(sent), size):
                    writer.write(sent[start : start + size])  # type: ignore[attr-defined]
                    await writer.drain()  # type: ignore[attr-defined]

            plane.engines[0].script = script
            answer = await plane.ask(kit.chat(stream=True))
            assert answer.body == kit.event("a") + kit.event("b") + kit.DONE

    kit.run(story())


def test_an_answer_that_ends_with_its_connection_is_chunked_for_the_client() -> None:
    async def story() -> None:
        async with kit.plane(kit.says_and_closes(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello")) as plane:
            client = await plane.client()
            answer = await client.ask(kit.chat())
            assert (answer.body, answer.headers["transfer-encoding"]) == (b"hello", "chunked")
            assert (await client.ask(kit.chat())).body == b"hello"
            assert plane.engines[0].connections == 2

    kit.run(story())


def test_a_client_of_http_1_0_gets_no_chunks_and_its_connection_closed() -> None:
    async def story() -> None:
        sent = kit.stream(kit.event("a"), kit.DONE)
        async with kit.plane(kit.says(sent)) as plane:
            client = await plane.client()
            body = b'{"model":"m","prompt":"x","stream":true}'
            await client.send(kit.request(body, path="/v1/completions", version="1.0"))
            got = await client.closed()
            head, _, rest = got.partition(b"\r\n\r\n")
            assert rest == kit.event("a") + kit.DONE
            assert b"transfer-encoding" not in head.lower()
            assert plane.engines[0].asked[0].line == "POST /v1/completions HTTP/1.1"

    kit.run(story())


def test_interim_answers_stay_between_router_and_engine() -> None:
    async def story() -> None:
        interim = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
        async with kit.plane(kit.says(interim + kit.whole())) as plane:
            assert (await plane.ask(kit.chat())).body == kit.DOCUMENT

    kit.run(story())


def test_an_answer_without_a_body_ends_with_its_head() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(b"HTTP/1.1 204 No Content\r\ncontent-length: 7\r\n\r\n", kit.whole())) as plane:
            client = await plane.client()
            answer = await client.ask(kit.chat())
            assert answer.status == 204
            assert "content-length" not in answer.headers, "nothing comes behind it"
            assert (await client.ask(kit.chat())).status == 200
            assert plane.engines[0].connections == 1

    kit.run(story())


def test_headers_of_one_hop_do_not_travel_on() -> None:
    async def story() -> None:
        extra = "connection: keep-alive\r\nkeep-alive: timeout=5\r\nx-engine: yes\r\n"
        async with kit.plane(kit.says(kit.whole(extra=extra))) as plane:
            headers = "Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nTE: trailers\r\nKeep-Alive: 3\r\nX-Stays: 1\r\n"
            answer = await plane.ask(kit.chat(headers=headers))
            assert "connection" not in answer.headers
            assert "keep-alive" not in answer.headers
            assert answer.headers["x-engine"] == "yes"
            asked = plane.engines[0].asked[0].headers
            assert asked["x-stays"] == "1"
            assert not {"connection", "x-hop", "te", "keep-alive"} & asked.keys()

    kit.run(story())


def test_an_engines_refusal_of_the_request_is_the_clients_answer() -> None:
    async def story() -> None:
        too_long = b'{"error":{"message":"maximum context length is 4096"}}'
        async with kit.plane(kit.says(kit.whole(too_long, 400)), kit.says(kit.whole())) as plane:
            answer = await plane.ask(kit.chat())
            assert (answer.status, answer.body) == (400, too_long)
            assert not plane.engines[1].asked

    kit.run(story())


def test_a_request_id_of_the_clients_is_kept() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            await plane.ask(kit.chat(headers="X-Request-ID: mine-1\r\n"))
            assert plane.engines[0].asked[0].headers["x-request-id"] == "mine-1"
            assert plane.engines[0].asked[0].head.lower().count(b"x-request-id") == 1

    kit.run(story())


@pytest.mark.parametrize(
    ("path", "field"),
    [("audio/speech", "input"), ("images/generations", "prompt"), ("classify", "input"), ("pooling", "input")],
)
def test_what_is_no_text_is_asked_and_answered_as_text_is(path: str, field: str) -> None:
    async def story() -> None:
        sound = bytes(range(256)) * 8
        head = f"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: {len(sound)}\r\n\r\n".encode()
        async with kit.plane(kit.says(head + sound)) as plane:
            body = json.dumps({"model": "m", field: "hello"}).encode()
            answer = await plane.ask(kit.request(body, path=f"/v1/{path}"))
            assert (answer.status, answer.body) == (200, sound)
            assert plane.engines[0].asked[0].line == f"POST /v1/{path} HTTP/1.1"
            lacking = await plane.ask(kit.request(b'{"model":"m"}', path=f"/v1/{path}"))
            assert (lacking.status, lacking.error["param"]) == (400, field)

    kit.run(story())


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_stream_with_a_length_out_of_which_an_event_is_left_has_no_length_any_more(version: str) -> None:
    """Both framings in one head: whoever stands behind us and believes the length reads the next answer wrong."""

    async def story() -> None:
        body = kit.event("hi") + kit.USAGE_EVENT + kit.DONE
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
        async with kit.plane(kit.says(head + body)) as plane:
            asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True}).encode()
            client = await plane.client()
            client.writer.write(kit.request(asked, version=version, headers="Connection: close\r\n"))
            said = await client.reader.read()
            assert b"content-length" not in said
            assert b"hi" in said
            assert b"usage" not in said

    kit.run(story())
