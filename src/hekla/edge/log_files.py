"""Log files that do not fill a disk: bounded by size, a few kept, the newest without a number. No line is lost or cut in two.

Who writes looks at the size between two lines. A file may have several writers, each in a process of its own: the first that finds it too
large puts it aside, the others go on in the new one from their next look on.
"""

import fcntl
import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of one file."""
KEPT: Final = 3
"""Files that were put aside, `.1` the latest; an older one goes."""
LOOK_BYTES: Final = 64 * 1024
"""So much is written between two looks at the size."""


def is_too_large(descriptor: int, most: int = MOST_BYTES) -> bool:
    """Whether an open file is a regular one, and larger than may be."""
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_size >= most


def begin_anew(path: Path, descriptor: int, kept: int = KEPT) -> int:
    """A new file at a path, for appending, after what is open there was put aside; its descriptor. OSError: it stays as it is."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        before = os.fstat(descriptor)
        if _is_at(path, before):  # otherwise another writer was first
            from logging.handlers import RotatingFileHandler  # 5 ms of a start, which no short log needs

            rotation = RotatingFileHandler(path, backupCount=kept, delay=True)
            rotation.doRollover()
            rotation.close()
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, stat.S_IMODE(before.st_mode))
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(path: Path, opened: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), opened)
    except FileNotFoundError:
        return False
