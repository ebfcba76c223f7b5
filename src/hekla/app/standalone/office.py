"""What the components of one process share: the way to the cluster, who we are, health, and the word that it is time to go.

A component that must not act twice at the same time works in terms: it waits for its Lease with warm caches, works
while it holds it, and starts anew with empty hands when it has lost it. Every write of a term is checked once more
against the lease at the moment it is sent, so that a process that was stopped for a minute cannot write what another
has decided otherwise meanwhile.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from hekla.api.crd import CUSTOM_KINDS
from hekla.api.meta import Resource
from hekla.app.standalone.agents_settings import AgentsSettings
from hekla.app.standalone.health import Health
from hekla.app.standalone.node_settings import NodeSettings
from hekla.app.standalone.overlaps import annotations_of, left_alone
from hekla.app.standalone.settings import SCHEDULER, StandaloneSettings
from hekla.app.standalone.unelected import tell_who_leads
from hekla.kube.api_client import USER_AGENT, ApiClient
from hekla.kube.client import Transport
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.collecting import thaw
from hekla.kube.errors import TransportError, hint_of
from hekla.kube.informer import Informers
from hekla.kube.kubeconfig import Connection
from hekla.kube.leases import LeaderElector, LeaseTimes
from hekla.wire.messages import Request, Response

log = structlog.get_logger(__name__)

STOP_GRACE_S = 12.0
"""How long a component may take to end its work when it is time to go; then it is cut off."""

LEASE_TIMES = LeaseTimes(duration_s=12.0, renew_deadline_s=8.0, retry_s=1.0, renew_s=2.0)
"""client-go's 15, 10 and 2 s made it 17 to 18 s until another replica had bound a pod, 22 on a busy machine; 12, 8 and 2 s 13
to 15, and 18 on a busy one. A candidate sees the last renewal up to 1.2 `retry_s` late and notices its end as late again, so
asking every second takes 2.4 s off that for one small request a second. Who leads renews half as often, by one write without a
reading: of three components that had nothing to do those were 366 requests a minute, and are 90."""

LOOK_S = 2.0
"""How often what is missing is looked at, to say it once."""

HINT = "`hekla install --render | kubectl apply -f -` installs it"
FOREIGN: Mapping[str, str] = {
    "gateway.networking.k8s.io": "it comes with the Gateway API",
    "inference.networking.k8s.io": "it comes with the Gateway API Inference Extension",
    "leaderworkerset.x-k8s.io": "it comes with LeaderWorkerSet",
}
"""Where kinds of other projects come from, by group."""

Optional = Callable[[type[Resource]], bool]
"""Whether a component is ready although it misses a kind."""

Work = Callable[[Informers], Awaitable[None]]
"""One term of a component: ends when `Office.stopping` is set, or is cancelled when the lease is lost."""


@dataclass
class Office:
    """One process against one cluster."""

    settings: StandaloneSettings
    connection: Connection
    health: Health
    agents: AgentsSettings | None = None
    """Of a gateway of sandboxes, where this process is one."""
    node: NodeSettings | None = None
    """Of virtual nodes, where this process is their agent."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Clock = field(default_factory=SystemClock)
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}")

    def client(self, component: str, elector: LeaderElector | None = None) -> ApiClient:
        """A client with connections of its own; with an elector, one that writes only while we lead."""
        transport: Transport = self.connection.transport()
        if elector is not None:
            transport = FencedTransport(transport, elector)
        return ApiClient(transport, user_agent=f"{USER_AGENT} ({component})")

    async def serve_terms(
        self, component: str, lease: str, kinds: Iterable[type[Resource]], is_optional: Optional, work: Work
    ) -> None:
        """Work term after term until it is time to go."""
        elector = self._elector(component, lease) if self.settings.leader_elect else None
        client = self.client(component, elector)
        kinds = tuple(kinds)
        term = _Term(self, component, lease, elector, is_optional, work)
        terms = asyncio.create_task(self._terms(term, client, kinds), name=component)
        told = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({terms, told}, return_when=asyncio.FIRST_COMPLETED)
            if not terms.done() and term.is_working:
                await asyncio.wait({terms}, timeout=STOP_GRACE_S)
            if terms.done():
                await terms
        finally:
            told.cancel()
            terms.cancel()
            await asyncio.gather(terms, told, return_exceptions=True)
            self.health.checks.pop(component, None)
            await client.close()

    async def until_stopped(self, work: Coroutine[Any, Any, object]) -> None:
        """Run something that knows no end of its own until it is time to go."""
        working, told = asyncio.create_task(work), asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
        finally:
            told.cancel()
            working.cancel()
            await asyncio.gather(working, told, return_exceptions=True)

    async def _terms(self, term: "_Term", client: ApiClient, kinds: tuple[type[Resource], ...]) -> None:
        # Caches outlast a term: an API server that was too busy to renew a lease is not asked for everything in the next breath.
        async with Informers(client) as informers:
            for kind in kinds:
                informers.of(kind)
            while not self.stopping.is_set():
                await term.run(informers)
                informers.remove_handlers()
                thaw()

    def _elector(self, component: str, lease: str) -> LeaderElector:
        # a client of its own: renewing must not wait behind thousands of binds
        client = self.client(f"{component} lease")
        names = self.settings.scheduler_names if component == SCHEDULER else ()
        return LeaderElector(
            client, namespace=self.settings.namespace, name=lease, identity=self.identity, times=LEASE_TIMES,
            clock=self.clock, annotations=annotations_of(self.identity, names) if names else None,
            remark=lambda held: left_alone(held, names),
        )  # fmt: skip


