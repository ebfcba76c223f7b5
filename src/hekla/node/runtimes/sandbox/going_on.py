"""Orders that take as long as a sandbox has files: they are waited for while their files are written or read, and no longer.

A hundred thousand files are packed in ten seconds on a quiet machine and in more than thirty on a busy one: a bound for all would be too short
for those, or too long for a sandbox that is stuck.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final

LONG_ORDERS: Final = frozenset({"pack", "unpack", "copy"})


async def while_it_goes_on(answered: "asyncio.Future[Any]", descriptors: Sequence[int], patience_s: float) -> None:
    """Wait for an answer; TimeoutError once nothing was written into these files, nor read of them, for so long."""
    before = _bytes_passed(descriptors)
    while not (await asyncio.wait({answered}, timeout=patience_s))[0]:
        now = _bytes_passed(descriptors)
        if now == before:
            raise TimeoutError
        before = now


def _bytes_passed(descriptors: Sequence[int]) -> int:
    """By whoever shares their positions."""
    return sum(os.fstat(one).st_size + os.lseek(one, 0, os.SEEK_CUR) for one in descriptors)
