"""What a node answers about its pods: logs, commands, attached streams, forwarded ports, proxied requests.

`answer` is for the API server of the same process, which has authenticated and authorized the caller. `handle` is the
same over HTTP with the kubelet's paths, for a bearer of the node's token, or whom `callers.py` finds to be allowed, by a token or by the
certificate that API servers show:

    /containerLogs/<namespace>/<pod>/<container>
    /exec/<namespace>/<pod>/<container>?command=...      /attach/<namespace>/<pod>/<container>
    /portForward/<namespace>/<pod>                        /pods   /healthz
    /sandboxes/<namespace>/<pod>/...                      (`sandbox_endpoint.py`)
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from datetime import datetime

import msgspec
import structlog

from hekla.api.pods import Pod
from hekla.apiserver.auth.pki import subject_of
from hekla.kube.errors import KubeError
from hekla.lib.digits import whole_number
from hekla.node.agent import NodeAgent
from hekla.node.callers import Callers
from hekla.node.pod_proxy import proxy_to
from hekla.node.pod_record import containers_of
from hekla.node.pod_status import waiting_reason
from hekla.node.port_forward import forward_over_channels, forward_over_spdy
from hekla.node.runtimes import ContainerKey, ExecError, ExecSession, LogOptions
from hekla.node.sandbox_endpoint import NODE_TOKEN, SandboxEndpoint
from hekla.node.session_streams import SpdyStreams, Wanted, WebSocketStreams, refuse, serve_session
from hekla.node.tracked import TrackedPod
from hekla.wire.channels import (
    PORT_FORWARD,
    PORT_FORWARD_TUNNEL,
    STREAM_PROTOCOL_HEADER,
    V4,
    PortChannels,
    choose,
    port_number,
)
from hekla.wire.client import HttpClient
from hekla.wire.errors import ProtocolViolationError
from hekla.wire.messages import AcceptWebSocket, Answer, Duplex, Request, Response, SwitchProtocol, WebSocket
from hekla.wire.spdy_session import SpdySession, WebSocketBytes

log = structlog.get_logger(__name__)

Query = dict[str, list[str]]


class RefusalError(Exception):
    """The question cannot be answered: an HTTP status, a reason and a sentence for the person who asked."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def response(self) -> Response:
        """As a Status."""
        status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(self),
            "reason": self.reason, "code": self.code,
        }  # fmt: skip
        return Response(self.code, json.dumps(status).encode())


