"""Abuse of tokens, and of the daemon through its gateway; numbers as in docs/reference/abuse-cases.md."""

import asyncio
import base64
import hashlib
import json
import os
import signal
import time
from urllib.parse import quote

import jwt
import pytest
import structlog

from hekla.sandbox.daemon.picod import CUT, collected
from hekla.sandbox.daemon.processes import Processes
from hekla.sandbox.sessions.records import EntryPoint, SessionKind
from hekla.sandbox.sessions.stock import Blueprint
from hekla.testing.sandboxes import KEY, OTHER_KEY
from sandbox.gateway.test_gateway import opened, run, server

pytestmark = pytest.mark.slow
EXECUTE = "/v1/namespaces/default/code-interpreters/my-interpreter/invocations/api/execute"


class Overhearing:
    """A daemon that keeps what it is told: what a captured token would be."""

    def __init__(self, client):
        self.client = client

    async def token(self, session):
        row = await self.client.gateway.desk.find(session)
        return self.client.gateway.house.mint.line(row, time.time()).decode().split()[2]


async def straight(client, session, token, path="/api/execute", body=None):
    """Past the gateway, to the daemon of a session: who has captured a token and has found a way inside."""
    row = await client.gateway.desk.find(session)
    socket = client.sandboxes._socket(client.sandboxes.found(row.pod))
    reader, writer = await asyncio.open_unix_connection(socket)
    data = json.dumps(body or {"command": ["echo", "in"]}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + data)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


def test_13_a_token_for_one_sandbox_opens_no_other():
    async def scenario(client):
        one, other = [await client.session(name="my-interpreter") for _ in range(2)]
        token = await Overhearing(client).token(one)
        assert await straight(client, one, token) == 200
        assert await straight(client, other, token) == 401

    run(scenario)


def test_14_a_token_lives_a_minute_and_is_of_no_use_to_other_doors():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        token = await Overhearing(client).token(session)
        told = jwt.decode(token, options={"verify_signature": False})
        assert told["exp"] - told["iat"] <= 60
        assert {"aud", "session_id"} <= told.keys()
        for path in ("/hekla/v1/sessions", "/sandboxes", "/mcp", "/metrics"):
            status, _, _ = await client.ask("GET", path, key=token)
            assert status in (401, 405), path
        assert await straight(client, session, token, "/process.Process/List", {"x": 1}) == 401, (
            "E2B's token is another"
        )

    run(scenario)


def test_15_a_users_server_is_told_no_credential_whatever_door_it_is_asked_by():
    async def scenario():
        async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, seen), opened() as client:
            session = await client.session()
            row = await client.gateway.desk.find(session)
            secrets = {"x_access_token": row.access_token, "x_api_key": KEY, "e2b_traffic_access_token": "t" * 32}
            await client.ask("GET", "/a", e2b_sandbox_id=session, e2b_sandbox_port=str(port), key="", **secrets)
            await client.ask("GET", f"/hekla/v1/sessions/{session}/ports/{port}/b", **secrets)
            await client.ask("GET", f"/hekla/v1/sessions/{session}/ports/{port}/c", key="", **secrets)
            assert len(seen) == 3
            for head in seen:
                for secret in (KEY, row.access_token, "t" * 32):
                    assert secret.encode() not in head, head

    asyncio.run(scenario())


