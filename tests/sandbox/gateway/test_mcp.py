"""The Model Context Protocol at /mcp over real daemons: what its clients send, as they send it, and what they are told."""

import pytest

from hekla.testing.sandboxes import OTHER_KEY
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
