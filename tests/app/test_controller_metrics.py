"""Controllers that run tell of what they see, and nothing is left of it when they stop."""

import asyncio
import random

from prometheus_client import REGISTRY, generate_latest

from hekla.api.crd import CUSTOM_KINDS
from hekla.api.volcano import Job, Queue
from hekla.app.controller_metrics import counted
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.kube.runtime import Runtime
from hekla.testing import virtual_time
from hekla.testing.server import api_server
from hekla.workloads.admission import ADMISSION_RULES
from hekla.workloads.queue import DEFAULT_QUEUES
from hekla.workloads.reconcilers import RECONCILERS
from workloads.test_job_on_a_server import Platform, eventually, manifest


def scraped() -> str:
    return generate_latest(REGISTRY).decode()


def test_a_job_that_completes_is_told_by_those_who_made_it_complete() -> None:
    async def story() -> None:
        async with api_server(rules=ADMISSION_RULES, kinds=CUSTOM_KINDS) as server:
            client = ApiClient(InProcessTransport(server.handle))
            for queue in DEFAULT_QUEUES:
                await client.create(Queue, queue)
            on, clock = Platform(client), LoopClock()
            async with (
                Informers(ApiClient(InProcessTransport(server.handle)), dice=random.Random(1)) as informers,
                counted(informers, with_queues=True, clock=clock),
            ):
                runtime = Runtime(informers, RECONCILERS, clock=clock, dice=random.Random(2))
                task = asyncio.create_task(runtime.run())
                await client.create(Job, manifest("training/job.yaml"), "default")
                await on.admit("train")
                assert 'volcano_queue_pod_group_inqueue_count{queue_name="default"} 1.0' in scraped()
                await on.run(4)
                for name in await on.pods():
                    await on.status(name, {"phase": "Succeeded"})
                told = 'volcano_job_completed_phase_count{job_name="default/train",queue_name="default"} 1.0'
                await eventually(lambda: told in scraped())
                assert 'workqueue_adds_total{name="job"}' in scraped()
                await client.delete(Job, "train", "default")
                await eventually(lambda: told not in scraped())
                runtime.stop()
                await task
        assert "volcano_job_retry_counts" not in scraped(), "controllers that are gone leave no series"

    virtual_time.run(story())
