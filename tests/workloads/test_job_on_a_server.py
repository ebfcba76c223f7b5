"""The reconcilers, the admission rules and the generated CRDs together on an API server, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY

from hekla.api.core import Event, Pod, ResourceQuota
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.meta import Document
from hekla.api.volcano import Job, PodGroup, Queue
from hekla.api.volcano.bus import Command as Order
from hekla.apiserver.admission import AdmissionRule
from hekla.apiserver.admission_rules.resource_quota import ResourceQuotaRule
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
async def platform(*more: AdmissionRule) -> AsyncIterator[Platform]:
    async with api_server(rules=(*ADMISSION_RULES, *more), kinds=CUSTOM_KINDS) as server:
        client = ApiClient(InProcessTransport(server.handle))
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


def test_a_template_of_more_than_a_megabyte_is_carried_to_the_pods_and_one_beyond_the_servers_limit_is_refused() -> (
    None
):
    def padded(size: int) -> Document:
        document = manifest("gang.yaml")
        document["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {"big": "true"}}
        container = document["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "PADDING", "value": "x" * size}]
        return document

    async def scenario() -> None:
        async with platform() as on:
            await on.client.create(Job, padded(1_200_000), "default")
            await on.admit("gang")
            await on.run(3)
            pods = await on.pods()
            assert {len(pod.spec.containers[0].env[0].value) for pod in pods.values()} == {1_200_000}
            with pytest.raises(ApiError, match="Request entity too large: limit is 3145728"):
                await on.client.create(Job, padded(3_200_000) | {"metadata": {"name": "huge"}}, "default")

    virtual_time.run(scenario())


def test_a_plug_in_that_does_not_know_its_arguments_is_told_and_the_job_runs_without_it() -> None:
    async def scenario() -> None:
        async with platform() as on:
            wrong = manifest("gang.yaml")
            wrong["spec"]["plugins"] = {"pytorch": ["--masters=a"], "env": []}
            await on.client.create(Job, wrong, "default")
            await on.admit("gang")
            await on.run(3)
            events = (await on.client.list(Event, "default")).items
            told = [one.message for one in events if one.reason == "PluginError"]
            assert len(told) == 1
            assert told[0].startswith(
                'job plugin "pytorch" does not know the argument "--masters=a"; it takes --master, '
            )
            names = {variable.name for pod in (await on.pods()).values() for variable in pod.spec.containers[0].env}
            assert "VC_TASK_INDEX" in names
            assert "MASTER_ADDR" not in names

    virtual_time.run(scenario())


def statuses_written() -> float:
    labels = {"reconciler": "job", "command": "SetStatus"}
    return REGISTRY.get_sample_value("hekla_reconcile_commands_total", labels) or 0.0


def test_a_wave_of_pods_is_written_down_in_few_statuses() -> None:
    async def scenario() -> None:
        async with platform() as on:
            wide = manifest("gang.yaml")
            wide["spec"]["tasks"][0]["replicas"] = wide["spec"]["minAvailable"] = 300
            await on.client.create(Job, wide, "default")
            await on.admit("gang")

            async def all_there() -> bool:
                return len(await on.pods()) == 300

            await eventually(all_there)
            before = statuses_written()
            names = list(await on.pods())
            await asyncio.gather(*(on.client.bind("default", name, "n1") for name in names))
            await asyncio.gather(*(on.status(name, {"phase": "Running"}) for name in names))
            await asyncio.gather(*(on.status(name, {"phase": "Succeeded"}) for name in names))
            await eventually(lambda: _is(on, "gang", "Completed"))
            assert statuses_written() - before <= 30  # of 600 changes

    virtual_time.run(scenario())


def test_pods_that_a_quota_refuses_are_told_of_and_the_job_still_says_how_it_is() -> None:
    async def scenario() -> None:
        async with platform(ResourceQuotaRule()) as on:
            quota = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
            await on.client.create(ResourceQuota, quota, "default")
            await on.client.create(Job, manifest("gang.yaml"), "default")
            await on.admit("gang")

            async def counted() -> bool:
                return (await on.job("gang")).status.pending == 1

            await eventually(counted)

            async def told() -> set[str]:
                events = (await on.client.list(Event, "default")).items
                return {one.message for one in events if one.reason == "FailedCreate"}

            await eventually(told)
            (message,) = {text.partition(",")[0].replace("-2", "-1") for text in await told()}
            assert message == 'Error creating: pods "gang-member-1" is forbidden: exceeded quota: one'

    virtual_time.run(scenario())
