"""The gateway over real daemons that are children of the test: what passes, to whom, and what never does."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from urllib.parse import quote, urlencode

import pytest

from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.doors import hekla as hekla_door
from hekla.sandbox.gateway.running import GatewaySettings
from hekla.sandbox.link import DAEMON, LinkError, NotYetError, Way
from hekla.sandbox.sessions.records import EntryPoint, SessionKind
from hekla.sandbox.sessions.stock import Blueprint
from hekla.testing.paper_sandboxes import BASE, PaperSandboxes
from hekla.testing.sandboxes import KEY, OTHER_KEY, ChildSandboxes, gateway, scratch
from hekla.wire.client import HttpClient

INTERPRETER = Blueprint(kind=SessionKind.INTERPRETER, namespace="default", name="my-interpreter")
OTHER_INTERPRETER = Blueprint(kind=SessionKind.INTERPRETER, namespace="default", name="other")
HEADER = "x-agentcube-session-id"


class Client:
    """Requests to one gateway."""

    def __init__(self, http, running, sandboxes):
        self.http, self.gateway, self.sandboxes = http, running, sandboxes
        self.url = f"http://127.0.0.1:{running.port}"

    async def ask(self, method, path, body=None, *, key=KEY, **headers):
        named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        auth = (("authorization", f"Bearer {key}"),) if key else ()
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        answer = await self.http.request(method, self.url + path, headers=(*auth, *named), body=data, timeout_s=30)
        answered = json.loads(answer.body) if answer.body[:1] in (b"{", b"[") else answer.body
        return answer.status, answered, answer

    async def session(self, **told):
        status, made, _ = await self.ask("POST", "/hekla/v1/sessions", {"timeout": 60, **told})
        assert status == 201, made
        return made["id"]


@asynccontextmanager
async def opened(
    blueprints=(BASE, INTERPRETER, OTHER_INTERPRETER), settings=None, sandboxes=None, store=None, who=None
):
    with scratch() as root:
        sandboxes = sandboxes or ChildSandboxes(root, blueprints)
        async with gateway(sandboxes, store, settings=settings, who=who) as running, HttpClient() as http:
            try:
                yield Client(http, running, sandboxes)
            finally:
                await sandboxes.close()


def run(scenario, **told):
    async def main():
        async with opened(**told) as client:
            await scenario(client)

    asyncio.run(main())


@asynccontextmanager
async def server(answer):
    """A user's server inside: what it was sent goes to `seen`."""
    seen = []

    async def serve(reader, writer):
        data = await reader.readuntil(b"\r\n\r\n")
        seen.append(data)
        writer.write(answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], seen
    finally:
        listening.close()