class NodeEndpoint:
    """The door to the pods of one agent."""

    def __init__(self, agent: NodeAgent, *, token: str = "", callers: Callers | None = None) -> None:
        """Without a token and callers `handle` refuses everybody."""
        self._agent, self._token, self._callers = agent, token, callers
        self._sandboxes = SandboxEndpoint(agent.sandboxes)
        self._client = HttpClient()

    async def close(self) -> None:
        """Release the connections of the proxy."""
        await self._client.close()
        await self._sandboxes.close()

    async def handle(self, request: Request) -> Answer:
        """A wire handler: the kubelet's paths."""
        bearer = request.headers.get(NODE_TOKEN) or request.headers.get("authorization", "").removeprefix("Bearer ")
        try:
            if not await self._may(bearer, request):
                return RefusalError(401, "Unauthorized", "Unauthorized").response()
        except KubeError as error:
            log.warning("a caller could not be looked up, and is refused", why=str(error))
            said = "this node cannot ask the API server now who calls; try again"
            return RefusalError(503, "ServiceUnavailable", said).response()
        if request.path == "/healthz":
            return Response(200, b"ok", "text/plain")
        if request.path.rstrip("/") in ("/pods", "/runningpods"):
            return self._pods()
        if request.target.startswith(("/sandboxes/", "/checkpoints/")):
            return await self._sandboxes.handle(request)
        kind, *names = request.path.strip("/").split("/")
        subresource = {"containerLogs": "log", "exec": "exec", "attach": "attach", "portForward": "portforward"}.get(
            kind
        )
        if subresource is None or len(names) < 2:
            return RefusalError(404, "NotFound", f"there is nothing at {request.path}").response()
        container = names[2] if names[2:] else ""
        try:
            return await self._answer(subresource, names[0], names[1], request, container=container)
        except RefusalError as refusal:
            # API servers put a kubelet's text into a Status of their own
            return Response(refusal.code, str(refusal).encode(), "text/plain")

    async def _may(self, bearer: str, request: Request) -> bool:
        if self._token and hmac.compare_digest(bearer.encode(), self._token.encode()):
            return True
        if self._callers is None:
            return False
        method = "POST" if _acts(request) else request.method
        if request.peer.certificate is not None:
            return await self._callers.may_user(*subject_of(request.peer.certificate), method)
        return await self._callers.may(bearer, method)

    def _pods(self) -> Response:
        """Those that are bound here, as a kubelet lists them."""
        items = [msgspec.to_builtins(each.pod) for each in self._agent.pods]
        return Response(
            200, msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
        )

    async def answer(
        self, subresource: str, namespace: str, name: str, request: Request, *, container: str = "", path: str = ""
    ) -> Answer:
        """One of log, exec, attach, portforward and proxy of a pod; `path` is what follows `proxy/`."""
        try:
            return await self._answer(subresource, namespace, name, request, container=container, path=path)
        except RefusalError as refusal:
            return refusal.response()

    async def _answer(
        self, subresource: str, namespace: str, name: str, request: Request, *, container: str = "", path: str = ""
    ) -> Answer:
        query = request.query()
        if subresource == "proxy":
            pod_name, port = _name_and_port(name)
            tracked = self._find(namespace, pod_name)
            if tracked.is_sandbox:
                wanted = str(port or _first_port(tracked))
                return await self._sandboxes.pass_on(namespace, pod_name, wanted, path, request)
            return await proxy_to(self._client, self._address_of(tracked), port or _first_port(tracked), path, request)
        tracked = self._find(namespace, name)
        if subresource == "portforward":
            return self._port_forward(tracked, request, query)
        wanted_container = container or _first(query, "container") or _default_container(tracked.pod)
        if subresource == "log":
            return await self._log(tracked, wanted_container, query)
        return await self._session(subresource, tracked, wanted_container, request, query)

    async def pass_on(self, host: str, port: int, path: str, request: Request) -> Answer:
        """A request through the API server to a Service's endpoint."""
        return await proxy_to(self._client, host, port, path, request)

    def _find(self, namespace: str, name: str) -> TrackedPod:
        tracked = self._agent.find(namespace, name)
        if tracked is None and self._agent.is_starting:
            said = f'the node of pod "{name}" is being started and has not taken up its pods yet; try again'
            raise RefusalError(503, "ServiceUnavailable", said)
        if tracked is None:
            raise RefusalError(404, "NotFound", f'pod "{name}" of namespace "{namespace}" does not run on this node')
        return tracked

    def _address_of(self, tracked: TrackedPod) -> str:
        if not tracked.record.pod_ip:
            raise RefusalError(503, "ServiceUnavailable", f'pod "{tracked.pod.metadata.name}" has no address yet')
        return tracked.record.pod_ip

    async def _log(self, tracked: TrackedPod, container: str, query: Query) -> Response:
        key = _log_key(tracked, container, is_previous=_flag(query, "previous"))
        lines = tracked.runtime.logs(key, _log_options(query))
        try:
            first = await anext(lines, b"")
        except LookupError as absent:
            raise RefusalError(400, "BadRequest", str(absent)) from None

        async def body() -> AsyncIterator[bytes]:
            if first:
                yield first
            async for piece in lines:
                if piece:
                    yield piece

        return Response(200, body(), "text/plain")

    async def _session(
        self, subresource: str, tracked: TrackedPod, container: str, request: Request, query: Query
    ) -> Answer:
        key = _running_key(tracked, container)
        argv = query.get("command", [])
        if subresource == "exec" and not argv:
            raise RefusalError(400, "BadRequest", "you must specify at least one command for the container")
        # clients say stdin, and API servers say input to kubelets
        wanted = Wanted(
            stdin=_flag(query, "stdin", "input"), stdout=_flag(query, "stdout", "output"),
            stderr=_flag(query, "stderr", "error"), tty=_flag(query, "tty"),
        )  # fmt: skip
        if not (wanted.stdin or wanted.stdout or wanted.stderr):
            raise RefusalError(400, "BadRequest", "you must specify at least 1 of stdin, stdout, stderr")

        async def open_session() -> ExecSession:
            if subresource == "attach":
                return await tracked.runtime.attach(key)
            return await tracked.runtime.exec(key, argv, has_stdin=wanted.stdin, has_tty=wanted.tty)

        async def over_websocket(socket: WebSocket) -> None:
            streams = WebSocketStreams(socket, socket.subprotocol)
            try:
                session = await open_session()
            except ExecError as refusal:
                await refuse(streams, refusal)
                return
            await serve_session(session, streams, wanted)

        async def over_spdy(duplex: Duplex) -> None:
            async with SpdySession(duplex) as connection:
                streams = await SpdyStreams.accept(connection, wanted)
                try:
                    session = await open_session()
                except ExecError as refusal:
                    await refuse(streams, refusal)
                    return
                await serve_session(session, streams, wanted)

        if _is_websocket(request):
            protocol = choose(_words(request, "sec-websocket-protocol"))
            if not protocol:
                raise RefusalError(400, "BadRequest", "the WebSocket offers neither v5 nor v4 of channel.k8s.io")
            return AcceptWebSocket(over_websocket, protocol)
        return SwitchProtocol("SPDY/3.1", over_spdy, ((STREAM_PROTOCOL_HEADER, V4),))

    def _port_forward(self, tracked: TrackedPod, request: Request, query: Query) -> Answer:
        address = self._address_of(tracked)
        key = tracked.key(tracked.pod.spec.containers[0].name)
        dial = tracked.dial(key) if key is not None else None

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if dial is not None:
                return await asyncio.open_connection(sock=await dial(port))
            return await asyncio.open_connection(address, port)

        async def tunnelled(socket: WebSocket) -> None:
            await forward_over_spdy(SpdySession(WebSocketBytes(socket)), connect)

        async def over_spdy(duplex: Duplex) -> None:
            await forward_over_spdy(SpdySession(duplex), connect)

        if not _is_websocket(request):
            return SwitchProtocol("SPDY/3.1", over_spdy, ((STREAM_PROTOCOL_HEADER, PORT_FORWARD),))
        offered = _words(request, "sec-websocket-protocol")
        if PORT_FORWARD_TUNNEL in offered:
            return AcceptWebSocket(tunnelled, PORT_FORWARD_TUNNEL)
        named = (
            query.get("ports") or query.get("port") or []
        )  # as clients say it, and as API servers say it to kubelets
        ports = [port_number(text) for each in named for text in each.split(",")]
        try:
            channels = PortChannels(ports)
        except ProtocolViolationError as problem:
            raise RefusalError(400, "BadRequest", str(problem)) from None

        async def over_channels(socket: WebSocket) -> None:
            await forward_over_channels(socket, channels, ports, connect)

        protocol = next((name for name in ("v4.channel.k8s.io", "channel.k8s.io") if name in offered), "")
        return AcceptWebSocket(over_channels, protocol)


