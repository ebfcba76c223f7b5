import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hekla.api.core import ConfigMap, Event
from hekla.api.nodes import Node
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.kube.errors import NotFoundError
from hekla.kube.informer import Informers
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.reload import CONFIG_MAP, KEY
from hekla.scheduler.settings import SchedulerSettings
from hekla.testing.platform import refusal_of
from hekla.testing.server import api_server, in_process_client

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LENIENT = 'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: gang\n'


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_true():
            await asyncio.sleep(0.005)


def test_a_new_configuration_decides_from_the_next_cycle_on_and_a_bad_one_is_told_on_its_config_map() -> None:
    async def main() -> None:
        async with api_server(kinds=(PodGroup, Queue)) as server, in_process_client(server) as client:

            async def phase() -> str:
                try:
                    return (await client.get(PodGroup, "wide", "default")).status.phase
                except NotFoundError:
                    return ""

            async def is_waiting() -> bool:
                return bool((await client.get(PodGroup, "wide", "default")).status.conditions)

            async def is_let_in() -> bool:
                return await phase() == "Inqueue"

            async def is_refused() -> bool:
                told = (await client.list(Event, "default")).items
                return any(e.involved_object.name == CONFIG_MAP and e.reason == "ConfigurationRefused" for e in told)

            async def is_served() -> bool:
                try:
                    await client.list(PodGroup)
                except NotFoundError:
                    return False
                return True

            await until(is_served)
            await client.create(Node, {"metadata": {"name": "n0"}})
            await client.patch(Node, "n0", node_status(), subresource="status")
            async with Informers(client) as informers:
                scheduler = BatchScheduler(informers, SchedulerSettings(namespace="default"))
                running = asyncio.create_task(scheduler.run())
                spec = {"minMember": 1, "minResources": {"cpu": "64"}}
                await client.create(PodGroup, {"metadata": {"name": "wide"}, "spec": spec}, "default")
                await until(is_waiting)
                assert not await is_let_in()
                await client.create(ConfigMap, {"metadata": {"name": CONFIG_MAP}, "data": {KEY: LENIENT}}, "default")
                await until(is_let_in)
                await client.patch(ConfigMap, CONFIG_MAP, {"data": {KEY: "actions: alocate"}}, "default")
                await until(is_refused)
                assert scheduler.configuration.text == LENIENT
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def node_status() -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    return {"status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}}


def test_a_platform_does_not_start_by_a_file_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "s.conf"
    file.write_text("actions: alocate\n")
    code, said = refusal_of(tmp_path / "data", "--scheduler-conf", str(file))
    assert code == 2
    assert f"--scheduler-conf {file}: line 1: failed to find Action alocate; did you mean allocate?" in said