async def raw(client, data, *, until=b""):
    """Bytes as they are, and all that comes back until the connection ends, or `until`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.gateway.port)
    writer.write(data)
    got = b""
    async with asyncio.timeout(30):
        while piece := await reader.read(65_536):
            got += piece
            if until and until in got:
                break
    writer.close()
    return got


def test_agentcubes_sequence_create_execute_files_delete():
    async def scenario(client):
        status, made, _ = await client.ask(
            "POST",
            "/v1/code-interpreter",
            {"name": "my-interpreter", "namespace": "default", "ttl": 60, "metadata": {}},
        )
        assert status == 200
        assert (made["kind"], made["ownerId"]) == ("SandboxClaim", "alice")
        assert made["entryPoints"][0]["path"] == "/"
        base = "/v1/namespaces/default/code-interpreters/my-interpreter/invocations"
        session = {HEADER.replace("-", "_"): made["sessionId"]}
        # AgentCube's SDK sends no credentials here: the id is one
        status, told, answer = await client.ask(
            "POST", f"{base}/api/execute", {"command": ["echo", "hi"], "timeout": "20s"}, key="", **session
        )
        assert (status, told["stdout"], told["exit_code"]) == (200, "hi\n", 0)
        assert answer.header(HEADER) == made["sessionId"]
        status, told, _ = await client.ask(
            "POST", f"{base}/api/files", {"path": "a/b c.txt", "content": "eA=="}, key="", **session
        )
        assert status == 200, told
        status, told, _ = await client.ask("GET", f"{base}/api/files/a%2Fb%20c.txt", key="", **session)
        assert (status, told) == (200, b"x")
        status, told, _ = await client.ask("DELETE", f"/v1/code-interpreter/sessions/{made['sessionId']}")
        assert (status, told) == (200, {"message": "Sandbox deleted successfully"})
        status, told, _ = await client.ask("DELETE", f"/v1/code-interpreter/sessions/{made['sessionId']}")
        assert (status, told) == (404, {"message": f"Session ID {made['sessionId']} not found, maybe already deleted"})
        status, told, _ = await client.ask("GET", f"{base}/api/files", key="", **session)
        assert (status, told) == (404, {"error": f'sessions.agentcube.volcano.sh "{made["sessionId"]}" not found'})

    run(scenario)


def test_an_invocation_without_a_session_makes_one_and_says_which():
    async def scenario(client):
        base = "/v1/namespaces/default/code-interpreters/my-interpreter/invocations"
        status, told, answer = await client.ask("POST", f"{base}/api/execute", {"command": ["pwd"], "timeout": "20s"})
        assert status == 200, told
        session = answer.header(HEADER)
        assert (await client.gateway.desk.find(session)).owner == "alice"
        status, _, again = await client.ask(
            "POST", f"{base}/api/execute", {"command": ["pwd"], "timeout": "20s"}, x_agentcube_session_id=session
        )
        assert (status, again.header(HEADER)) == (200, session)
        status, told, _ = await client.ask("POST", f"{base}/api/execute", {"command": ["pwd"]}, key="")
        assert (status, told) == (401, {"error": "missing authorization header", "code": "UNAUTHORIZED"})
        status, told, _ = await client.ask(
            "POST", f"{base}/api/execute", {"command": ["pwd"]}, key="wrong-key-of-nobody"
        )
        assert (status, told) == (401, {"error": "invalid or expired token", "code": "UNAUTHORIZED"})
        status, told, _ = await client.ask("GET", "/v1/namespaces/default/agent-runtimes/none/invocations/")
        assert (status, told) == (404, {"error": "agent runtime not found"})

    run(scenario)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/namespaces/default/code-interpreters/other/invocations/api/files",
        "/v1/namespaces/other/code-interpreters/my-interpreter/invocations/api/files",
        "/v1/namespaces/default/agent-runtimes/my-interpreter/invocations/api/files",
    ],
)
def test_a_session_is_bound_to_namespace_kind_and_name(path):
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        status, told, _ = await client.ask("GET", path, x_agentcube_session_id=session)
        unknown, same, _ = await client.ask("GET", path, x_agentcube_session_id="a" * 26)
        assert status == unknown == 404
        assert told["error"].replace(session, "a" * 26) == same["error"]

    run(scenario, sandboxes=PaperSandboxes([INTERPRETER, OTHER_INTERPRETER]))


def test_somebody_elses_key_finds_nothing_at_any_door():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        base = "/v1/namespaces/default/code-interpreters/my-interpreter/invocations/api/files"
        calls = [
            ("GET", base, {"x_agentcube_session_id": session}),
            ("DELETE", f"/v1/code-interpreter/sessions/{session}", {}),
            ("GET", f"/sandboxes/{session}", {}),
            ("DELETE", f"/sandboxes/{session}", {}),
            ("POST", f"/sandboxes/{session}/pause", {}),
            ("POST", f"/sandboxes/{session}/fork", {}),
            ("GET", f"/hekla/v1/sessions/{session}", {}),
            ("GET", f"/hekla/v1/sessions/{session}/daemon/files?path=/etc/passwd", {}),
        ]
        for method, path, headers in calls:
            status, told, _ = await client.ask(method, path, key=OTHER_KEY, **headers)
            assert status == 404, (method, path, told)
        status, told, _ = await client.ask("GET", "/v2/sandboxes", key=OTHER_KEY)
        assert (status, told) == (200, [])
        assert (await client.gateway.desk.find(session)).is_live

    run(scenario, sandboxes=PaperSandboxes([INTERPRETER]))


def test_nobody_without_a_key_creates_lists_or_reads_metrics():
    async def scenario(client):
        for method, path in (
            ("POST", "/sandboxes"),
            ("GET", "/v2/sandboxes"),
            ("POST", "/v1/code-interpreter"),
            ("GET", "/metrics"),
            ("GET", "/hekla/v1/sessions"),
        ):
            status, _, _ = await client.ask(method, path, {} if method == "POST" else None, key="")
            assert status == 401, path
        for path in ("/health", "/health/live", "/health/ready"):
            status, _, _ = await client.ask("GET", path, key="")
            assert status == 200, path

    run(scenario, sandboxes=PaperSandboxes())


def test_the_longest_prefix_of_whole_segments_wins_and_no_key_reaches_the_agents_container():
    async def scenario():
        async with (
            server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (root, at_root),
            server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (api, at_api),
        ):
            points = (EntryPoint("/", root), EntryPoint("/api", api))
            agent = Blueprint(
                kind=SessionKind.RUNTIME, namespace="default", name="agent", entry_points=points, is_checked=False
            )
            async with opened((agent,)) as client:
                base = "/v1/namespaces/default/agent-runtimes/agent/invocations"
                status, _, answer = await client.ask(
                    "GET", f"{base}/api/x%2Fy?q=%20", x_access_token="t", e2b_traffic_access_token="t"
                )
                assert status == 200
                session = answer.header(HEADER)
                for path, method in (("/apix", "GET"), ("/", "PUT")):
                    status, _, _ = await client.ask(method, base + path, x_agentcube_session_id=session)
                    assert status == 200
                assert [one.split(b" ")[1] for one in at_api] == [b"/api/x%2Fy?q=%20"]
                assert [one.split(b" ")[:2] for one in at_root] == [[b"GET", b"/apix"], [b"PUT", b"/"]]
                for head in (*at_api, *at_root):
                    lowered = head.lower()
                    assert KEY.encode() not in head
                    for name in (
                        b"authorization",
                        b"x-api-key",
                        b"x-access-token",
                        b"e2b-traffic",
                        b"x-agentcube-session-id",
                    ):
                        assert b"\r\n" + name not in lowered

    asyncio.run(scenario())


def test_traversals_and_doubtful_heads_are_refused():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        host, auth = b"host: x\r\n", b"authorization: Bearer " + KEY.encode() + b"\r\n"
        base = b"/v1/namespaces/default/code-interpreters/my-interpreter/invocations"
        named = b"x-agentcube-session-id: " + session.encode() + b"\r\n"
        bad = {
            b"400": [
                b"GET " + base + b"/../../x HTTP/1.1\r\n" + host + auth + named + b"connection: close\r\n\r\n",
                b"GET " + base + b"/%2e%2e%2fx HTTP/1.1\r\n" + host + auth + named + b"connection: close\r\n\r\n",
                b"GET " + base + b"/ HTTP/1.1\r\n" + host + named + b"X-Agentcube-Session-Id: other\r\nconnection: close\r\n\r\n",
                b"GET " + base + b"/ HTTP/1.1\r\n" + host + b"x-agentcube-session-id: a,b\r\nconnection: close\r\n\r\n",
                b"GET " + base + b"/ HTTP/1.1\r\n" + host + b"x-agentcube-session-id: " + b"a" * 200 + b"\r\nconnection: close\r\n\r\n",
                b"POST " + base + b"/ HTTP/1.1\r\n" + host + named + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
                b"POST " + base + b"/ HTTP/1.1\r\n" + host + named + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
                b"GET " + base + b"/ HTTP/1.1\r\n" + host + b"x-a: b\r\n folded\r\n\r\n",
                b"GET " + base + b"/ HTTP/1.1\nhost: x\n\n",
                b"GET http://127.0.0.1/sandboxes HTTP/1.1\r\n" + host + auth + b"connection: close\r\n\r\n",
            ],
            b"501": [b"POST " + base + b"/ HTTP/1.1\r\n" + host + named + b"transfer-encoding: gzip, chunked\r\n\r\n"],
        }  # fmt: skip
        for status, requests in bad.items():
            for request in requests:
                assert (await raw(client, request)).startswith(b"HTTP/1.1 " + status), request

    run(scenario, sandboxes=PaperSandboxes([INTERPRETER]))


def test_too_many_requests_at_once_are_told_so_in_the_words_of_their_door():
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        client.gateway.house.count = 1  # one is under way
        base = "/v1/namespaces/default/code-interpreters/my-interpreter/invocations/"
        status, told, _ = await client.ask("GET", base, x_agentcube_session_id=session)
        assert (status, told) == (
            429,
            {"error": "server overloaded, please try again later", "code": "SERVER_OVERLOADED"},
        )
        status, told, answer = await client.ask("GET", f"/sandboxes/{session}")
        assert (status, told["code"], answer.header("retry-after")) == (429, 429, "1")
        client.gateway.house.count = 0

    run(scenario, sandboxes=PaperSandboxes([INTERPRETER]), settings=GatewaySettings(bounds=Bounds(requests=1)))


def test_a_port_that_nobody_listens_on_is_told_from_a_sandbox_that_is_gone():
    async def scenario(client):
        session = await client.session()
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = str(unused.getsockname()[1])
        status, told, _ = await client.ask("GET", "/", key="", e2b_sandbox_id=session, e2b_sandbox_port=port)
        assert (status, told["message"]) == (502, "The sandbox is running but port is not open")
        status, told, _ = await client.ask("GET", "/health", key="", e2b_sandbox_id="a" * 26)
        assert (status, told["message"]) == (502, "The sandbox was not found")

    run(scenario)


def test_what_is_for_the_host_alone_is_not_there_for_clients():
    async def scenario(client):
        session = await client.session()
        token = (await client.gateway.desk.find(session)).access_token
        for path in ("/init", "/freeze", "/fsfreeze", "/upgrade", "/collapse"):
            status, _, _ = await client.ask("POST", path, {}, key="", e2b_sandbox_id=session, x_access_token=token)
            assert status == 404, path

    run(scenario)


def test_a_request_that_begins_at_once_lets_in_nobody_who_would_not_get_in_later():
    async def scenario(client):
        session = await client.session()
        path = f"/hekla/v1/sessions/{session}/daemon/health"
        for headers, status in (
            ({"authorization": f"Bearer {KEY}"}, 204), ({"authorization": f"bearer  {KEY}"}, 204), ({"x_api_key": KEY}, 204),
            ({"authorization": f"Basic {KEY}"}, 401), ({"authorization": KEY}, 401), ({"authorization": "Bearer "}, 401), ({}, 401),
            ({"authorization": f"Bearer {OTHER_KEY}"}, 404), ({"x_api_key": OTHER_KEY}, 404), ({"x_api_key": KEY + "0"}, 401),
            ({"x_api_key": OTHER_KEY, "authorization": f"Bearer {KEY}"}, 404),
        ):  # fmt: skip
            assert (await client.ask("GET", path, key="", **headers))[0] == status, headers
        await client.ask("DELETE", f"/hekla/v1/sessions/{session}")
        assert (await client.ask("GET", path))[0] == 404

    run(scenario)


def test_the_daemon_is_reached_only_with_its_token_and_a_large_file_passes_both_ways():
    async def scenario(client):
        session = await client.session()
        token = (await client.gateway.desk.find(session)).access_token
        for wrong in ({}, {"x_access_token": "wrong"}):
            status, _, _ = await client.ask(
                "POST", "/execute", {"code": "1"}, key="", e2b_sandbox_id=session, e2b_sandbox_port="49999", **wrong
            )
            assert status == 401
        directory = client.sandboxes.directory(client.sandboxes.found((await client.gateway.desk.find(session)).pod))
        data = b"0123456789abcdef" * (1 << 18)  # 4 MiB: more than any buffer on the way
        headers = {"e2b_sandbox_id": session, "x_access_token": token, "content_type": "application/octet-stream"}
        status, told, _ = await client.ask("POST", f"/files?path={directory}/large", data, key="", **headers)
        assert status == 200, told
        status, told, _ = await client.ask("GET", f"/files?path={directory}/large", key="", **headers)
        assert (status, told == data) == (200, True)

    run(scenario)


def test_contexts_are_tended_with_the_traffic_token_as_e2bs_package_shows_it_and_cells_run_with_the_access_token_alone():
    """Who knows a preview's host name knows the session's id, and ended its interpreters with it."""

    async def scenario(client):
        asked = {"templateID": "base", "secure": True}
        status, told, _ = await client.ask("POST", "/sandboxes", asked, key="", x_api_key=KEY)
        assert status == 201, told
        session, shown = told["sandboxID"], {"e2b_traffic_access_token": told.get("trafficAccessToken", "")}
        again = await client.ask("POST", f"/sandboxes/{session}/connect", {"timeout": 60}, key="", x_api_key=KEY)
        assert again[1].get("trafficAccessToken") == told.get("trafficAccessToken")
        by_id = {"key": "", "e2b_sandbox_id": session, "e2b_sandbox_port": "49999"}
        headers = by_id | shown
        status, told, _ = await client.ask("POST", "/contexts", {"language": "python"}, **headers)
        assert status == 200, told
        made = told["id"]
        assert made in [one["id"] for one in (await client.ask("GET", "/contexts", **headers))[1]]
        for wrong in ({}, {"e2b_traffic_access_token": "wrong"}):
            for method, path in (
                ("GET", "/contexts"),
                ("POST", "/contexts"),
                ("POST", f"/contexts/{made}/restart"),
                ("DELETE", f"/contexts/{made}"),
            ):
                body = {} if method == "POST" else None
                assert (await client.ask(method, path, body, **by_id, **wrong))[0] == 401, (method, path)
        assert (await client.ask("POST", f"/contexts/{made}/restart", {}, **headers))[0] == 204
        assert (await client.ask("POST", "/execute", {"code": "1", "context_id": made}, **headers))[0] == 401
        assert (await client.ask("GET", "/contexts", **headers | {"e2b_sandbox_port": "49983"}))[0] == 401
        assert (await client.ask("DELETE", f"/contexts/{made}", **headers))[0] == 204

    run(scenario)


def test_contexts_of_a_sandbox_without_public_traffic_want_its_traffic_token():
    async def scenario(client):
        asked = {"templateID": "base", "secure": True, "network": {"allowPublicTraffic": False}}
        status, told, _ = await client.ask("POST", "/sandboxes", asked, key="", x_api_key=KEY)
        assert status == 201, told
        headers = {"key": "", "e2b_sandbox_id": told["sandboxID"], "e2b_sandbox_port": "49999"}
        assert (await client.ask("GET", "/contexts", **headers))[0] == 401
        assert (await client.ask("GET", "/contexts", **headers, e2b_traffic_access_token="wrong"))[0] == 401
        shown = {"e2b_traffic_access_token": told["trafficAccessToken"]}
        assert (await client.ask("GET", "/contexts", **headers, **shown))[0] == 200

    run(scenario)


def test_a_frozen_session_wakes_with_a_request_and_a_paused_one_only_if_it_may():
    async def scenario(client):
        session = await client.session()
        desk = client.gateway.desk
        token = (await desk.find(session)).access_token
        headers = {"e2b_sandbox_id": session, "x_access_token": token}
        await desk.freeze(session)
        status, _, _ = await client.ask("GET", "/health", key="", **headers)
        assert (status, (await desk.find(session)).state) == (204, "running")
        await desk.pause(session)
        status, _, _ = await client.ask("GET", "/health", key="", **headers)
        assert status == 204  # Hekla's own sessions wake by themselves
        await desk.change(session, None, auto_resume=False)
        await desk.pause(session)
        status, told, _ = await client.ask("GET", "/health", key="", **headers)
        assert (status, told["message"]) == (502, "The sandbox was not found")
        assert (await desk.find(session)).state == "paused"

    run(scenario)


def test_a_preview_host_leads_to_its_port_and_a_private_one_wants_its_token():
    async def scenario():
        async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, seen), opened() as client:
            body = {
                "templateID": "base",
                "timeout": 60,
                "network": {"allowPublicTraffic": False, "maskRequestHost": "me.test:${PORT}"},
            }
            status, made, _ = await client.ask("POST", "/v2/sandboxes", body)
            assert status == 201, made
            host = f"{port}-{made['sandboxID']}.sandboxes.test"
            request = b"GET /x HTTP/1.1\r\nhost: %b\r\n%bconnection: close\r\n\r\n"
            assert (await raw(client, request % (host.encode(), b""))).startswith(b"HTTP/1.1 403")
            token = b"e2b-traffic-access-token: %b\r\n" % made["trafficAccessToken"].encode()
            assert (await raw(client, request % (host.encode(), token))).endswith(b"ok")
            assert b"host: me.test:%d\r\n" % port in seen[0]
            assert made["trafficAccessToken"].encode() not in seen[0]

    asyncio.run(scenario())


def test_a_host_with_the_clients_id_behind_the_sandboxs_is_that_sandboxs():
    """As `e2b` before 1.6 writes them; every command, file and cell of theirs was answered 404."""

    async def scenario(client):
        _, made, _ = await client.ask("POST", "/sandboxes", {"templateID": "base", "timeout": 60})
        session = f"{made['sandboxID']}-{made['clientID']}"
        for host, status in (
            (f"49999-{session}.sandboxes.test", b"HTTP/1.1 200"),
            (f"49999-{session}-more.sandboxes.test", b"HTTP/1.1 404"),
            (f"49999-{session}-.sandboxes.test", b"HTTP/1.1 404"),
        ):
            request = f"GET /contexts HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            assert (await raw(client, request.encode())).startswith(status), host

    run(scenario)


def test_a_call_of_the_control_plane_that_names_its_sandbox_in_headers_too_is_a_call_of_the_control_plane():
    """As `e2b` 2.9 to 2.15 connects: it was answered 401, by the daemon's door. A user's server may have such paths itself."""

    async def scenario(client):
        _, made, _ = await client.ask("POST", "/sandboxes", {"templateID": "base", "secure": True})
        named = {"e2b_sandbox_id": made["sandboxID"], "e2b_sandbox_port": "49983"}
        path, body = f"/sandboxes/{made['sandboxID']}/connect", {"timeout": 60}
        status, told, _ = await client.ask("POST", path, body, key="", x_api_key=KEY, **named)
        assert (status, told.get("envdAccessToken")) == (200, made["envdAccessToken"])
        assert (await client.ask("POST", path, body, key="", **named))[0] == 401
        assert (await client.ask("POST", path, body, key="", x_api_key=OTHER_KEY, **named))[0] == 404
        async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, _):
            status, told, _ = await client.ask("POST", path, body, key="", **named | {"e2b_sandbox_port": f"{port}"})
            assert (status, told) == (200, b"ok")

    run(scenario)


def test_a_paused_sandbox_is_told_as_not_running_when_its_time_is_set_as_old_packages_connect():
    """`e2b` 2.0 to 2.5 sets the time, and resumes what was refused: it connected to a sandbox that went on sleeping."""

    async def scenario(client):
        _, made, _ = await client.ask("POST", "/sandboxes", {"templateID": "base", "timeout": 60})
        path = f"/sandboxes/{made['sandboxID']}"
        assert (await client.ask("POST", f"{path}/timeout", {"timeout": 90}))[0] == 204
        assert (await client.ask("POST", f"{path}/pause", {}))[0] == 204
        status, told, _ = await client.ask("POST", f"{path}/timeout", {"timeout": 90})
        assert (status, "paused" in told["message"]) == (404, True)
        assert (await client.ask("POST", f"{path}/resume", {"timeout": 90}))[0] == 201
        assert (await client.ask("POST", f"{path}/timeout", {"timeout": 90}))[0] == 204

    run(scenario)


def test_a_websocket_to_a_users_server_is_bytes_both_ways():
    async def scenario():
        async def echo(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
            while data := await reader.read(1000):
                writer.write(data.upper())
            writer.close()

        listening = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with opened() as client:
            session = await client.session()
            reader, writer = await asyncio.open_connection("127.0.0.1", client.gateway.port)
            writer.write(
                b"GET / HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: %b\r\ne2b-sandbox-port: %d\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
                % (session.encode(), port)
            )
            async with asyncio.timeout(30):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"HELLO"
                await client.gateway.desk.end(session)
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
            writer.close()
        listening.close()

    asyncio.run(scenario())


def test_kept_connections_serve_many_requests_and_what_was_sent_ahead():
    async def scenario(client):
        session = await client.session()
        one = b"GET /health HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: %b\r\n%b\r\n"
        data = one % (session.encode(), b"") * 9 + one % (session.encode(), b"connection: close\r\n")
        assert (await raw(client, data)).count(b"HTTP/1.1 204") == 10

    run(scenario)


def test_a_body_that_is_too_large_for_the_gateway_itself_is_refused():
    async def scenario(client):
        status, _, _ = await client.ask("POST", "/sandboxes", b"x" * 5_000_000)
        assert status == 413

    run(scenario, sandboxes=PaperSandboxes())


def test_lists_go_page_by_page_and_by_state_and_metadata():
    async def scenario(client):
        made = []
        for number in range(5):
            body = {"templateID": "base", "timeout": 60, "metadata": {"n": str(number), "all": "yes"}}
            made.append((await client.ask("POST", "/sandboxes", body))[1]["sandboxID"])
        await client.ask("POST", f"/sandboxes/{made[0]}/pause", {})
        seen, token = [], ""
        while True:
            status, rows, answer = await client.ask(
                "GET", f"/v2/sandboxes?limit=2&metadata=all%3Dyes&nextToken={token}"
            )
            assert status == 200
            seen += [row["sandboxID"] for row in rows]
            token = answer.header("x-next-token")
            if not token:
                break
        assert seen == made[::-1]
        status, rows, _ = await client.ask("GET", "/v2/sandboxes?state=paused")
        assert [row["sandboxID"] for row in rows] == made[:1]
        status, rows, _ = await client.ask("GET", "/v2/sandboxes?metadata=n%3D3")
        assert [row["sandboxID"] for row in rows] == [made[3]]
        status, told, _ = await client.ask("GET", "/v2/sandboxes?nextToken=nonsense")
        assert (status, told["code"]) == (400, 400)

    run(scenario, sandboxes=PaperSandboxes())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/sandboxes", {"templateID": "none"}, 404),
        ("/sandboxes", {"templateID": "base", "timeout": -1}, 400),
        ("/sandboxes", {"templateID": "base", "timeout": 10**9}, 400),
        ("/sandboxes", {"templateID": "base", "metadata": {"a": 1}}, 400),
        ("/sandboxes", {}, 400),
        ("/sandboxes", [], 400),
        ("/sandboxes", b"{", 400),
        ("/v2/templates", {}, 404),
        ("/v1/code-interpreter", {"name": "base"}, 400),
        ("/v1/code-interpreter", {"name": "none", "namespace": "default"}, 404),
        ("/hekla/v1/sessions", {"nmae": "base"}, 400),
    ],
)
def test_wrong_input_is_refused_with_a_sentence(path, body, status):
    async def scenario(client):
        got, told, _ = await client.ask("POST", path, body)
        assert got == status
        assert len(told["message"]) > 10
        assert client.sandboxes.sandboxes == {}

    run(scenario, sandboxes=PaperSandboxes())


class StartingNode(ChildSandboxes):
    """Its node is away for so many looks, and then there again."""

    looks = 0
    away_for = 3.0

    def way(self, namespace, pod, port):
        there = super().way(namespace, pod, port)

        async def connect(make):
            self.looks += 1
            if self.looks <= self.away_for:
                raise NotYetError("the node is starting")
            await there.connect(make)

        return Way(connect)


class StartingServer(ChildSandboxes):
    """Its user's server listens after so many looks."""

    looks = 0
    away_for = 3.0

    def way(self, namespace, pod, port):
        there = super().way(namespace, pod, port)

        async def connect(make):
            self.looks += 1
            if self.looks <= self.away_for:
                raise LinkError("nothing listens")
            await there.connect(make)

        return Way(connect)