def _acts(request: Request) -> bool:
    """Whether a request does something inside a pod whatever its method is: WebSockets begin with a GET, and servers of sandboxes take any."""
    kind = request.path.strip("/").partition("/")[0]
    inside = request.target.partition("?")[0].lstrip("/").split("/")[3:4]
    return kind in ("exec", "attach", "portForward") or inside == ["ports"] or "upgrade" in request.headers


def _log_key(tracked: TrackedPod, container: str, *, is_previous: bool) -> ContainerKey:
    pod = tracked.pod
    if container not in containers_of(pod):
        raise RefusalError(400, "BadRequest", f"container {container} is not valid for pod {pod.metadata.name}")
    known = tracked.record.container(container)
    # while the next attempt waits, the latest is what `kubectl` calls the previous one too
    attempts = known.attempts - (is_previous and not known.is_backing_off)
    if attempts < 1 and is_previous:
        message = f'previous terminated container "{container}" in pod "{pod.metadata.name}" not found'
        raise RefusalError(400, "BadRequest", message)
    if attempts < 1:
        why = waiting_reason(pod, tracked.record, container)
        message = f'container "{container}" in pod "{pod.metadata.name}" is waiting to start: {why}'
        raise RefusalError(400, "BadRequest", message)
    return ContainerKey(tracked.uid, container, attempts - 1)


