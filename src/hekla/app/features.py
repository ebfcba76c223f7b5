"""The features of the embedded platform: which run, what each is handed, and that one which dies takes all down.

They share one set of informers, as the controllers of one process do; each is otherwise as separate as on a cluster.
Each is imported when it starts, so that the API server answers first.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from hekla.apiserver.auth.pki import Pki
from hekla.apiserver.calls import Call
from hekla.apiserver.server import ApiServer
from hekla.apiserver.status import StatusError
from hekla.app.data_directory import DataDirectory
from hekla.app.settings import Settings
from hekla.kube.informer import Informers
from hekla.wire.messages import Answer

if TYPE_CHECKING:
    from hekla.node.sandbox_desk import SandboxDesk
    from hekla.scheduler.batch import BatchScheduler

log = structlog.get_logger(__name__)


@dataclass
class Features:
    """What the features need, and the way to the node agent for requests that the API server passes on."""

    settings: Settings
    directory: DataDirectory
    pki: Pki
    api_port: int = 0
    doors: dict[str, socket.socket] = field(default_factory=dict)
    """By feature: where its clients come in, who may wait there already."""
    node_proxy: Callable[[Call], Answer | Awaitable[Answer]] | None = None
    scheduler: "BatchScheduler | None" = None
    """Who explains what waits, once it runs."""

    sandboxes: "SandboxDesk | None" = None
    """Who claims, freezes and copies the sandboxes of this machine, once the node agent runs."""

    on_sandbox_ready: Callable[[str, str, str], None] = lambda namespace, pod, container: None
    """Told by the node agent of this process of each sandbox that is ready: who hands them out need not wait for its status."""

    is_making_sessions: Callable[[float], bool] = lambda within_s: False
    """Whether somebody waits for a session, or has within so many seconds, once the gateway of this process runs."""

    has_read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the scheduler has read the cluster, or has ended before it did."""

    def tell_sandbox_ready(self, namespace: str, pod: str, container: str) -> None:
        """Pass on what the node agent finds, to whoever listens by then."""
        self.on_sandbox_ready(namespace, pod, container)

    def is_hurried(self, within_s: float = 0.0) -> bool:
        """Whether what nobody waits for should give way, or should have within so many seconds."""
        return self.is_making_sessions(within_s)

    def proxy(self, call: Call) -> Answer | Awaitable[Answer]:
        """Logs, exec, attach, port-forward: the node agent's business, once it runs."""
        if self.node_proxy is None:
            raise StatusError(503, "ServiceUnavailable", "no node agent runs here; it was left out, or is not up yet")
        return self.node_proxy(call)


async def run_features(features: Features, informers: Informers, api: ApiServer) -> None:
    """Run every feature that is not left out, until cancelled or one fails."""
    without = features.settings.without
    async with informers, asyncio.TaskGroup() as group:
        for name, run in FEATURES.items():
            if name not in without:
                waits = name in AFTER_THE_SCHEDULER and "scheduler" not in without and _is_large(api)
                start = partial(run, features, informers, api)
                group.create_task(run_after(features.has_read, start) if waits else start(), name=name)
        group.create_task(_forever(), name="platform")
        log.info("features start", without=sorted(without))