def agent_at(port):
    points = (EntryPoint("/", port),)
    return Blueprint(kind=SessionKind.RUNTIME, namespace="default", name="agent", entry_points=points, is_checked=False)


@pytest.mark.parametrize("door", ["/v1/agent-runtime", "/hekla/v1/sessions", ""])
def test_a_session_is_given_when_its_own_server_listens(door):
    """The first request of every new session of an agent runtime met nobody: its server starts after its sandbox is ready."""

    async def scenario():
        async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, _):
            with scratch() as root:
                sandboxes = StartingServer(root, (agent_at(port),))
                async with opened(sandboxes=sandboxes) as client:
                    base = "/v1/namespaces/default/agent-runtimes/agent/invocations/"
                    headers = {}
                    if door:
                        told = {"name": "agent", "namespace": "default"}
                        status, made, _ = await client.ask("POST", door, told)
                        assert status in (200, 201), made
                        assert sandboxes.looks == StartingServer.away_for + 1
                        headers = {"x_agentcube_session_id": made.get("sessionId") or made["id"]}
                    status, told, _ = await client.ask("GET", base, **headers)
                    assert (status, told) == (200, b"ok")

    asyncio.run(scenario())


def test_a_server_that_never_listens_is_told_as_absent_and_its_session_is_there():
    async def scenario(client):
        status, made, _ = await client.ask("POST", "/v1/agent-runtime", {"name": "agent", "namespace": "default"})
        assert status == 200
        session = {HEADER.replace("-", "_"): made["sessionId"]}
        status, told, _ = await client.ask("GET", "/v1/namespaces/default/agent-runtimes/agent/invocations/", **session)
        assert (status, told) == (502, {"error": "sandbox unreachable"})

    with scratch() as root:
        sandboxes = StartingServer(root, (agent_at(8080),))
        sandboxes.away_for = float("inf")
        run(scenario, sandboxes=sandboxes, settings=GatewaySettings(drain_s=0.0, bounds=Bounds(server_patience_s=0.0)))


