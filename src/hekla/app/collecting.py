"""Keeps the pauses of Python's garbage collector short in a process that holds very many objects for long.

Hardly anything here is a cycle: nearly all that is not used any more goes at once, by its count of references. What the collector
costs is looking, at what came since the last time and at all that outlived it. So it looks at little at a time, and what outlived a
few looks is set aside (`gc.freeze`), where it is never looked at again and still goes by its count. A cycle that was set aside while
it was in use is found by a look at everything, once enough is aside and the process has nothing else to do.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import structlog

log = structlog.get_logger(__name__)

YOUNG: Final = 10_000
"""New objects after which they are looked at: 1 to 3 ms. Python's 700 are those of a few requests, most of them under way; 50,000
took 10 to 30 ms, in which 60 pods of 2,000 a second waited, and those behind them."""
LOOKS: Final = 20
"""After so many, what is left of them is set aside: what was under way at the first has long ended."""
ENOUGH: Final = 10
"""Times that something was set aside until a look at everything is worth it: the growth of two million objects."""
MOST: Final = 1_000
"""The same, until it is worth it even to somebody who waits."""
LOOK_EVERY_S: Final = 30.0
IDLE: Final = 0.05
"""The share of a processor below which nobody is kept waiting."""


class Collector(Protocol):
    """What is used of the module `gc`."""

    @property
    def callbacks(self) -> list[Any]:
        """Called before and after each look."""

    def collect(self) -> int:
        """Look at everything that is not aside; how many objects went."""

    def freeze(self) -> None:
        """Set everything aside that there is."""

    def unfreeze(self) -> None:
        """Take it back."""

    def get_threshold(self) -> tuple[int, int, int]:
        """What `set_threshold` set."""

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        """After how many new objects, and how many looks of the younger kind, each kind comes."""


class Housekeeping:
    """The collector of this process, from when it serves."""

    def __init__(self, collector: Collector = gc) -> None:
        self._gc = collector
        self._looks = self._aside = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While the process serves; what start-up made stays for good."""
        before = self._gc.get_threshold()
        self._gc.collect()
        self._gc.freeze()
        self._gc.set_threshold(YOUNG, 50 * LOOKS, 50)
        self._gc.callbacks.append(self._after)
        try:
            yield
        finally:
            self._gc.callbacks.remove(self._after)
            self._gc.set_threshold(*before)
            self._gc.unfreeze()

    async def run(self) -> None:
        """Look at everything now and then, until cancelled."""
        while True:
            before = time.process_time()
            await asyncio.sleep(LOOK_EVERY_S)
            self.look(time.process_time() - before)

    def look(self, used_s: float) -> None:
        """Look at everything if it is time; `used_s`: processor time of the last LOOK_EVERY_S."""
        is_idle = used_s < IDLE * LOOK_EVERY_S
        if self._aside >= (ENOUGH if is_idle else MOST):
            began = time.perf_counter()
            self._gc.unfreeze()
            found = self._gc.collect()
            self._gc.freeze()
            self._looks = self._aside = 0
            log.debug(
                "everything was looked at for garbage", found=found, seconds=round(time.perf_counter() - began, 3)
            )

    def _after(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 0:
            self._looks += 1
            if self._looks >= LOOKS:
                self._looks = 0
                self._aside += 1
                self._gc.freeze()
