"""One router: discovers engines, listens for clients, keeps its books, and drains when it is told to go.

    async with Router(settings, informers) as router:
        await router.run()

Everything that runs beside the requests (scraping, feeds of KV events, replicas, queues, the books) has a boundary of its
own: what breaks is told and begun anew, and requests go on. The table of routes stands in `world.py`.
"""

import asyncio
import os
import random
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from hekla.api.kthena import AutoscalingPolicy, ModelServing
from hekla.edge.bearer import Expected
from hekla.edge.shared_buckets import AbsentBuckets, SharedBuckets, place_of
from hekla.kube.errors import hint_of
from hekla.kube.informer import Informers
from hekla.serving.router.access_log import AccessLog
from hekla.serving.router.annotations import ENGINE_TOKENIZES
from hekla.serving.router.authentication import ApiKeyError, read_api_keys
from hekla.serving.router.backends import Backend, bounded_by
from hekla.serving.router.beginning import LOOK_S as BEGINNING_LOOK_S
from hekla.serving.router.beginning import Beginning
from hekla.serving.router.cache_events import CacheEvents
from hekla.serving.router.certificates import Certificates
from hekla.serving.router.configuration import ConfigurationError, Configured
from hekla.serving.router.director import Director
from hekla.serving.router.discovery import Discovery
from hekla.serving.router.documents import Documents
from hekla.serving.router.doors import Doors, DoorSettings, lasting
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.exchange import Exchange
from hekla.serving.router.foretelling import foretell
from hekla.serving.router.gateway import GatewayDesk
from hekla.serving.router.gateway_ports import GatewayPorts
from hekla.serving.router.holding import Holding
from hekla.serving.router.house import House
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.kernel.upgrading import Upgrading
from hekla.serving.router.lane.lane import Lane
from hekla.serving.router.lane.opening import opened
from hekla.serving.router.lane.ways import Ways
from hekla.serving.router.lots import joined
from hekla.serving.router.metrics import Labels, Metrics
from hekla.serving.router.misdirected import OneListener
from hekla.serving.router.plan import Desk, Refusal
from hekla.serving.router.plugin_times import PluginTimes, timed
from hekla.serving.router.pool import Pool
from hekla.serving.router.prefix.tally import lines_of
from hekla.serving.router.proxy.clients import Front
from hekla.serving.router.proxy.engines import Pools
from hekla.serving.router.proxy.listener import Listener
from hekla.serving.router.reception import Reception
from hekla.serving.router.recorded_caches import RecordedCaches, records_at
from hekla.serving.router.replication import Replication
from hekla.serving.router.scraping import SCRAPE_LIMITS, Scraper
from hekla.serving.router.settings import RouterSettings, part_of_bounds
from hekla.serving.router.telemetry import Tracing
from hekla.serving.router.tokenizing import TOKENIZE_LIMITS, Tokenizing
from hekla.serving.router.upkeep import Upkeep
from hekla.serving.router.waking import Waking
from hekla.serving.router.world import World
from hekla.wire.client import HttpClient
from hekla.wire.limits import ClientLimits
from hekla.wire.messages import Request
from hekla.wire.server import Server

log = structlog.get_logger(__name__)

MATCH_RATIO = "kthena_router_prefix_cache_match_ratio"
BOOKS_S = 0.1
"""How often requests that are over are counted and logged."""
BOOKS_AT_ONCE = 256
"""Requests: where more are over in that time, books are kept more often, as no request goes on meanwhile."""
SHORTEST_BOOKS_S = 0.01
CONFIGURATION_S = 2.0
"""How often the configuration file is looked at: a ConfigMap reaches a pod within a minute anyway."""

PASSWORD_OF_NONE = (
    "REDIS_PASSWORD is shown to the server of REDIS_HOST and REDIS_PORT alone, and REDIS_HOST is not set; "
    "set it to the host that the route names if that server is yours"
)


