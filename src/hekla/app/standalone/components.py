"""The components by name: which kinds each follows, which of them a cluster may lack, and how it works."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from hekla.api.meta import Resource
from hekla.app.standalone.office import Office
from hekla.app.standalone.settings import (
    AGENTS,
    CONTROLLERS,
    CONTROLLERS_LEASE,
    NODE,
    SCHEDULER,
    SERVING,
    SERVING_LEASE,
    WEBHOOKS,
)
from hekla.kube.informer import Informers
from hekla.kube.reconcile import Reconciler

if TYPE_CHECKING:
    from hekla.kube.runtime import Runtime

REQUIRED_KINDS = frozenset({"jobs.batch.volcano.sh", "podgroups.scheduling.volcano.sh", "queues.scheduling.volcano.sh"})
"""Custom kinds without which nothing works; a component is ready though it misses any other."""

CONTROLLERS_COMPONENT = "vc-controller-manager"
"""Who events of the controllers are from."""

SERVING_COMPONENT = "kthena-controller-manager"
"""Who events of the serving controllers are from."""


def controller_kinds() -> tuple[type[Resource], ...]:
    """Every kind that a reconciler declares."""
    from hekla.workloads.reconcilers import RECONCILERS

    return _kinds_of(RECONCILERS)


def serving_kinds() -> tuple[type[Resource], ...]:
    """Every kind that a reconciler of serving declares."""
    from hekla.serving.autoscaler.scaler import FOLLOWED
    from hekla.serving.reconcilers import RECONCILERS

    return tuple(dict.fromkeys((*_kinds_of(RECONCILERS), *FOLLOWED)))


def _kinds_of(reconcilers: Iterable[Reconciler]) -> tuple[type[Resource], ...]:
    kinds = (kind for one in reconcilers for kind in (one.kind, *one.owns, *one.reads, *one.wakes, *one.finds))
    return tuple(dict.fromkeys(kinds))


def scheduler_kinds() -> tuple[type[Resource], ...]:
    """Every kind that placement depends on."""
    from hekla.dialects.feed import ClusterFeed
    from hekla.placement.cluster import Cluster

    return tuple(ClusterFeed(Cluster(), scheduler_names=()).followed)


def is_optional(kind: type[Resource]) -> bool:
    """Whether a cluster may lack this kind, and the rest works without: it comes with a CustomResourceDefinition (the Gateway
    API's are named like Kubernetes' own), or with Kubernetes 1.34 (resource.k8s.io/v1).
    """  # fmt: skip
    group = kind.kind_info.group
    if group in ("resource.k8s.io", "gateway.networking.k8s.io", "inference.networking.k8s.io"):
        return True
    return "." in group and not group.endswith(".k8s.io") and kind.kind_info.resource not in REQUIRED_KINDS


async def run_controllers(office: Office) -> None:
    """The reconcilers of the workloads."""
    from hekla.app.controller_metrics import counted
    from hekla.app.flow_prober import FlowProber
    from hekla.kube.runtime import Runtime
    from hekla.workloads.reconcilers import reconcilers

    told = office.settings
    chosen = reconcilers(every_pod=told.every_pod_has_a_group, ours=told.ours, home=told.namespace)

    async def work(informers: Informers) -> None:
        async with (
            counted(informers, with_queues=SCHEDULER not in office.settings.components), asyncio.TaskGroup() as group,
        ):  # fmt: skip
            prober = group.create_task(FlowProber(informers).run(), name="probes of flows")
            await _until_stopped(
                office, Runtime(informers, chosen, component=CONTROLLERS_COMPONENT, is_optional=is_optional)
            )
            prober.cancel()

    await office.serve_terms(CONTROLLERS, CONTROLLERS_LEASE, controller_kinds(), is_optional, work)


async def run_serving(office: Office) -> None:
    """The reconcilers of serving, and the autoscaler."""
    from hekla.kube.runtime import Runtime
    from hekla.serving.autoscaler.scaler import Autoscaler
    from hekla.serving.model_booster_pods import images_of
    from hekla.serving.reconcilers import reconcilers

    chosen = reconcilers(images_of(os.environ))

    async def work(informers: Informers) -> None:
        scaler = asyncio.create_task(Autoscaler(informers).run(), name="autoscaler")
        try:
            await _until_stopped(
                office, Runtime(informers, chosen, component=SERVING_COMPONENT, is_optional=is_optional)
            )
        finally:
            scaler.cancel()
            await asyncio.gather(scaler, return_exceptions=True)

    await office.serve_terms(SERVING, SERVING_LEASE, serving_kinds(), is_optional, work)


async def _until_stopped(office: Office, runtime: "Runtime") -> None:
    told = asyncio.create_task(office.stopping.wait())
    told.add_done_callback(lambda _: runtime.stop())
    try:
        await runtime.run()
    finally:
        told.cancel()


async def run_scheduler(office: Office) -> None:
    """The batch scheduler, and its answers to questions."""
    from hekla.api.explanation import USUAL_SCHEDULER, version_of
    from hekla.app.standalone.answering import Answering
    from hekla.app.standalone.overlaps import tell_overlaps
    from hekla.dialects.shards import Sharding, ShardingMode
    from hekla.scheduler.batch import BatchScheduler
    from hekla.scheduler.memory import KEY as MEMORY
    from hekla.scheduler.settings import SchedulerSettings

    told = office.settings
    sharding = Sharding(mode=ShardingMode(told.sharding_mode), name=told.sharding_name)
    settings = SchedulerSettings(
        scheduler_names=told.scheduler_names,
        default_queue=told.default_queue,
        configuration_file=told.scheduler_conf,
        namespace=told.namespace,
        memory_namespace=told.namespace,
        memory_key=MEMORY
        if told.scheduler_lease == USUAL_SCHEDULER
        else f"{MEMORY}.{version_of(told.scheduler_lease)}",
        waits_for_groups=told.every_pod_has_a_group,
        sharding=sharding,
    )

    async def work(informers: Informers) -> None:
        scheduler = BatchScheduler(informers, settings)
        beside = [asyncio.create_task(Answering(office, informers.client, scheduler).run(), name="answers")]
        if sharding.mode is ShardingMode.NONE:
            overlaps = tell_overlaps(informers.client, told.namespace, told.scheduler_lease, told.scheduler_names)
            beside.append(asyncio.create_task(overlaps, name="overlaps"))
        try:
            await office.until_stopped(scheduler.run())
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    await office.serve_terms(SCHEDULER, told.scheduler_lease, scheduler_kinds(), is_optional, work)


async def run_webhooks(office: Office) -> None:
    """The admission webhooks; every replica answers."""
    from hekla.app.standalone.webhooks import serve_webhooks

    await serve_webhooks(office)


async def run_agents(office: Office) -> None:
    """The reconcilers of sandboxes, and their gateway."""
    from hekla.app.standalone import agents

    await agents.run_agents(office)


async def run_node(office: Office) -> None:
    """The agent of virtual nodes."""
    from hekla.app.standalone import node

    await node.run_node(office)


RUNNING: Mapping[str, Callable[[Office], Awaitable[None]]] = {
    CONTROLLERS: run_controllers,
    SCHEDULER: run_scheduler,
    WEBHOOKS: run_webhooks,
    SERVING: run_serving,
    AGENTS: run_agents,
    NODE: run_node,
}
"""What each component's name stands for."""
