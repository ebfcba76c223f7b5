"""The Model Context Protocol at /mcp over real daemons: what its clients send, as they send it, and what they are told."""

import asyncio
import json

import pytest

from hekla.sandbox.sessions.store import MemoryStore, StoreUnavailableError
from hekla.testing.paper_sandboxes import PaperSandboxes
from hekla.testing.sandboxes import KEY, OTHER_KEY
from sandbox.gateway.test_gateway import run


async def message(client, method, params=None, *, told_id=1, **more):
    body = {"jsonrpc": "2.0", "id": told_id, "method": method, "params": params or {}}
    status, told, _ = await client.ask("POST", "/mcp", body, **more)
    assert status == 200, told
    return told


async def call(client, tool, **arguments):
    told = await message(client, "tools/call", {"name": tool, "arguments": arguments})
    return told["result"]


def test_a_client_introduces_itself_and_is_told_of_the_tools():
    async def scenario(client):
        told = await message(
            client, "initialize", {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {}}
        )
        assert (told["id"], told["result"]["protocolVersion"]) == (1, "2025-03-26")
        assert "tools" in told["result"]["capabilities"]
        told = await message(client, "initialize", {"protocolVersion": "1999-01-01"})
        assert told["result"]["protocolVersion"] == "2025-06-18"
        status, body, _ = await client.ask("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (status, body) == (202, b"")
        assert (await message(client, "ping", told_id="a"))["result"] == {}
        tools = {one["name"]: one["inputSchema"] for one in (await message(client, "tools/list"))["result"]["tools"]}
        assert set(tools) == {"run_code", "execute_command", "write_file", "read_file", "list_files", "stop_session"}
        common = {"session_id", "session_reuse", "timeout_seconds"}
        assert all(common <= set(one["properties"]) for name, one in tools.items() if name != "stop_session")

    run(scenario)


def test_a_session_that_is_reused_keeps_variables_and_files_until_it_is_stopped():
    async def scenario(client):
        told = await call(client, "run_code", code="x = 6\nprint('begun')", session_reuse=True)
        session = told["structuredContent"]["session_id"]
        assert (told["isError"], told["structuredContent"]["stdout"]) == (False, "begun\n")
        assert session in told["content"][-1]["text"]
        told = await call(client, "run_code", code="x * 7", session_id=session)
        assert told["structuredContent"]["results"] == ["42"]
        home = (await call(client, "execute_command", command="pwd", session_id=session))["structuredContent"][
            "stdout"
        ].strip()
        await call(client, "write_file", path=f"{home}/a b.txt", content="größer\n", session_id=session)
        told = await call(client, "read_file", path=f"{home}/a b.txt", session_id=session)
        assert told["content"] == [{"type": "text", "text": "größer\n"}]
        told = await call(client, "list_files", path=home, session_id=session)
        assert {"name": "a b.txt", "is_directory": False, "size": 9} in told["structuredContent"]["files"]
        await call(client, "execute_command", command=r"printf '\377' > raw", session_id=session)
        told = await call(client, "read_file", path=f"{home}/raw", session_id=session)
        assert told["content"][0]["resource"]["blob"] == "/w=="
        assert (await call(client, "stop_session", session_id=session))["isError"] is False
        assert (await call(client, "run_code", code="x", session_id=session))["isError"] is True
        told = await call(client, "run_code", code="1", session_id=session, session_reuse=True)
        assert told["structuredContent"]["session_id"] != session  # it is over: a new one, and the caller is told

    run(scenario)


def test_a_session_of_one_call_ends_with_it_however_the_call_went():
    async def scenario(client):
        told = await call(client, "run_code", code="1 / 0")
        assert (told["isError"], "ZeroDivisionError" in told["content"][0]["text"]) == (True, True)
        told = await call(client, "execute_command", command="echo out; exit 3")
        assert (told["isError"], told["structuredContent"]) == (True, {"stdout": "out\n", "stderr": "", "exit_code": 3})
        told = await call(client, "run_code", code="import time; time.sleep(600)", timeout_seconds=0.5)
        assert (told["isError"], told["structuredContent"]["reason"]) == (True, "timeout")
        assert await client.gateway.desk.listed(None) == []
        assert client.sandboxes.sandboxes == {}

    run(scenario)


def test_nobody_works_in_somebody_elses_session():
    async def scenario(client):
        session = await client.session()
        for tool, arguments in (("run_code", {"code": "1"}), ("stop_session", {})):
            params = {"name": tool, "arguments": {**arguments, "session_id": session}}
            told = await message(client, "tools/call", params, key=OTHER_KEY)
            assert told["result"]["structuredContent"]["reason"] == "session_not_found"
        for key, headers, status in (
            ("", {}, 401),
            ("wrong", {}, 401),
            (OTHER_KEY, {"origin": "http://evil.example"}, 403),
        ):
            got, told, _ = await client.ask(
                "POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, key=key, **headers
            )
            assert (got, "error" in told) == (status, True)

    run(scenario)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"[]", 400, -32600),
        (b'{"id": 1, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "nosuch"}', 200, -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nosuch"}}', 200, -32602),
    ],
)
def test_what_is_no_message_is_refused_as_the_protocol_says(body, status, code):
    async def scenario(client):
        got, told, _ = await client.ask("POST", "/mcp", body)
        assert (got, told["error"]["code"]) == (status, code)
        got, _, answer = await client.ask("GET", "/mcp")
        assert (got, answer.header("allow")) == (405, "POST")

    run(scenario)


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("run_code", {}, 'needs the argument "code"'),
        ("run_code", {"code": 1}, '"code" of tool "run_code" must be a string'),
        ("run_code", {"code": "1", "timeout_seconds": 0}, "must be above 0 and at most 3600"),
        ("list_files", {"file": "x"}, 'has no argument "file"'),
    ],
)
def test_a_wrong_argument_is_told_in_a_sentence_that_a_model_can_read(tool, arguments, sentence):
    async def scenario(client):
        told = await call(client, tool, **arguments)
        assert told["isError"] is True
        assert sentence in told["content"][0]["text"]

    run(scenario)


