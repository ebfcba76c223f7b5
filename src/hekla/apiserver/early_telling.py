"""Who hears of creations before they are durable, and of what: the half of `revision_log.py` that keeps count.

Each creation is told once, right before the batch that holds it begins; those that the disk refused are told again, as undone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

import structlog

from hekla.apiserver.store import Change, EarlyListener, Stored

log = structlog.get_logger(__name__)


class Early:
    """The early listener, and what it has to be told: no more than the writes that wait for the disk."""

    def __init__(
        self, listener: EarlyListener, resource: str, after: Collection[str], end: "Callable[[Early], None]"
    ) -> None:
        self._listener, self._resource, self._after, self._end = listener, resource, frozenset(after), end
        self._untold: list[Stored] = []  # created, and it has not heard of them
        self._told: deque[Stored] = deque()  # it has, and they are not durable
        self._newest: dict[str, int] = {}  # last revision of each resource that it wants to know first
        self._newest_of_all = 0

    def close(self) -> None:
        """Tell nothing more."""
        self._end(self)

    def note(self, change: Change) -> None:
        """A change was decided."""
        resource = change.key.resource
        if resource == self._resource:
            if change.previous is None and change.current is not None:
                self._untold.append(change.current)
        elif resource in self._after:
            self._newest[resource] = self._newest_of_all = change.revision

    def last_call(self, durable: int) -> "asyncio.Future[None] | None":
        """Tell what was created since the last call; what to wait for before the commit.

        Where that commit holds something that has to be known first, nothing is told: the durable changes tell it in order.
        """
        if not self._untold or self._newest_of_all > durable:
            return None
        created, self._untold = self._untold, []
        self._told.extend(created)
        try:
            return self._listener.created(created, self._newest)
        except Exception:  # a task boundary: a listener's mistake must not keep anybody's write from the disk
            log.exception("early listener failed", count=len(created))
            return None

    def settle(self, durable: int) -> None:
        """Everything up to a revision can no longer be lost; what was not told of it by now is told as ever."""
        if self._untold:
            self._untold = [stored for stored in self._untold if stored.revision > durable]
        while self._told and self._told[0].revision <= durable:
            self._told.popleft()

    def undo(self, durable: int) -> None:
        """Nothing that is newer than a revision has been."""
        told, self._told = list(self._told), deque[Stored]()
        self._untold.clear()
        self._newest = {resource: revision for resource, revision in self._newest.items() if revision <= durable}
        self._newest_of_all = max(self._newest.values(), default=0)
        try:
            self._listener.undone(told)
        except Exception:  # a task boundary, as above
            log.exception("early listener failed", count=len(told))
