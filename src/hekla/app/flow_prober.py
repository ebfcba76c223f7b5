"""Knocks at the doors that JobFlows' probes name, once a second, and notes on the flow when all have answered.

Which doors, and what follows, is decided in `workloads/flow_probes.py` and `workloads/job_flow.py`. A GET is answered by a
status below 400, as a kubelet sees it; a connection by being opened.
"""

import asyncio
from collections.abc import Sequence

import structlog

from hekla.api.core import Pod
from hekla.api.volcano import Job, JobFlow
from hekla.kube.client import PatchType
from hekla.kube.errors import KubeError
from hekla.kube.informer import Informers
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.workloads import keys
from hekla.workloads.flow_probes import Knock, due, with_answered
from hekla.workloads.job_flow import job_name

log = structlog.get_logger(__name__)

PERIOD_S = 1.0
PATIENCE_S = 1.0
"""How long a door may take to open; what takes longer is tried again in the next round."""

AT_ONCE = 64
"""Doors that are knocked at together; a round with more takes longer."""


class FlowProber:
    """Probes for all flows."""

    def __init__(self, informers: Informers, *, period_s: float = PERIOD_S) -> None:
        self._client = informers.client
        self._flows, self._jobs, self._pods = informers.of(JobFlow), informers.of(Job), informers.of(Pod)
        self._http = HttpClient()
        self._period_s = period_s
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Knock until cancelled."""
        try:
            for informer in (self._flows, self._jobs, self._pods):
                await informer.synced()
            while True:
                await self.look()
                await asyncio.sleep(self._period_s)
        finally:
            await self._http.close()

    async def look(self) -> None:
        """One round."""
        await asyncio.gather(*(self._look_at(flow) for flow in self._flows.cache.list()))

    async def _look_at(self, flow: JobFlow) -> None:
        made = {job.metadata.name: job for job in self._jobs.cache.owned(flow.metadata.uid)}
        jobs = {step.name: made[name] for step in flow.spec.flows if (name := job_name(flow, step.name)) in made}
        pods = {job.metadata.uid: self._pods.cache.owned(job.metadata.uid) for job in jobs.values()}
        open_to = [step for step, doors in due(flow, jobs, pods) if await self._all_open(doors)]
        if open_to:
            await self._note(flow, open_to)

    async def _all_open(self, doors: Sequence[Knock]) -> bool:
        return all(await asyncio.gather(*(self._is_open(door) for door in doors)))

    async def _is_open(self, door: Knock) -> bool:
        async with self._room:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await (self._connects(door) if door.path is None else self._answers(door))
            except (OSError, WireError, TimeoutError) as error:
                log.debug("probe not answered", host=door.host, port=door.port, path=door.path, why=str(error))
                return False

    async def _answers(self, door: Knock) -> bool:
        headers = [door.header] if door.header is not None else []
        answer = await self._http.request("GET", door.url, headers, timeout_s=PATIENCE_S)
        return answer.status < 400

    @staticmethod
    async def _connects(door: Knock) -> bool:
        _, writer = await asyncio.open_connection(door.host, door.port)
        writer.close()
        return True

    async def _note(self, flow: JobFlow, steps: Sequence[str]) -> None:
        meta = flow.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": {keys.PROBES_ANSWERED: with_answered(flow, steps)}}}
        try:
            await self._client.patch(JobFlow, meta.name, patch, meta.namespace, patch_type=PatchType.MERGE)
        except KubeError as error:  # it is gone, or will be probed again in a second
            log.info("answers not noted", flow=f"{meta.namespace}/{meta.name}", why=str(error))
        else:
            log.info("probes answered", flow=f"{meta.namespace}/{meta.name}", steps=list(steps))
