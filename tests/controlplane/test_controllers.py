import asyncio
import random

import pytest

from hekla.api.core import ResourceQuota
from hekla.api.pods import Pod
from hekla.controlplane.controllers import CONTROLLERS
from hekla.controlplane.views import Deployment, Job, ReplicaSet, StatefulSet
from hekla.kube.clock import LoopClock
from hekla.kube.errors import ApiError, ConflictError, NotFoundError
from hekla.testing import virtual_time
from hekla.testing.embedded import embedded_cluster

TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
SELECTOR = {"matchLabels": {"app": "web"}}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def run(scenario):
    async def main():
        async with embedded_cluster(clock=LoopClock()) as cluster:
            await asyncio.sleep(2)
            await scenario(cluster, cluster.client)

    virtual_time.run(main())


async def pods(client):
    return (await client.list(Pod, "default")).items


async def until(condition):
    for _ in range(5000):
        if await condition():
            return
        await asyncio.sleep(0.5)
    raise AssertionError("it never came true")


async def kubelet(client, dice):
    """Makes pods ready, now and then, and lets leaving ones go."""
    while True:
        await asyncio.sleep(0.2)
        for pod in await pods(client):
            try:
                if pod.metadata.deletion_timestamp:
                    await client.delete(Pod, pod.metadata.name, "default", grace_s=0)
                elif pod.status.phase == "Pending" and dice.random() < 0.5:
                    await client.patch(Pod, pod.metadata.name, {"status": READY}, "default", subresource="status")
            except (NotFoundError, ConflictError):
                continue


@pytest.mark.parametrize("seed", range(3))
def test_workloads_come_to_rest_whatever_breaks(seed):
    """Streams break, answers are refused, pods vanish: in the end everything is as its spec says."""

    async def scenario(cluster, client):
        dice = random.Random(seed)

        def refuse_some(request):
            if request.method != "GET" and dice.random() < 0.15:
                raise ApiError(500, "InternalError", "etcdserver: request timed out")

        node = asyncio.create_task(kubelet(client, dice))
        spec = {"replicas": 4, "selector": SELECTOR, "template": TEMPLATE}
        await client.create(Deployment, {"metadata": {"name": "web"}, "spec": spec}, "default")
        labels = {"metadata": {"labels": {"app": "db"}}}
        set_spec = {
            "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "template": {**TEMPLATE, **labels},
        }  # fmt: skip
        await client.create(StatefulSet, {"metadata": {"name": "db"}, "spec": set_spec}, "default")
        cluster.controllers.before = refuse_some
        for version in range(4):
            await asyncio.sleep(dice.random() * 5)
            image = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": f"x:{version}"}]}}}}
            await client.patch(Deployment, "web", image, "default")
            cluster.controllers.cut()
            running = await pods(client)
            if running:
                await client.delete(Pod, dice.choice(running).metadata.name, "default", grace_s=0)
        cluster.controllers.before = lambda request: None

        async def is_at_rest():
            web = await client.get(Deployment, "web", "default")
            db = await client.get(StatefulSet, "db", "default")
            images = sorted(pod.spec.containers[0].image for pod in await pods(client))
            return (
                images == ["x", "x", "x", "x:3", "x:3", "x:3", "x:3"]
                and web.status.available_replicas == web.status.updated_replicas == 4
                and db.status.ready_replicas == 3
            )

        await until(is_at_rest)
        node.cancel()

    run(scenario)


def test_a_quota_that_is_full_is_told_in_an_event():
    async def scenario(_, client):
        await client.create(ResourceQuota, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}, "default")
        spec = {"replicas": 3, "selector": SELECTOR, "template": TEMPLATE}
        await client.create(ReplicaSet, {"metadata": {"name": "web"}, "spec": spec}, "default")
        await asyncio.sleep(30)
        assert len(await pods(client)) == 1
        events = (await client.request("GET", "/api/v1/namespaces/default/events"))["items"]
        failed = [event for event in events if event["reason"] == "FailedCreate"]
        assert "exceeded quota: q" in failed[0]["message"]
        assert failed[0]["source"]["component"] == "replicaset-controller"
        assert failed[0]["involvedObject"]["name"] == "web"
        quota = await client.get(ResourceQuota, "q", "default")
        assert quota.status.used == {"pods": "1"}

    run(scenario)


def test_a_job_of_many_pods_is_counted_exactly():
    async def scenario(cluster, client):
        dice = random.Random(5)
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
        spec = {"parallelism": 7, "completions": 40, "template": template}
        await client.create(Job, {"metadata": {"name": "many"}, "spec": spec}, "default")

        async def is_complete():
            for pod in await pods(client):
                if pod.status.phase == "Pending" and dice.random() < 0.4:
                    patch = {"status": {"phase": "Succeeded"}}
                    await client.patch(Pod, pod.metadata.name, patch, "default", subresource="status")
            if dice.random() < 0.2:
                cluster.controllers.cut()
            job = await client.get(Job, "many", "default")
            assert job.status.succeeded <= 40
            return any(one.type == "Complete" for one in job.status.conditions)

        await until(is_complete)
        assert (await client.get(Job, "many", "default")).status.succeeded == 40
        assert len(await pods(client)) == 40
        await client.delete(Job, "many", "default", propagation="Background")

        async def is_gone():
            return not await pods(client)

        await until(is_gone)

    run(scenario)


def test_controllers_have_names_of_their_own():
    names = [one.name for one in CONTROLLERS]
    assert len(set(names)) == len(names)
