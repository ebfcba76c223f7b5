"""Group bus.volcano.sh: orders given to a Job or a Queue, and the words for events and actions.

A Command is deleted first and carried out then, so it takes effect at most once.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from hekla.api.fields import REQUIRED, Limits
from hekla.api.meta import Resource, resource

QUEUE_ORDERS_NAMESPACE = "default"
"""The namespace whose Commands may open and close queues, which have none of their own: where Volcano's vcctl puts them.

Volcano heeds them anywhere, so that whoever may edit any namespace can close the queues of all others.
"""


class Event(StrEnum):
    """What may happen to a job or its pods; policies name these."""

    ANY = "*"
    POD_PENDING = "PodPending"
    POD_RUNNING = "PodRunning"
    POD_FAILED = "PodFailed"
    POD_EVICTED = "PodEvicted"
    UNKNOWN = "Unknown"
    TASK_COMPLETED = "TaskCompleted"
    OUT_OF_SYNC = "OutOfSync"
    COMMAND_ISSUED = "CommandIssued"
    JOB_UPDATED = "JobUpdated"
    TASK_FAILED = "TaskFailed"


class Action(StrEnum):
    """What may be done to a job or a queue."""

    ABORT_JOB = "AbortJob"
    RESTART_JOB = "RestartJob"
    RESTART_TASK = "RestartTask"
    RESTART_POD = "RestartPod"
    RESTART_PARTITION = "RestartPartition"
    TERMINATE_JOB = "TerminateJob"
    COMPLETE_JOB = "CompleteJob"
    RESUME_JOB = "ResumeJob"
    SYNC_JOB = "SyncJob"
    ENQUEUE_JOB = "EnqueueJob"
    SYNC_QUEUE = "SyncQueue"
    OPEN_QUEUE = "OpenQueue"
    CLOSE_QUEUE = "CloseQueue"


class CommandTarget(Struct, kw_only=True, frozen=True, rename="camel"):
    """The Job or Queue that a command is for."""

    api_version: Annotated[str, REQUIRED] = ""
    """API version of the target."""

    kind: Annotated[str, REQUIRED] = ""
    """Kind of the target."""

    name: Annotated[str, REQUIRED] = ""
    """Name of the target."""

    uid: Annotated[str, REQUIRED] = ""
    """UID of the target."""

    controller: bool | None = None
    """Whether the reference points to the managing controller."""

    block_owner_deletion: bool | None = None
    """Whether the target's foreground deletion waits for this object."""


@resource("bus.volcano.sh/v1alpha1", plural="commands")
class Command(Resource, kw_only=True, frozen=True, rename="camel"):
    """An order to a Job (abort, resume, restart) or a Queue (open, close); it is deleted before it is carried out."""

    action: str = ""
    """What to do, such as AbortJob, ResumeJob, OpenQueue or CloseQueue."""

    target: Annotated[CommandTarget | None, Limits(map_type="atomic")] = None
    """The object the order is for."""

    reason: str = ""
    """One word in CamelCase that says why."""

    message: str = ""
    """A sentence that says why."""