@pytest.mark.parametrize(
    ("door", "key", "unsent", "stays"),
    [
        ("POST /v1/agent-runtime", b"", 0, False),
        ("POST /hekla/v1/sessions", b"", 0, False),
        ("POST /v1/namespaces/default/agent-runtimes/agent/invocations/", b"", 0, False),
        ("POST /v1/namespaces/default/agent-runtimes/agent/invocations/", b"", 100, False),
        ("POST /hekla/v1/sessions", b"idempotency-key: k\r\n", 0, True),
    ],
)
def test_who_leaves_while_their_server_starts_leaves_nothing_behind_unless_they_may_ask_again(door, key, unsent, stays):
    """Their session and its sandbox stayed until they had been idle long enough; that one left was not even seen in the middle of a body."""

    async def leaves(client):
        told = b'{"name": "agent", "namespace": "default"}'
        _, writer = await asyncio.open_connection("127.0.0.1", client.gateway.port)
        writer.write(
            b"%b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n%bcontent-length: %d\r\n\r\n%b"
            % (door.encode(), KEY.encode(), key, len(told) + unsent, told)
        )
        while not client.sandboxes.looks:
            await asyncio.sleep(0.01)
        [made] = await client.gateway.desk.listed(None)
        writer.close()
        return made.id

    async def scenario():
        async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, _):
            with scratch() as root:
                sandboxes = StartingServer(root, (agent_at(port),))
                sandboxes.away_for = float("inf")
                patient = GatewaySettings(drain_s=0.0, bounds=Bounds(server_patience_s=600))
                async with asyncio.timeout(10), opened(sandboxes=sandboxes, settings=patient) as client:
                    made = await leaves(client)
                    if stays:
                        while client.gateway.desk._room.register.known(made).busy:
                            await asyncio.sleep(0.01)
                        sandboxes.away_for = 0.0
                        told = {"name": "agent", "namespace": "default"}
                        _, again, _ = await client.ask("POST", "/hekla/v1/sessions", told, idempotency_key="k")
                        assert again["id"] == made
                    else:
                        while await client.gateway.desk.listed(None) or sandboxes.sandboxes:
                            await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_who_asks_while_a_node_starts_again_is_held_and_answered():
    async def scenario(client):
        session = await client.session()
        status, told, _ = await client.ask("GET", f"/hekla/v1/sessions/{session}/daemon/health")
        assert status == 204, told
        assert client.sandboxes.looks == StartingNode.away_for + 1

    with scratch() as root:
        run(scenario, sandboxes=StartingNode(root, (BASE,)))


