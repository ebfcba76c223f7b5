import asyncio
import json
import os
import shutil

import pytest

from hekla.wire import channels
from hekla.wire.channels import Channel, ChannelClosed, ChannelData
from hekla.wire.messages import AcceptWebSocket, Request, Response, SwitchProtocol
from hekla.wire.spdy_session import SpdySession, WebSocketBytes
from hekla.wire.websocket import is_upgrade, offered_subprotocols
from wire.wirekit import serving

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "x", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]},
    "status": {"phase": "Running"},
}
SUCCESS = b'{"metadata":{},"status":"Success"}'


def status_of(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    status = {"status": "Failure", "reason": "NonZeroExitCode", "message": "exit", "details": {"causes": causes}}
    return json.dumps(status).encode()


async def exec_on_channels(ws) -> None:
    """What a node will do for `cat; exit 3`: echo the input in upper case until it ends."""
    while (message := await ws.receive()) is not None:
        match channels.decode(message, ws.subprotocol):
            case ChannelData(Channel.STDIN, data):
                await ws.send(channels.encode(Channel.STDOUT, data.upper()))
            case ChannelClosed(Channel.STDIN):
                break
    await ws.send(channels.encode(Channel.STDERR, b"to stderr\n"))
    await ws.send(channels.encode(Channel.ERROR, status_of(3)))
    await ws.close()


async def exec_on_spdy(duplex) -> None:
    async with SpdySession(duplex) as session:
        streams = {}
        while len(streams) < 4:
            stream = await session.accept()
            assert stream is not None
            streams[stream.headers["streamtype"]] = stream
        while data := await streams["stdin"].receive():
            await streams["stdout"].send(data.upper())
        await streams["stderr"].send(b"to stderr\n")
        await streams["stdout"].close()
        await streams["stderr"].close()
        await streams["error"].send(status_of(3))
        await streams["error"].close()
        await session.accept()


async def forward(carrier) -> None:
    """Answers one request per data stream, as an HTTP server in the pod would."""

    async def answer(stream) -> None:
        if stream.headers["streamtype"] == "error":
            await stream.close()
            return
        await stream.receive()
        body = f"port {stream.headers['port']}".encode()
        await stream.send(b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body) + b"")
        await stream.close()

    async with SpdySession(carrier) as session, asyncio.TaskGroup() as tasks:
        while (stream := await session.accept()) is not None:
            tasks.create_task(answer(stream))


def api(request: Request):
    path = request.path
    if path.endswith("/exec") and is_upgrade(request):
        return AcceptWebSocket(exec_on_channels, channels.choose(offered_subprotocols(request)))
    if path.endswith("/exec"):
        agreed = [(channels.STREAM_PROTOCOL_HEADER, channels.V4)]
        return SwitchProtocol("SPDY/3.1", exec_on_spdy, agreed)
    if path.endswith("/portforward") and is_upgrade(request):
        return AcceptWebSocket(lambda ws: forward(WebSocketBytes(ws)), channels.PORT_FORWARD_TUNNEL)
    if path.endswith("/portforward"):
        agreed = [(channels.STREAM_PROTOCOL_HEADER, channels.PORT_FORWARD)]
        return SwitchProtocol("SPDY/3.1", forward, agreed)
    if path.endswith("/pods/x"):
        return Response(200, json.dumps(POD).encode())
    if path == "/api":
        return Response(200, b'{"kind":"APIVersions","versions":["v1"]}')
    if path == "/apis":
        return Response(200, b'{"kind":"APIGroupList","apiVersion":"v1","groups":[]}')
    if path == "/api/v1":
        pods = {"name": "pods", "namespaced": True, "kind": "Pod", "verbs": ["get"]}
        return Response(
            200, json.dumps({"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]}).encode()
        )
    return Response(404, b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}')


def noting(upgrades: list):
    def handler(request: Request):
        if "upgrade" in request.headers:
            upgrades.append(request.headers["upgrade"])
        return api(request)

    return handler


async def kubectl(server, home, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *("kubectl", "--server", f"http://127.0.0.1:{server.port}", *arguments),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, "HOME": str(home), "KUBECONFIG": str(home / "none"), **environment},
    )


@pytest.mark.parametrize("websockets", ["true", "false"])
def test_kubectl_exec_carries_input_output_and_the_exit_code(websockets, tmp_path):
    async def run():
        text = b"hello " * 100_000
        async with serving(noting(upgrades := [])) as server:
            environment = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websockets}
            process = await kubectl(server, tmp_path, "exec", "-i", "x", "--", "cat", **environment)
            out, err = await process.communicate(text)
            assert out == text.upper(), err
            assert b"to stderr\n" in err
            assert process.returncode == 3
            assert upgrades == ["websocket" if websockets == "true" else "SPDY/3.1"]

    asyncio.run(run())


@pytest.mark.parametrize("websockets", ["true", "false"])
def test_kubectl_port_forward_carries_connections(websockets, tmp_path):
    async def run():
        async with serving(noting(upgrades := [])) as server:
            environment = {"KUBECTL_PORT_FORWARD_WEBSOCKETS": websockets}
            process = await kubectl(server, tmp_path, "port-forward", "pod/x", ":80", **environment)
            try:
                line = (await process.stdout.readline()).decode()
                assert "Forwarding from 127.0.0.1:" in line, await process.stderr.read()
                port = int(line.split("127.0.0.1:")[1].split()[0])
                for _ in range(3):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"GET / HTTP/1.0\r\n\r\n")
                    assert (await reader.read()).endswith(b"port 80")
                    writer.close()
                assert upgrades == ["websocket" if websockets == "true" else "SPDY/3.1"]
            finally:
                process.kill()
                await process.wait()

    asyncio.run(run())
