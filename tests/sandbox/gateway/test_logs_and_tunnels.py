"""What clients see of a sandbox that is no answer to a request: its log in E2B's API, and WebSockets to servers inside by real clients."""

import asyncio
import contextlib
import json
import time

import pytest

from hekla.sandbox.gateway import logs
from hekla.sandbox.link import Way
from hekla.testing.paper_sandboxes import PaperSandboxes
from hekla.testing.sandboxes import KEY, OTHER_KEY
from sandbox.gateway.test_gateway import opened, run

aiohttp = pytest.importorskip("aiohttp")
web = pytest.importorskip("aiohttp.web")


async def command(client, session, script):
    asked = json.dumps({"command": ["sh", "-c", script]}).encode()
    status, told, _ = await client.ask("POST", f"/hekla/v1/sessions/{session}/daemon/api/execute", asked)
    assert status == 200, told
    return told


def test_the_log_of_a_sandbox_has_what_its_container_and_its_commands_said():
    async def scenario(client):
        session = await client.session()
        row = await client.gateway.desk.find(session)
        client.sandboxes.written[row.pod] = "2026-11-23T10:00:00.123456789Z the agent begins\nno time here\n"
        await command(client, session, "echo out; echo err >&2; exit 3")
        status, told, _ = await client.ask("GET", f"/v2/sandboxes/{session}/logs")
        assert status == 200, told
        lines = told["logs"]
        assert (lines[0]["message"], lines[0]["timestamp"]) == ("the agent begins", "2026-11-23T10:00:00.123Z")
        said = {one["message"]: one for one in lines}
        assert (said["out"]["level"], said["err"]["level"]) == ("info", "error")
        assert said["sh ended"]["fields"]["exit_code"] == "3"
        assert "no time here" not in said
        assert "exit 3" not in json.dumps(told), "arguments may be secrets"
        status, old, _ = await client.ask("GET", f"/sandboxes/{session}/logs")
        assert [one["line"] for one in old["logs"]] == [one["message"] for one in old["logEntries"]]
        status, last, _ = await client.ask("GET", f"/v2/sandboxes/{session}/logs?direction=backward&limit=1")
        assert [one["message"] for one in last["logs"]] == [lines[-1]["message"]]
        after = int(time.time() * 1000) + 1
        status, none, _ = await client.ask("GET", f"/v2/sandboxes/{session}/logs?cursor={after}")
        assert (status, none["logs"]) == (200, [])
        for path, key, wanted in (
            (f"/v2/sandboxes/{session}/logs", OTHER_KEY, 404),
            (f"/v2/sandboxes/{session}/logs?cursor=soon", KEY, 400),
            (f"/v2/sandboxes/{session}/logs?limit=0", KEY, 400),
        ):
            assert (await client.ask("GET", path, key=key))[0] == wanted, path
        await client.gateway.desk.freeze(session)
        status, told, _ = await client.ask("GET", f"/v2/sandboxes/{session}/logs")
        assert [one["message"] for one in told["logs"]] == ["the agent begins"]
        assert (await client.gateway.desk.find(session)).state == "frozen", "nobody is woken for a log"

    run(scenario)


@pytest.mark.slow
def test_a_log_is_bounded_whatever_is_written():
    async def scenario(client):
        session = await client.session()
        await command(client, session, "yes 0123456789 | head -c 5000000; echo; echo the last")
        status, told, _ = await client.ask("GET", f"/v2/sandboxes/{session}/logs?limit=1000")
        assert status == 200
        assert len(told["logs"]) <= 1000
        assert any(one["message"] == "the last" for one in told["logs"])

    run(scenario)


def test_on_paper_a_log_is_what_the_container_wrote():
    async def scenario(client):
        session = await client.session()
        status, told, _ = await client.ask("GET", f"/sandboxes/{session}/logs")
        assert (status, told) == (200, {"logs": [], "logEntries": []})

    run(scenario, sandboxes=PaperSandboxes())


class AgentsOwn(PaperSandboxes):
    """An agent's own server where the daemon would be: it says what it likes, or nothing."""

    def __init__(self, says):
        super().__init__()
        self._says, self._listening, self.ended = says, [], asyncio.Event()

    def way(self, namespace, pod, port):
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            if self._says is not None:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(self._says), self._says))
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            self.ended.set()

        async def connect(make):
            listening = await asyncio.start_server(serve, "127.0.0.1", 0)
            self._listening.append(listening)
            await asyncio.get_running_loop().create_connection(make, *listening.sockets[0].getsockname())

        return Way(connect)

    async def close(self):
        for listening in self._listening:
            listening.close()
        await super().close()


@pytest.mark.parametrize(
    "says",
    [
        None,
        b'[{"at": 1, "level": "info", "message": "\xff", "fields": {}}]',
        b'[{"at": 1, "x": ' + b"[" * 100_000,
        b'[{"at": 1e300, "level": "info", "message": "late", "fields": {}}]',
        b'[{"at": -1e300, "level": "info", "message": "early", "fields": {}}]',
        b'{"at": "soon"}',
    ],
    ids=["nothing", "no text", "brackets without end", "a time that is none", "a time before any", "something else"],
)
def test_what_an_agents_own_server_says_of_its_journal_spoils_no_log(monkeypatch, says):
    """It was a 500, or for ever no answer at all."""
    monkeypatch.setattr(logs, "PATIENCE_S", 0.5 if says is None else 30.0)

    async def scenario(client):
        session = await client.session()
        row = await client.gateway.desk.find(session)
        client.sandboxes.written[row.pod] = "2026-11-23T10:00:00.123456789Z the agent begins\n"
        status, told, _ = await client.ask("GET", f"/v2/sandboxes/{session}/logs")
        assert status == 200, told
        assert [one["message"] for one in told["logs"]] == ["the agent begins"]
        if says is None:
            async with asyncio.timeout(30):
                await client.sandboxes.ended.wait()  # nobody waits for it any more

    run(scenario, sandboxes=AgentsOwn(says))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["preview host", "headers", "hekla"])
def test_websockets_reach_a_server_inside_by_every_way(way):
    async def echo(request):
        socket = web.WebSocketResponse(protocols=("chat",), max_msg_size=1 << 22)
        await socket.prepare(request)
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(f"{request.path_qs} {message.data.upper()}")
            else:
                await socket.send_bytes(message.data[::-1])
        return socket

    async def scenario():
        server = web.Application()
        server.router.add_get("/{path:.*}", echo)
        runner = web.AppRunner(server)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            async with opened() as client, aiohttp.ClientSession(trust_env=False) as browser:
                session = await client.session()
                url, headers = f"{client.url}/chat?room=1", {"host": f"{port}-{session}.sandboxes.test"}
                if way == "headers":
                    headers = {"e2b-sandbox-id": session, "e2b-sandbox-port": str(port)}
                elif way == "hekla":
                    url = f"{client.url}/hekla/v1/sessions/{session}/ports/{port}/chat?room=1"
                    headers = {"authorization": f"Bearer {KEY}"}
                async with (
                    asyncio.timeout(30),
                    browser.ws_connect(url, headers=headers, protocols=("chat",), max_msg_size=1 << 22) as socket,
                ):
                    assert socket.protocol == "chat"
                    await socket.send_str("hello")
                    assert await socket.receive_str() == "/chat?room=1 HELLO"
                    large = bytes(range(256)) * 4096
                    await socket.send_bytes(large)
                    assert await socket.receive_bytes() == large[::-1]
                    await socket.ping()
                    await client.gateway.desk.end(session)
                    assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        finally:
            await runner.cleanup()

    asyncio.run(scenario())
