"""Where the router knows its users, nobody else learns anything, and engines do not see the users' keys."""

import asyncio

import pytest

from hekla.serving.router.authentication import ApiKeyError, Authentication, read_api_keys
from hekla.serving.router.plan import NOT_ASKED
from hekla.serving.router.running import _keys_of
from serving.router import proxykit as kit

pytestmark = pytest.mark.usefixtures("lane")

KEY = "sk-0123456789abcdef"
MODELS = {"/v1/models": lambda: (200, b"application/json", b"{}"), "/healthz": lambda: (200, b"text/plain", b"ok")}
MODELS["/metrics"] = lambda: (200, b"text/plain", b"x 1")


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
            assert (await client.ask(get("/metrics", header))).status == 401
            assert (await client.ask(get("/healthz", header))).status == 200
            assert not plane.engines[0].asked

    kit.run(story())


def test_without_a_doorkeeper_an_engines_own_key_reaches_it() -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            await plane.ask(kit.chat(headers="Authorization: Bearer of-the-engine\r\n"))
            assert plane.engines[0].asked[0].headers["authorization"] == "Bearer of-the-engine"

    kit.run(story())


def post(path: str) -> bytes:
    return kit.request(b'{"model": "m", "prompt": "x"}', path=path)


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/wake_up",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/debug/explain",
        "/x/../sleep",
        "/v1/../sleep",
        "/v1/chat/completions/../../sleep",
    ],
)
def test_engines_controls_are_not_for_clients(path: str) -> None:
    async def story() -> None:
        async with kit.plane(kit.says(kit.whole())) as plane:
            answer = await plane.ask(post(path))
            assert (answer.status, answer.error["code"]) == (404, "not_found")
            assert not plane.engines[0].asked

    kit.run(story())


@pytest.mark.parametrize("body", [b"{}", b"no json", b'{"model": "nope"}'])
def test_what_is_wrong_with_a_strangers_request_is_not_told_to_him(body: bytes) -> None:
    async def story() -> None:
        door, place = guarded()
        async with place as plane:
            plane.house.doorkeeper = door
            assert (await plane.ask(kit.request(body))).status == 401

    kit.run(story())


class Ledger:
    """A guard that notes what it is told to count."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def admit(self, question: object, now: float) -> None:
        return None

    def ended(self, question: object, usage: object, now: float) -> None:
        self.told.append(usage)


def test_an_answer_that_is_cut_short_does_not_pass_free() -> None:
    async def story() -> None:
        guard = Ledger()
        hold = asyncio.Event()

        async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(kit.stream(*(kit.event(str(n)) for n in range(5)))[: -len(b"0\r\n\r\n")])
            await writer.drain()
            await hold.wait()

        async with kit.plane(script, guards=(guard,)) as plane:
            client = await plane.client()
            await client.send(kit.chat(stream=True))
            await client.head()
            for _ in range(5):
                await client.chunk()
            client.leave()
            await kit.until(lambda: bool(guard.told))
            hold.set()
            (usage,) = guard.told
            assert usage.output_tokens >= 5  # type: ignore[attr-defined]
            assert plane.desk.plans[0].usages == [None], "what is guessed is learned nothing from"

    kit.run(story())


@pytest.mark.parametrize(("model", "was_asked"), [("nobody's", False), ("m", True)])
def test_who_counts_is_told_when_no_engine_was_asked(model: str, was_asked: bool) -> None:
    """A model that is not there, and an engine that breaks off: what that one used nobody knows."""

    async def story() -> None:
        guard = Ledger()
        async with kit.plane(kit.says_and_closes(b""), guards=(guard,)) as plane:
            await plane.ask(kit.chat(model=model))
            assert [one is NOT_ASKED for one in guard.told] == [not was_asked]

    kit.run(story())


def test_a_file_of_keys_that_cannot_be_used_is_named_with_its_line(tmp_path):
    file = tmp_path / "keys"
    with pytest.raises(ApiKeyError, match=r"keys cannot be read: No such file or directory; write lines USER: KEY"):
        _keys_of(str(file))
    file.write_text("# who may ask\n\nann: sk-1\nsk-2\n")
    with pytest.raises(ApiKeyError, match="keys, line 4: expected USER: KEY"):
        _keys_of(str(file))
    file.write_text("# who may ask\n\nann: sk-1\n")
    assert _keys_of(str(file)) == {"ann": "sk-1"}
