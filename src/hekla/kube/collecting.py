"""Keeps the garbage collector out of the way while very many objects are made that stay.

It would look through all of them again and again, and find nothing: half of the time of reading 100,000 objects went
there, and a third of a scheduler's start with 150,000 pods.
"""

import contextlib
import gc
from collections.abc import Iterator

WORTH_FREEZING = 10_000
"""From so many long-lived objects on, later collections should not look at them either."""


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """No collections for the length of a block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze(count: int) -> None:
    """Have the collector pass over what exists now, if it is much: what is released is still freed as ever."""
    if count >= WORTH_FREEZING:
        gc.freeze()


def thaw() -> None:
    """Free what has ended: cycles among what was frozen are found by no collection until it is."""
    gc.unfreeze()
    gc.collect()
