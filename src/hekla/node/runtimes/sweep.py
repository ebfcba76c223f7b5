"""Ends what an earlier life of this node left running: its spawner, and any process that carries our mark.

A process is known by its id *and* its start time, so that an id that was given to somebody else harms nobody.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from hekla.node.runtimes.cgroups import remove_tree

MARKER = "HEKLA_CONTAINER_OF"
"""Every container's environment holds this name with the node's digest as its value."""

WAIT_S = 5.0


def describe_process(pid: int) -> dict[str, int]:
    """A process so that it can be told from a later one with the same id."""
    return {"pid": pid, "start": start_time(pid)}


def start_time(pid: int) -> int:
    """When a process started, in the kernel's ticks since boot; 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def sweep(state: Path, digest: str) -> int:
    """Kill the spawner of an earlier life and all marked processes; remove their directories. How many were killed."""
    killed = kill_process_of(state / "spawner.json")
    deadline = time.monotonic() + WAIT_S
    while marked := _marked(digest):
        for pid in marked:
            killed += _kill(pid)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    for directory in (state / "containers").iterdir():
        shutil.rmtree(directory, ignore_errors=True)
    _remove_groups(f"hekla-{digest}")
    return killed


def kill_process_of(file: Path) -> int:
    """Kill the process that a file describes, if it still is that one; returns once it has gone."""
    try:
        known: dict[str, Any] = json.loads(file.read_text())
        pid, start = int(known["pid"]), int(known["start"])
    except (OSError, ValueError, KeyError):
        return 0
    if not start or start_time(pid) != start:
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
