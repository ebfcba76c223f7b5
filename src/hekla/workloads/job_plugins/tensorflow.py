"""Sets TF_CONFIG, by which TensorFlow's parameter servers, workers, chief and evaluator find one another."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.workloads.job_plugins.plugin import Owned, add_env, containers


@dataclass(frozen=True, kw_only=True)
class Tensorflow:
    """Four roles, each played by a task."""

    name: ClassVar[str] = "tensorflow"

    ps: str = "ps"
    """The task of the parameter servers."""

    worker: str = "worker"
    """The task of the workers."""

    chief: str = "chief"
    """The task of the chief."""

    evaluator: str = "evaluator"
    """The task of the evaluators."""

    port: int = 2222
    """Where each of them listens."""

    def objects(self, job: Job) -> Iterator[Owned]:
        """Nothing."""
        yield from ()

    def decorate(self, pod: Document, job: Job, task: TaskSpec, index: int) -> None:
        """Add TF_CONFIG; a job of one pod needs none."""
        if len(job.spec.tasks) == 1 and job.spec.tasks[0].replicas == 1:
            return
        roles = {self.ps: "ps", self.worker: "worker", self.chief: "chief", self.evaluator: "evaluator"}
        cluster = {roles[one.name]: self._addresses(job, one) for one in job.spec.tasks if one.name in roles}
        config = {"cluster": cluster, "task": {"type": roles.get(task.name, task.name), "index": index}}
        for container in containers(pod, init=False):
            add_env(container, {"name": "TF_CONFIG", "value": json.dumps(config, separators=(",", ":"))})

    def _addresses(self, job: Job, task: TaskSpec) -> list[str]:
        # Every replica has its own line, even where the template fixes one hostname for all.
        spec = task.template.get("spec", {})
        domain = spec.get("subdomain") or job.metadata.name
        names = (spec.get("hostname") or f"{job.metadata.name}-{task.name}-{index}" for index in range(task.replicas))
        return [f"{name}.{domain}:{self.port}" for name in names]
