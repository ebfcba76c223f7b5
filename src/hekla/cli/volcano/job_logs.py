"""What the pods of a job write: what there is, or, followed, everything until the job has ended, of every retry."""

import asyncio
from typing import TYPE_CHECKING

from hekla.cli.commands.logs import print_log_of_one, print_logs
from hekla.cli.main import CommandError
from hekla.cli.volcano.columns import name_of, phase_of
from hekla.cli.volcano.jobs import ENDED
from hekla.cli.volcano.lookups import found
from hekla.cli.volcano.pods import JOB_LABEL

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

TASK_LABEL = "volcano.sh/task-spec"
STARTED = ("Running", "Succeeded", "Failed")
OVER = (*ENDED, "Aborted")


class JobLogs:
    """The logs of one job's pods."""

    def __init__(self, connection: "Connection", name: str, namespace: str, task: str, query: dict[str, str]) -> None:
        self._connection, self._name, self._namespace, self._query = connection, name, namespace, query
        self._selector = f"{JOB_LABEL}={name}" + (f",{TASK_LABEL}={task}" if task else "")
        self._task = task
        self._told: set[str] = set()

    async def show(self) -> None:
        """Print what was written up to now."""
        await self._job()
        pods = sorted(name_of(one) for one in (await self._pods())[0])
        if not pods:
            of_task = f' of task "{self._task}"' if self._task else ""
            raise CommandError(
                f'job "{self._name}" has no pods{of_task} in namespace "{self._namespace}"; '
                f"`hekla why vcjob/{self._name} -n {self._namespace}` says what it waits for"
            )
        await print_logs(self._connection, pods, self._namespace, self._query, f'job "{self._name}"')

    async def follow(self) -> None:
        """Print what is written until the job has ended."""
        job = await self._job()
        width = max([0, *(len(one) for one in last_pod_names(job))])
        async with asyncio.TaskGroup() as printing:
            watching = printing.create_task(self._print_as_they_start(printing, width))
            await self._until_over(phase_of(job), job["metadata"]["resourceVersion"])
            watching.cancel()
            for pod in (await self._pods())[0]:
                self._print(printing, pod, width)

    async def _job(self) -> "Document":
        from hekla.api.volcano import Job

        return await found(self._connection, Job.kind_info, self._name, self._namespace)

    async def _pods(self) -> "tuple[list[Document], str]":
        from hekla.api.core import Pod

        page = await self._connection.client.list_documents(
            Pod.kind_info, self._namespace, label_selector=self._selector
        )
        return page.items, page.resource_version

    async def _print_as_they_start(self, printing: asyncio.TaskGroup, width: int) -> None:
        from hekla.api.core import Pod

        pods, revision = await self._pods()
        for pod in pods:
            self._print(printing, pod, width)
        while True:  # a server ends every watch after a while; the next one goes on where that one ended
            events = self._connection.client.watch_documents(
                Pod.kind_info, self._namespace, resource_version=revision, label_selector=self._selector
            )
            async for event in events:
                revision = event.resource_version or revision
                if event.type != "BOOKMARK":
                    self._print(printing, event.object, width)

    def _print(self, printing: asyncio.TaskGroup, pod: "Document", width: int) -> None:
        """Print a pod's log from its start, once: a retry is another pod of the same name."""
        uid = pod["metadata"]["uid"]
        if uid in self._told or (pod.get("status") or {}).get("phase") not in STARTED:
            return
        self._told.add(uid)
        printing.create_task(
            print_log_of_one(self._connection, self._namespace, name_of(pod), self._query | {"follow": "true"}, width)
        )

    async def _until_over(self, phase: str, revision: str) -> None:
        from hekla.api.volcano import Job

        only = f"metadata.name={self._name}"
        while phase not in OVER:
            events = self._connection.client.watch_documents(
                Job.kind_info, self._namespace, resource_version=revision, field_selector=only
            )
            async for event in events:
                revision = event.resource_version or revision
                if event.type == "BOOKMARK":
                    continue
                phase = "Terminated" if event.type == "DELETED" else phase_of(event.object)
                if phase in OVER:
                    return


def last_pod_names(job: "Document") -> list[str]:
    """The name of each task's last pod: the longest that will come."""
    tasks = (job.get("spec") or {}).get("tasks") or ()
    return [f"{name_of(job)}-{task.get('name', '')}-{max(0, int(task.get('replicas') or 0) - 1)}" for task in tasks]