def test_16_no_secret_is_in_a_log_a_metric_or_an_answer_to_others():
    async def scenario(client):
        with structlog.testing.capture_logs() as said:
            session = await client.session(name="my-interpreter", env={"API": "secret-of-the-user"})
            row = await client.gateway.desk.find(session)
            named = {"x_agentcube_session_id": session}
            await client.ask("POST", EXECUTE, {"command": ["echo", "secret-argument"]}, **named)
            signature = signed(row.access_token, "/etc/hostname", "read")
            await client.ask("GET", f"/files?{signature}", key="", e2b_sandbox_id=session)
            await client.ask("GET", f"/sandboxes/{session}")
            await client.ask("GET", "/hekla/v1/sessions", key="a-wrong-key-that-was-typed")
            await client.ask("POST", "/hekla/v1/sessions", {"name": "none"})
            wrong = signed(row.access_token, "/etc/hostname", "write")
            await client.ask("GET", f"/files?{wrong}", key="", e2b_sandbox_id=session)
            await client.ask(
                "GET", "/files?path=x", key="", e2b_sandbox_id=session, x_access_token="a-wrong-key-that-was-typed"
            )
            secret = {"templateID": "base", "envVars": {"API": "secret-of-the-user\0"}}
            await client.ask("POST", "/v2/sandboxes", secret)
            await client.ask("POST", "/v2/sandboxes", b'{"templateID": "base", "envVars": {"API": "secret-of-the-user')
            await client.gateway.desk.pause(session)
            await client.gateway.desk.end(session)
        metrics = (await client.ask("GET", "/metrics"))[1].decode()
        everything = json.dumps(said, default=str) + metrics
        assert "request" in everything
        refused = {one["reason"] for one in said if one.get("sentence")}
        assert refused == {"UNAUTHORIZED", "template_not_found", "unauthenticated", "environment", "body"}
        signatures = [one.partition("signature=")[2] for one in (signature, wrong)]
        tokens = (KEY, row.access_token, *signatures, "a-wrong-key-that-was-typed")
        for secret in (*tokens, "secret-of-the-user", "secret-argument"):
            assert secret not in everything, secret

    run(scenario)


def test_the_log_says_why_a_request_was_refused_within_a_bound():
    async def scenario(client):
        with structlog.testing.capture_logs() as said:
            told = [
                (await client.ask("POST", "/v2/sandboxes", {"templateID": "none" * 500}))[1]["message"],
                (await client.ask("GET", "/sandboxes/gone"))[1]["message"],
            ]
            await client.ask("GET", "/", e2b_sandbox_id="gone", e2b_sandbox_port="80")
            long = {"templateID": "base", "network": {"denyOut": ["x" * 5000]}}
            told.append((await client.ask("POST", "/v2/sandboxes", long))[1]["message"][:256])
            await client.ask("GET", "/sandboxes")
        lines = [one for one in said if one["event"] == "request"]
        assert told[0].startswith('template "none')
        assert told[1] == 'session "gone" not found'
        assert told[2].startswith('"denyOut" names \'xxx')
        *logged, last = [one.get("sentence") for one in lines]
        gone = "session (4 characters) not found"
        assert logged[:3] == ["template (128 characters) not found", gone, gone]
        assert logged[3].startswith('"denyOut" names (50')
        assert logged[3].endswith("what is allowed")
        assert last is None
        assert all(one["reason"] for one in lines[:-1])

    run(scenario)


def signed(token, path, operation, *, user="", expires="", is_padded=False):
    terms = [path, operation, user, token, *([expires] if expires else [])]
    digest = base64.b64encode(hashlib.sha256(":".join(terms).encode()).digest()).decode()
    value = quote(f"v1_{digest if is_padded else digest.rstrip('=')}")
    return (
        f"path={quote(path)}&signature={value}"
        + (f"&username={user}" if user else "")
        + (f"&signature_expiration={expires}" if expires else "")
    )


