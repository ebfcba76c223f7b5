"""Which pods must go because their files take more of the disk than they said: volumes `emptyDir` with a `sizeLimit`.

The sentence is the kubelet's. `agent.py` asks every ten seconds; what is written in between is not held back. Who is inside adds, removes
and moves meanwhile: directories are opened one from the other, without following a link, so that none is too deep and none outside.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hekla.api.pods import Pod
from hekla.lib import quantity

BLOCK = 512
"""Bytes: the unit in which the kernel counts what a file takes."""
MOST_NAMES = 1 << 16
"""Of directories that wait, in one look; where there are more, what holds them is read again."""
FEWEST_NAMES = 1 << 10
"""At one depth, however many wait above."""
MOST_LINKED = 1 << 16
"""Files with several names that are told apart in one look; of a further one each name has its share."""
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSED_OVER = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM))
"""It has gone or is another thing by now, or is kept from us."""


def limits_of(pod: Pod) -> dict[str, str]:
    """Volumes with a limit, as it is written."""
    made = ((each.name, each.empty_dir) for each in pod.spec.volumes)
    return {name: empty.size_limit for name, empty in made if empty is not None and empty.size_limit}


class Look:
    """One look at all files of a pod's volumes with a limit. Two descriptors are open until it is over or dropped."""

    def __init__(self, pod: Pod, places: Mapping[str, Path]) -> None:
        """`places` are the directories of the volumes by name."""
        self._steps = _steps(pod, places)

    def go_on(self, seconds: float) -> str | None:
        """Look for so long: why the pod must go; empty if it may stay; None if not all is seen yet.

        Raises:
            OSError: The files cannot be looked at now.
        """
        until = time.monotonic() + seconds
        for verdict in self._steps:
            if verdict is not None or time.monotonic() >= until:
                return verdict
        return ""


def _steps(pod: Pod, places: Mapping[str, Path]) -> Iterator[str | None]:
    """None as long as nothing is found."""
    for name, limit in limits_of(pod).items():
        most, taken = quantity.to_int(limit), 0
        if most <= 0 or name not in places:
            continue
        for found in _files(places[name]):
            taken += found
            if taken > most:
                yield f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
                return
            yield None


@dataclass(slots=True)
class _Level:
    """A directory on the way down."""

    name: str
    identity: tuple[int, int]
    waiting: list[str] = field(default_factory=list)
    """Names of directories in it, the next one last."""
    seen: str | None = None
    """All names up to this one were among those that waited; None: it was not read yet."""
    has_more: bool = True


def _files(place: Path) -> Iterator[int]:
    """What each entry below takes, in bytes."""
    linked: set[tuple[int, int]] = set()
    here = _opened(os.fspath(place), None)
    if here is None:
        return
    levels, waiting = [_Level("", _identity(here))], 0
    try:
        while True:
            level = levels[-1]
            if level.waiting:
                name, waiting = level.waiting.pop(), waiting - 1
                below = _opened(name, here)
                if below is not None:
                    os.close(here)
                    here = below
                    levels.append(_Level(name, _identity(here)))
            elif level.has_more:
                yield from _read(here, level, max(MOST_NAMES - waiting, FEWEST_NAMES), linked)
                waiting += len(level.waiting)
            elif len(levels) == 1:
                return
            else:
                levels.pop()
                depth, above = len(levels), _above(here, place, levels)
                if above is None:
                    return
                os.close(here)
                here = above
                if len(levels) < depth:
                    waiting = sum(len(each.waiting) for each in levels)
    finally:
        os.close(here)


def _read(here: int, level: _Level, room: int, linked: set[tuple[int, int]]) -> Iterator[int]:
    """What entries take, the first time; the next names of directories begin to wait, as many as there is `room` for."""
    seen, names, level.has_more = level.seen, level.waiting, False
    with os.scandir(here) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and (seen is None or entry.name > seen):
                names.append(entry.name)
            if len(names) > 2 * room:
                names.sort()
                del names[room:]
                level.has_more = True
            yield _taken(entry, linked) if seen is None else 0
    names.sort()
    level.has_more = level.has_more or len(names) > room
    del names[room:]
    level.seen = names[-1] if names else ""
    names.reverse()


def _taken(entry: "os.DirEntry[str]", linked: set[tuple[int, int]]) -> int:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    taken = found.st_blocks * BLOCK
    if found.st_nlink > 1 and taken and not entry.is_dir(follow_symlinks=False):
        identity = found.st_dev, found.st_ino
        if identity in linked:
            return 0
        if len(linked) >= MOST_LINKED:
            return taken // found.st_nlink
        linked.add(identity)
    return taken


def _above(here: int, place: Path, levels: list[_Level]) -> int | None:
    """The directory from which we came `here`; one that was moved meanwhile leads elsewhere, and the way down is gone anew, as far as
    it is there. None: nothing is.
    """
    above = _opened("..", here)
    if above is not None and _identity(above) == levels[-1].identity:
        return above
    if above is not None:
        os.close(above)
    found = _opened(os.fspath(place), None)
    for depth, level in enumerate(levels[1:], 1):
        below = _opened(level.name, found) if found is not None else None
        if below is None or _identity(below) != level.identity:
            if below is not None:
                os.close(below)
            del levels[depth:]
            break
        assert found is not None, "what is below it was opened"
        os.close(found)
        found = below
    return found


def _opened(name: str, within: int | None) -> int | None:
    """A directory's descriptor; None if there is none of the name, or not for us."""
    try:
        return os.open(name, _FLAGS, dir_fd=within)
    except OSError as problem:
        if problem.errno in _PASSED_OVER:
            return None
        raise


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