@dataclass
class _Term:
    """One component's turn: told of in /readyz, watched for what it lacks."""

    office: Office
    component: str
    lease: str
    elector: LeaderElector | None
    is_optional: Optional
    work: Work
    is_working: bool = False

    async def run(self, informers: Informers) -> None:
        self.office.health.checks[self.component] = lambda: self._complaint(informers)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(self._tell_what_is_missing(informers))]
            try:
                if self.elector is None and self.office.settings.sharding_mode == "none":
                    # schedulers that share a cluster by shards act beside one another on purpose
                    home = self.office.settings.namespace
                    others = tell_who_leads(informers.client, home, self.lease, self.component)
                    watching.append(tasks.create_task(others))
                if self.elector is None:
                    await self._lead(informers)
                else:
                    await self.elector.term(lambda: self._lead(informers))
            finally:
                for one in watching:
                    one.cancel()

    async def _lead(self, informers: Informers) -> None:
        self.is_working = True
        try:
            await informers.current()
            await self.work(informers)
        finally:
            self.is_working = False

    def _complaint(self, informers: Informers) -> str:
        lease = self.elector.trouble if self.elector is not None else ""
        troubles = {kind: why for kind, why in informers.troubles().items() if not self.is_optional(kind)}
        if lease or not troubles:
            return lease
        return "; ".join(f"{kind.kind_info.resource}: {why or 'being read'}" for kind, why in sorted_by_name(troubles))

    async def _tell_what_is_missing(self, informers: Informers) -> None:
        """Have the log say what stands in the way, once for each reason, and when it does so no more."""
        told: dict[type[Resource], str] = {}
        while True:
            await asyncio.sleep(LOOK_S)
            troubles = {kind: why for kind, why in informers.troubles().items() if why}
            for kind, why in sorted_by_name(troubles):
                if told.get(kind) != why:
                    # most clusters lack some of other projects' kinds, and nobody there misses them
                    say = log.info if kind.kind_info.group in FOREIGN and "not found" in why else log.warning
                    say("cannot follow a kind", component=self.component, **self._words(kind, why))
            for kind, _ in sorted_by_name(dict.fromkeys(told.keys() - troubles.keys(), "")):
                log.info("follows the kind now", component=self.component, kind=kind.kind_info.resource)
            told = troubles

    def _words(self, kind: type[Resource], why: str) -> dict[str, str]:
        group = kind.kind_info.group
        source = FOREIGN.get(group, HINT if kind in CUSTOM_KINDS else "")
        is_absent = (source and "could not find" in why) or "not found" in why
        hint = f"the cluster lacks its CustomResourceDefinition; {source}" if is_absent and source else ""
        hint = hint_of(why) or hint
        waits = "what needs it waits, the rest works" if self.is_optional(kind) else f"{self.component} waits"
        words = {"kind": kind.kind_info.resource, "why": why, "so": waits}
        return {**words, "hint": hint} if hint else words


def sorted_by_name(troubles: dict[type[Resource], str]) -> list[tuple[type[Resource], str]]:
    """Kinds in order of their resource."""
    return sorted(troubles.items(), key=lambda one: one[0].kind_info.resource)


class FencedTransport:
    """A transport that reads at any time and writes only while we lead."""

    def __init__(self, inner: Transport, elector: LeaderElector) -> None:
        self._inner, self._elector = inner, elector
        self.prefers_watch_list: bool = getattr(inner, "prefers_watch_list", False)

    async def send(self, request: Request) -> Response:
        """Send a request, or refuse to: whoever leads now may have decided otherwise."""
        if request.method != "GET" and not self._elector.is_leader:
            raise TransportError(f"{request.method} {request.path} was not sent: this replica leads no more")
        return await self._inner.send(request)

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Watches only read."""
        source = self._inner.stream(request)
        try:
            async for piece in source:
                yield piece
        finally:
            await source.aclose()  # type: ignore[attr-defined]  # every transport's stream is an async generator

    async def close(self) -> None:
        """Drop the connections."""
        await self._inner.close()
