"""Ends what an earlier life of this node left running and nobody takes up: any process that carries our mark, and no spawner holds.

A process is known by its id, its start time *and* the boot of its machine, so that an id that was given to somebody else harms nobody.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hekla.node.runtimes.cgroups import remove_tree
from hekla.node.shim.init import is_below

MARKER = "HEKLA_CONTAINER_OF"
"""Every container's environment holds this name with the node's digest as its value."""

WAIT_S = 5.0


def describe_process(pid: int) -> dict[str, Any]:
    """A process so that it can be told from a later one with the same id."""
    return {"pid": pid, "start": start_time(pid), "boot": boot()}


def boot() -> str:
    """Which life of the machine this is: after another one ids and start times may come again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # a kernel that is not Linux's own
        return ""


def start_time(pid: int) -> int:
    """When a process started, in the kernel's ticks since boot; 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def sweep(state: Path, digest: str, *, spawners: Collection[int] = (), pods: Collection[str] = ()) -> int:
    """Kill all marked processes but those below the spawners that were taken up; remove the directories of all pods but these, and
    empty control groups. How many were killed.
    """
    killed = 0
    deadline = time.monotonic() + WAIT_S
    while marked := [pid for pid in _marked(digest) if not any(is_below(pid, spawner) for spawner in spawners)]:
        for pid in marked:
            killed += _kill(pid)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    for directory in (state / "containers").iterdir():
        if directory.name not in pods:
            shutil.rmtree(directory, ignore_errors=True)
    _remove_groups(f"hekla-{digest}")
    return killed


def kill_process_of(file: Path) -> int:
    """Kill the process that a file describes, if it still is that one; returns once it has gone."""
    try:
        known: dict[str, Any] = json.loads(file.read_text())
        pid, start = int(known["pid"]), int(known["start"])
        is_of_this_boot = known.get("boot", boot()) == boot()  # earlier releases did not say
    except (OSError, ValueError, KeyError):
        return 0
    if not is_of_this_boot or not start or start_time(pid) != start:
        return 0
    killed = _kill(pid)
    deadline = time.monotonic() + WAIT_S
    while start_time(pid) == start and time.monotonic() < deadline:
        time.sleep(0.005)
    return killed


def _marked(digest: str) -> list[int]:
    mark = f"{MARKER}={digest}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{entry}/environ").read_bytes()
                if mark in environ.split(b"\0") and start_time(int(entry)):
                    found.append(int(entry))
    return found


def _kill(pid: int) -> int:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return 0
    return 1


def _remove_groups(name: str) -> None:
    for parent in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")):
        if (parent / name).is_dir():
            remove_tree(parent / name)
