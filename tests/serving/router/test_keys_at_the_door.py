"""Where the router knows its users, nobody else learns anything, and engines do not see the users' keys."""

import pytest

from hekla.serving.router.authentication import Authentication, read_api_keys
from serving.router import proxykit as kit

KEY = "sk-0123456789abcdef"
MODELS = {"/v1/models": lambda: (200, b"application/json", b"{}"), "/healthz": lambda: (200, b"text/plain", b"ok")}


def guarded():
    door = Authentication(wall=lambda: 0.0, api_keys=read_api_keys({"ann": KEY}))
    return door, kit.plane(kit.says(kit.whole()), guards=(door,), documents=MODELS)


def get(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: router\r\n{headers}\r\n".encode()


@pytest.mark.parametrize("header", [f"Authorization: Bearer {KEY}\r\n", f"X-API-Key: {KEY}\r\n"])
@pytest.mark.parametrize("length", ["short", "long"])
def test_a_known_client_is_served_and_his_key_stays_here(header: str, length: str) -> None:
    async def story() -> None:
        door, place = guarded()
        async with place as plane:
            plane.house.doorkeeper = door
            client = await plane.client()
            for _ in range(2):  # the second goes by what was remembered of the first head
                text = "hello" if length == "short" else "x" * 100_000
                assert (await client.ask(kit.chat(headers=header, text=text))).status == 200
            for asked in plane.engines[0].asked:
                assert KEY.encode() not in asked.head
                assert asked.headers["content-type"] == "application/json"
            assert (await client.ask(get("/v1/models", header))).status == 200

    kit.run(story())


@pytest.mark.parametrize("header", ["", "Authorization: Bearer sk-wrong\r\n", "Authorization: Basic YTpi\r\n"])
def test_a_stranger_learns_nothing(header: str) -> None:
    async def story() -> None:
        door, place = guarded()
        async with place as plane:
            plane.house.doorkeeper = door
            client = await plane.client()
            refused = await client.ask(kit.chat(headers=header))
            assert (refused.status, refused.error["code"]) == (401, "authentication")
            assert (await client.ask(get("/v1/models", header))).status == 401
            assert (await client.ask(get("/healthz", header))).status == 200
            assert not plane.engines[0].asked

    kit.run(story())


def test_without_a_doorkeeper_an_engines_own_key_reaches_it() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            await plane.ask(kit.chat(headers="Authorization: Bearer of-the-engine\r\n"))
            assert plane.engines[0].asked[0].headers["authorization"] == "Bearer of-the-engine"

    kit.run(story())