def test_a_node_that_does_not_come_back_is_told_as_such_and_never_as_a_lost_session():
    async def scenario(client):
        session = await client.session()
        status, told, _ = await client.ask("GET", f"/hekla/v1/sessions/{session}/daemon/health")
        assert (status, "the node is starting" in json.dumps(told)) == (503, True), told
        assert client.sandboxes.looks > 1
        assert (await client.ask("GET", f"/hekla/v1/sessions/{session}"))[0] == 200, "the session is there all the same"

    with scratch() as root:
        sandboxes = StartingNode(root, (BASE,))
        sandboxes.away_for = float("inf")
        run(scenario, sandboxes=sandboxes, settings=GatewaySettings(drain_s=0.0, bounds=Bounds(node_patience_s=0.1)))


class CountedQuestions(PaperSandboxes):
    """Nodes that count how many are asked at a time what a sandbox used; some say nothing."""

    def __init__(self):
        super().__init__()
        self.silent, self.asked, self.most = set(), 0, 0

    async def usage(self, namespace, pod):
        self.asked += 1
        self.most = max(self.most, self.asked)
        try:
            await (asyncio.Event().wait() if pod in self.silent else asyncio.sleep(0))
            return await super().usage(namespace, pod)
        finally:
            self.asked -= 1


def test_a_list_with_accounts_asks_so_many_nodes_at_once_and_waits_for_no_silent_one(monkeypatch):
    monkeypatch.setattr(hekla_door, "AT_ONCE", 4)
    monkeypatch.setattr(hekla_door, "PATIENCE_S", 60.0)

    async def scenario(client):
        sessions = [await client.session() for _ in range(12)]
        status, told, _ = await client.ask("GET", "/hekla/v1/sessions?usage=true")
        assert status == 200
        assert {one["id"] for one in told["sessions"] if one["usage"]} == set(sessions)
        assert client.sandboxes.most == 4
        monkeypatch.setattr(hekla_door, "PATIENCE_S", 0.5)
        client.sandboxes.silent.add((await client.gateway.desk.find(sessions[0])).pod)
        status, told, _ = await client.ask("GET", "/hekla/v1/sessions?usage=true")
        assert status == 200
        usages = {one["id"]: one["usage"] for one in told["sessions"]}
        assert usages[sessions[0]] is None, "its node says nothing"
        assert client.sandboxes.asked == 0

    run(scenario, sandboxes=CountedQuestions())


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"network": {"allowPublicTraffic": "false"}}, '"allowPublicTraffic" must be true or false'),
        ({"network": {"maskRequestHost": "a\r\nx-more: b"}}, '"maskRequestHost" must be a host'),
        ({"network": {"maskRequestHost": 5}}, '"maskRequestHost" must be a host'),
        ({"network": {"rules": {"a.test": [{"transform": {"headers": {"A": "b"}}}]}}}, '"network.rules" is not served here; '),
        ({"network": {"egressProxy": {"address": "a.test:1"}}}, '"network.egressProxy" is not served here; '),
        ({"network": {"allowOut": ["http://a.test/"]}}, '"allowOut": egress rule "http://a.test/" '),
        ({"network": {"allowOut": ["8.8.8.0/24"]}}, '"allowOut": egress rule "8.8.8.0/24" '),
        ({"network": {"allowOut": ["a.test:70000"]}}, '"allowOut": egress rule "a.test:70000" has port "70000"; '),
        ({"network": {"allowOut": ["a.test:\xb2"]}}, '"allowOut": egress rule "a.test:\xb2" has port "\xb2"; '),
        ({"network": {"allowOut": ["a.test:" + "1" * 5000]}}, '"allowOut": egress rule "a.test:111'),
        ({"timeout": 10**400}, '"timeout" is 1000'),
        ({"network": []}, '"network" must be an object'),
        ({"allow_internet_access": "false"}, '"allow_internet_access" must be true or false'),
        ({"secure": "false"}, '"secure" must be true or false'),
        ({"autoResume": {"enabled": "no"}}, '"enabled" must be true or false'),
        ({"iam": {"tokens": {}}}, '"iam" is not served here; give its pod a service account in the template'),
        ({"envVars": {"": "x"}}, "a variable is named ''; "),
        ({"envVars": {"A=B": "x"}}, "a variable is named 'A=B'; "),
        ({"envVars": {"A": "x\0"}}, "the variable 'A' has NUL in its value"),
        ({"envVars": []}, '"envVars" must be an object of texts'),
    ],
)  # fmt: skip
def test_what_e2bs_clients_ask_for_and_would_not_get_is_refused_with_a_sentence(asked, sentence):
    async def scenario(client):
        status, told, _ = await client.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60, **asked})
        assert status == 400, told
        assert told["message"].startswith(sentence)
        assert await client.gateway.desk.listed(None) == []
        assert not client.sandboxes._processes

    run(scenario)


