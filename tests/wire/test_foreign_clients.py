import asyncio

import urllib3
from kubernetes import client as official
from kubernetes.stream import portforward, stream

from hekla.wire import channels
from hekla.wire.channels import Channel, ChannelData, PortChannels, PortData
from hekla.wire.messages import AcceptWebSocket, Request, Response
from hekla.wire.websocket import offered_subprotocols
from wire.wirekit import serving


def answer(request: Request) -> Response:
    return Response(200, request.body * int(request.query().get("times", ["1"])[0]), "text/plain")


async def threaded(handler, work) -> None:
    """Serve a blocking client in a thread."""
    async with serving(handler) as server:
        await asyncio.to_thread(work, server)


def test_urllib3_keeps_its_connection_over_every_framing():
    def work(server) -> None:
        url = f"http://127.0.0.1:{server.port}/"
        with urllib3.PoolManager(timeout=10) as pool:
            assert pool.request("POST", url, body=iter([b"ab", b"c"]), chunked=True).data == b"abc"
            packed = pool.request("POST", f"{url}?times=100000", body=b"hello", headers={"accept-encoding": "gzip"})
            assert packed.headers["content-encoding"] == "gzip"
            assert packed.data == b"hello" * 100_000
            assert pool.request("HEAD", url).status == 200
            assert pool.request("PUT", url, headers={"expect": "100-continue"}, body=b"x").data == b"x"
            assert server.connections == 1

    asyncio.run(threaded(answer, work))


async def exec_pod(ws) -> None:
    while (message := await ws.receive()) is not None:
        match channels.decode(message, ws.subprotocol):
            case ChannelData(Channel.STDIN, b"exit\n"):
                break
            case ChannelData(Channel.STDIN, data):
                await ws.send(channels.encode(Channel.STDOUT, data.upper()))
    await ws.send(channels.encode(Channel.ERROR, b'{"metadata":{},"status":"Success"}'))
    await ws.close()


def forward_handler(request: Request) -> AcceptWebSocket:
    ports = PortChannels(int(port) for port in request.query()["ports"][0].split(","))

    async def serve(ws) -> None:
        for greeting in ports.greetings():
            await ws.send(greeting)
        while (message := await ws.receive()) is not None:
            piece = ports.decode(message)
            assert piece is not None
            await ws.send(ports.encode(PortData(piece.port, f"{piece.port}:".encode() + piece.data.upper())))

    return AcceptWebSocket(serve, channels.choose(offered_subprotocols(request)))


def core(server) -> official.CoreV1Api:
    return official.CoreV1Api(official.ApiClient(official.Configuration(host=f"http://127.0.0.1:{server.port}")))


def test_the_official_python_client_runs_commands():
    def work(server) -> None:
        api = core(server)
        options = {"command": ["sh"], "stdin": True, "stdout": True, "stderr": True, "_preload_content": False}
        talk = stream(api.connect_get_namespaced_pod_exec, "x", "default", **options)
        talk.write_stdin("hello\n")
        assert talk.readline_stdout(timeout=10) == "HELLO"
        talk.write_stdin("exit\n")
        talk.run_forever(timeout=10)
        assert talk.returncode == 0

    def handler(request: Request) -> AcceptWebSocket:
        return AcceptWebSocket(exec_pod, channels.choose(offered_subprotocols(request)))

    asyncio.run(threaded(handler, work))


def test_the_official_python_client_forwards_ports():
    def work(server) -> None:
        api = core(server)
        forwarding = portforward(api.connect_get_namespaced_pod_portforward, "x", "default", ports="80,8080")
        for port in (80, 8080):
            socket = forwarding.socket(port)
            socket.settimeout(10)
            socket.sendall(b"ping")
            want, got = f"{port}:PING".encode(), b""
            while len(got) < len(want):
                got += socket.recv(100)
            assert got == want
        forwarding.close()

    asyncio.run(threaded(forward_handler, work))