class Router:
    """One router process' worth of routing."""

    def __init__(self, settings: RouterSettings, informers: Informers) -> None:
        """Raises ConfigurationError or ApiKeyError for what it was told and cannot use."""
        bounds = part_of_bounds(settings.bounds, settings.siblings)
        self.settings = settings = replace(settings, bounds=bounds)
        loop = asyncio.get_running_loop()
        self._now = loop.time
        dice = random.Random(secrets.randbits(64)).random
        self.configured = Configured(_text_of(settings.configuration_file), settings.configuration_file)
        self.fleet = Fleet()
        self.plugin_times = PluginTimes(time.perf_counter)
        self.replication = Replication(settings, self._now)
        self.upgrading = Upgrading(lambda: self.world.pools())
        self.world = World(
            self.fleet,
            lambda name: self.upgrading.joined(
                self.replication.joined(self._timed(self.configured.current.recipe.pool(name, self.fleet, dice)))
            ),
        )
        self.director = Director(self.world, dice)
        self.discovery = Discovery(
            informers, self.world, namespace=settings.namespace, with_gateways=settings.with_gateways
        )
        self._keys_said = _bytes_of(settings.api_keys_file)
        self._configuration_said = _bytes_of(settings.configuration_file)
        self._is_password_told = False
        self.doors = Doors(
            self._door_settings(), self.world, now=self._now, wall=time.time, connect=self._connect_buckets
        )
        self.replication.share(self.world, self.doors.limits, self.doors.lines)
        self.pools = Pools(settings.bounds, settings.engine_ca_file)
        self.beginning = Beginning(
            lambda: self._unknown, lambda: self.discovery.is_blind, self._now, lambda: self.discovery.refused
        )
        self._guards = self.doors.guards_with(self.beginning)
        self.house = House(self.director, self.pools, settings.bounds, guards=self._guards, clock=self._now)
        self.house.doorkeeper = self.doors.authentication
        if settings.traces is not None:
            self.house.tracing = Tracing(settings.traces, HttpClient())
        self.metrics = self._all_metrics()
        self._access_log = (
            AccessLog(settings.access_log_format, settings.access_log_output) if settings.access_log_enabled else None
        )
        self.documents = Documents(
            self.world,
            self.house,
            self.metrics,
            known=self.discovery.known,
            trouble=lambda: self.trouble,
            foretell=self._foretell,
        )
        self._answered = self.documents.for_clients(with_metrics=settings.expose_metrics_on_router_port)
        self.listener = self._listener(self.house)
        self.lane: Lane | None = None
        self.upgrading.on_kernel = self.open_lane
        self.upkeep = Upkeep(informers.client, self.world, wall=lambda: datetime.now(UTC))
        self.gateway_ports = GatewayPorts(
            self.world, dice, self._listener_of, host=settings.host, own_ports=lambda: {self.port}, now=self._now
        )
        self._dice = dice
        self.scraper = Scraper(
            lambda: self.fleet.by_name.values(),
            lambda: any(route.source.spec.lora_adapters for route in self.world.routes.by_key.values()),
            interval_s=settings.scrape_interval_s,
            now=self._now,
            make_client=partial(self._client, SCRAPE_LIMITS),
        )
        self.cache_events = CacheEvents(self.world)
        self.tokenizing = Tokenizing(partial(self._client, TOKENIZE_LIMITS), settings.tokenizer)
        connect = partial(records_at, settings.redis, settings.redis_password)
        self.caches = RecordedCaches(self.tokenizing, connect, now=self._now, wall=time.time)
        self.world.on_text = self.caches.of_text
        self._look_up_caches()
        self.holding = self._holding_of(informers)
        self.world.on_empty = self.holding.hold
        self.world.on_join = self._joined
        self.waking = Waking(informers.client, self.holding, now=self._now, wall=lambda: datetime.now(UTC))
        self.port = 0
        self.metrics_port = 0
        self.debug_port = 0
        self._metrics_server, self._debug_server = Server(), Server()
        self._stopping = asyncio.Event()
        self._is_listening = False

    def _all_metrics(self) -> Metrics:
        gauges = (self._engine_gauges, self._queue_gauges, self._waiting_gauges)
        return Metrics(
            gauges=[*gauges, self.replication.gauges, self._token_gauges],
            more=[
                lambda: lines_of((pool.matches for pool in self.world.pools()), MATCH_RATIO),
                self.plugin_times.lines,
                lambda: self.caches.lines(),  # it is made later
                lambda: lines.waits.metrics() if (lines := self.doors.lines) is not None else (),
            ],
        )

    def _holding_of(self, informers: Informers) -> Holding:
        servings = informers.of(ModelServing, namespace=self.settings.namespace)
        policies = informers.of(AutoscalingPolicy, namespace=self.settings.namespace)
        return Holding(
            lambda: servings.cache, lambda: policies.cache, self._now,
            is_there=lambda backend: any(one is backend for one in self.world.backends()),
            version=lambda: self.world.version,
        )  # fmt: skip

    def _timed(self, pool: Pool) -> Pool:
        pool.policy = timed(pool.policy, self.plugin_times)
        return pool

    @property
    def trouble(self) -> str:
        """Why the router is not ready to take requests; empty: it is."""
        if not self._is_listening:
            return "not listening yet"
        if self.listener.is_draining:
            return "draining"
        return self._unknown

    @property
    def _unknown(self) -> str:
        missing = self.discovery.missing
        return f"not known yet: {', '.join(missing)}" if missing else ""

    async def listen(self, door: socket.socket | None = None) -> None:
        """Open the ports, or let clients in at a door that is open already.

        Raises OSError, with the flag that names another, where one is taken.
        """
        told = self.settings
        tls = _tls_of(told)
        with _named(told.host, told.port, "--port"):
            self.port = await self.listener.listen("default", told.host, told.port, tls=tls, door=door)
        if told.with_gateways:
            self.house.desk = GatewayDesk(self.world, self._dice, self.port, takes_unbound=True)
            self.house.takes_any_path = True
            self.upkeep.gateway = told.own_namespace, self.port
        if told.metrics_port >= 0:
            with _named(told.metrics_host, told.metrics_port, "--metrics-port"):
                await self._metrics_server.start(
                    self.documents.metrics_request, host=told.metrics_host, port=told.metrics_port
                )
            self.metrics_port = self._metrics_server.port
        if told.debug_port >= 0:
            with _named("127.0.0.1", told.debug_port, "--debug-port"):
                await self._debug_server.start(self.documents.debug_request, host="127.0.0.1", port=told.debug_port)
            self.debug_port = self._debug_server.port
        self._is_listening = True
        log.info("router listens", port=self.port, metrics_port=self.metrics_port, debug_port=self.debug_port)

    def _joined(self, backend: Backend, endpoint: Endpoint) -> None:
        """An engine is there: its ModelServer's bounds hold for connections to it, and held requests go on."""
        said = backend.traits.connections
        own = bounded_by(self.settings.bounds, said) if said is not None else None
        self.pools.bound(endpoint.host, endpoint.port, own)
        self.holding.joined(backend)

    def _listener(self, house: House, certificates: Certificates | None = None) -> Listener:
        told = self.settings
        front: Front = Reception(house, self._answered, self.documents.model)
        if certificates is not None:
            front = OneListener(front, certificates)
        return Listener(front, told.bounds, self.pools, self._now, shares_ports=told.shares_port)

    def _listener_of(self, desk: Desk, certificates: Certificates | None) -> Listener:
        """A listener whose requests another desk decides on; they are kept in the same books."""
        house = House(desk, self.pools, self.settings.bounds, guards=self._guards, clock=self._now)
        house.ledger, house.under_way = self.house.ledger, self.house.under_way
        house.doorkeeper, house.takes_any_path = self.house.doorkeeper, True
        return self._listener(house, certificates)

    def open_lane(self, kernel: Kernel) -> None:
        """Have plain requests answered in machine code from now on, where there is such code."""
        is_new = self.lane is None and not self.listener.is_draining
        if not self.settings.fast_lane or not is_new:
            return
        self.lane = opened(
            kernel.lane,
            self.house,
            self.listener.doorway,
            lambda slabs: Ways(slabs, self.house, self.director, self.doors),
        )
        if self.lane is not None:
            self.house.has_lane, self.house.beside = True, self.lane.under_way

    def stop(self) -> None:
        """Drain: no more connections, what is under way is finished.

        The ports are free at once, for the router that comes after this one; whoever is connected to the one of the metrics may read
        there until the end, as Prometheus does, which keeps its connection.
        """
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop` and what is under way has ended, or until cancelled."""
        self.discovery.begin()
        beside = [asyncio.create_task(lasting(work, name), name=f"router {name}") for name, work in self._works()]
        try:
            await self._stopping.wait()
            for server in (self._metrics_server, self._debug_server):
                server.give_up_port()
            timeout_s = self.settings.drain_timeout_s
            ends, _ = await asyncio.gather(self.listener.drain(timeout_s), self.gateway_ports.drain(timeout_s))
            if not ends:
                log.warning("requests cut off", after_s=timeout_s, connections=self.listener.connections)
        finally:
            self.listener.stop()
            if self.lane is not None:
                self.lane.close()
            self.gateway_ports.stop()
            self.discovery.end()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._end()

    async def _begin(self) -> None:
        """Look until all is known; then nothing is left to do, and `lasting` is to begin nothing anew."""
        told = ""
        while not self.beginning.look():
            if (why := self.discovery.refused) and why != told:
                log.error("the router may not read the cluster", why=why, hint=hint_of(why))
                told = why
            await asyncio.sleep(BEGINNING_LOOK_S)
        await self._stopping.wait()

    async def _end(self) -> None:
        self.keep_books()
        if self._access_log is not None:
            await self._access_log.flushed()
        if self.house.tracing is not None:
            await self.house.tracing.close()
        await self.scraper.close()
        await self.caches.close()
        await self.tokenizing.close()
        await self._metrics_server.stop(1.0)
        await self._debug_server.stop(1.0)

    def _works(self) -> Iterable[tuple[str, Callable[[], Awaitable[None]]]]:
        yield "beginning", self._begin
        yield "scraping", self.scraper.run
        yield "guards", self.doors.run
        yield "kv events", self.cache_events.run
        yield "cache records", self.caches.run
        yield "replicas", self.replication.run
        if self.house.tracing is not None:
            yield "traces", self.house.tracing.run
        yield "books", self._keep_books
        yield "configuration", self._follow_configuration
        if self.settings.compiled_choosing:
            yield "compiled choosing", self.upgrading.run
        yield "upkeep", self.upkeep.run
        yield "waking", self.waking.run
        if self.settings.with_gateways:
            yield "gateways", self.gateway_ports.run

    async def _foretell(self, request: Request) -> dict[str, Any] | Refusal:
        path = next(iter(request.query().get("path", ())), "/v1/chat/completions")
        return await foretell(self.director, path, request.body, request.headers, self._now, self.caches.explain)

    async def _keep_books(self) -> None:
        wait_s = BOOKS_S
        while True:
            await asyncio.sleep(wait_s)
            count = self.keep_books()
            wait_s = min(max(wait_s * BOOKS_AT_ONCE / max(count, 1), SHORTEST_BOOKS_S), BOOKS_S)

    def keep_books(self) -> int:
        """Count and log the requests that are over; how many they were."""
        if self.lane is not None:
            self.lane.fold()
        batch, self.house.ledger[:] = self.house.ledger[:], []
        wall_offset_s = time.time() - self._now()
        if batch:
            self._book(batch, wall_offset_s)
        lots, self.house.lots[:] = self.house.lots[:], []
        if not lots:
            return len(batch)
        lot = joined(lots)
        rows = [self.metrics.rows[row] for row in self.metrics.fold_lot(lot)]
        if self._access_log is not None:
            self._access_log.add_lot(lot, rows, wall_offset_s)
        return len(batch) + len(lot)

    def _book(self, batch: list[Exchange], wall_offset_s: float) -> None:
        rows = [self.metrics.rows[row] for row in self.metrics.fold(batch, self.director.models)]
        if self._access_log is not None:
            self._access_log.add(batch, rows, wall_offset_s)
        if self.house.tracing is not None:
            self.house.tracing.add(batch, rows, wall_offset_s)

    async def _follow_configuration(self) -> None:
        while True:
            await asyncio.sleep(CONFIGURATION_S)
            self.look_at_keys()  # first: a configuration that cannot be read must keep no key from being taken away
            self.look_at_configuration()

    def look_at_keys(self) -> None:
        """Take the file of API keys if it changed: a key that is not in it any more opens no more. One that cannot be used changes nothing."""
        guard, file = self.doors.authentication, self.settings.api_keys_file
        if guard is None or not file or (said := _bytes_of(file)) == self._keys_said:
            return
        try:
            users = read_api_keys(_keys_of(file))
        except ApiKeyError as error:
            log.warning("API keys refused, those before stay", why=str(error))
        else:
            guard.set_api_keys(users)
            log.info("API keys taken", keys=len(users))
        self._keys_said = said

    def look_at_configuration(self) -> None:
        """Take the configuration file if it changed; one that cannot be used changes nothing."""
        refusal, said = self.configured.refusal, _bytes_of(self.settings.configuration_file)
        is_another, self._configuration_said = said != self._configuration_said, said
        if self._is_newly_configured():
            for pool in self.world.pools():
                self.configured.current.recipe.apply(pool)
                self._timed(pool)
            self.doors.limits.set_tenants(self.configured.current.tenants)
            self._look_up_caches()
            log.info("configuration taken", policy=self.configured.current.recipe.name)
        elif self.configured.refusal and (is_another or self.configured.refusal != refusal):
            log.warning("configuration refused", why=self.configured.refusal)

    def _is_newly_configured(self) -> bool:
        try:
            return self.configured.offer(_text_of(self.settings.configuration_file))
        except ConfigurationError as error:
            self.configured.refuse(error)
            return False

    def _look_up_caches(self) -> None:
        """In Redis, where the configuration's `kvcache-aware` wants it; who holds text is found by its tokens then."""
        self.caches.configure(self.configured.current.records)
        self.world.tokenizer = self.settings.tokenizer or (ENGINE_TOKENIZES if self.caches.is_on else "")

    def _door_settings(self) -> DoorSettings:
        told, auth = self.settings, self.configured.current.auth
        return DoorSettings(
            api_keys=read_api_keys(_keys_of(told.api_keys_file)) if told.api_keys_file else None,
            expected=Expected(auth.issuer, auth.audiences) if auth is not None else None,
            jwks_uri=auth.jwks_uri if auth is not None else "",
            tenants=self.configured.current.tenants,
            fairness=told.fairness,
            session_boost=told.session_boost,
        )

    def _connect_buckets(self, address: str) -> SharedBuckets:
        try:
            from hekla.edge.redis_buckets import buckets_at
        except ImportError:  # the limit still holds, for each router alone
            return AbsentBuckets('the package "redis" is not installed; install hekla[redis] to share limits')

        if (place := place_of(address)) is None:  # written before such were refused, or where nobody refuses them
            return AbsentBuckets(f'"{address}" is no address; the route\'s rateLimit.global.redis.address is host:port')
        if self.settings.redis_password and not self.settings.redis and not self._is_password_told:
            self._is_password_told = True
            log.warning("password of Redis not sent", server=address, why=PASSWORD_OF_NONE)
        return buckets_at(*place, password_for(place, self.settings))

    def _client(self, limits: ClientLimits, is_tls: bool) -> HttpClient:
        """For questions of the router's own to engines."""
        return HttpClient(ssl_context=self.pools.tls_context(verifies=False) if is_tls else None, limits=limits)

    def _engine_gauges(self) -> Iterable[tuple[str, Labels, float]]:
        for pool in self.world.pools():
            for one in pool.members:
                labels: Labels = (("pool", pool.name), ("pod", one.name))
                yield "hekla_router_engine_in_flight", labels, one.in_flight
                yield "hekla_router_engine_prefill_tokens", labels, one.prefill_tokens
                if one.kv_usage is not None:
                    yield "hekla_router_engine_kv_usage", labels, one.kv_usage
                if one.acceptance is not None:
                    yield "hekla_router_engine_accepted_speculation", labels, one.acceptance
            yield "hekla_router_prefill_rate", (("pool", pool.name),), pool.pace.prefill_rate
            yield "kthena_router_prefix_cache_evictions_total", (("model", pool.name),), pool.index.evicted
        yield "kthena_router_prefix_cache_entries", (), sum(pool.index.entries for pool in self.world.pools())
        yield "hekla_router_scrape_failures_total", (), self.scraper.failures
        if self._access_log is not None:
            yield "hekla_router_access_log_left_out_total", (), self._access_log.left_out
        if self.house.tracing is not None:
            yield "hekla_router_spans_left_out_total", (), self.house.tracing.left_out

    def _waiting_gauges(self) -> Iterable[tuple[str, Labels, float]]:
        for pool, count in self.holding.held().items():
            yield "hekla_router_held_requests", (("pool", pool),), count
        for server, is_alone in self.doors.shared.is_alone.items():
            yield "hekla_router_shared_limits_alone", (("server", server),), is_alone
        self.doors.shared.ask_anew()  # for the next reading: a route may get no request that would

    def _token_gauges(self) -> Iterable[tuple[str, Labels, float]]:
        yield from self.tokenizing.gauges()

    def _queue_gauges(self) -> Iterable[tuple[str, Labels, float]]:
        lines = self.doors.lines
        if lines is None:
            return
        kind = "fairness" if self.settings.fairness is not None else "session_boost"
        user: Labels = (("user_id", "_all"),) if kind == "fairness" else ()
        for line in lines.lines():
            yield f"kthena_router_{kind}_queue_size", (("model", line.model), *user), len(line.places)
            yield f"kthena_router_{kind}_queue_inflight", (("model", line.model),), line.in_flight


def password_for(place: tuple[str, int], settings: RouterSettings) -> str:
    """What a Redis that a route names is shown: the operator's password if it is the operator's, and nothing if it is another, as
    whoever may write routes may name a server of his own.
    """
    host, _, port = settings.redis.rpartition(":")
    return settings.redis_password if (place[0], str(place[1])) == (host.strip("[]"), port) else ""


def _text_of(file: str) -> str:
    """What the configuration says; nothing where there is none. Raises ConfigurationError."""
    try:
        return Path(file).read_text() if file else ""
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        said = f"the configuration {file} cannot be read: {why}; make it a file of UTF-8 text that the router may read"
        raise ConfigurationError(said) from None


def _bytes_of(file: str) -> bytes:
    """Likewise, whatever it is; nothing where it cannot be read, which `_keys_of` says."""
    try:
        return Path(file).read_bytes() if file else b""
    except OSError:
        return b""


def _keys_of(file: str) -> dict[str, str]:
    """Lines USER: KEY; empty lines and those that begin with # mean nothing. Raises ApiKeyError."""
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        said = (
            f"the file of API keys {file} cannot be read: {why}; write lines USER: KEY into it, or leave --api-keys out"
        )
        raise ApiKeyError(said) from None
    found = {}
    for number, line in enumerate(lines, 1):
        user, colon, key = line.partition(":")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not colon or not user.strip():
            raise ApiKeyError(f"{file}, line {number}: expected USER: KEY")
        found[user.strip()] = key.strip()
    return found


@contextmanager
def _named(host: str, port: int, flag: str) -> Iterator[None]:
    """An address that cannot be listened on is told with the flag that names another."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"{host}:{port}: {os.strerror(error.errno)}; another port by {flag}") from None


def _tls_of(settings: RouterSettings) -> ssl.SSLContext | None:
    if not settings.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    return context
