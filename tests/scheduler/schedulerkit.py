"""A scheduler on an API server in this process, and the few objects that its stories need."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hekla.api.core import Event
from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import NotFoundError
from hekla.kube.informer import Informers
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.configuration import DEFAULT_TEXT
from hekla.scheduler.settings import EMBEDDED_SCHEDULER_NAMES, SchedulerSettings
from hekla.testing.server import api_server, in_process_client

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@asynccontextmanager
async def world(
    nodes: int = 2, configuration: str = DEFAULT_TEXT, kinds: Sequence[type[Resource]] = (PodGroup, Queue)
) -> AsyncIterator[tuple[ApiClient, BatchScheduler]]:
    async with api_server(kinds=kinds) as server, in_process_client(server) as client:
        for kind in kinds:
            await until(lambda kind=kind: served(client, kind))  # type: ignore[misc]
        for number in range(nodes):
            await add_node(client, f"n{number}")
        async with running(client, configuration) as scheduler:
            yield client, scheduler


@asynccontextmanager
async def running(client: ApiClient, configuration: str = DEFAULT_TEXT) -> AsyncIterator[BatchScheduler]:
    """A scheduler with informers of its own; cut off without a word at the end, as by a kill."""
    settings = SchedulerSettings(scheduler_names=EMBEDDED_SCHEDULER_NAMES, configuration=configuration)
    async with Informers(client) as informers:
        scheduler = BatchScheduler(informers, settings)
        task = asyncio.create_task(scheduler.run())
        try:
            yield scheduler
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def events(client: ApiClient, name: str) -> list[tuple[str, str]]:
    """(reason, message) of the events on an object."""
    found = (await client.list(Event)).items
    return [(e.reason, e.message) for e in found if e.involved_object.name == name]


async def served(client: ApiClient, kind: Any) -> bool:
    try:
        await client.list(kind)
    except NotFoundError:
        return False
    return True


async def until(is_true: Any, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await is_true():
            await asyncio.sleep(0.005)


async def add_node(client: ApiClient, name: str, gpus: int = 8) -> None:
    await client.create(Node, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(Node, name, {"status": status}, subresource="status")


async def add_pod(client: ApiClient, name: str, *, gpus: int = 0, group: str = "", **spec: Any) -> Pod:
    resources = {"requests": {"nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if group:
        metadata["annotations"] = {"scheduling.k8s.io/group-name": group}
    containers = [{"name": "main", "image": "trainer", "resources": resources}]
    return await client.create(Pod, {"metadata": metadata, "spec": {"containers": containers, **spec}}, "default")


async def add_group(client: ApiClient, name: str, minimum: int, **spec: Any) -> PodGroup:
    document = {"metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": minimum, **spec}}
    return await client.create(PodGroup, document, "default")


async def nodes_of(client: ApiClient) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.node_name for pod in (await client.list(Pod, "default")).items}


async def scheduled_condition(client: ApiClient, pod: str) -> tuple[str, str, str]:
    current = await client.get(Pod, pod, "default")
    found = [c for c in current.status.conditions if c.type == "PodScheduled"]
    return (found[0].status, found[0].reason, found[0].message) if found else ("", "", "")


async def group_condition(client: ApiClient, name: str) -> tuple[str, str, str]:
    group = await client.get(PodGroup, name, "default")
    told = [c for c in group.status.conditions if c.status == "True"]
    return (told[-1].type, told[-1].reason, told[-1].message) if told else ("", "", "")


async def is_phase(client: ApiClient, group: str, phase: str) -> bool:
    return (await client.get(PodGroup, group, "default")).status.phase == phase


async def is_bound(client: ApiClient, pod: str) -> bool:
    return bool((await client.get(Pod, pod, "default")).spec.node_name)


async def is_unschedulable(client: ApiClient, pod: str) -> bool:
    return (await scheduled_condition(client, pod))[1] == "Unschedulable"
