"""Abuse of sessions and of the gateway that leads to them; numbers as in docs/reference/abuse-cases.md."""

import asyncio
import contextlib
import json
import secrets
import time
from contextlib import asynccontextmanager

import pytest
import structlog

from hekla.api.agents.node_contract import Claim
from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.guard import Guard, Principal, digest_of
from hekla.sandbox.gateway.minting import Mint
from hekla.sandbox.gateway.running import Gateway, GatewaySettings
from hekla.sandbox.gateway.strangers import Strangers
from hekla.sandbox.sessions.records import SessionKind, new_id
from hekla.sandbox.sessions.stock import Blueprint, Held
from hekla.sandbox.sessions.store import MemoryStore
from hekla.testing.paper_sandboxes import BASE, PaperSandbox, PaperSandboxes
from hekla.testing.sandboxes import KEY, OTHER_KEY, PRIVATE_KEY
from hekla.wire.client import HttpClient
from sandbox.abuse.test_tokens_and_daemon import signed
from sandbox.gateway.test_gateway import HEADER, INTERPRETER, OTHER_INTERPRETER, Client, opened, raw, run, server

INVOKE = "/v1/namespaces/default/code-interpreters/my-interpreter/invocations"


def paper():
    return PaperSandboxes([BASE, INTERPRETER, OTHER_INTERPRETER])


def test_01_ids_that_were_guessed_are_all_the_same_404_and_soon_a_429():
    async def scenario(client):
        real = await client.session(name="my-interpreter")
        client.gateway.house.strangers = Strangers(at_once=300, per_s=0.0)
        answers = set()
        for _ in range(300):
            guess = new_id()
            status, told, _ = await client.ask("GET", f"{INVOKE}/", key="", x_agentcube_session_id=guess)
            answers.add((status, json.dumps(told).replace(guess, "ID")))
        assert answers == {(404, '{"error": "sessions.agentcube.volcano.sh \\"ID\\" not found"}')}
        for door in (
            {"x_agentcube_session_id": new_id()},
            {"e2b_sandbox_id": new_id()},
            {"x_agentcube_session_id": real},
        ):
            status, told, answer = await client.ask("GET", f"{INVOKE}/", key="", **door)
            assert (status, answer.header("retry-after") or "1") == (429, "1"), "even what was guessed right"
        assert (await client.ask("GET", f"/hekla/v1/sessions/{real}"))[0] == 200, "whoever has a key is no stranger"
        status, told, _ = await client.ask("GET", "/hekla/v1/sessions", key="k" * 40)
        assert status == 429, told

    run(scenario, sandboxes=paper())


async def missed_too_often(client):
    client.gateway.house.strangers = Strangers(at_once=3, per_s=0.0)
    for _ in range(3):
        await client.ask("GET", f"{INVOKE}/", key="", x_agentcube_session_id=new_id())
    status, _, _ = await client.ask("GET", f"{INVOKE}/", key="", x_agentcube_session_id=new_id())
    assert status == 429


def test_01_whoever_shows_a_sessions_own_token_is_no_stranger_whatever_others_at_its_address_missed():
    """Behind a load balancer all clients are one address: one stranger's misses shut out every sandbox of everybody."""

    async def scenario():
        async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") as (port, _), opened() as client:
            body = {"templateID": "base", "timeout": 60, "secure": True, "network": {"allowPublicTraffic": False}}
            _, made, _ = await client.ask("POST", "/v2/sandboxes", body)
            session, access, traffic = made["sandboxID"], made["envdAccessToken"], made["trafficAccessToken"]
            pod = (await client.gateway.desk.find(session)).pod
            path = client.sandboxes.directory(client.sandboxes.found(pod)) / "file"
            path.write_text("here")
            await missed_too_often(client)
            to_port = {"e2b_sandbox_id": session, "e2b_sandbox_port": str(port)}
            rightly_signed, wrongly_signed = signed(access, str(path), "read"), signed("wrong", str(path), "read")
            for query, headers, wanted in (
                (f"/files?path={path}", {"e2b_sandbox_id": session, "x_access_token": access}, 200),
                ("/", {**to_port, "e2b_traffic_access_token": traffic}, 200),
                (f"/files?{rightly_signed}", {"e2b_sandbox_id": session}, 200),
                (f"/files?{rightly_signed}", {}, 200),
                (f"/files?path={path}", {"e2b_sandbox_id": session, "x_access_token": "wrong"}, 429),
                (f"/files?path={path}", {"e2b_sandbox_id": session, "x_access_token": traffic}, 429),
                (f"/files?path={path}", {"e2b_sandbox_id": session}, 429),
                (f"/files?path={path}", {"e2b_sandbox_id": new_id(), "x_access_token": access}, 429),
                (f"/files?{wrongly_signed}", {"e2b_sandbox_id": session}, 429),
                (f"/files?{wrongly_signed}", {}, 429),
                ("/", {**to_port, "e2b_traffic_access_token": "wrong"}, 429),
                ("/", to_port, 429),
            ):
                status, told, _ = await client.ask("GET", query, key="", **headers)
                assert status == wanted, (query, headers, told)

    asyncio.run(scenario())


