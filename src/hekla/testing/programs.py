"""Programs that a test starts and talks to: none outlives the block in which it was started.

`with subprocess.Popen(...)` waits at its end for a program that nobody has told to end: a test that failed in between
would never be through.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def started(command: Sequence[str], **how: Any) -> Iterator["subprocess.Popen[Any]"]:
    """As `subprocess.Popen`, for the length of a block; what still runs then is killed."""
    with subprocess.Popen(command, **how) as program:
        try:
            yield program
        finally:
            program.kill()
