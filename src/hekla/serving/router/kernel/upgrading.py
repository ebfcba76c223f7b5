"""Has a router's pools decide in machine code as soon as it has enough to do that this is worth its memory.

A router on a laptop answers a hundred chats a day and never asks for it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.kernel.loading import load
from hekla.serving.router.pool import Pool

WORTH_IT_PROMPTS: Final = 1_000
"""After so many the code is loaded, which takes 55 MB (most of it LLVM's file, which processes share) for 14 us less of each chat."""
LOOK_S: Final = 1.0


class Upgrading:
    """Of one router."""

    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self._pools = pools
        self.on_kernel: Callable[[Kernel], None] = lambda kernel: None
        """Told when the code is there."""
        self._kernel: Kernel | None = None

    def joined(self, pool: Pool) -> Pool:
        """A new pool, deciding as the others do."""
        if self._kernel is not None:
            pool.use(self._kernel)
        return pool

    async def run(self) -> None:
        """Wait until it is worth it, load the code, and be done."""
        while sum(pool.matches.total for pool in self._pools()) < WORTH_IT_PROMPTS:
            await asyncio.sleep(LOOK_S)
        self._kernel = await load()
        for pool in list(self._pools()):
            self.joined(pool)
            await asyncio.sleep(0)  # what a pool remembers is written anew; others' requests go between
        if self._kernel is not None:
            self.on_kernel(self._kernel)
        await asyncio.Event().wait()
