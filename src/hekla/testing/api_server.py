"""An API server for tests: in the test's own event loop (`ApiCaller`), or on a port in a thread (`LiveApiServer`)."""

import asyncio
import json
import threading
from collections.abc import Iterable, Sequence
from inspect import isawaitable
from types import TracebackType
from typing import Any

from hekla.api.meta import Document, Resource
from hekla.apiserver.admission import AdmissionRule
from hekla.apiserver.admission_rules.limit_ranger import LimitRanger
from hekla.apiserver.admission_rules.namespace_lifecycle import NamespaceLifecycle
from hekla.apiserver.admission_rules.node_taints import TaintNewNodes
from hekla.apiserver.admission_rules.pod_defaults import (
    DefaultTolerationSeconds,
    PriorityRule,
    RuntimeClassRule,
    ServiceAccountRule,
)
from hekla.apiserver.admission_rules.resource_quota import ResourceQuotaRule
from hekla.apiserver.admission_rules.storage_defaults import DefaultStorageClass
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.server import ApiServer
from hekla.apiserver.store import Store
from hekla.apiserver.strategies import builtin_strategies
from hekla.testing.definitions import define
from hekla.wire.messages import Push, Request, Response
from hekla.wire.server import Server

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

RULES: tuple[AdmissionRule, ...] = (NamespaceLifecycle(),)
"""What a test needs that does not ask about admission."""

KUBERNETES_RULES: tuple[AdmissionRule, ...] = (
    NamespaceLifecycle(),
    ServiceAccountRule(),
    TaintNewNodes(),
    PriorityRule(),
    DefaultTolerationSeconds(),
    RuntimeClassRule(),
    LimitRanger(),
    DefaultStorageClass(),
    ResourceQuotaRule(),
)
"""What a Kubernetes cluster has switched on."""


def api_server(store: Store | None = None, **settings: Any) -> ApiServer:
    """A server with every built-in kind, not started."""
    settings.setdefault("rules", RULES)
    return ApiServer(store or MemoryStore(), strategies=builtin_strategies().values(), **settings)


class CollectingSink:
    """Where a watch writes in a test."""

    def __init__(self) -> None:
        self.data = b""
        self.is_closed = False
        self._callbacks: list[Any] = []

    @property
    def buffered(self) -> int:
        """A reader that is never slow."""
        return 0

    def write(self, data: bytes) -> None:
        """Keep the bytes."""
        self.data += data

    def close(self) -> None:
        """The response has ended."""
        self.is_closed = True
        for callback in self._callbacks:
            callback()

    def abort(self) -> None:
        """The same as `close`, for a test."""
        self.close()

    def on_close(self, callback: Any) -> None:
        """Call back at the end."""
        self._callbacks.append(callback)

    @property
    def events(self) -> list[tuple[str, Document]]:
        """(type, object) of every event so far."""
        return [(said["type"], said["object"]) for said in map(json.loads, self.data.splitlines())]


class ApiCaller:
    """Calls a server without sockets: `async with ApiCaller() as api: await api.post(path, document)`."""

    def __init__(self, server: ApiServer | None = None) -> None:
        self.server = server or api_server()

    async def __aenter__(self) -> "ApiCaller":
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop()

    async def response(self, method: str, target: str, body: bytes = b"", **headers: str) -> Response:
        """One request, its whole response."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(method, target, {"accept": JSON, "user-agent": "test/1", **names}, body)
        answer = self.server.handle(request)
        found = await answer if isawaitable(answer) else answer
        assert isinstance(found, Response)
        return found

    async def call(self, method: str, target: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """One request: (status, document)."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.setdefault("content_type", JSON)
        found = await self.response(method, target, data, **headers)
        assert isinstance(found.body, bytes)
        is_json = found.content_type.startswith(JSON)
        return found.status, json.loads(found.body) if is_json else found.body.decode()

    async def get(self, target: str, **headers: str) -> tuple[int, Any]:
        """GET."""
        return await self.call("GET", target, **headers)

    async def post(self, target: str, body: Any, **headers: str) -> tuple[int, Any]:
        """POST."""
        return await self.call("POST", target, body, **headers)

    async def put(self, target: str, body: Any, **headers: str) -> tuple[int, Any]:
        """PUT."""
        return await self.call("PUT", target, body, **headers)

    async def patch(self, target: str, body: Any, kind: str = MERGE) -> tuple[int, Any]:
        """PATCH."""
        return await self.call("PATCH", target, body, content_type=kind)

    async def delete(self, target: str, body: Any = None) -> tuple[int, Any]:
        """DELETE."""
        return await self.call("DELETE", target, body)

    async def watch(self, target: str) -> CollectingSink:
        """Start a watch; what it sees is collected in the sink."""
        found = await self.response("GET", target)
        assert callable(found.body), found.body
        push: Push = found.body
        sink = CollectingSink()
        push(sink)
        return sink


class LiveApiServer:
    """A server on a loopback port, in a thread of its own, for clients that are programs."""

    def __init__(
        self, rules: Sequence[AdmissionRule] = RULES, *, kinds: Iterable[type[Resource]] = (), **settings: Any
    ) -> None:
        self._rules, self._kinds, self._settings = rules, kinds, settings
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._failure: Exception | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "LiveApiServer":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(100), "the server's thread did not come to listen in 100 s"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # the boundary of this thread: the test's own thread raises it
            self._failure = error
            self._ready.set()
            raise

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        api, wire = api_server(rules=self._rules, **self._settings), Server()
        await define(api.backend.store, self._kinds)
        await api.start()
        await wire.start(api.handle)
        self.port = wire.port
        self._ready.set()
        await self._end.wait()
        await api.stop()
        await wire.stop(grace_s=1)
