"""Tries again later what the server refused: at once where it was only busy, else after the job has sat out a while.

`binder.py` and `evictor.py` say how long.
"""

import asyncio
from collections.abc import Callable

from hekla.kube.errors import ApiError
from hekla.placement.model import Job


def may_pass(error: ApiError) -> bool:
    """Whether asking again may help: the server is busy, or did not get to it."""
    return error.code == 429 or error.code >= 500


def hold_back(job: Job, delay_s: float, wake: Callable[[], None]) -> None:
    """Let a job sit out; after the delay, and all others that it has, it is tried anew, and the scheduler is woken for it."""
    job.sit_out()

    def release() -> None:
        job.take_part()
        wake()

    asyncio.get_running_loop().call_later(delay_s, release)