def test_01_where_gateways_share_a_store_a_token_is_looked_up_and_a_guess_is_not():
    class Shared(MemoryStore):
        is_shared = True

    async def scenario(client):
        session = await client.session()
        access = (await client.gateway.desk.find(session)).access_token
        await missed_too_often(client)
        entry = client.gateway.desk._room.register.known(session)
        for named, token, wanted in (
            (session, access, 502),  # on paper nobody listens
            (session, "wrong", 429),
            (new_id(), access, 429),
            (session, "", 429),
        ):
            entry.read_s = 0.0  # too old to be believed: another gateway may have written it
            headers = {"e2b_sandbox_id": named, **({"x_access_token": token} if token else {})}
            assert (await client.ask("GET", "/files?path=x", key="", **headers))[0] == wanted, headers

    run(scenario, sandboxes=paper(), store=Shared())


def test_01_misses_are_forgiven_and_addresses_forgotten():
    strangers = Strangers(at_once=2, per_s=1.0, most=2)
    assert not strangers
    for _ in range(2):
        strangers.missed("a", 0.0)
    assert strangers.is_over("a", 0.0)
    assert not strangers.is_over("b", 0.0)
    assert not strangers.is_over("a", 1.5)
    strangers.missed("b", 2.0)
    strangers.missed("c", 2.0)
    assert not strangers.is_over("a", 0.0), "more than two addresses are not remembered"


def test_04_an_id_that_its_caller_made_up_opens_and_makes_nothing():
    async def scenario(client):
        mine = secrets.token_hex(13)
        for name in (HEADER, "e2b-sandbox-id"):
            status, _, _ = await client.ask("GET", f"{INVOKE}/", **{name.replace("-", "_"): mine})
            assert status in (404, 502)
        status, made, _ = await client.ask(
            "POST", "/sandboxes", {"templateID": "base", "timeout": 60, "sandboxID": mine}
        )
        assert (status, made["sandboxID"] == mine) == (201, False)
        status, told, _ = await client.ask("POST", "/hekla/v1/sessions", {"id": mine})
        assert status == 400, told

    run(scenario, sandboxes=paper())


def test_05_one_idempotency_key_asked_many_times_at_once_is_one_sandbox_and_each_owners_own():
    async def scenario(client):
        client.sandboxes.takes_s = 0.05
        asked = [
            client.ask("POST", "/sandboxes", {"templateID": "base", "timeout": 60}, key=key, idempotency_key="same")
            for key in (KEY, OTHER_KEY)
            for _ in range(10)
        ]
        answers = await asyncio.gather(*asked)
        assert {status for status, _, _ in answers} == {201}
        assert len({made["sandboxID"] for _, made, _ in answers}) == len(client.sandboxes.sandboxes) == 2

    run(scenario, sandboxes=paper())


@pytest.mark.parametrize(
    "lines",
    [
        b"X-AgentCube-Session-Id: %b\r\nx-agentcube-session-id: %b\r\n",
        b"x-agentcube-session-id: %b, %b\r\n",
        b"x-agentcube-session-id: %b\r\n %b\r\n",
        b"x-agentcube-session-id : %b\r\nx-other: %b\r\n",
        b"x-agentcube-session-id: %b\rx-agentcube-session-id: %b\r\n",
        b"x-agentcube-session-id: %b\0%b\r\n",
        b"e2b-sandbox-id: %b\r\nE2B-SANDBOX-ID: %b\r\n",
        b"authorization: Bearer %b\r\nAuthorization: Bearer %b\r\n",
        b"host: %b\r\nx-other: %b\r\n",
    ],
)
def test_06_headers_that_two_readers_may_read_differently_are_400(lines):
    async def scenario(client):
        one, other = [(await client.session(name="my-interpreter")).encode() for _ in range(2)]
        head = b"GET %b/ HTTP/1.1\r\nhost: x\r\n%bconnection: close\r\n\r\n" % (INVOKE.encode(), lines % (one, other))
        assert (await raw(client, head)).startswith(b"HTTP/1.1 400")

    run(scenario, sandboxes=paper())


