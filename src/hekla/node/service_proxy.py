"""Makes cluster addresses of Services answer on this machine: a TCP relay that shares connections among endpoints.

Cluster addresses are loopback addresses (`addresses.SERVICE_NETWORK`), so pods and the host reach them alike, and
nobody else does. UDP ports are not relayed. `service_routes.py` decides who leads where.
"""

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping

import structlog

from hekla.api.core import Service
from hekla.api.discovery import EndpointSlice
from hekla.kube.commands import Event, target_of
from hekla.kube.informer import Informers
from hekla.node.service_routes import Listen, Route, backends_for, routes_of

log = structlog.get_logger()

CHUNK = 64 * 1024
CONNECT_TIMEOUT_S = 5.0
PAUSE_S = 0.02
RETRY_S = 5.0
"""How long after a failure to listen (the port is taken) it is tried again."""

FIRST_FREE_PORT = 1024
LOW_PORT_ADVICE = "an ordinary user may not take a port below 1024; give the Service a higher port"

MAX_CONNECTIONS = 4096
MAX_REMEMBERED_CLIENTS = 4096


class ServiceProxy:
    """Listens for every Service and follows its endpoints."""

    def __init__(self, informers: Informers, record: Callable[[Event], None] = lambda event: None) -> None:
        self._record = record
        self._services = informers.of(Service)
        self._slices = informers.of(EndpointSlice)
        self._changed = asyncio.Event()
        self._relays: dict[Listen, _Relay] = {}
        self._failed: dict[Listen, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow Services."""
        await self._services.synced()
        await self._slices.synced()
        self._services.add_handler(lambda old, new: self._changed.set())
        self._slices.add_handler(lambda old, new: self._changed.set())
        self._changed.set()
        self._task = asyncio.create_task(self._run(), name="service proxy")

    async def close(self) -> None:
        """Stop listening and cut what runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for relay in self._relays.values():
            await relay.close()
        self._relays.clear()

    def backends(self, namespace: str, name: str, port: str) -> tuple[tuple[str, int], ...] | None:
        """The endpoints that a request through the API server may be passed on to; None if there is no such Service."""
        service = self._services.cache.get(namespace, name)
        return None if service is None else backends_for(service, self._slices.cache.list(namespace), port)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._failed else None):
                    await self._changed.wait()
            await asyncio.sleep(PAUSE_S)
            self._changed.clear()
            try:
                await self._follow(routes_of(self._services.cache, self._slices.cache))
            except Exception:  # a task boundary: one Service's trouble must not cut off all that come after it
                log.exception("services not followed")

    async def _follow(self, routes: Mapping[Listen, Route]) -> None:
        for listen in self._relays.keys() - routes.keys():
            await self._relays.pop(listen).close()
        self._failed = {listen: why for listen, why in self._failed.items() if listen in routes}
        for listen, route in routes.items():
            relay = self._relays.get(listen)
            if relay is not None:
                relay.route = route
                continue
            relay = _Relay(route)
            try:
                await relay.open(listen)
            except OSError as problem:
                self._tell_once(listen, route, os.strerror(problem.errno) if problem.errno else str(problem))
                continue
            self._failed.pop(listen, None)
            self._relays[listen] = relay

    def _tell_once(self, listen: Listen, route: Route, why: str) -> None:
        if self._failed.get(listen) != why:
            log.warning("service not reachable", service=route.service, host=listen.host, port=listen.port, why=why)
            service = self._services.cache.get(*route.service.split("/", 1))
            if service is not None:
                advice = f"; {LOW_PORT_ADVICE}" if listen.port < FIRST_FREE_PORT and "ermission" in why else ""
                message = f"nothing answers at {listen.host}:{listen.port}: {why}{advice}"
                self._record(Event(target_of(service), "FailedToListen", message, "Warning"))
        self._failed[listen] = why


class _Relay:
    """One listening socket and its connections."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._kept: OrderedDict[str, tuple[str, int]] = OrderedDict()

    async def open(self, listen: Listen) -> None:
        self._server = await asyncio.start_server(self._accepted, listen.host, listen.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._running) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._running.add(task)
        try:
            await self._relay(reader, writer)
        except OSError:
            pass  # one end has gone; the other is closed below
        finally:
            self._running.discard(task)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = writer.get_extra_info("peername")[0]
        connected = await self._connect(client)
        if connected is None:
            writer.transport.abort()  # no endpoint: the client sees a refusal, as with Kubernetes
            return
        back_reader, back_writer = connected
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, back_writer))
                group.create_task(_copy(back_reader, writer))
        except* OSError:
            pass  # reset by either end
        finally:
            back_writer.close()

    async def _connect(self, client: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The next endpoint that answers; each is tried once."""
        for backend in self._order(client):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    connected = await asyncio.open_connection(*backend)
            except (OSError, TimeoutError):
                continue
            if self.route.stays_with_client:
                self._kept[client] = backend
                if len(self._kept) > MAX_REMEMBERED_CLIENTS:
                    self._kept.popitem(last=False)
            return connected
        return None

    def _order(self, client: str) -> list[tuple[str, int]]:
        backends = list(self.route.backends)
        if not backends:
            return []
        self._turn = (self._turn + 1) % len(backends)
        order = backends[self._turn :] + backends[: self._turn]
        kept = self._kept.get(client)
        if self.route.stays_with_client and kept in order:
            order.sort(key=lambda each: each != kept)
        return order


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