def test_a_time_of_401_digits_is_refused_wherever_a_time_is_asked_for():
    """It was answered 500, as a whole number that is no float."""

    async def scenario(client):
        session = await client.session()
        for path, name in (
            (f"/sandboxes/{session}/timeout", "timeout"), (f"/sandboxes/{session}/refreshes", "duration"),
            (f"/sandboxes/{session}/connect", "timeout"), (f"/sandboxes/{session}/fork", "timeout"),
            ("/hekla/v1/sessions", "timeout"), (f"/hekla/v1/sessions/{session}/timeout", "timeout"),
            (f"/hekla/v1/sessions/{session}/fork", "count"),
        ):  # fmt: skip
            status, told, _ = await client.ask("POST", path, {name: 10**400})
            assert status == 400, (path, told)
            assert len(json.dumps(told)) < 400

    run(scenario)


def test_a_changed_network_closes_the_internet_as_the_first_one_does_and_leaves_what_is_fixed():
    """`update_network` says `allow_internet_access` in the document itself, and was answered 204 without any effect."""

    async def scenario(client):
        first = {"allowPublicTraffic": False, "maskRequestHost": "me.test"}
        _, made, _ = await client.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60, "network": first})
        path = f"/sandboxes/{made['sandboxID']}/network"
        assert (await client.ask("PUT", path, {"allow_internet_access": False, "allowPublicTraffic": True}))[0] == 204
        row = await client.gateway.desk.find(made["sandboxID"])
        assert row.network == {**first, "allowInternetAccess": False}
        assert (await client.ask("PUT", path, {"rules": {"a.test": [{}]}}))[0] == 400
        assert (await client.ask("PUT", path, {"allow_internet_access": "no"}))[0] == 400
        assert (await client.gateway.desk.find(made["sandboxID"])).network == row.network
        assert (await client.ask("PUT", path, {}))[0] == 204
        assert (await client.gateway.desk.find(made["sandboxID"])).network == first

    run(scenario)


