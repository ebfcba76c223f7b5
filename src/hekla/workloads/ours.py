"""Which pods are ours, by the scheduler that they name, and where work goes that names no queue.

The embedded platform is Volcano's one scheduler; `hekla run` may be told others (`--scheduler-name`, `--default-queue`), and
webhooks and controllers must mean the same pods as the scheduler that waits for their groups.
"""

from dataclasses import dataclass

DEFAULT_QUEUE = "default"
DEFAULT_SCHEDULER = "volcano"


@dataclass(frozen=True)
class Ours:
    """What is ours to complete, check and group."""

    schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    """Pods that name one of these are ours; a Job that names none gets the first, as in Volcano."""

    queue: str = DEFAULT_QUEUE
    """Where a Job goes, and a plain gang, for which neither it nor its namespace names a queue."""


USUAL = Ours()
"""The embedded platform's."""
