"""`hekla run agents`: the reconcilers of sandboxes behind a Lease, and the gateway, by which every replica serves.

A gateway whose store is a file is alone; with STORE_TYPE redis or valkey any number of them share their sessions. Sandboxes run where node
agents run; they are reached over HTTPS (`sandbox/cluster_link.py`) with a token for the audience `hekla-nodes`.
"""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from hekla.api.meta import Resource
from hekla.app.agents_keeping import follow_keys, made_once, new_keys, session_store
from hekla.app.agents_metrics import gateway_told, pools_told
from hekla.app.standalone.agents_settings import AgentsSettings
from hekla.app.standalone.office import Office
from hekla.app.standalone.settings import AGENTS, AGENTS_LEASE, StandaloneSettingsError, host_and_port
from hekla.edge.bearer import Expected
from hekla.kube.informer import Informers
from hekla.kube.runtime import run_reconcilers
from hekla.sandbox.cluster_link import ClusterLink
from hekla.sandbox.gateway.guard import Guard, Principal, read_keys
from hekla.sandbox.gateway.issuer import Issuer
from hekla.sandbox.gateway.minting import Mint, new_private_key
from hekla.sandbox.gateway.running import Gateway, GatewaySettings
from hekla.sandbox.pools.sizer import PoolSizer
from hekla.sandbox.reconcilers import RECONCILERS
from hekla.sandbox.sessions.kube_stock import KubeStock
from hekla.sandbox.sessions.limits import SessionLimits
from hekla.sandbox.sessions.stock import StockError
from hekla.sandbox.sessions.store import SessionStore, StoreUnavailableError
from hekla.wire.client import HttpClient
from hekla.wire.tls import server_context

log = structlog.get_logger(__name__)

COMPONENT: Final = "agent-sandbox-controller"
"""Who events of the reconcilers are from."""

RETRY_S: Final = 2.0
TOKEN_EVERY_S: Final = 60.0


async def run_agents(office: Office) -> None:
    """Both halves, until it is time to go."""
    if office.agents is None:
        raise StandaloneSettingsError("agents need settings of their own")
    async with asyncio.TaskGroup() as group:
        group.create_task(_reconcile(office), name="reconcilers of sandboxes")
        group.create_task(_serve(office, office.agents), name="gateway of sandboxes")


def agents_kinds() -> tuple[type[Resource], ...]:
    """Every kind that a reconciler of sandboxes declares."""
    kinds = (
        kind for one in RECONCILERS for kind in (one.kind, *one.owns, *one.reads, *one.wakes, *one.finds)
    )  # fmt: skip
    return tuple(dict.fromkeys(kinds))


async def _reconcile(office: Office) -> None:
    async def work(informers: Informers) -> None:
        async with asyncio.TaskGroup() as group:
            sizing = group.create_task(PoolSizer(informers).run(), name="sizer of pools")
            with pools_told(informers):
                await office.until_stopped(run_reconcilers(informers, RECONCILERS, component=COMPONENT))
            sizing.cancel()

    await office.serve_terms(AGENTS, AGENTS_LEASE, agents_kinds(), lambda _: False, work)


async def _serve(office: Office, told: AgentsSettings) -> None:
    client = office.client(f"{AGENTS} gateway")
    complaint = ["the gateway reads the cluster"]
    office.health.checks["gateway"] = lambda: complaint[0]
    try:
        async with Informers(client) as informers:
            await office.until_stopped(_serving(office, told, informers, complaint))
    finally:
        await client.close()


async def _serving(office: Office, told: AgentsSettings, informers: Informers, complaint: list[str]) -> None:
    stock, link = KubeStock(informers), ClusterLink(informers, TokenOfFile(told.node_token, time.monotonic))
    await stock.start()
    await link.start()
    told.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = session_store(told.directory / "sessions.db", os.environ)
    web = HttpClient()
    try:
        issuer = (
            Issuer(told.jwt_issuer_url, web, time.monotonic, keys_url=told.jwt_keys_url)
            if told.jwt_issuer_url
            else None
        )
        guard = _guard(told, issuer)
        async with asyncio.TaskGroup() as group:
            if issuer is not None:
                group.create_task(issuer.run(), name="keys of the issuer")
            group.create_task(follow_keys(_keys_of(told), guard), name="API keys")
            group.create_task(_gateway(told, store, stock, link, guard, complaint), name="gateway")
    finally:
        await stock.stop()
        await web.close()
        await link.close()
        await store.close()


async def _gateway(
    told: AgentsSettings, store: SessionStore, stock: KubeStock, link: ClusterLink, guard: Guard, complaint: list[str]
) -> None:
    host, port = host_and_port("--agents-address", told.address)
    mint = Mint(made_once(told.directory / "sandboxes.key", new_private_key))
    while True:
        limits = SessionLimits(total=told.sessions, per_owner=told.sessions_per_owner)
        settings = GatewaySettings(host=host, port=port, domain=told.domain, limits=limits)
        gateway = Gateway(settings, store=store, stock=stock, link=link, guard=guard, mint=mint, named=stock)
        try:
            await gateway.start(ssl_context=_tls(told))
            complaint[0] = ""
            log.info(
                "gateway of sandboxes is ready", url=f"{'https' if told.tls_cert else 'http'}://{host}:{gateway.port}"
            )
            with gateway_told(gateway):
                await asyncio.Event().wait()
        except (StockError, StoreUnavailableError) as error:
            if complaint[0] != str(error):
                log.warning("the gateway cannot begin yet", why=str(error))
            complaint[0] = str(error)
        finally:
            await gateway.stop()
        await asyncio.sleep(RETRY_S)


def _tls(told: AgentsSettings) -> ssl.SSLContext | None:
    return server_context(told.tls_cert, told.tls_key, None) if told.tls_cert else None


def _guard(told: AgentsSettings, issuer: Issuer | None) -> Guard:
    expected = Expected(told.jwt_issuer_url, (told.jwt_audience,)) if issuer is not None else None
    return Guard(
        _read_keys(told), wall=time.time, expected=expected, issuer=issuer, role_claim=told.jwt_role_claim,
        required_role=told.jwt_required_role,
    )  # fmt: skip


def _read_keys(told: AgentsSettings) -> dict[bytes, Principal]:
    if not told.keys:
        made_once(_keys_of(told), new_keys)
    return read_keys(_keys_of(told).read_text())


def _keys_of(told: AgentsSettings) -> Path:
    return Path(told.keys) if told.keys else told.directory / "agents.key"


class TokenOfFile:
    """The token that opens nodes, as somebody keeps it fresh in a file; read once a minute."""

    def __init__(self, path: str, now: Callable[[], float]) -> None:
        self._path, self._now = path, now
        self._token, self._read_s = "", float("-inf")

    def __call__(self) -> str:
        """The token of now; empty: there is none, and nodes will say so."""
        if self._path and self._now() - self._read_s >= TOKEN_EVERY_S:
            with contextlib.suppress(OSError, UnicodeDecodeError):  # being replaced: the last one is good for a while
                self._token, self._read_s = Path(self._path).read_text("ascii").strip(), self._now()
        return self._token
