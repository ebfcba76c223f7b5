"""Which pods must go because their files take more of the disk than they said: volumes `emptyDir` with a `sizeLimit`.

The sentence is the kubelet's. `agent.py` asks every ten seconds; what is written in between is not held back.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hekla.api.pods import Pod
from hekla.lib import quantity

BLOCK = 512
"""Bytes: the unit in which the kernel counts what a file takes."""


def limits_of(pod: Pod) -> dict[str, str]:
    """Volumes with a limit, as it is written."""
    made = ((each.name, each.empty_dir) for each in pod.spec.volumes)
    return {name: empty.size_limit for name, empty in made if empty is not None and empty.size_limit}


def eviction_of(pod: Pod, places: Mapping[str, Path]) -> str:
    """Why the pod must go; empty if it may stay. Goes through all files of volumes with a limit."""
    for name, limit in limits_of(pod).items():
        most = quantity.to_int(limit)
        if most > 0 and name in places and _takes_more(places[name], most):
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    return ""


def _takes_more(directory: Path, most: int) -> bool:
    taken = 0
    for found in _files(os.fspath(directory)):
        taken += found
        if taken > most:
            return True
    return False


def _files(directory: str) -> Iterator[int]:
    """What each entry takes, in bytes. Who is inside adds and removes meanwhile."""
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if is_directory:
                        waiting.append(entry.path)
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        # of a file with many names each has its share
                        yield found.st_blocks * BLOCK // (1 if is_directory else max(1, found.st_nlink))
        except OSError:
            continue
