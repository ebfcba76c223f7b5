"""Says something soon after it became true, and not more often than once in a while.

For what is told of many changes together, as the totals of queues (`queue_status.py`): the first change is told a moment
later, with those that come along; the next ones wait until the pause since then is over. The writer (`writer.py`) does the
like for each gang.
"""

import asyncio
import math
from collections.abc import Callable

SOON_S = 0.05
"""How long the first change waits for those that come with it."""


class Paced:
    """Calls a function when asked to, with a pause between two calls."""

    def __init__(self, act: Callable[[], None], *, pause_s: float) -> None:
        self._act = act
        self._pause_s = pause_s
        self._acted_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Have the function called soon; who asks meanwhile is served by the same call."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + SOON_S, self._acted_at + self._pause_s), self._call)

    def _call(self) -> None:
        self._timer = None
        self._acted_at = asyncio.get_running_loop().time()
        self._act()
