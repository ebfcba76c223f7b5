"""Probes of a JobFlow against real sockets: the answers are noted on the flow when all doors are open, and not before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hekla.api.core import Pod
from hekla.api.crd import crd_document
from hekla.api.volcano import Job, JobFlow
from hekla.app.flow_prober import FlowProber
from hekla.kube.api_client import ApiClient
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.testing.server import api_server
from hekla.workloads import keys

PATIENCE_S = 30.0
OWNER = {"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobFlow", "name": "etl", "controller": True}
CONTAINER = {"name": "main", "image": "python"}
TASK = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}}


@asynccontextmanager
async def door(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server on a free port of this machine, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1000))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked


async def make_flow(client: ApiClient, probe: dict[str, object]) -> None:
    """A flow whose first job runs in one pod of this machine, and whose second waits for its probe."""
    for kind in (Job, JobFlow):
        await client.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd_document(kind))
    steps = [{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"], "probe": probe}}]
    flow = await client.create(JobFlow, {"metadata": {"name": "etl", "namespace": "default"}, "spec": {"flows": steps}})
    owners = [{**OWNER, "uid": flow.metadata.uid}]
    metadata = {"name": "etl-a", "namespace": "default", "ownerReferences": owners}
    job = await client.create(Job, {"metadata": metadata, "spec": {"minAvailable": 1, "tasks": [TASK]}})
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "etl-a", "uid": job.metadata.uid}
    of_pod = {
        "name": "etl-a-worker-0", "namespace": "default", "annotations": {keys.TASK_SPEC: "worker"},
        "ownerReferences": [{**owner, "controller": True}],
    }  # fmt: skip
    await client.create(Pod, {"metadata": of_pod, "spec": {"containers": [CONTAINER]}})
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
    await client.patch(Pod, "etl-a-worker-0", status, "default", subresource="status")


async def noted(client: ApiClient) -> str:
    flow = await client.get(JobFlow, "etl", "default")
    return flow.metadata.annotations.get(keys.PROBES_ANSWERED, "")


def test_a_flow_is_told_when_every_door_is_open() -> None:
    async def story() -> None:
        async with (
            api_server() as server,
            door(b"HTTP/1.1 204 No Content\r\n\r\n") as (http, asked),
            door(b"") as (tcp, _),
        ):
            client = ApiClient(InProcessTransport(server.handle))
            header = {"name": "x-flow", "value": "etl"}
            await make_flow(client, {
                "httpGetList": [{"taskName": "worker", "port": http, "path": "/ready", "httpHeader": header}],
                "tcpSocketList": [{"taskName": "worker", "port": tcp}],
            })  # fmt: skip
            async with Informers(ApiClient(InProcessTransport(server.handle))) as informers:
                probing = asyncio.create_task(FlowProber(informers, period_s=0.01).run())
                async with asyncio.timeout(PATIENCE_S):
                    while await noted(client) != "b":
                        await asyncio.sleep(0.01)
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)
            assert asked[0].startswith(b"GET /ready HTTP/1.1")
            assert b"x-flow: etl" in asked[0]

    asyncio.run(story())


def test_a_door_that_says_no_or_is_shut_keeps_the_flow_waiting() -> None:
    async def story() -> None:
        async with api_server() as server, door(b"HTTP/1.1 503 Not Yet\r\ncontent-length: 0\r\n\r\n") as (http, asked):
            client = ApiClient(InProcessTransport(server.handle))
            await make_flow(client, {
                "httpGetList": [{"taskName": "worker", "port": http, "path": "/"}],
                "tcpSocketList": [{"taskName": "worker", "port": 1}],
            })  # fmt: skip
            async with Informers(ApiClient(InProcessTransport(server.handle))) as informers:
                prober = FlowProber(informers, period_s=0.01)
                probing = asyncio.create_task(prober.run())
                async with asyncio.timeout(PATIENCE_S):
                    while len(asked) < 3:
                        await asyncio.sleep(0.01)
                assert await noted(client) == ""
                assert not probing.done(), "it goes on asking"
                probing.cancel()
                await asyncio.gather(probing, return_exceptions=True)

    asyncio.run(story())
