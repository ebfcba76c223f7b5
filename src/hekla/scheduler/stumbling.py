"""Which job did a failed cycle stumble over? One that breaks a plug-in is set aside, so that all others go on.

A failure of this kind is our own mistake. What is known of it is where it happened: the job, or the task's job, that the
innermost frame had in hand.
"""

from collections.abc import Iterator
from types import FrameType, TracebackType

from hekla.placement.model import Job, Task

REST_S = (10.0, 300.0)
"""First and longest time for which a job is set aside, doubled every time."""


def job_at_fault(error: BaseException) -> Job | None:
    """The job that was being looked at when this was raised; None if none was."""
    for frame in reversed(list(_frames(error.__traceback__))):
        for name in ("job", "task", "tasks"):
            found = frame.f_locals.get(name)
            if isinstance(found, list | tuple) and found:
                found = found[0]
            if isinstance(found, Task):
                found = found.job
            if isinstance(found, Job):
                return found
    return None


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


class Stumbles:
    """Remembers how often the scheduler stumbled over whom."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        """By uid of a job that is set aside, what is told about it."""

        self._counts: dict[str, int] = {}

    def rest_s(self, job: Job, error: Exception) -> float:
        """Note another stumble; for how long the job is to be set aside."""
        count = self._counts[job.uid] = self._counts.get(job.uid, 0) + 1
        first_s, longest_s = REST_S
        rest_s = min(first_s * 2.0 ** min(count - 1, 16), longest_s)
        self.told[job.uid] = (
            f"the scheduler stumbled over this job ({type(error).__name__}: {error}) and sets it aside for {rest_s:.0f} s;"
            " please report it with the scheduler's log"
        )
        return rest_s

    def forget(self, uid: str) -> None:
        """A job is gone."""
        self.told.pop(uid, None)
        self._counts.pop(uid, None)