def test_null_is_an_argument_that_was_left_out():
    async def scenario(client):
        told = await call(client, "run_code", code="1 + 1", session_id=None, session_reuse=None, timeout_seconds=None)
        assert (told["isError"], told["content"][0]["text"].strip()) == (False, "2")
        told = await call(client, "run_code", code=None)
        assert '"code" of tool "run_code" must be a string' in told["content"][0]["text"]

    run(scenario)


class Listening:
    """A client of 2024-11-05: listens to events, and sends where it was told to."""

    def __init__(self, client, path="/mcp/sse"):
        self.client, self.path = client, path

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.client.gateway.port)
        key = f"authorization: Bearer {KEY}\r\n"
        self._writer.write(f"GET {self.path} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n{key}\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b"content-type: text/event-stream" in head
        kind, self.endpoint = await self.event()
        assert kind == "endpoint"
        return self

    async def __aexit__(self, *failure):
        self._writer.close()

    async def event(self):
        async with asyncio.timeout(60):
            while True:
                lines = (await self._reader.readuntil(b"\n\n")).decode().splitlines()
                told = dict(line.split(": ", 1) for line in lines if not line.startswith(":") and line)
                if told:
                    return told["event"], told["data"]

    async def said(self, method, params=None, *, told_id=1):
        body = {"jsonrpc": "2.0", "id": told_id, "method": method, "params": params or {}}
        status, told, _ = await self.client.ask("POST", self.endpoint, body)
        assert (status, told) == (202, b"")
        kind, data = await self.event()
        assert kind == "message"
        return json.loads(data)


def test_a_client_of_2024_listens_to_events_and_is_answered_there():
    async def scenario(client):
        async with Listening(client, "/mcp/sse?template=base") as listening:
            assert listening.endpoint.startswith("/mcp/messages?session_id=")
            told = await listening.said("initialize", {"protocolVersion": "2024-11-05"})
            assert told["result"]["protocolVersion"] == "2024-11-05"
            status, _, _ = await client.ask(
                "POST", listening.endpoint, {"jsonrpc": "2.0", "method": "notifications/initialized"}
            )
            assert status == 202
            told = await listening.said(
                "tools/call", {"name": "execute_command", "arguments": {"command": "echo 42"}}, told_id="c"
            )
            assert (told["id"], told["result"]["structuredContent"]["stdout"]) == ("c", "42\n")
            assert (await client.ask("POST", listening.endpoint, {}, key=OTHER_KEY))[0] == 404, "somebody else's stream"
            endpoint = listening.endpoint
        async with asyncio.timeout(30):  # the stream is forgotten with its client
            while (await client.ask("POST", endpoint, {"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] != 404:
                await asyncio.sleep(0)

    run(scenario)


def test_nobody_listens_without_a_key_or_from_a_page_of_another_origin():
    async def scenario(client):
        for method, path, more, wanted in (
            ("GET", "/mcp/sse", {"key": ""}, 401),
            ("GET", "/mcp/sse", {"origin": "http://elsewhere.test"}, 403),
            ("POST", "/mcp/sse", {}, 405),
            ("GET", "/mcp/messages", {}, 405),
            ("POST", "/mcp/messages?session_id=x", {}, 404),
        ):
            status, told, _ = await client.ask(method, path, {} if method == "POST" else None, **more)
            assert (status, "error" in told) == (wanted, True), (method, path, told)

    run(scenario)


class Lost(MemoryStore):
    """A store that does not answer."""

    async def create(self, session):
        raise StoreUnavailableError("the store is gone")


class Wrong(PaperSandboxes):
    """Our own mistake."""

    async def take(self, order):
        raise KeyError("a mistake of ours")


@pytest.mark.parametrize(
    ("store", "sandboxes", "status", "code", "words"),
    [
        (Lost, PaperSandboxes, 503, -32000, "the store is gone"),
        (MemoryStore, Wrong, 500, -32603, "internal server error"),
    ],
    ids=["the store is lost", "a mistake of ours"],
)
def test_a_call_that_fails_below_us_is_answered_with_its_id_on_either_way(store, sandboxes, status, code, words):
    """Who listened to events waited for the answer for ever."""

    async def scenario(client):
        params = {"name": "run_code", "arguments": {"code": "1"}}
        async with Listening(client) as listening:
            told = await listening.said("tools/call", params, told_id="c")
            assert (told["id"], told["error"]) == ("c", {"code": code, "message": words})
            assert (await listening.said("ping", told_id="d"))["result"] == {}, "and the next one is answered"
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        got, told, _ = await client.ask("POST", "/mcp", body)
        assert (got, told["id"], told["error"]["code"]) == (status, 7, code)

    run(scenario, store=store(), sandboxes=sandboxes())


@pytest.mark.parametrize(("error", "status"), [(StoreUnavailableError("the store is gone"), 503), (KeyError("x"), 500)])
def test_who_could_not_be_let_in_to_listen_is_told_so_and_not_left_waiting(error, status):
    async def scenario(client):
        async def by_headers(headers):
            raise error

        client.gateway.house.guard.by_headers = by_headers
        got, told, _ = await client.ask("GET", "/mcp/sse")
        assert (got, "error" in told) == (status, True)

    run(scenario, sandboxes=PaperSandboxes())
