"""Tells each container which pod of its task it is in."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads.job_plugins.plugin import Owned, add_env, containers


@dataclass(frozen=True, kw_only=True)
class Env:
    """Sets VC_TASK_INDEX, and VK_TASK_INDEX for old scripts."""

    name: ClassVar[str] = "env"

    def objects(self, job: Job) -> Iterator[Owned]:
        """Nothing."""
        yield from ()

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Add the two variables."""
        for container in containers(pod):
            add_env(container, *({"name": one, "value": str(index)} for one in ("VK_TASK_INDEX", "VC_TASK_INDEX")))
