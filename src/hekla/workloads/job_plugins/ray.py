"""Starts a Ray cluster: the head's container runs `ray start --head`, the workers' join it; a Service leads to the head."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from hekla.api.core import Service
from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads import keys
from hekla.workloads.job_plugins.plugin import Owned, containers, host_names, open_port, task_named


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A head and its workers."""

    name: ClassVar[str] = "ray"

    head: str = "head"
    """The task of the head."""

    head_container: str = field(default="head", metadata={"flag": "headContainer"})
    """The head's container."""

    worker: str = "worker"
    """The task of the workers."""

    worker_container: str = field(default="worker", metadata={"flag": "workerContainer"})
    """The workers' container."""

    port: int = 6379
    """Where the head's store listens."""

    dashboard_port: int = field(default=8265, metadata={"flag": "dashboardPort"})
    """Where its dashboard listens."""

    client_port: int = field(default=10001, metadata={"flag": "clientPort"})
    """Where it takes clients."""

    def objects(self, job: Job) -> Iterator[Owned]:
        """The Service of the head."""
        selector = {
            keys.JOB_NAME: job.metadata.name,
            keys.JOB_NAMESPACE: job.metadata.namespace,
            keys.TASK_SPEC: self.head,
        }
        ports = [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in self._ports()]
        yield Owned(
            Service,
            {
                "metadata": {"name": f"{job.metadata.name}-head-svc"},
                "spec": {"selector": selector, "ports": ports},
            },
        )

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Set the command of the head's or the worker's container, and declare the head's ports."""
        head = task_named(job, self.head)
        for container in containers(pod, init=False):
            if task.name == self.head and container["name"] == self.head_container:
                start = f"ray start --head --block --dashboard-host=0.0.0.0 --port={self.port}"
                start += f" --dashboard-port={self.dashboard_port} --ray-client-server-port={self.client_port}"
                container["command"] = ["sh", "-c", start]
                for name, port in self._ports():
                    open_port(container, name, port)
            elif task.name == self.worker and container["name"] == self.worker_container and head is not None:
                address = next(host_names(job, head), "")
                container["command"] = ["sh", "-c", f"ray start --block --address={address}:{self.port}"]

    def _ports(self) -> tuple[tuple[str, int], ...]:
        return ("gcs", self.port), ("dashboard", self.dashboard_port), ("client-server", self.client_port)