def test_a_query_that_makes_no_sense_is_refused_and_a_list_is_that_of_its_version():
    async def scenario(client):
        _, made, _ = await client.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60})
        name = made["sandboxID"]
        for query in (
            "limit=%C2%B2", "limit=" + "9" * 5000, "state=asleep", "order=upwards", "startedAfter=tomorrow",
        ):  # fmt: skip
            status, told, _ = await client.ask("GET", f"/v2/sandboxes?{query}")
            assert (status, told["message"].split('"')[1]) == (400, query.partition("=")[0]), told
        for query in ("cursor=%C2%B2", "direction=up", "level=loud"):
            assert (await client.ask("GET", f"/v2/sandboxes/{name}/logs?{query}"))[0] == 400, query
        status, told, _ = await client.ask("GET", "/v2/sandboxes?startedAfter=2030-01-01T00:00:00%2B01:00&order=asc")
        assert (status, told) == (200, [])
        status, told, _ = await client.ask("GET", f"/sandboxes/metrics?sandbox_ids={name},gone")
        assert (status, list(told["sandboxes"])) == (200, [name])
        assert len((await client.ask("GET", "/sandboxes"))[1]) == 1
        assert (await client.ask("POST", f"/sandboxes/{name}/pause", {}))[0] == 204
        assert (await client.ask("GET", "/sandboxes"))[1] == []  # version 1 lists those that run
        assert len((await client.ask("GET", "/v2/sandboxes"))[1]) == 1
        assert (await client.ask("POST", f"/sandboxes/{name}/refreshes", {"duration": 60}))[0] == 404

    run(scenario)


def test_our_own_sessions_are_asked_for_with_sense():
    async def scenario(client):
        for asked in (
            {"timeout": -1}, {"freeze_after": -1}, {"env": {"A=": ""}}, {"network": {"allowOut": ["a b"]}},
            {"kind": "x"}, {"network": {"allowInternetAccess": "no"}}, {"network": {"rules": {"a.test": [{}]}}},
        ):  # fmt: skip
            status, told, _ = await client.ask("POST", "/hekla/v1/sessions", asked)
            assert status == 400, (asked, told)
        assert await client.gateway.desk.listed(None) == []
        path = f"/hekla/v1/sessions/{await client.session()}"
        for act, asked in (
            ("pause", {"memory": "no"}), ("fork", {"count": 1.5}), ("snapshots", {"name": 5}), ("snapshots", {"name": "a:b"}),
            ("snapshots", {"name": "x" * 129}),
        ):  # fmt: skip
            status, told, _ = await client.ask("POST", f"{path}/{act}", asked)
            assert status == 400, (act, asked, told)
        assert (await client.ask("GET", "/hekla/v1/sessions?limit=%C2%B2"))[0] == 400

    run(scenario)


def test_an_object_that_no_session_can_begin_with_says_so_at_every_door():
    wrong = Blueprint(
        kind=SessionKind.INTERPRETER,
        namespace="default",
        name="wrong",
        trouble="spec.ports[0].port is 0; write 1 to 65535",
    )

    async def scenario(client):
        sentence = 'code-interpreters "default/wrong": spec.ports[0].port is 0; write 1 to 65535'
        for path, body in (
            ("/v2/sandboxes", {"templateID": "wrong"}), ("/hekla/v1/sessions", {"name": "wrong"}),
            ("/v1/code-interpreter", {"name": "wrong", "namespace": "default"}),
        ):  # fmt: skip
            status, told, _ = await client.ask("POST", path, body)
            assert (status, told["message"]) == (422, sentence), path

    run(scenario, blueprints=(BASE, wrong))


