"""One name for a request from its client to its engine, in the answer, and in the log: the client's, or one that is made here."""

import pytest

from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_request_without_a_name_is_given_one_that_engine_client_and_log_are_told(is_stream: bool) -> None:
    async def story() -> None:
        answer = kit.stream(kit.event("hi"), kit.USAGE_EVENT, kit.DONE) if is_stream else kit.whole()
        async with kit.plane(kit.says(answer)) as plane:
            client = await plane.client()
            told = []
            for _ in range(3):
                said = await client.ask(kit.chat(stream=is_stream))
                assert said.status == 200
                assert said.head.lower().count(b"x-request-id") == 1
                told.append(said.headers["x-request-id"])
            assert [one.headers["x-request-id"] for one in plane.engines[0].asked] == told
            assert [one.request_id.decode() for one in plane.over] == told
            assert len(set(told)) == 3

    kit.run(story())


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_clients_own_name_for_a_request_is_kept(is_stream: bool) -> None:
    async def story() -> None:
        answer = kit.stream(kit.event("hi"), kit.DONE) if is_stream else kit.whole()
        async with kit.plane(kit.says(answer)) as plane:
            said = await plane.ask(kit.chat(stream=is_stream, headers="X-Request-Id: mine/1\r\n"))
            assert said.headers["x-request-id"] == "mine/1"
            [asked] = plane.engines[0].asked
            assert asked.head.lower().count(b"x-request-id") == 1
            assert asked.headers["x-request-id"] == "mine/1"
            assert plane.over[0].request_id == b"mine/1"

    kit.run(story())


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_an_engine_that_tells_the_name_is_not_repeated(is_stream: bool) -> None:
    async def story() -> None:
        named = kit.whole(extra="X-Request-ID: engines\r\n")
        if is_stream:
            named = kit.stream(kit.event("hi"), kit.DONE).replace(b"\r\n", b"\r\nX-Request-ID: engines\r\n", 1)
        async with kit.plane(kit.says(named)) as plane:
            said = await plane.ask(kit.chat(stream=is_stream))
            assert said.head.lower().count(b"x-request-id") == 1
            assert said.headers["x-request-id"] == "engines"

    kit.run(story())


def test_what_is_no_name_goes_nowhere() -> None:
    """Two ids in one head, one of them with whatever a client likes to see in a log, was what the engine got."""

    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            said = await plane.ask(kit.chat(headers=f"X-Request-Id: {'a b' * 100}\r\n"))
            [asked] = plane.engines[0].asked
            assert asked.head.lower().count(b"x-request-id") == 1
            assert asked.headers["x-request-id"] == said.headers["x-request-id"]
            assert "a b" not in said.headers["x-request-id"]

    kit.run(story())
