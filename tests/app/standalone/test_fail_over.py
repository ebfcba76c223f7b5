"""Two schedulers with leader election: the second takes over within 20 s, in virtual time, and no pod is asked to be bound twice.

`tests/e2e/test_standalone.py` shows the same of two processes, over HTTPS and by the clock on the wall.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.standalone.test_office import LocalConnection, office_of
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.app.standalone.components import is_optional, scheduler_kinds
from hekla.app.standalone.office import LEASE_TIMES, Office
from hekla.kube.informer import Informers
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.settings import EMBEDDED_SCHEDULER_NAMES, SchedulerSettings
from hekla.testing import virtual_time
from hekla.testing.server import api_server, in_process_client
from scheduler.schedulerkit import add_node, add_pod, is_bound, served

MOST_S = 20.0
BINDING = re.compile(r"POST (\S+/pods/[^/]+/binding)")
SETTINGS = SchedulerSettings(scheduler_names=EMBEDDED_SCHEDULER_NAMES)


class Replica:
    """One scheduler that waits for the lease, and how it is ended without a word."""

    def __init__(self, office: Office, connection: LocalConnection) -> None:
        self.office, self._connection = office, connection
        self.schedules = False
        kinds = scheduler_kinds()
        self.task = asyncio.create_task(office.serve_terms("scheduler", "volcano", kinds, is_optional, self._work))

    async def _work(self, informers: Informers) -> None:
        self.schedules = True
        try:
            await self.office.until_stopped(BatchScheduler(informers, SETTINGS, clock=self.office.clock).run())
        finally:
            self.schedules = False

    def kill(self) -> None:
        """From now on nothing of it reaches the server, its lease's return least of all."""
        for transport in self._connection.transports:
            transport.is_away = True
            transport.cut()
        self.task.cancel()

    def bindings(self) -> Counter[str]:
        """How often it asked for each pod to be bound."""
        said = (
            found.group(1)
            for one in self._connection.transports
            for line in one.requests
            if (found := BINDING.match(line))
        )
        return Counter(said)


@asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[Any, list[Replica]]]:
    async with api_server(kinds=(PodGroup, Queue)) as server, in_process_client(server) as client:
        while not (await served(client, PodGroup) and await served(client, Queue)):
            await asyncio.sleep(0.1)
        await add_node(client, "n0", gpus=1000)
        replicas = [Replica(*office_of(server)) for _ in range(2)]
        try:
            yield client, replicas
        finally:
            for replica in replicas:
                replica.kill()
            await asyncio.gather(*(replica.task for replica in replicas), return_exceptions=True)


@pytest.mark.parametrize("seed", range(6))
def test_the_second_has_taken_over_within_twenty_seconds_and_no_pod_was_asked_for_twice(seed: int) -> None:
    async def story() -> float:
        loop, dice = asyncio.get_running_loop(), random.Random(seed)
        async with two_replicas() as (client, replicas):
            while not any(replica.schedules for replica in replicas):
                await asyncio.sleep(0.1)
            await asyncio.sleep(dice.uniform(5.0, 12.0))  # at any moment between two renewals
            for number in range(20):
                await add_pod(client, f"before-{number}", gpus=1)
            await asyncio.sleep(dice.choice((0.0, 0.002, 0.5)))  # some are bound by now, some not
            leader = next(replica for replica in replicas if replica.schedules)
            leader.kill()
            killed_s = loop.time()
            await add_pod(client, "after", gpus=1)
            while not await is_bound(client, "after"):
                await asyncio.sleep(0.05)
            took_s = loop.time() - killed_s
            await asyncio.sleep(5)
            pods = (await client.list(Pod, "default")).items
            assert all(pod.spec.node_name == "n0" for pod in pods)
            asked = sum((replica.bindings() for replica in replicas), Counter[str]())
            assert len(asked) == len(pods) == 21
            assert set(asked.values()) == {1}, "a pod was asked for twice"
            return took_s

    took_s = virtual_time.run(story())
    assert LEASE_TIMES.renew_deadline_s < took_s < MOST_S, "neither before the first had to give up, nor late"
