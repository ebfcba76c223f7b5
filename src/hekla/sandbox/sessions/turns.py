"""Who comes first begins first: a few in each turn of the event loop, so that they are answered while others begin.

Three hundred that began in one turn were all answered at its end, in lockstep: their commit and their sandboxes, which work on another
processor, waited until the last had begun, and so did everybody else who asked the gateway for anything.
"""

import asyncio
from collections import deque


class Turns:
    """Lets `at_once` begin in each turn of the loop."""

    def __init__(self, at_once: int) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_counting = False

    async def mine(self) -> None:
        """Return when it is the caller's turn: at once for the first few."""
        if not self._is_counting:
            self._is_counting, self._left = True, self._at_once
            asyncio.get_running_loop().call_soon(self._next)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        self._left = self._at_once
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # who left has no turn
                turn.set_result(None)
                self._left -= 1
        self._is_counting = self._left < self._at_once
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._next)
