"""The reconcilers, the admission rules and the generated CRDs together on an API server, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.core import Pod
from hekla.api.crd import CUSTOM_KINDS, crd_document
from hekla.api.meta import Document
from hekla.api.volcano import Job, PodGroup, Queue
from hekla.api.volcano.bus import Command as Order
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.errors import ApiError, NotFoundError
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.kube.runtime import Runtime
from hekla.testing import virtual_time
from hekla.testing.server import api_server
from hekla.workloads.admission import ADMISSION_RULES
from hekla.workloads.queue import DEFAULT_QUEUES
from hekla.workloads.reconcilers import RECONCILERS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Platform:
    """A user's client, and the parts of scheduler and node that a test plays."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    async def job(self, name: str) -> Job:
        return await self.client.get(Job, name, "default")

    async def phase(self, name: str) -> str:
        return (await self.job(name)).status.state.phase

    async def pods(self) -> dict[str, Pod]:
        return {pod.metadata.name: pod for pod in (await self.client.list(Pod, "default")).items}

    async def admit(self, name: str) -> None:
        job = await self.job(name)
        group = f"{name}-{job.metadata.uid}"
        await eventually(lambda: self.exists(PodGroup, group))
        await self.client.patch(PodGroup, group, {"status": {"phase": "Inqueue"}}, "default")

    async def exists(self, kind: type[PodGroup], name: str) -> bool:
        try:
            await self.client.get(kind, name, "default")
        except NotFoundError:
            return False
        return True

    async def run(self, count: int) -> None:
        async def all_there() -> bool:
            return len(await self.pods()) == count

        await eventually(all_there)
        for name, pod in (await self.pods()).items():
            if not pod.spec.node_name:
                await self.client.bind("default", name, "n1")
            await self.status(name, {"phase": "Running"})

    async def status(self, name: str, status: Document) -> None:
        await self.client.patch(Pod, name, {"status": status}, "default", subresource="status")

    async def let_go(self) -> None:
        """The node lets go of pods that are being deleted."""
        for name, pod in (await self.pods()).items():
            if pod.metadata.deletion_timestamp:
                await self.client.delete(Pod, name, "default", grace_s=0)


async def eventually(condition: Callable[[], object]) -> None:
    for _ in range(2_000):
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came true")


@asynccontextmanager
async def platform() -> AsyncIterator[Platform]:
    async with api_server(rules=ADMISSION_RULES) as server:
        client = ApiClient(InProcessTransport(server.handle))
        for kind in CUSTOM_KINDS:
            await client.create(CustomResourceDefinition, crd_document(kind))
        for queue in DEFAULT_QUEUES:
            await client.create(Queue, queue)
        async with Informers(ApiClient(InProcessTransport(server.handle)), dice=random.Random(1)) as informers:
            runtime = Runtime(informers, RECONCILERS, clock=LoopClock(), dice=random.Random(2))
            task = asyncio.create_task(runtime.run())
            try:
                yield Platform(client)
            finally:
                runtime.stop()
                await task


def manifest(name: str) -> Document:
    return dict(yaml.safe_load((EXAMPLES / name).read_text()))


def test_an_unmodified_manifest_goes_all_the_way() -> None:
    async def scenario() -> None:
        async with platform() as on:
            made = await on.client.create(Job, manifest("training/job.yaml"), "default")
            assert [task.min_available for task in made.spec.tasks] == [4]
            await on.admit("train")
            await on.run(4)
            await eventually(lambda: _is(on, "train", "Running"))
            for name in await on.pods():
                await on.status(name, {"phase": "Succeeded"})
            await eventually(lambda: _is(on, "train", "Completed"))
            job = await on.job("train")
            assert (job.status.succeeded, job.status.retry_count) == (4, 0)

    virtual_time.run(scenario())


async def _is(on: Platform, name: str, phase: str) -> bool:
    return await on.phase(name) == phase


def test_a_lost_worker_restarts_the_gang_once() -> None:
    async def scenario() -> None:
        async with platform() as on:
            await on.client.create(Job, manifest("training/job.yaml"), "default")
            await on.admit("train")
            await on.run(4)
            await eventually(lambda: _is(on, "train", "Running"))
            await on.client.delete(Pod, "train-worker-2", "default", grace_s=0)

            async def restarted() -> bool:
                await on.let_go()
                job = await on.job("train")
                return job.status.retry_count == 1 and job.status.state.phase == "Pending"

            await eventually(restarted)
            await on.admit("train")
            await on.run(4)
            await eventually(lambda: _is(on, "train", "Running"))
            job = await on.job("train")
            assert (job.status.version, job.status.retry_count) == (1, 1)
            assert {pod.metadata.annotations["volcano.sh/job-version"] for pod in (await on.pods()).values()} == {"1"}

    virtual_time.run(scenario())


def test_a_command_is_carried_out_and_gone() -> None:
    async def scenario() -> None:
        async with platform() as on:
            await on.client.create(Job, manifest("gang.yaml"), "default")
            await on.admit("gang")
            await on.run(3)
            uid = (await on.job("gang")).metadata.uid
            target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "gang", "uid": uid}
            order = {"metadata": {"name": "stop"}, "action": "AbortJob", "target": target}
            await on.client.create(Order, order, "default")

            async def aborted() -> bool:
                await on.let_go()
                return await on.phase("gang") == "Aborted"

            await eventually(aborted)
            assert list((await on.client.list(Order, "default")).items) == []

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"minAvailable": 9},
            'admission webhook "validatejob.volcano.sh" denied the request: '
            "job 'minAvailable' should not be greater than total replicas in tasks;",
        ),
        (
            {"queue": "nowhere"},
            'admission webhook "validatejob.volcano.sh" denied the request: '
            'unable to find job queue: queue.scheduling.volcano.sh "nowhere" not found;',
        ),
        (
            {"tasks": []},
            'Job.batch.volcano.sh "gang" is invalid: spec.tasks: Invalid value: 0: spec.tasks in body should have at least '
            "1 items",
        ),
        (
            {"maxRetry": -1},
            'Job.batch.volcano.sh "gang" is invalid: spec.maxRetry: Invalid value: -1: spec.maxRetry in body should be '
            "greater than or equal to 0",
        ),
    ],
)
def test_a_wrong_job_is_refused_and_nothing_changes(changes: Document, sentence: str) -> None:
    async def scenario() -> None:
        async with platform() as on:
            wrong = manifest("gang.yaml")
            wrong["spec"] |= changes
            with pytest.raises(ApiError) as raised:
                await on.client.create(Job, wrong, "default")
            assert str(raised.value) == sentence
            assert list((await on.client.list(Job, "default")).items) == []

    virtual_time.run(scenario())
