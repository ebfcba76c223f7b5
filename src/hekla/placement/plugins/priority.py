"""Higher priority goes first: among jobs, and among the tasks of a job."""

from dataclasses import dataclass

from hekla.placement.framework import Key, plugin
from hekla.placement.model import Job, Task
from hekla.placement.session import Session


@plugin
@dataclass(frozen=True, kw_only=True)
class Priority:
    """Orders by priority."""

    def job_key(self, session: Session, job: Job) -> Key:
        """The job's priority, from its PodGroup."""
        return (-job.spec.priority,)

    def task_key(self, session: Session, task: Task) -> Key:
        """The pod's own priority."""
        return (-task.spec.priority,)