def _running_key(tracked: TrackedPod, container: str) -> ContainerKey:
    pod = tracked.pod
    if container not in containers_of(pod):
        raise RefusalError(400, "BadRequest", f"container {container} is not valid for pod {pod.metadata.name}")
    key = tracked.key(container)
    if key is None or not tracked.record.container(container).is_live:
        phase = pod.status.phase
        if phase in ("Succeeded", "Failed"):
            raise RefusalError(
                500, "InternalError", f"cannot exec into a container in a completed pod; current phase is {phase}"
            )
        raise RefusalError(500, "InternalError", f'unable to upgrade connection: container not found ("{container}")')
    return key


def _default_container(pod: Pod) -> str:
    annotated = pod.metadata.annotations.get("kubectl.kubernetes.io/default-container", "")
    names = [each.name for each in pod.spec.containers]
    if annotated in names:
        return annotated
    if len(names) == 1:
        return names[0]
    choices = f"choose one of: [{' '.join(names)}]"
    if pod.spec.init_containers:
        choices += f" or one of the init containers: [{' '.join(each.name for each in pod.spec.init_containers)}]"
    raise RefusalError(400, "BadRequest", f"a container name must be specified for pod {pod.metadata.name}, {choices}")


def _log_options(query: Query) -> LogOptions:
    since: float | None = None
    if text := _first(query, "sinceTime"):
        try:
            since = datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise RefusalError(
                400, "BadRequest", f'sinceTime is "{text}"; write it like 2026-01-02T15:04:05Z'
            ) from None
    elif seconds := _number(query, "sinceSeconds"):
        since = datetime.now().astimezone().timestamp() - seconds
    return LogOptions(
        follow=_flag(query, "follow"),
        timestamps=_flag(query, "timestamps"),
        tail_lines=_number(query, "tailLines"),
        since=since,
        limit_bytes=_number(query, "limitBytes"),
        stream={"Stdout": "stdout", "Stderr": "stderr"}.get(_first(query, "stream"), ""),
    )


def _number(query: Query, name: str) -> int | None:
    text = _first(query, name)
    if not text:
        return None
    number = whole_number(text)
    if number is None:
        raise RefusalError(400, "BadRequest", f'{name} is "{text[:60]}"; write a whole number, not negative')
    return number


def _first(query: Query, name: str) -> str:
    return query.get(name, [""])[0]


def _flag(query: Query, *names: str) -> bool:
    return any(_first(query, name).lower() in ("1", "true", "t") for name in names)


def _words(request: Request, header: str) -> list[str]:
    return [word.strip() for word in request.headers.get(header, "").split(",")]


def _is_websocket(request: Request) -> bool:
    return request.headers.get("upgrade", "").lower() == "websocket"


def _name_and_port(text: str) -> tuple[str, int]:
    """`web`, `web:8080` or `http:web:8080`."""
    parts = text.split(":")
    if len(parts) == 3:
        parts = parts[1:]
    return parts[0], (whole_number(parts[1]) or 0) if len(parts) > 1 else 0


def _first_port(tracked: TrackedPod) -> int:
    ports = [port.container_port for each in tracked.pod.spec.containers for port in each.ports]
    return ports[0] if ports else 80
