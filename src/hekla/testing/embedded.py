"""An API server with the core controllers, as one cluster without nodes and without a scheduler.

async with embedded_cluster() as cluster:
    await cluster.client.create(Deployment, {...})
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hekla.apiserver.admission import AdmissionRule
from hekla.apiserver.admission_rules.limit_ranger import LimitRanger
from hekla.apiserver.admission_rules.namespace_lifecycle import NamespaceLifecycle
from hekla.apiserver.admission_rules.pod_defaults import DefaultTolerationSeconds, PriorityRule, ServiceAccountRule
from hekla.apiserver.admission_rules.resource_quota import ResourceQuotaRule
from hekla.apiserver.server import ApiServer
from hekla.controlplane.controllers import run_controllers
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import Clock
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.testing.flaky import FlakyTransport
from hekla.testing.server import api_server


@dataclass
class Cluster:
    """What a test needs of it."""

    server: ApiServer
    client: ApiClient
    """The test's own."""

    controllers: FlakyTransport
    """What the controllers speak through: break it to see them heal."""


def cluster_rules() -> Sequence[AdmissionRule]:
    """The admission rules that the controllers count on."""
    return [
        NamespaceLifecycle(), ServiceAccountRule(), PriorityRule(), DefaultTolerationSeconds(), LimitRanger(),
        ResourceQuotaRule(),
    ]  # fmt: skip


@asynccontextmanager
async def embedded_cluster(*, clock: Clock | None = None) -> AsyncIterator[Cluster]:
    """Run a cluster for the length of a block."""
    settings: dict[str, Any] = {} if clock is None else {"clock": clock.now}
    async with api_server(rules=cluster_rules(), **settings) as server:
        flaky = FlakyTransport(InProcessTransport(server.handle))
        async with Informers(ApiClient(flaky), dice=random.Random(1)) as informers:
            running = asyncio.create_task(run_controllers(informers, clock=clock, dice=random.Random(2)))
            try:
                yield Cluster(server, ApiClient(InProcessTransport(server.handle)), flaky)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
