"""Numbers the pods of a job for Ascend's collective library: masters first, workers after them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads.job_plugins.plugin import Owned, containers, task_named

RANK_INDEX = "hccl/rankIndex"


@dataclass(frozen=True, kw_only=True)
class Hcclrank:
    """Writes the rank into an annotation."""

    name: ClassVar[str] = "hcclrank"

    master: str = "master"
    """The task of the masters."""

    worker: str = "worker"
    """The task of the workers."""

    def objects(self, job: Job) -> Iterator[Owned]:
        """Nothing."""
        yield from ()

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Take the rank that a container has been given, else count."""
        given = [
            one["value"] for box in containers(pod, init=False) for one in box.get("env", ()) if one["name"] == "RANK"
        ]
        rank = given[0] if given else self._counted(job, task, index)
        if rank is not None:
            pod["metadata"].setdefault("annotations", {}).setdefault(RANK_INDEX, rank)

    def _counted(self, job: Job, task: TaskSpec, index: int) -> str | None:
        masters = task_named(job, self.master)
        if task.name == self.master:
            return str(index)
        if task.name == self.worker:
            return str(index + (masters.replicas if masters else 0))
        return None
