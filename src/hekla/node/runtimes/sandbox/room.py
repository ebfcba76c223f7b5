"""Keeps room on a machine without control groups of memory: the sandbox that takes too much is ended, with a sentence.

`RLIMIT_DATA` bounds each process of a sandbox whose pod says a limit, not all of them together, and knows nothing of what is in memory without
being anybody's data: files, memfds, shared memory. So what is left on the machine is looked at, the sooner again the less it is. With control
groups the kernel does all this (`groups.py`).

Not seen are memfds under way in a socket, and those of a cell that is not dumpable: it is a fork of the zygote. A program that was started
belongs to the sandbox's namespace, and who owns that may look, dumpable or not.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from hekla.node.runtimes.sandbox.cells import Cell, running_pids

log = structlog.get_logger(__name__)

FREE_SHARE = 16
"""A sixteenth of the machine's memory is kept free; where all sandboxes together hold less than a sixteenth, others took it, and none of them must go."""
SOONEST_S, LATEST_S = 0.02, 2.0
FASTEST = 4 << 30
"""Bytes a second that programs can fill: how soon what is free could be gone."""
MOST_FILES = 4096
"""Open files of a process that are looked at."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20


@dataclass(frozen=True)
class Held:
    """What one sandbox holds, and may; 0: as much as there is."""

    name: str
    held_bytes: int
    limit_bytes: int = 0


def who_must_go(free_bytes: int, whole_bytes: int, sandboxes: Sequence[Held]) -> Sequence[tuple[str, str]]:
    """Names, each with the sentence that its owner reads: all that are over their own limit, or the largest where too little is left."""
    told = [
        (one.name, f"it held {one.held_bytes // _MIB} MiB of memory, its limit is {one.limit_bytes // _MIB} MiB")
        for one in sandboxes
        if 0 < one.limit_bytes < one.held_bytes
    ]
    if told or free_bytes * FREE_SHARE >= whole_bytes:
        return told
    if sum(one.held_bytes for one in sandboxes) * FREE_SHARE < whole_bytes:
        return ()
    largest = max(sandboxes, key=lambda one: one.held_bytes)
    why = (
        f"the machine had {free_bytes // _MIB} MiB of memory left, and of its sandboxes this one held the most, {largest.held_bytes // _MIB} MiB; "
        "without control groups nothing else bounds it"
    )
    return [(largest.name, why)]


def look_after_s(free_bytes: int, whole_bytes: int) -> float:
    """When to look again."""
    return min(LATEST_S, max(SOONEST_S, (free_bytes - whole_bytes // FREE_SHARE) / FASTEST))


def free_memory() -> tuple[int, int]:
    """Bytes that could be had on this machine, and all it has."""
    found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free_kib, whole_kib = (int(found[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    return free_kib * 1024, whole_kib * 1024


async def keep_room(
    holders: Callable[[], Sequence[tuple[Cell, int]]],
    end: Callable[[str, str], Awaitable[None]],
    *,
    free: Callable[[], tuple[int, int]] = free_memory,
) -> None:
    """For ever: look, and end whoever must go. `holders` are the sandboxes and their limits; `end` is told a name and a sentence.

    A round that fails is logged, and the next one follows. While nobody must go though little is left, each round waits twice as long.
    """
    patience_s = SOONEST_S
    while True:
        soon_s, has_ended = LATEST_S, False
        try:
            free_bytes, whole_bytes = free()
            soon_s = look_after_s(free_bytes, whole_bytes)
            has_ended = await _look(holders(), end, free_bytes, whole_bytes)
        except Exception as error:  # whatever it was, memory is bounded by nothing else
            log.exception(
                "who takes too much memory could not be found or ended", error=f"{type(error).__name__}: {error}"
            )
        patience_s = SOONEST_S if has_ended or soon_s > SOONEST_S else min(LATEST_S, 2 * patience_s)
        await asyncio.sleep(max(soon_s, patience_s))


async def _look(
    holders: Sequence[tuple[Cell, int]],
    end: Callable[[str, str], Awaitable[None]],
    free_bytes: int,
    whole_bytes: int,
) -> bool:
    """Whether somebody was ended. One that cannot be ended keeps no other from it."""
    is_short = free_bytes * FREE_SHARE < whole_bytes
    cells = [(cell, limit) for cell, limit in holders if is_short or limit]
    if not cells:
        return False
    told = who_must_go(free_bytes, whole_bytes, await asyncio.to_thread(_held, cells, is_short=is_short))
    ended = 0
    for name, why in told:
        log.warning("sandbox takes too much memory", sandbox=name, why=why)
        try:
            await end(name, why)
            ended += 1
        except Exception as error:  # whatever it was, the others must go, too
            log.exception("sandbox could not be ended", sandbox=name, error=f"{type(error).__name__}: {error}")
    return ended > 0


def _held(cells: Sequence[tuple[Cell, int]], *, is_short: bool) -> Sequence[Held]:
    """Of one that is far from its limit nobody asks whose pages they are: the kernel walks through all of a process for that, 1 ms each."""
    found = []
    for cell, limit in cells:
        pids = running_pids(cell)
        files = _files(cell, pids)
        if is_short or sum(map(_resident, pids)) + files > limit:
            found.append(Held(cell.name, held_by(pids, files), limit))
    return found


def held_by(pids: Sequence[int], files_bytes: int) -> int:
    """Bytes in memory that are a sandbox's alone: what its processes wrote, and its files there, mapped or not."""
    pages = [_pages(pid) for pid in pids]
    return sum(own for own, _ in pages) + max(sum(shared for _, shared in pages), files_bytes)


def _files(cell: Cell, pids: Sequence[int]) -> int:
    memfds: dict[int, int] = {}
    for pid in pids:
        memfds.update(_memfds(pid))
    files = sum(memfds.values())
    with contextlib.suppress(OSError):
        found = os.statvfs(f"/proc/{cell.pid}/root")
        files += (found.f_blocks - found.f_bfree) * found.f_frsize
    return files


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _pages(pid: int) -> tuple[int, int]:
    """Pages that it shares with the zygote are counted by their share; of one that lets nobody look, all of them."""
    try:
        rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        own, shared = (int(rows[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))
    except (OSError, ValueError, KeyError):
        try:
            resident, with_files = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
        except (OSError, ValueError):
            return 0, 0
        return (int(resident) - int(with_files)) * _PAGE, 0
    return own, shared


def _memfds(pid: int) -> dict[int, int]:
    """Files in memory that have no name, by their number: what was written into one is in no process."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd")[:MOST_FILES]:
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/fd/{number}"
                if os.readlink(path).startswith("/memfd:"):
                    about = os.stat(path)
                    found[about.st_ino] = about.st_blocks * 512
    return found
