"""Sets what `torch.distributed` reads to find its master: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads.job_plugins.plugin import Owned, add_env, containers, host_names, open_port, task_named

_WAIT = """\
waited=0
echo "waiting for {address}:{port}"
while ! {{ nc -z {address} {port} || echo > /dev/tcp/{address}/{port}; }} 2>/dev/null; do
  [ $waited -lt {timeout} ] || {{ echo "{address}:{port} did not answer within {timeout} seconds"; exit 1; }}
  sleep 2
  waited=$((waited + 2))
done
"""


@dataclass(frozen=True, kw_only=True)
class Pytorch:
    """One master with rank 0, workers with the ranks that follow."""

    name: ClassVar[str] = "pytorch"

    master: str = "master"
    """The task of the master."""

    worker: str = "worker"
    """The task of the workers."""

    port: int = 23456
    """Where the master listens."""

    wait_master_enabled: bool = False
    """Whether workers wait in an init container until the master listens."""

    wait_master_timeout: int = 300
    """How many seconds they wait."""

    wait_master_image: str = "busybox:1.36.1"
    """What the waiting container runs in."""

    def objects(self, job: Job) -> Iterator[Owned]:
        """Nothing; the svc plug-in, which admission adds, makes the names resolve."""
        yield from ()

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Add the port and the variables to each container."""
        master = task_named(job, self.master)
        if master is None:
            return
        address = next(host_names(job, master), "")
        variables = {"MASTER_ADDR": address, "MASTER_PORT": str(self.port), "WORLD_SIZE": str(self._world(job))}
        if task.name in (self.master, self.worker):
            variables["RANK"] = str(index + 1 if task.name == self.worker else 0)
        for container in containers(pod, init=False):
            open_port(container, "pytorchjob-port", self.port)
            add_env(container, *({"name": name, "value": value} for name, value in variables.items()))
        if self.wait_master_enabled and task.name == self.worker:
            self._wait(pod, address)

    def _world(self, job: Job) -> int:
        return sum(task.replicas for task in job.spec.tasks if task.name in (self.master, self.worker))

    def _wait(self, pod: Document, address: str) -> None:
        waiting = pod["spec"].setdefault("initContainers", [])
        if any(one["name"] == "wait-for-master" for one in waiting):
            return
        script = _WAIT.format(address=address, port=self.port, timeout=self.wait_master_timeout)
        waiting.append({"name": "wait-for-master", "image": self.wait_master_image, "command": ["sh", "-c", script]})