def test_06_a_header_of_64_kilobytes_is_refused():
    async def scenario(client):
        for size, status in ((60_000, b"400"), (70_000, b"431")):
            named = b"x-agentcube-session-id: " + b"a" * size + b"\r\n"
            head = b"GET %b/ HTTP/1.1\r\nhost: x\r\n%bconnection: close\r\n\r\n" % (INVOKE.encode(), named)
            assert (await raw(client, head)).startswith(b"HTTP/1.1 " + status)

    run(scenario, sandboxes=paper())


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (b"BASE/..%2fother/invocations/x", b"400"),
        (b"BASE/%252e%252e/x", b"400"),
        (b"BASE/..;/x", b"400"),
        (b"BASE/a/%5c..%5c..%5cx", b"400"),
        (b"//v1/namespaces/default/code-interpreters/other/invocations/", b"404"),
        (b"/v1/namespaces/default%2fcode-interpreters/code-interpreters/other/invocations/", b"404"),
        (b"/v1/namespaces/DEFAULT/code-interpreters/my-interpreter/invocations/", b"404"),
        (b"/v1/namespaces/default/code-interpreters/my-interpreter;x/invocations/", b"404"),
        (b"/v1/namespaces/default/../default/code-interpreters/other/invocations/", b"404"),
        (b"http://elsewhere/v1/namespaces/default/code-interpreters/other/invocations/", b"400"),
        (b"*", b"400"),
    ],
)
def test_07_paths_lead_where_they_say_or_nowhere(target, wanted):
    async def scenario(client):
        session = await client.session(name="my-interpreter")
        head = b"GET %b HTTP/1.1\r\nhost: x\r\nx-agentcube-session-id: %b\r\nconnection: close\r\n\r\n"
        answer = await raw(client, head % (target.replace(b"BASE", INVOKE.encode()), session.encode()))
        assert answer.startswith(b"HTTP/1.1 " + wanted), answer

    run(scenario, sandboxes=paper())


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"501"),
        (b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n", b"501"),
        (b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", b"501"),
        (b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n", b"501"),
        (b"content-length: 0x4\r\n\r\nabcd", b"400"),
        (b"content-length: -1\r\n\r\n", b"400"),
        (b"content-length: +4\r\n\r\nabcd", b"400"),
        (b"content-length: 4, 4\r\n\r\nabcd", b"400"),
        (b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n", b"400"),
        (b"transfer-encoding: chunked\r\n\r\n1\nA\r\n0\r\n\r\n", b"400"),
        (b"transfer-encoding: chunked\r\n\r\n1 ;x\nA\r\n0\r\n\r\n", b"400"),
        (b"transfer-encoding: chunked\r\n\r\n1\r\nAB\r\n0\r\n\r\n", b"400"),
        (b"transfer-encoding: chunked\r\n\r\nfffffffffffff\r\n", b"400"),
        (b"transfer-encoding: chunked\r\n\r\n0\r\nx y: z\r\n\r\n", b"400"),
        (b"x: y\r\n folded\r\n\r\n", b"400"),
    ],
)
def test_08_a_smuggled_request_is_refused_and_the_connection_ends(head, status):
    async def scenario(client):
        smuggled = b"GET /hekla/v1/sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n" % KEY.encode()
        answer = await raw(client, b"POST /sandboxes HTTP/1.1\r\nhost: x\r\n" + head + smuggled)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert answer.count(b"HTTP/1.1 ") == 1, "what came behind was not read"
        assert b"sessions" not in answer

    run(scenario, sandboxes=paper())


def test_09_an_upgrade_leads_to_its_own_session_alone():
    async def scenario():
        upgraded = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
        async with server(upgraded) as (port, seen), opened() as client:
            body = {"templateID": "base", "timeout": 60, "network": {"allowPublicTraffic": False}}
            (_, mine, _), (_, theirs, _) = [
                await client.ask("POST", "/v2/sandboxes", body, key=key) for key in (KEY, OTHER_KEY)
            ]
            asks = b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n"
            inside = (
                b"GET / HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: %b\r\ne2b-sandbox-port: %d\r\ne2b-traffic-access-token: %b\r\n"
                + asks
            )
            token = mine["trafficAccessToken"].encode()
            answer = await raw(client, inside % (theirs["sandboxID"].encode(), port, token), until=b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 403"), answer
            path = f"/hekla/v1/sessions/{theirs['sandboxID']}/ports/{port}/".encode()
            head = b"GET %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n" % (path, KEY.encode())
            assert (await raw(client, head + asks, until=b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
            assert seen == []
            answer = await raw(client, inside % (mine["sandboxID"].encode(), port, token), until=b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 101")
            assert len(seen) == 1

    asyncio.run(scenario())


def test_10_what_was_tried_on_somebody_elses_session_is_404_and_on_record():
    async def scenario(client):
        session = await client.session()
        with structlog.testing.capture_logs() as said:
            for method, path in (
                ("DELETE", f"/hekla/v1/sessions/{session}"),
                ("POST", f"/hekla/v1/sessions/{session}/pause"),
                ("POST", f"/hekla/v1/sessions/{session}/fork"),
                ("POST", f"/hekla/v1/sessions/{session}/budget"),
                ("POST", f"/sandboxes/{session}/snapshots"),
                ("GET", f"/v2/sandboxes/{session}/logs"),
                ("PUT", f"/sandboxes/{session}/network"),
            ):
                body = {"budget": "cpu=1s"} if path.endswith("budget") else {}
                status, told, _ = await client.ask(method, path, body if method != "GET" else None, key=OTHER_KEY)
                assert status == 404, (path, told)
                record = said[-1]
                assert (record["event"], record["owner"], record["path"], record["status"]) == (
                    "request",
                    "bob",
                    path,
                    404,
                )
        assert (await client.gateway.desk.find(session)).state == "running"

    run(scenario)


class Named:
    """One Sandbox that somebody made with kubectl."""

    held = Held(namespace="default", name="box", uid="u1", pod="box", session="")
    said = ""

    def owner(self, held):
        return self.said

    def sandbox(self, namespace, name):
        return self.held if (namespace, name) == ("default", "box") else None

    def addresses(self, held):
        return frozenset({"10.1.2.3"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_sandbox_pod_ip": "169.254.169.254"}, 400),
        ({"x_sandbox_pod_ip": "127.0.0.1"}, 400),
        ({"x_sandbox_pod_ip": "10.1.2.3.nip.io"}, 400),
        ({"x_sandbox_pod_ip": "10.1.2.3", "x_sandbox_port": "6379"}, 200),
        ({"x_sandbox_port": "0"}, 400),
        ({"x_sandbox_port": "65536"}, 400),
        ({"x_sandbox_port": "22@elsewhere"}, 400),
        ({"x_sandbox_id": "box.other.svc"}, 400),
        ({"x_sandbox_namespace": "default/../kube-system"}, 400),
        ({"x_sandbox_uid": "u2"}, 404),
    ],
)
def test_38_no_header_has_the_gateway_dial_what_is_not_that_sandboxs_own(headers, status):
    dialled = []

    class Watched(PaperSandboxes):
        def way(self, namespace, pod, port):
            dialled.append((namespace, pod, port))
            return super().way(namespace, pod, port)

    async def main():
        sandboxes = Watched([BASE])
        who = Guard({digest_of(KEY): Principal("alice")}, wall=time.time)
        made = Gateway(
            GatewaySettings(drain_s=0.0), store=MemoryStore(), stock=sandboxes, link=sandboxes, guard=who, mint=Mint(PRIVATE_KEY),
            named=Named(),
        )  # fmt: skip
        await made.start()
        sandboxes.sandboxes["box"] = PaperSandbox(Named.held)
        try:
            async with HttpClient() as http:
                client = Client(http, made, sandboxes)
                got, told, _ = await client.ask("GET", "/", **{"x_sandbox_id": "box", **headers})
                # nobody listens on paper: 502 is a port of that very sandbox
                assert got == (502 if status == 200 else status), told
                assert dialled == ([("default", "box", 6379)] if status == 200 else [])
        finally:
            await made.stop()

    asyncio.run(main())


def test_39_a_preview_is_found_by_its_own_host_alone_and_sets_cookies_for_no_other():
    async def scenario():
        said = b"HTTP/1.1 200 OK\r\nset-cookie: a=b; Path=/; Domain=.sandboxes.test; Secure\r\nset-cookie: c=d;domain=sandboxes.test\r\ncontent-length: 2\r\n\r\nok"
        async with (
            server(said) as (port, seen),
            opened(settings=GatewaySettings(drain_s=0.0, domain="sandboxes.test")) as client,
        ):
            _, made, _ = await client.ask("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60})
            host = f"{port}-{made['sandboxID']}.sandboxes.test"
            request = "GET / HTTP/1.1\r\nhost: {}\r\n{}connection: close\r\n\r\n"
            answer = await raw(client, request.format(host, "").encode())
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"set-cookie: a=b; Path=/; Secure\r\n" in answer
            assert b"set-cookie: c=d\r\n" in answer
            for spoofed in (
                f"{port}-{made['sandboxID']}.elsewhere.test",
                f"{port}-{made['sandboxID']}.sandboxes.test.elsewhere.test",
                f"{port}-{'a' * 26}.sandboxes.test",
                f"99999-{made['sandboxID']}.sandboxes.test",
                f"x.{host}",
            ):
                answer = await raw(client, request.format(spoofed, f"x-forwarded-host: {host}\r\n").encode())
                assert answer.split()[1] in (b"404", b"502", b"401"), (spoofed, answer)
            assert len(seen) == 1

    asyncio.run(scenario())


def test_39_the_control_routes_are_not_there_on_a_preview_host():
    async def scenario():
        async with server(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n") as (port, seen), opened() as client:
            session = await client.session()
            head = b"%b HTTP/1.1\r\nhost: %d-%b.test\r\nauthorization: Bearer %b\r\nconnection: close\r\n\r\n"
            for line in (b"GET /hekla/v1/sessions", b"DELETE /sandboxes/" + session.encode(), b"GET /metrics"):
                answer = await raw(client, head % (line, port, session.encode(), KEY.encode()))
                assert answer.startswith(b"HTTP/1.1 404")
            assert len(seen) == 3, "all of them went to the user's server"
            assert (await client.gateway.desk.find(session)).is_live

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_thousand_sessions_asked_at_once_where_there_is_room_for_ten():
    async def scenario(client):
        client.sandboxes.room = 10
        asked = [client.ask("POST", "/hekla/v1/sessions", {"name": "base"}) for _ in range(1000)]
        answers = await asyncio.gather(*asked)
        made = [told["id"] for status, told, _ in answers if status == 201]
        refused = [(status, told["message"]) for status, told, _ in answers if status != 201]
        assert len(made) == len(client.sandboxes.sandboxes) == 10
        assert {status for status, _ in refused} <= {429, 503}
        assert all(
            "room for 10" in sentence or "end some first" in sentence or "overloaded" in sentence
            for _, sentence in refused
        )
        async with asyncio.timeout(30):
            while len(await client.gateway.desk.listed(None)) > 10:
                await asyncio.sleep(0)
        for one in made:
            assert (await client.ask("DELETE", f"/hekla/v1/sessions/{one}"))[0] == 204
        assert client.sandboxes.sandboxes == {}
        assert (await client.ask("POST", "/hekla/v1/sessions", {"name": "base"}))[0] == 201, "nothing leaked"

    run(scenario, sandboxes=paper())


def test_a_flood_of_connections_is_cut_and_keeps_no_file_open():
    """Who was one too many was told so and given time to leave: a flood of them took all files of the platform."""

    async def scenario(client):
        opened = []
        for number in range(40):
            source = (f"127.0.0.{1 + number % 2}", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", client.gateway.port, local_addr=source)
            writer.write(b"POST / HTTP/1.1\r\n")
            opened.append((reader, writer))

        async def told(reader):
            with contextlib.suppress(ConnectionResetError):
                return (await reader.read(12)).partition(b" ")[2]
            return b""

        answers = [await told(reader) for reader, _ in opened[4:]]
        assert answers[:16] == [b"503"] * 16
        assert not any(answers[16:])
        assert client.gateway._listener.connections <= 20
        for _, writer in opened:
            writer.close()

    run(scenario, sandboxes=paper(), settings=GatewaySettings(drain_s=0.0, bounds=Bounds(connections=4)))


@pytest.mark.parametrize(
    ("first", "what"),
    [
        (b"GET /health HTTP/1.1\r\nhost:", "a head that never ends"),
        (b"POST /sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{", "a body that never comes"),
        (
            b"POST /files?path=/x HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: %b\r\ncontent-length: 100\r\n\r\nx",
            "an upload that never comes",
        ),
    ],
)
def test_clients_that_say_no_more_are_cut_off_and_others_are_served(first, what):
    async def scenario(client):
        session = await client.session()
        data = first.replace(b"%b", session.encode())
        answer = await raw(client, data)  # ends when the gateway ends it
        assert answer == b"" or answer.split()[1] in (b"401", b"408"), (what, answer)
        assert (await client.ask("GET", "/health", key=""))[0] == 200

    bounds = Bounds(head_timeout_s=0.3, body_silence_s=0.3)
    run(scenario, sandboxes=paper(), settings=GatewaySettings(drain_s=0.0, bounds=bounds))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"templateID": "base", "metadata": {"a": "' + b"x" * 20_000 + b'"}}', 400),
        (b'{"templateID": "base", "envVars": {"' + b"x" * 20_000 + b'": ""}}', 400),
        (b"[" * 100_000, 400),
        (b'{"templateID": "\xff\xfe"}', 400),
        (b'{"templateID": "base", "timeout": 1e999}', 400),
        (b'{"templateID": "base", "timeout": 1' + b"0" * 5000 + b"}", 400),
        (b'{"templateID": "../../default/base"}', 404),
    ],
)
def test_documents_that_are_too_much_or_make_no_sense_are_refused_with_a_sentence(body, status):
    async def scenario(client):
        got, told, _ = await client.ask("POST", "/sandboxes", body)
        assert got == status, told
        assert len(told["message"]) > 10
        assert client.sandboxes.sandboxes == {}

    run(scenario, sandboxes=paper())


def test_a_store_that_is_lost_is_told_and_nothing_is_made_that_nobody_remembers():
    from hekla.sandbox.sessions.store import StoreUnavailableError

    class Lost(MemoryStore):
        is_lost = False

        async def create(self, session):
            if self.is_lost:
                raise StoreUnavailableError("the store is gone")
            return await super().create(session)

        async def ping(self):
            if self.is_lost:
                raise StoreUnavailableError("the store is gone")

    async def main():
        sandboxes, store = paper(), Lost()
        made = Gateway(
            GatewaySettings(drain_s=0.0), store=store, stock=sandboxes, link=sandboxes,
            guard=Guard({digest_of(KEY): Principal("alice")}, wall=time.time), mint=Mint(PRIVATE_KEY),
        )  # fmt: skip
        await made.start()
        try:
            async with HttpClient() as http:
                client = Client(http, made, sandboxes)
                kept = await client.session()
                store.is_lost = True
                status, told, _ = await client.ask("POST", "/hekla/v1/sessions", {"name": "base"})
                assert (status, "store" in json.dumps(told)) == (503, True), told
                assert len(sandboxes.sandboxes) == 1
                assert (await client.ask("GET", "/health/ready", key=""))[0] == 503
                store.is_lost = False
                assert (await client.ask("GET", f"/hekla/v1/sessions/{kept}"))[0] == 200
        finally:
            await made.stop()

    asyncio.run(main())


KEYS = {who: who.replace("@", "_") + "-key-0123456789" for who in ("bob", "bob@theirs", "admin", "admin@theirs", "eve")}


@asynccontextmanager
async def many_owners():
    """A gateway with objects in two namespaces, and keys of several owners."""
    elsewhere = Blueprint(kind=SessionKind.INTERPRETER, namespace="theirs", name="base")
    known = {digest_of(key): Principal(*who.split("@")) for who, key in KEYS.items()}
    async with opened(sandboxes=PaperSandboxes([BASE, elsewhere]), who=Guard(known, wall=time.time)) as client:

        async def asked(who, method, path, body=None, **headers):
            status, told, _ = await client.ask(method, path, body, key=KEYS[who], **headers)
            return status, told

        yield asked, client


def test_02_a_snapshots_name_that_somebody_else_chose_stands_for_nothing_of_an_administrators():
    """Once an administrator who asked for "base" was given the snapshot that another owner had called so, and waited two minutes for nothing."""

    async def main():
        async with many_owners() as (asked, _):
            _, session = await asked("eve", "POST", "/hekla/v1/sessions", {})
            status, hers = await asked("eve", "POST", f"/hekla/v1/sessions/{session['id']}/snapshots", {"name": "base"})
            assert status == 201
            for door, body in (
                ("/sandboxes", {"templateID": "base"}),
                ("/v2/sandboxes", {"templateID": "default/base"}),
            ):
                status, made = await asked("admin", "POST", door, body)
                assert status == 201, made
                _, shown = await asked("admin", "GET", f"/hekla/v1/sessions/{made['sandboxID']}")
                assert shown["name"] == "base"
            assert (await asked("admin", "POST", "/hekla/v1/sessions", {"snapshot": "base"}))[0] == 404
            assert (await asked("admin", "DELETE", "/hekla/v1/snapshots/base"))[0] == 404
            assert (await asked("admin", "DELETE", "/templates/base"))[0] == 404
            for door, body in (
                ("/sandboxes", {"templateID": hers["id"]}),
                ("/hekla/v1/sessions", {"snapshot": hers["id"]}),
            ):
                status, told = await asked("admin", "POST", door, body)
                assert (status, "only its owner can begin with it" in told["message"]) == (403, True), told
            assert (await asked("eve", "POST", "/hekla/v1/sessions", {"snapshot": "base"}))[0] == 201
            assert (await asked("admin", "DELETE", f"/hekla/v1/snapshots/{hers['id']}"))[0] == 204

    asyncio.run(main())


@pytest.mark.parametrize("held", ["bob@theirs", "admin@theirs"])
def test_02_a_key_that_is_held_to_a_namespace_sees_the_sessions_of_that_namespace_alone(held):
    """Once it could only make nothing elsewhere: what its owner had there it could enter and end, and `admin@theirs` everybody's."""

    async def main():
        async with many_owners() as (asked, _):
            made = {}
            for namespace in ("default", "theirs"):
                status, made[namespace] = await asked(
                    "bob", "POST", "/hekla/v1/sessions", {"namespace": namespace}, idempotency_key="one"
                )
                assert status == 201
            here, there = made["theirs"]["id"], made["default"]["id"]
            assert here != there, "one key of one owner is one session of each namespace"
            _, kept = await asked("bob", "POST", f"/hekla/v1/sessions/{there}/snapshots", {"name": "kept"})
            root = "/hekla/v1/sessions"
            assert [one["id"] for one in (await asked(held, "GET", root))[1]["sessions"]] == [here]
            assert [one["sandboxID"] for one in (await asked(held, "GET", "/v2/sandboxes"))[1]] == [here]
            assert (await asked(held, "GET", f"{root}/{here}"))[0] == 200
            invoke = "/v1/namespaces/default/code-interpreters/base/invocations/api/files"
            for method, path, body, headers in (
                ("GET", f"{root}/{there}", None, {}),
                ("GET", f"{root}/{there}/daemon/files?path=/etc/passwd", None, {}),
                ("POST", f"{root}/{there}/fork", {}, {}),
                ("POST", f"/sandboxes/{there}/pause", {}, {}),
                ("GET", invoke, None, {"x_agentcube_session_id": there}),
                ("DELETE", f"/v1/code-interpreter/sessions/{there}", None, {}),
                ("POST", root, {"snapshot": kept["id"]}, {}),
                ("POST", root, {"snapshot": "kept"}, {}),
                ("DELETE", f"/hekla/v1/snapshots/{kept['id']}", None, {}),
                ("DELETE", f"{root}/{there}", None, {}),
            ):
                status, told = await asked(held, method, path, body, **headers)
                assert status == 404, (method, path, told)
            assert (await asked("bob", "GET", f"{root}/{there}"))[1]["state"] == "running"

    asyncio.run(main())


def entering(scenario):
    """A gateway of everybody's keys, and one Sandbox that they name; `entered(who)` is the answer to somebody's request."""

    async def main():
        sandboxes, named = PaperSandboxes([BASE]), Named()
        known = {digest_of(key): Principal(*who.split("@")) for who, key in KEYS.items()}
        made = Gateway(
            GatewaySettings(drain_s=0.0), store=MemoryStore(), stock=sandboxes, link=sandboxes, guard=Guard(known, wall=time.time),
            mint=Mint(PRIVATE_KEY), named=named,
        )  # fmt: skip
        await made.start()
        sandboxes.sandboxes["box"] = PaperSandbox(Named.held)
        try:
            async with HttpClient() as http:
                client = Client(http, made, sandboxes)

                async def entered(who):
                    # nobody listens on paper: 502 is a port of that very sandbox
                    told = await client.ask("GET", "/", key=KEYS[who], x_sandbox_id="box", x_sandbox_port="6379")
                    return told[0]

                await scenario(entered, sandboxes, named)
        finally:
            await made.stop()

    asyncio.run(main())


def test_02_a_sandbox_that_is_named_is_whose_key_named_it_first():
    """Once every key entered every Sandbox whose name it guessed, whoever worked in it already."""

    async def scenario(entered, sandboxes, _named):
        came = [await entered(who) for who in ("bob", "eve", "bob", "admin", "bob@theirs")]
        assert came == [502, 404, 502, 502, 404]
        # one that a gateway before this rule has claimed stays open to its users, whoever of them it was
        sandboxes.sandboxes["box"] = PaperSandbox(Named.held, claim=Claim(session="u1", owner="bob"))
        assert await entered("eve") == 502

    entering(scenario)


def test_02_a_sandbox_that_was_said_to_be_somebodys_is_theirs_whoever_comes_first():
    """An administrator who looked in first had it, and nobody could give it to its user; whoever guessed a name first had it, too."""

    async def scenario(entered, sandboxes, named):
        named.said = "bob"
        assert [await entered(who) for who in ("eve", "admin", "bob", "eve")] == [404, 502, 502, 404]
        assert sandboxes.sandboxes["box"].claim.owner == "bob"

    entering(scenario)


def test_02_what_an_administrator_entered_first_is_theirs_until_somebody_is_said_to_own_it():
    """They may work there like anybody: the first key of `hekla up` is theirs."""

    async def scenario(entered, _sandboxes, named):
        assert [await entered(who) for who in ("admin", "bob", "admin")] == [502, 404, 502]
        named.said = "bob"
        assert [await entered(who) for who in ("bob", "eve", "admin")] == [502, 404, 502]

    entering(scenario)


def test_02_the_id_of_an_agentcube_session_opens_nothing_at_e2bs_doors():
    """Its daemon once asked for no token there, so that whoever saw the id in a preview's host name could run code."""

    async def scenario(client):
        named = {"name": "my-interpreter", "namespace": "default"}
        _, made, _ = await client.ask("POST", "/v1/code-interpreter", named)
        for port, method, path, body in (
            ("49983", "GET", "/files?path=/etc/passwd", None),
            ("49983", "POST", "/process.Process/Start", {}),
            ("49999", "POST", "/execute", {"code": "1"}),
        ):
            for key in ("", OTHER_KEY):
                told = await client.ask(
                    method, path, body, key=key, e2b_sandbox_id=made["sessionId"], e2b_sandbox_port=port
                )
                assert told[0] == 401, (port, path, told[:2])

    run(scenario, sandboxes=paper())


def test_a_namespaces_key_uses_that_namespace_alone():
    elsewhere = Blueprint(kind=SessionKind.INTERPRETER, namespace="theirs", name="base")
    key = "k" * 32

    async def main():
        sandboxes = PaperSandboxes([BASE, elsewhere])
        who = Guard({digest_of(key): Principal("carol", "theirs")}, wall=time.time)
        made = Gateway(
            GatewaySettings(drain_s=0.0), store=MemoryStore(), stock=sandboxes, link=sandboxes, guard=who, mint=Mint(PRIVATE_KEY)
        )  # fmt: skip
        await made.start()
        try:
            async with HttpClient() as http:
                client = Client(http, made, sandboxes)
                for namespace, status in (("default", 404), ("theirs", 201)):
                    got, told, _ = await client.ask(
                        "POST", "/hekla/v1/sessions", {"name": "base", "namespace": namespace}, key=key
                    )
                    assert got == status, told
                got, told, _ = await client.ask(
                    "POST", "/v1/code-interpreter", {"name": "base", "namespace": "default"}, key=key
                )
                assert got == 404, told
                got, made_, _ = await client.ask("POST", "/sandboxes", {"templateID": "default/base"}, key=key)
                assert got == 404, made_
        finally:
            await made.stop()

    asyncio.run(main())
