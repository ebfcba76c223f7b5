"""Pods and where they go in one commit, and nothing of the ones that the disk refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.api.core import Namespace
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.api.volcano.topology import HyperNode
from hekla.apiserver.memory_store import MemoryStore
from hekla.app.early_pods import listen
from hekla.dialects.volcano import QUEUE_KEY
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError
from hekla.kube.informer import Informers
from hekla.kube.sharing import decode_pod
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.settings import EMBEDDED_SCHEDULER_NAMES, SchedulerSettings
from hekla.testing.server import api_server, in_process_client
from hekla.testing.virtual_time import run
from scheduler.schedulerkit import add_node, add_pod, is_bound, served, until

KINDS = (PodGroup, Queue, HyperNode)
SETTINGS = SchedulerSettings(scheduler_names=EMBEDDED_SCHEDULER_NAMES, window_s=0.0)


@dataclass
class World:
    store: MemoryStore
    client: ApiClient
    informers: Informers
    scheduler: BatchScheduler

    def pods_of_the_disk(self) -> dict[str, str]:
        """Uid and revision of each pod that can no longer be lost."""
        pods = [decode_pod(stored.body) for stored in self.store.list_durable("pods")]
        return {pod.metadata.uid: pod.metadata.resource_version for pod in pods}

    def pods_of_the_scheduler(self) -> dict[str, str]:
        return {uid: pod.metadata.resource_version for uid, pod in self.scheduler.feed.pods.items()}

    async def quiet(self) -> None:
        """Wait until everything has been told, decided and written."""
        await self.scheduler.idle()
        while self.pods_of_the_scheduler() != self.pods_of_the_disk() or self.store.decided != self.store.revision:
            await asyncio.sleep(0.01)
        await self.scheduler.idle()


@asynccontextmanager
async def world(nodes: int = 2) -> AsyncIterator[World]:
    store = MemoryStore()
    async with (
        api_server(store, kinds=KINDS) as server,
        in_process_client(server) as client,
        Informers(client) as informers,
    ):
        for kind in KINDS:
            await until(lambda kind=kind: served(client, kind))
        for number in range(nodes):
            await add_node(client, f"n{number}")
        scheduler = BatchScheduler(informers, SETTINGS)
        early = listen(store, scheduler)
        task = asyncio.create_task(scheduler.run())
        try:
            while not scheduler.cycles:
                await asyncio.sleep(0.01)
            yield World(store, client, informers, scheduler)
        finally:
            early.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_pods_and_their_bindings_are_one_commit():
    async def story():
        async with world() as here:
            batches = []
            here.store.subscribe(
                lambda changes: batches.append([change.key.name for change in changes]), resource="pods"
            )
            await asyncio.gather(*(add_pod(here.client, f"p{number}", gpus=4) for number in range(3)))
            assert [sorted(batch) for batch in batches] == [["p0", "p0", "p1", "p1", "p2", "p2"]]
            assert all([await is_bound(here.client, f"p{number}") for number in range(3)])
            await here.quiet()

    run(story())


def test_a_pod_that_finds_no_room_is_written_all_the_same_and_told_why():
    async def story():
        async with world(nodes=1) as here:
            await add_pod(here.client, "large", gpus=64)
            await until(lambda: has_reason(here.client, "large"), within_s=60)
            assert not await is_bound(here.client, "large")
            await here.quiet()

    run(story())


def test_the_room_of_a_pod_that_the_disk_refused_is_free_again():
    async def story():
        async with world(nodes=1) as here:
            await asyncio.sleep(60)  # all that is told once of a new world has been told
            here.store.refuse_commits = 1
            await add_pod(here.client, "whole", gpus=8)  # its client asks again
            assert here.store.refuse_commits == 0
            await until(lambda: is_bound(here.client, "whole"))
            assert len(here.scheduler.cluster.tasks) == 1
            await here.quiet()

    run(story())


def test_a_pod_that_is_made_while_its_nodes_are_cordoned_gets_none_of_them():
    """They are rows of one commit, the nodes' before the pod's: it was bound before anybody told of the nodes."""

    async def story():
        async with world(nodes=2) as here:
            cordon = {"spec": {"unschedulable": True}}
            await asyncio.gather(
                *(here.client.patch(Node, f"n{number}", cordon) for number in range(2)), add_pod(here.client, "late")
            )
            await until(lambda: has_reason(here.client, "late"))
            assert not await is_bound(here.client, "late")

    run(story())


def test_a_pod_that_is_made_with_its_namespace_is_in_the_namespaces_queue():
    async def story():
        async with world() as here:
            await here.client.create(Queue, {"metadata": {"name": "none"}, "spec": {"capability": {"cpu": "0"}}})
            await until(lambda: knows_queue(here))
            namespace = {"metadata": {"name": "ml", "annotations": {QUEUE_KEY: "none"}}}
            pod = {"metadata": {"name": "a", "namespace": "ml"}, "spec": {"containers": [CONTAINER]}}
            await asyncio.gather(here.client.create(Namespace, namespace), here.client.create(Pod, pod, "ml"))
            await here.quiet()
            assert (await here.client.get(Pod, "a", "ml")).spec.node_name == ""

    run(story())


def test_a_snapshot_knows_the_pods_that_it_decides():
    async def story():
        async with world() as here:
            pods = [await add_pod(here.client, f"p{number}", schedulerName="nobody") for number in range(2)]
            await here.quiet()
            foreseen = [
                msgspec.structs.replace(
                    pod,
                    metadata=msgspec.structs.replace(
                        pod.metadata, uid=f"u{number}", name=f"early{number}", resource_version="999"
                    ),
                    spec=msgspec.structs.replace(pod.spec, scheduler_name="volcano"),
                )
                for number, pod in enumerate(pods)
            ]
            assert here.scheduler.foresight.created(foreseen, {}) is not None
            taken = here.scheduler.recorded_cycle()
            known = {one.metadata.name for one in taken.objects if isinstance(one, Pod)}
            assert {"early0", "early1"} <= known

    run(story())


CONTAINER = {"name": "main", "image": "trainer", "resources": {"requests": {"cpu": "1"}}}


async def knows_queue(here: World) -> bool:
    return "none" in here.scheduler.feed.queues


async def has_reason(client: ApiClient, name: str) -> bool:
    return any(one.reason == "Unschedulable" for one in (await client.get(Pod, name, "default")).status.conditions)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 5), st.integers(0, 8)),
        st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("refuse"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 3), st.just(0)),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=30, deadline=None)
def test_the_scheduler_knows_the_pods_of_the_disk_whatever_it_foresaw(steps):
    async def story():
        async with world(nodes=2) as here:
            under_way = []
            for what, number, gpus in steps:
                if what == "create":
                    under_way.append(asyncio.ensure_future(add_pod(here.client, f"p{number}", gpus=gpus)))
                elif what == "delete":
                    under_way.append(asyncio.ensure_future(here.client.delete(Pod, f"p{number}", "default")))
                elif what == "refuse":
                    here.store.refuse_commits = number
                for _ in range(number if what == "wait" else 0):
                    await asyncio.sleep(0)
            outcomes = await asyncio.gather(*under_way, return_exceptions=True)
            here.store.refuse_commits = 0
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    assert isinstance(outcome, ApiError), outcome
            await here.quiet()
            used = sum(int(pod.spec.containers[0].resources.requests.get("nvidia.com/gpu", 0))
                       for pod in here.scheduler.feed.pods.values() if pod.spec.node_name)  # fmt: skip
            tasks = here.scheduler.cluster.tasks
            assert set(tasks) == set(here.scheduler.feed.pods)
            assert used <= 16

    run(story())
