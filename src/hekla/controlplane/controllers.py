"""The controllers that a real cluster brings, as one list: `app` runs them in the embedded mode, and nowhere else."""

import asyncio
import random

import structlog

from hekla.api.pods import Pod
from hekla.controlplane.cron_job import reconcile_cron_job
from hekla.controlplane.daemon_set import reconcile_daemon_set
from hekla.controlplane.deployment import reconcile_deployment
from hekla.controlplane.disruption import reconcile_disruption_budget
from hekla.controlplane.endpoints import (
    reconcile_endpoint_slices,
    reconcile_endpoints,
    reconcile_endpoints_orphan,
)
from hekla.controlplane.garbage_collector import GarbageCollector
from hekla.controlplane.job import reconcile_job, reconcile_job_orphan
from hekla.controlplane.namespace_defaults import reconcile_default_account, root_ca_publisher
from hekla.controlplane.namespace_deletion import NamespaceDeletion
from hekla.controlplane.node_lifecycle import reconcile_node, reconcile_tainted_pod
from hekla.controlplane.pod_gc import reconcile_lost_pod, surplus_ended
from hekla.controlplane.quota_status import reconcile_quota
from hekla.controlplane.replica_set import reconcile_replica_set
from hekla.controlplane.resource_claims import (
    reconcile_claims_of_bound_pod,
    reconcile_claims_of_pod,
    reconcile_users_of_claim,
)
from hekla.controlplane.stateful_set import reconcile_stateful_set
from hekla.controlplane.volume_protection import reconcile_claim_protection, reconcile_volume_protection
from hekla.kube.clock import Clock
from hekla.kube.errors import KubeError
from hekla.kube.informer import Informers
from hekla.kube.reconcile import Reconciler
from hekla.kube.runtime import Runtime

log = structlog.get_logger()

CONTROLLERS: tuple[Reconciler, ...] = (
    reconcile_deployment,
    reconcile_replica_set,
    reconcile_stateful_set,
    reconcile_daemon_set,
    reconcile_job,
    reconcile_job_orphan,
    reconcile_cron_job,
    reconcile_endpoint_slices,
    reconcile_endpoints,
    reconcile_endpoints_orphan,
    reconcile_disruption_budget,
    reconcile_quota,
    reconcile_default_account,
    reconcile_lost_pod,
    reconcile_node,
    reconcile_tainted_pod,
    reconcile_claim_protection,
    reconcile_volume_protection,
    reconcile_claims_of_pod,
    reconcile_claims_of_bound_pod,
    reconcile_users_of_claim,
)
"""The reconcilers among them; garbage collection and namespace deletion are loops over kinds known only at run time."""

SWEEP_S = 120.0


async def run_controllers(
    informers: Informers, *, ca_pem: bytes = b"", clock: Clock | None = None, dice: random.Random | None = None
) -> None:
    """Run all core controllers until cancelled. `ca_pem` is what pods need to trust the API server."""
    reconcilers = [*CONTROLLERS, *([root_ca_publisher(ca_pem.decode())] if ca_pem else [])]
    runtime = Runtime(
        informers, reconcilers, clock=clock, dice=dice, component="{}-controller", field_manager="kube-controller-manager"
    )  # fmt: skip
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.run(), name="core controllers")
        tasks.create_task(GarbageCollector(informers, dice=dice).run(), name="garbage collector")
        tasks.create_task(NamespaceDeletion(informers, clock=clock, dice=dice).run(), name="namespace deletion")
        tasks.create_task(_sweep_ended_pods(informers), name="ended pods")


async def _sweep_ended_pods(informers: Informers) -> None:
    pods = informers.of(Pod)
    while True:
        await asyncio.sleep(SWEEP_S)
        for pod in surplus_ended(pods.cache):
            meta = pod.metadata
            try:
                await informers.client.delete(Pod, meta.name, meta.namespace, grace_s=0, uid=meta.uid)
            except KubeError as error:
                log.debug("ended pod not deleted", namespace=meta.namespace, name=meta.name, why=str(error))
