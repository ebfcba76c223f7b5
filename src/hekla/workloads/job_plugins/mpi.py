"""Tells an MPI master which hosts its workers are, and opens the port that it reaches them by."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads.job_plugins.plugin import Owned, add_env, containers, host_names, open_port, task_named


@dataclass(frozen=True, kw_only=True)
class Mpi:
    """One master that starts ranks on workers by ssh."""

    name: ClassVar[str] = "mpi"

    master: str = "master"
    """The task of the master."""

    worker: str = "worker"
    """The task of the workers."""

    port: int = 22
    """Where ssh listens."""

    def objects(self, job: Job) -> Iterator[Owned]:
        """Nothing; the ssh and svc plug-ins, which admission adds, bring keys and names."""
        yield from ()

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Open the port; set MPI_HOST in the master."""
        workers = task_named(job, self.worker)
        is_master = task.name == self.master
        if is_master and workers is None:
            return
        for container in containers(pod):
            open_port(container, "mpijob-port", self.port)
            if is_master and workers is not None:
                add_env(container, {"name": "MPI_HOST", "value": ",".join(host_names(job, workers))})
