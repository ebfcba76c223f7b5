"""Whether the one who takes the times was there to take them: a client that itself waits for a processor sees late what came in time.

An engine on a CPU keeps all processors busy, and a client that needs hundredths of one was seen to stand in Linux's queue for 0.3 to 0.7 s
at a time: a first token that came meanwhile is read late, and the answer's end is not. So the client goes before everybody else where it may
(SCHED_FIFO, which root may), and what it waited is read from /proc and shown; a figure whose clock stood still is none.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

MOST_WAITED = 0.02
"""Share of the time in which the client may have stood in the queue."""


@contextlib.contextmanager
def before_all_others() -> Iterator[bool]:
    """Let this thread run whenever it can; says whether that is allowed. What it starts meanwhile runs as usual."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, *before)


class OwnClock:
    """What this thread waited for a processor since the moment it was made, or marked again."""

    def __init__(self) -> None:
        self.mark()

    def mark(self) -> None:
        """Begin anew."""
        self._began, self._waited_s = time.perf_counter(), _waited_s()

    def waited(self) -> float:
        """The share of the time since the mark."""
        passed_s = max(1e-9, time.perf_counter() - self._began)
        return max(0.0, _waited_s() - self._waited_s) / passed_s


def _waited_s() -> float:
    """In the queue of those that could run; 0 where Linux does not count it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
