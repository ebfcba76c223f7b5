"""An API server in memory for tests of clients and controllers, in this process or behind a socket.

async with api_server() as server:
    client = ApiClient(InProcessTransport(server.handle))
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hekla.api.meta import Resource
from hekla.apiserver.admission import AdmissionRule
from hekla.apiserver.memory_store import MemoryStore
from hekla.apiserver.server import ApiServer
from hekla.apiserver.store import Store
from hekla.apiserver.strategies import builtin_strategies
from hekla.kube.api_client import ApiClient
from hekla.kube.https import HttpsTransport
from hekla.kube.in_process import InProcessTransport
from hekla.testing.definitions import define
from hekla.wire.server import Server


@asynccontextmanager
async def api_server(
    store: Store | None = None,
    *,
    rules: Sequence[AdmissionRule] = (),
    kinds: Iterable[type[Resource]] = (),
    **settings: Any,
) -> AsyncIterator[ApiServer]:
    """A server with all built-in kinds and some of ours; in memory unless a store is given."""
    own = None if store is not None else MemoryStore()
    used: Store = store or own  # type: ignore[assignment]  # one of them is a store
    server = ApiServer(used, strategies=list(builtin_strategies().values()), rules=rules, **settings)
    await define(used, kinds)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        if own is not None:
            await own.close()


@asynccontextmanager
async def in_process_client(server: ApiServer, user: str = "") -> AsyncIterator[ApiClient]:
    """A client without sockets."""
    client = ApiClient(InProcessTransport(server.handle, user))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def http_client(server: ApiServer) -> AsyncIterator[ApiClient]:
    """A client over HTTP on a loopback port."""
    wire = Server()
    await wire.start(server.handle, host="127.0.0.1", port=0)
    client = ApiClient(HttpsTransport(f"http://127.0.0.1:{wire.port}"))
    try:
        yield client
    finally:
        await client.close()
        await wire.stop()
