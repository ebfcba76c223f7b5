"""Where there is no freezer, a signal stops each process, and a freeze is over once all of them stand still.

A signal is sent in a microsecond and obeyed when its process is next run: on a busy machine that takes a while. `groups.py` has the freezer.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hekla.node.runtimes.sandbox.groups import FREEZE_PATIENCE_S

LOOK_EVERY_S = 0.001
STILL = ("T", "t", "Z", "X")
"""Stopped, or over."""


async def stand_still(pids: Sequence[int], what: str, *, patience_s: float = FREEZE_PATIENCE_S) -> None:
    """Stop processes, and return once none of their threads moves. Raises TimeoutError; then, and where it is cancelled, they go on."""
    send_all(pids, signal.SIGSTOP)
    deadline = time.monotonic() + patience_s
    try:
        while not all(stands_still(pid) for pid in pids):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"something in {what} waits for the kernel and cannot be stopped now")
            await asyncio.sleep(LOOK_EVERY_S)
    except BaseException:  # who gave up waiting does not know that they stand still
        send_all(pids, signal.SIGCONT)
        raise


async def stand_still_whole(
    find: Callable[[], Sequence[int]], what: str, *, patience_s: float = FREEZE_PATIENCE_S
) -> None:
    """Stop all that `find` finds, and what was born while they were stopped, until there is nothing new: what stands still bears none.

    Raises TimeoutError; then, and where it is cancelled, they go on.
    """
    stopped: list[int] = []
    deadline = time.monotonic() + patience_s
    try:
        while born := [pid for pid in find() if pid not in stopped]:
            stopped += born
            await stand_still(born, what, patience_s=deadline - time.monotonic())
    except BaseException:
        send_all(stopped, signal.SIGCONT)
        raise


def send_all(pids: Sequence[int], number: signal.Signals) -> None:
    """A signal to each of them that is there."""
    for pid in pids:
        if pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def stands_still(pid: int) -> bool:
    """Whether no thread of it runs: the first one's state is not the others', and each stops by itself. What is gone stands still."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(state_of(f"{pid}/task/{task}") in ("", *STILL) for task in tasks)


def state_of(process: int | str) -> str:
    """A process's state as /proc says it; empty: there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""