async def run_after(event: asyncio.Event, start: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a feature once something has happened, or should have."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), MOST_HEAD_START_S)
    await start()


def _is_large(api: ApiServer) -> bool:
    return api.backend.store.count("pods") >= LARGE_PODS


async def _run_controlplane(features: Features, informers: Informers, api: ApiServer) -> None:
    from hekla.controlplane.controllers import run_controllers

    await run_controllers(informers, ca_pem=features.pki.authority.certificate.read_bytes())


async def _run_workloads(features: Features, informers: Informers, api: ApiServer) -> None:
    from hekla.app.controller_metrics import counted
    from hekla.app.flow_prober import FlowProber
    from hekla.kube.runtime import run_reconcilers
    from hekla.workloads.reconcilers import RECONCILERS

    without_scheduler = "scheduler" in features.settings.without
    async with counted(informers, with_queues=without_scheduler), asyncio.TaskGroup() as group:
        group.create_task(run_reconcilers(informers, RECONCILERS, component="vc-controller-manager"))
        group.create_task(FlowProber(informers).run(), name="probes of flows")


async def _run_serving(features: Features, informers: Informers, api: ApiServer) -> None:
    from hekla.kube.runtime import run_reconcilers
    from hekla.serving.autoscaler.scaler import Autoscaler
    from hekla.serving.model_booster_pods import images_of
    from hekla.serving.reconcilers import reconcilers

    chosen = reconcilers(images_of(os.environ))
    async with asyncio.TaskGroup() as group:
        group.create_task(run_reconcilers(informers, chosen, component="kthena-controller-manager"))
        group.create_task(Autoscaler(informers).run(), name="autoscaler")


async def _run_router(features: Features, informers: Informers, api: ApiServer) -> None:
    from hekla.app.routing import run_embedded_router

    await run_embedded_router(features.directory, features.doors["router"], informers)


async def _run_agents(features: Features, informers: Informers, api: ApiServer) -> None:
    from hekla.app.agents import run_embedded_gateway
    from hekla.app.agents_metrics import pools_told
    from hekla.kube.runtime import run_reconcilers
    from hekla.sandbox.pools.sizer import PoolSizer
    from hekla.sandbox.reconcilers import RECONCILERS

    with pools_told(informers):
        async with asyncio.TaskGroup() as group:
            controller = run_reconcilers(
                informers, RECONCILERS, component="agent-sandbox-controller", is_busy=features.is_hurried
            )
            group.create_task(controller, name="reconcilers of sandboxes")
            group.create_task(PoolSizer(informers).run(), name="sizer of pools")
            group.create_task(run_embedded_gateway(features, informers), name="gateway of sandboxes")


async def _run_scheduler(features: Features, informers: Informers, api: ApiServer) -> None:
    from hekla.app.early_pods import listen
    from hekla.scheduler.batch import BatchScheduler
    from hekla.scheduler.settings import EMBEDDED_SCHEDULER_NAMES, SchedulerSettings

    # what comes together has come with one commit: gathering for more by a timer of whole milliseconds put every pod off by 1 to 2
    settings = SchedulerSettings(
        scheduler_names=EMBEDDED_SCHEDULER_NAMES, configuration_file=features.settings.scheduler_conf, window_s=0.0
    )
    features.scheduler = BatchScheduler(informers, settings)
    early = listen(api.backend.store, features.scheduler)
    loop = asyncio.get_running_loop()
    try:
        # a moment later, so that its first binds are answered before others read everything in one go
        await features.scheduler.run(on_read=lambda: loop.call_later(FIRST_BINDS_S, features.has_read.set))
    finally:
        early.close()
        features.has_read.set()


async def _run_node(features: Features, informers: Informers, api: ApiServer) -> None:
    from hekla.app.nodes import run_nodes

    await run_nodes(features, informers, api)


async def _forever() -> None:
    """The API server alone is a platform, too: it ends when it is told to."""
    await asyncio.Event().wait()


FEATURES: dict[str, Callable[[Features, Informers, ApiServer], Coroutine[None, None, None]]] = {
    "node": _run_node,
    "scheduler": _run_scheduler,
    "workloads": _run_workloads,
    "serving": _run_serving,
    "router": _run_router,
    "agents": _run_agents,
    "controlplane": _run_controlplane,
}
"""In the order of what a waiting user sees first."""

AFTER_THE_SCHEDULER = frozenset({"workloads", "serving", "router", "agents", "controlplane"})
LARGE_PODS, MOST_HEAD_START_S, FIRST_BINDS_S = 20_000, 60.0, 1.0
"""With so many pods or more, these let the scheduler read them first, for so long at most: with 150,000, all who read at
once put its first bind off by 3 s."""
