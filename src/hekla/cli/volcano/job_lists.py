"""The columns of jobs, in Volcano's way and in ours."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hekla.cli.volcano.columns import (
    Column,
    PeerColumn,
    age_of,
    name_of,
    namespace_of,
    peer_table,
    phase_of,
    spec_text,
    status_number,
)
from hekla.cli.volcano.lookups import listed

if TYPE_CHECKING:
    from hekla.api.meta import Document
    from hekla.cli.connection import Connection

JOB_TYPE = "volcano.sh/job-type"


def replicas_of(job: "Document") -> int:
    """How many pods a job has when it is whole."""
    return sum(int(task.get("replicas") or 0) for task in job["spec"].get("tasks") or ())


def type_of(job: "Document") -> str:
    """What a label says the job is; Batch if it says nothing."""
    return str((job["metadata"].get("labels") or {}).get(JOB_TYPE) or "Batch")


def _created_on(job: "Document") -> str:
    from hekla.apiserver.tables import parsed_time

    then = parsed_time(job["metadata"].get("creationTimestamp"))
    return f"{then.astimezone():%Y-%m-%d}" if then else "0001-01-01"


PEER_COLUMNS = (
    PeerColumn("Name", name_of),
    PeerColumn("Creation", _created_on, 15),
    PeerColumn("Phase", phase_of, 12),
    PeerColumn("JobType", type_of, 12),
    PeerColumn("Replicas", replicas_of, 12),
    PeerColumn("Min", status_number("minAvailable"), 6),
    PeerColumn("Pending", status_number("pending"), 10),
    PeerColumn("Running", status_number("running"), 10),
    PeerColumn("Succeeded", status_number("succeeded"), 12),
    PeerColumn("Failed", status_number("failed"), 10),
    PeerColumn("Unknown", status_number("unknown"), 12),
    PeerColumn("RetryCount", status_number("retryCount"), 10),
)
PEER_NAMESPACE = PeerColumn("Namespace", namespace_of)

COLUMNS = (
    Column("Name", name_of),
    Column("Phase", phase_of),
    Column("Queue", spec_text("queue")),
    Column("Replicas", replicas_of),
    Column("Min", status_number("minAvailable")),
    Column("Pending", status_number("pending")),
    Column("Running", status_number("running")),
    Column("Succeeded", status_number("succeeded")),
    Column("Failed", status_number("failed")),
    Column("Age", age_of),
    Column("Retries", status_number("retryCount"), is_wide=True),
    Column("Priority class", spec_text("priorityClassName"), is_wide=True),
    Column("Scheduler", spec_text("schedulerName"), is_wide=True),
    Column("Type", type_of, is_wide=True),
)


def job_filter(queue: str, scheduler: str, part_of_name: str) -> "Callable[[Document], bool]":
    """Whether a job is in a queue, has a scheduler, and has a text in its name; empty means any."""

    def is_wanted(job: "Document") -> bool:
        return (
            (not queue or spec_text("queue")(job) == queue)
            and (not scheduler or spec_text("schedulerName")(job) == scheduler)
            and part_of_name in name_of(job)
        )

    return is_wanted


async def peer_job_list(
    connection: "Connection", namespace: str, *, queue: str, scheduler: str, part_of_name: str
) -> str:
    """What `vcctl job list` prints; an empty namespace means all."""
    from hekla.api.volcano import Job

    is_wanted = job_filter(queue, scheduler, part_of_name)
    jobs = [one for one in (await listed(connection, Job.kind_info, namespace)).items if is_wanted(one)]
    columns = PEER_COLUMNS if namespace else (PEER_NAMESPACE, *PEER_COLUMNS)
    return peer_table(columns, jobs) if jobs else "No resources found"