@pytest.mark.parametrize("is_named", [True, False], ids=["the session is named", "the signature finds it"])
def test_18_a_signed_address_opens_one_file_for_one_purpose_one_user_and_its_time(is_named):
    async def scenario(client):
        session = await client.session()
        row = await client.gateway.desk.find(session)
        directory = client.sandboxes.directory(client.sandboxes.found(row.pod))
        for name in ("one", "two"):
            (directory / name).write_text(name)
        one, two, token = str(directory / "one"), str(directory / "two"), row.access_token
        named = {"e2b_sandbox_id": session} if is_named else {}
        now = int(time.time())
        right = signed(token, one, "read")
        asked = {
            "right": ("GET", right, 200),
            "in time": ("GET", signed(token, one, "read", expires=f"{now + 600}"), 200),
            "expired": ("GET", signed(token, one, "read", expires=f"{now - 1}"), 401),
            "another time than was signed": ("GET", signed(token, one, "read", expires=f"{now - 1}").replace(f"{now - 1}", f"{now + 600}"), 401),
            "another file": ("GET", right.replace(quote(one), quote(two)), 401),
            "another purpose": ("POST", right, 401),
            "another user": ("GET", right + "&username=root", 401),
            "padded": ("GET", signed(token, one, "read", is_padded=True), 401),
            "nobody's token": ("GET", signed("0" * 64, one, "read"), 401),
            "no signature": ("GET", f"path={quote(one)}&signature=", 401),
        }  # fmt: skip
        for what, (method, query, wanted) in asked.items():
            status, told, _ = await client.ask(
                method, f"/files?{query}", b"x" if method == "POST" else None, key="", **named
            )
            assert status == wanted, (what, told)
        assert (directory / "one").read_text() == "one"

    run(scenario)


def test_20_an_output_without_end_is_cut_and_said_to_be():
    """The bound is 16 MiB of each stream where it counts; the way is the same."""

    async def main():
        processes = Processes({"PATH": os.environ["PATH"]})
        processes.begin()
        command = processes.start(["sh", "-c", "yes | head -c 3000000; head -c 3000000 /dev/zero >&2; exit 3"])
        said = await collected(command, 100_000)
        assert (command.exit_code, {name: len(data) for name, data in said.items()}) == (
            3, dict.fromkeys(("stdout", "stderr"), 100_000 + len(CUT)),
        )  # fmt: skip
        assert all(data.endswith(CUT) for data in said.values())
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    asyncio.run(main())


def test_21_a_command_that_left_somebody_with_its_pipe_answers_in_time_and_all_of_it_goes():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        row = await client.gateway.desk.find(session)
        directory = client.sandboxes.directory(client.sandboxes.found(row.pod))
        ignoring = "trap '' TERM HUP; echo $$ >> pids; while :; do sleep 1000; done"
        script = f'(setsid sh -c "{ignoring}" & ); (sh -c "{ignoring}" &); echo out; {ignoring}'.replace(
            "$$ >> pids", f"$$ >> {directory}/pids"
        )
        asked = {"command": ["sh", "-c", script], "timeout": "500ms"}
        status, told, _ = await client.ask("POST", EXECUTE, asked, x_agentcube_session_id=session)
        assert (status, told["exit_code"], told["stdout"]) == (200, 124, "out\n")
        asked = {
            "command": [
                "sh",
                "-c",
                f"cat {directory}/pids; for pid in $(cat {directory}/pids); do kill -0 $pid 2>/dev/null && echo alive; done; true",
            ]
        }
        _, told, _ = await client.ask("POST", EXECUTE, asked, x_agentcube_session_id=session)
        assert "alive" not in told["stdout"]

    run(scenario)


def test_22_w6_a_command_whose_client_left_is_ended_where_nobody_else_hears_it():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        row = await client.gateway.desk.find(session)
        directory = client.sandboxes.directory(client.sandboxes.found(row.pod))
        body = json.dumps(
            {"command": ["sh", "-c", f"echo $$ > {directory}/pid; sleep 1000"], "timeout": "1000s"}
        ).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", client.gateway.port)
        head = f"POST {EXECUTE} HTTP/1.1\r\nhost: x\r\nx-agentcube-session-id: {session}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(30):
            while not (directory / "pid").exists() or not (directory / "pid").read_text().strip():
                await asyncio.sleep(0.01)
            writer.close()
            looks = {"command": ["sh", "-c", f"kill -0 $(cat {directory}/pid)"]}
            while (await client.ask("POST", EXECUTE, looks, x_agentcube_session_id=session))[1]["exit_code"] == 0:
                await asyncio.sleep(0.01)

    run(scenario)