def test_sandboxes_are_found_by_metadata_as_e2bs_clients_quote_it():
    """Names and values that have more than letters were found by nobody: the client quotes them twice beside the query itself."""

    async def scenario(client):
        told = {"who is it": "b c&d=e+f 100%/ä", "plain": "x"}
        _, made, _ = await client.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60, "metadata": told})
        twice = urlencode({quote(name): quote(value) for name, value in told.items()})
        for text in (twice, "plain=x", "who+is+it=b+c%26d%3De%2Bf+100%25%2F%C3%A4"):
            _, found, _ = await client.ask("GET", f"/v2/sandboxes?{urlencode({'metadata': text})}")
            assert [one["sandboxID"] for one in found] == [made["sandboxID"]], text
        for text in ("plain=y", "plain", f"{twice}&more=1"):
            assert (await client.ask("GET", f"/v2/sandboxes?{urlencode({'metadata': text})}"))[1] == [], text

    run(scenario)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"name": "my-interpreter"}, "namespace is required"),
        ({"namespace": "default", "name": ""}, "name is required"),
        ({"namespace": "default", "name": "My Own"}, "name is 'My Own'; it must be a name, of a-z, 0-9, dashes and dots"),
        ({"namespace": "default", "name": "my-interpreter", "ttl": -1}, "ttl is -1; it must be a number of seconds, 0 for none of its own"),
        ({"namespace": "default", "name": "my-interpreter", "ttl": "60"}, "ttl is '60'; it must be a number of seconds, 0 for none of its own"),
        ({"namespace": "default", "name": "my-interpreter", "metadata": ["a"]}, "metadata is ['a']; it must be an object"),
    ],
)  # fmt: skip
def test_the_workload_manager_says_what_is_wrong_with_what_is_asked_of_it(asked, sentence):
    async def scenario(client):
        status, told, _ = await client.ask("POST", "/v1/code-interpreter", asked)
        assert (status, told) == (400, {"message": sentence})
        assert await client.gateway.desk.listed(None) == []

    run(scenario)


def test_what_agentcubes_sdk_says_beside_a_name_is_kept():
    async def scenario(client):
        asked = {
            "namespace": "default",
            "name": "my-interpreter",
            "ttl": 10**30,
            "metadata": {"a": "b", "n": 5, "o": {"p": None}},
        }
        status, made, _ = await client.ask("POST", "/v1/code-interpreter", asked)
        assert status == 200, made
        row = await client.gateway.desk.find(made["sessionId"])
        assert (row.timeout_s, row.metadata) == (86_400.0, {"a": "b", "n": "5", "o": '{"p":null}'})

    run(scenario)


def test_the_door_of_a_new_session_is_open_before_anybody_asks_and_shut_once_it_has_ended():
    async def scenario(client):
        pools = client.gateway.house.pools
        session = await client.session(name="base")
        (sandbox,) = client.sandboxes.sandboxes.values()
        pool = pools.of((sandbox.held.namespace, sandbox.held.pod, DAEMON))
        while not pool.idle:
            await asyncio.sleep(0)
        (first,) = pool.idle
        path = f"/hekla/v1/sessions/{session}/daemon/api/execute"
        status, answer, _ = await client.ask("POST", path, {"command": ["echo", "42"]})
        assert (status, answer["stdout"]) == (200, "42\n")
        assert pool.idle == [first]
        assert first.is_reused
        assert (await client.ask("DELETE", f"/hekla/v1/sessions/{session}"))[0] == 204
        while pool.idle:
            await asyncio.sleep(0)

    run(scenario)


def slow_ways(client, *, first_fails=None):
    """Connections begin when the event is set, and are counted."""
    ways, goes_on, begun = client.gateway.house.pools._way, asyncio.Event(), []

    def slow(namespace, pod, port):
        way = ways(namespace, pod, port)

        async def connect(make):
            begun.append(pod)
            number = len(begun)
            await goes_on.wait()
            if number == 1 and first_fails is not None:
                raise first_fails
            await way.connect(make)

        return Way(connect)

    client.gateway.house.pools._way = slow
    return goes_on, begun


@pytest.mark.parametrize(
    ("first_fails", "status", "opened"),
    [(None, 200, 1), (ConnectionResetError("as it began"), 200, 2), (TimeoutError(), 504, 1)],
)
def test_who_asks_while_the_door_is_being_opened_waits_for_that_connection_and_no_longer_than_for_his_own(
    first_fails, status, opened
):
    """A daemon that had to let in two was later with both: of a hundred first requests seventy-nine opened a second connection."""

    async def scenario(client):
        goes_on, begun = slow_ways(client, first_fails=first_fails)
        session = await client.session(name="base")
        asked = asyncio.ensure_future(
            client.ask("POST", f"/hekla/v1/sessions/{session}/daemon/api/execute", {"command": ["echo", "42"]})
        )
        (sandbox,) = client.sandboxes.sandboxes.values()
        pool = client.gateway.house.pools.of((sandbox.held.namespace, sandbox.held.pod, DAEMON))
        while pool._ahead is not None:
            await asyncio.sleep(0)  # until the request has come, and waits for it
        assert len(begun) == 1
        goes_on.set()
        told, answer, _ = await asked
        assert (told, len(begun)) == (status, opened)
        assert answer.get("stdout") == ("42\n" if status == 200 else None)

    run(scenario)


def test_a_session_that_ends_while_its_door_is_being_opened_keeps_no_connection():
    async def scenario(client):
        gone, _ = slow_ways(client)
        session = await client.session(name="base")
        (sandbox,) = client.sandboxes.sandboxes.values()
        key = (sandbox.held.namespace, sandbox.held.pod, DAEMON)
        pool = client.gateway.house.pools.of(key)
        assert (await client.ask("DELETE", f"/hekla/v1/sessions/{session}"))[0] == 204
        gone.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not pool.idle
        assert (await client.session(name="base")) != session

    run(scenario)
