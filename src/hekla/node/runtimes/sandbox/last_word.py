"""Who said last whether a sandbox stands still: several gateways may, and what one sent first can arrive last.

Orders carry a number that grows with the session's row, so that the later of two is known by it, not by when it came.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hekla.node.runtimes.sandbox import SandboxError


class LastWord:
    """Of one sandbox."""

    __slots__ = ("_turn", "order")

    def __init__(self, order: int = 0) -> None:
        """`order` is that of the latest who spoke, 0 before anybody did."""
        self.order = order
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def taken(self, order: int) -> AsyncIterator[bool]:
        """It is this one's until it is carried out, one after the other; yields whether it is a new one.

        Raises SandboxError 409 if a later one has come. The same may come again. One without a number (0) is always obeyed.
        """
        async with self._turn:
            if 0 < order < self.order:
                raise SandboxError(409, f"order {order} comes too late: order {self.order} has come before it")
            is_new = order > self.order
            self.order = max(order, self.order)
            yield is_new