def test_w8_an_empty_file_is_a_file():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        path = EXECUTE.removesuffix("execute") + "files"
        status, told, _ = await client.ask("POST", path, {"path": "x", "content": ""}, x_agentcube_session_id=session)
        assert (status, told["size"]) == (200, 0)
        status, told, _ = await client.ask("GET", f"{path}/x", x_agentcube_session_id=session)
        assert (status, told) == (200, b"")

    run(scenario)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"path": "../../etc/passwd", "content": "eA=="}, ""),
        ({"path": "/x\0y", "content": "eA=="}, ""),
        ({"path": "x" * 5000, "content": "eA=="}, ""),
        ({"path": "x", "content": "not base64!"}, "not base64"),
        ({"path": "x"}, "must be texts"),
    ],
)
def test_23_24_a_path_that_leads_out_or_is_none_is_told(body, words):
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        path = EXECUTE.removesuffix("execute") + "files"
        status, told, _ = await client.ask("POST", path, body, x_agentcube_session_id=session)
        assert status in (400, 403, 404), told
        assert words in told["error"]

    run(scenario)


def test_binary_output_and_names_that_are_no_text_come_back_and_nothing_breaks():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        asked = {"command": ["sh", "-c", r"printf '\377\376'; touch $(printf 'a\377b')"]}
        status, told, _ = await client.ask("POST", EXECUTE, asked, x_agentcube_session_id=session)
        assert (status, told["stdout"], told["exit_code"]) == (200, "\ufffd\ufffd", 0)
        path = EXECUTE.removesuffix("execute") + "files"
        status, told, _ = await client.ask("GET", path, x_agentcube_session_id=session)
        assert "a\ufffdb" in [one["name"] for one in told["files"]]

    run(scenario)


def test_exec_in_a_session_that_sleeps_has_ended_or_is_anothers_says_which():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        desk = client.gateway.desk
        await desk.change(session, None, auto_resume=False)
        await desk.pause(session)
        status, told, _ = await client.ask("POST", EXECUTE, {"command": ["true"]}, x_agentcube_session_id=session)
        assert (status, "is paused; connect to it first" in told["error"]) == (502, True)
        await desk.change(session, None, auto_resume=True)
        status, told, _ = await client.ask("POST", EXECUTE, {"command": ["true"]}, x_agentcube_session_id=session)
        assert status == 200, "AgentCube's sessions wake by being asked"
        status, told, _ = await client.ask(
            "POST", EXECUTE, {"command": ["true"]}, key=OTHER_KEY, x_agentcube_session_id=session
        )
        assert (status, "not found" in told["error"]) == (404, True)
        await desk.end(session)
        status, told, _ = await client.ask("POST", EXECUTE, {"command": ["true"]}, x_agentcube_session_id=session)
        assert (status, "not found" in told["error"]) == (404, True)

    run(scenario)


def test_w3_an_agent_sees_its_callers_own_token_and_never_one_of_ours():
    async def scenario():
        async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, seen):
            points = (EntryPoint("/", port),)
            agent = Blueprint(
                kind=SessionKind.RUNTIME, namespace="default", name="agent", entry_points=points, is_checked=False
            )
            async with opened((agent,)) as client:
                session = await client.session(name="agent")
                base = "/v1/namespaces/default/agent-runtimes/agent/invocations/"
                for key in ("the-callers-own-token-of-an-agent", KEY):
                    status, _, _ = await client.ask("GET", base, key=key, x_agentcube_session_id=session)
                    assert status == 200
            assert b"authorization: Bearer the-callers-own-token-of-an-agent\r\n" in seen[0]
            assert b"authorization" not in seen[1].lower()

    asyncio.run(scenario())
