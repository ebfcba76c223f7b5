"""An event loop whose clock jumps to the next timer, so that hours pass in milliseconds and nothing is ever slept.

    def test_a_lease_expires():
        virtual_time.run(scenario())

When nothing is ready, time moves to the earliest timer at once. Sockets and threads still work, but they are not
waited for while a timer is pending: tests that use them should have no timers that matter.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STALL_S = 10.0
"""Real seconds without any event or timer after which a test is stuck."""

MAX_VIRTUAL_S = 366 * 24 * 3600.0
"""A test that gets this far waits for something that never happens."""


class StuckError(AssertionError):
    """Nothing will ever happen again, yet the test is not through."""


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for events without waiting, and moves the loop's clock instead."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            # No timer at all: only another thread or a socket can go on.
            events = super().select(STALL_S)
            if not events:
                raise StuckError("nothing is ready, no timer is set, and nothing came from outside")
            return events
        self.loop.virtual_s += timeout
        if self.loop.virtual_s > MAX_VIRTUAL_S:
            raise StuckError(f"{MAX_VIRTUAL_S:g} s of virtual time have passed; what the test waits for never happens")
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector loop with a clock of its own that begins at 0."""

    def __init__(self) -> None:
        self.virtual_s = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        # How early asyncio may fire a timer: small, yet above what a float loses after a year of seconds.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Seconds of virtual time."""
        return self.virtual_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
