"""Answers that stay open and say things as they happen: server-sent events to one client, until it leaves."""

import asyncio
from collections.abc import Callable
from typing import Final

from hekla.sandbox.gateway.answers import opening
from hekla.sandbox.gateway.visitors import Visitor

BEAT_EVERY_S: Final = 15.0
"""Proxies close connections on which nothing is said for a minute."""
_HEAD: Final = b"content-type: text/event-stream\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"


class EventStream:
    """One such answer. What is said to a client who lags is bounded: the visitor cuts it off after a while."""

    def __init__(self, visitor: Visitor, ended: Callable[[], None]) -> None:
        self.visitor, self._ended = visitor, ended
        self.wants_payload = False
        self._is_open = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._beat_s = asyncio.get_running_loop().time()

    def feed(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """A question for a stream has no body that says anything."""

    def begin(self) -> None:
        """From now on things may be said."""
        self._is_open = True
        self.visitor.transport.write(opening(200) + _HEAD)

    def say(self, event: str, data: bytes) -> None:
        """One event."""
        if self._is_open:
            self.visitor.transport.write(b"event: %b\ndata: %b\n\n" % (event.encode(), data))

    def work(self, task: "asyncio.Task[None]") -> None:
        """What ends when the client leaves."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def at_work(self) -> int:
        """How much is under way for it."""
        return len(self._tasks)

    def raw(self, data: bytes) -> None:
        """There is no upgrade here."""

    def abandon(self) -> None:
        """The client left: so does the work for it."""
        self._is_open = False
        for task in tuple(self._tasks):
            task.cancel()
        self._ended()

    def pause(self) -> None:
        """The visitor keeps the time of clients who lag."""

    def resume(self) -> None:
        """It caught up."""

    def tick(self, now: float) -> None:
        """Say something now and then."""
        if self._is_open and now - self._beat_s >= BEAT_EVERY_S:
            self._beat_s = now
            self.visitor.transport.write(b": still here\n\n")
