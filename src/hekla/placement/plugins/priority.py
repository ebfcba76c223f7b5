"""Higher priority goes first: among jobs, and among the tasks of a job; and where there is no room, in place of lower."""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.placement.framework import Key, plugin
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.session import Session


@plugin
@dataclass(frozen=True, kw_only=True)
class Priority:
    """Orders by priority."""

    orders_waiting_by = ("priority",)
    """Asked by `queueing/kept_lines.py`: these fields decide the key of a lone job that waits."""

    def job_key(self, session: Session, job: Job) -> Key:
        """The job's priority, from its PodGroup."""
        return (-job.spec.priority,)

    keeps_task_order = True
    """Asked by `node_selection/filling.py`: a task's key changes with its spec alone."""

    def task_key(self, session: Session, task: Task) -> Key:
        """The pod's own priority."""
        return (-task.spec.priority,)

    def is_starving(self, session: Session, job: Job) -> bool:
        """Any of its tasks has neither a node nor a promise."""
        return job.ready_count + job.statuses[TaskStatus.PIPELINED] < len(job.tasks)

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Tasks of jobs of a lower priority; within a job, tasks of a lower priority."""
        return [victim for victim in victims if _is_lower(victim, task)]

    def evictable_together(
        self, session: Session, task: Task, victims: Sequence[Task], *, takes_back: bool
    ) -> Sequence[Task]:
        """The same for gangs; between queues, what they deserve says who goes, and not priority."""
        return victims if takes_back else self.preemptable(session, task, victims)


def _is_lower(victim: Task, task: Task) -> bool:
    mine, other = task.job, victim.job
    assert mine is not None
    assert other is not None
    if mine is other:
        return victim.spec.priority < task.spec.priority
    return other.spec.priority < mine.spec.priority
