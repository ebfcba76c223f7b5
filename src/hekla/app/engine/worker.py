"""Makes the simulated engine live in real time: each step takes as long as it should, and tokens come when it ends.

One per process, on its event loop: timers and callbacks only. A step begins where the last one ended even if the timer
came late, so that lateness does not add up; after a stall it begins anew.
"""

import asyncio
from collections.abc import Callable

from hekla.simulation.engine.engine import Engine
from hekla.simulation.engine.happenings import Emission, Ending, Happening
from hekla.simulation.engine.sequence import Ask

Listener = Callable[[Happening], None]

LATE_S = 0.1
"""A step that begins later than this after the last one does not try to catch up."""


class Worker:
    """Runs one engine on the running loop."""

    def __init__(self, engine: Engine, after_step: Callable[[], None]) -> None:
        """`after_step` is called when a step has ended: block events are to be told then."""
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._after_step = after_step
        self._listeners: dict[str, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ends_s: float | None = None
        self._is_paused = False

    def submit(self, ask: Ask, listener: Listener) -> None:
        """Serve a request; the listener is told of its tokens and of its end. Raises AskError."""
        self.engine.submit(ask, self._loop.time())
        self._listeners[ask.id] = listener
        if self._ends_s is None:
            self._begin(self._loop.time())

    def abort(self, request: str) -> bool:
        """Forget a request that nobody waits for; False where it is not, or no longer, served."""
        self._listeners.pop(request, None)
        return self.engine.abort(request, self._loop.time()) is not None

    def pause(self) -> None:
        """Begin no further step: the engine sleeps."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        if self._ends_s is None:
            self._begin(self._loop.time())

    def look_again(self) -> None:
        """Something changed that may let waiting requests in."""
        if self._ends_s is None:
            self._begin(self._loop.time())

    def stop(self) -> None:
        """Let go of the timer."""
        self._is_paused = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ends_s = None
        if self._is_paused:
            return
        self._ends_s = self.engine.begin_step(now)
        if self._ends_s is not None:
            self._timer = self._loop.call_at(self._ends_s, self._end)
        elif self.engine.wakes_at is not None:
            self._timer = self._loop.call_at(self.engine.wakes_at, self._wake)
        self._after_step()

    def _wake(self) -> None:
        self._begin(self._loop.time())

    def _end(self) -> None:
        ended_s = self._ends_s
        assert ended_s is not None, "a step was under way"
        self._ends_s = None
        self._timer = None
        for happening in self.engine.end_step():
            self._tell(happening)
        if self._ends_s is None:  # a listener may have asked for more, and so begun the next step
            now = self._loop.time()
            self._begin(ended_s if now - ended_s < LATE_S else now)

    def _tell(self, happening: Happening) -> None:
        match happening:
            case Emission(request=request):
                listener = self._listeners.get(request)
            case Ending(request=request):
                listener = self._listeners.pop(request, None)
        if listener is not None:
            listener(happening)
