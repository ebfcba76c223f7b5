"""What the parts of the desk share: the rows, the sandboxes, the nodes, the time, and who is told when a session ends.

`making.py`, `ending.py`, `sleeping.py` and `copying.py` act in it, `upkeep.py` does what is due by itself; `desk.py` is its door.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from hekla.api.agents.node_contract import Usage
from hekla.kube.clock import Clock
from hekla.sandbox.link import SandboxLink
from hekla.sandbox.sessions.alarm import Alarm
from hekla.sandbox.sessions.counts import SessionCounts
from hekla.sandbox.sessions.deadlines import next_due
from hekla.sandbox.sessions.departed import Departed
from hekla.sandbox.sessions.lifecycle import Event, IllegalEventError
from hekla.sandbox.sessions.limits import RefusedError, SessionLimits
from hekla.sandbox.sessions.records import Sees, Session, is_seen
from hekla.sandbox.sessions.register import ChangedMeanwhileError, Entry, Register
from hekla.sandbox.sessions.stock import Stock
from hekla.sandbox.sessions.store import SessionStore

log = structlog.get_logger(__name__)


async def _nobody_asks(session: Session) -> None:
    """Until somebody keeps accounts."""


async def _nothing_used(session: Session) -> Usage:
    return session.used


class Workroom:
    """Where one desk works on its sessions."""

    def __init__(
        self,
        *,
        store: SessionStore,
        stock: Stock,
        link: SandboxLink,
        clock: Clock,
        limits: SessionLimits,
        public_key: str,
    ) -> None:
        self.store, self.stock, self.link, self.limits, self.public_key = store, stock, link, limits, public_key
        self.register = Register(store)
        self.alarm = Alarm(lambda: self.now_s)
        self.counts = SessionCounts()
        self.departed = Departed()
        self.on_end: Callable[[str], None] = lambda session: None
        """Told when a session may no longer be served: whatever runs for it is cut."""
        self.check_budget: Callable[[Session], Awaitable[None]] = _nobody_asks
        """Refuses to wake a session whose budget is spent."""
        self.account: Callable[[Session], Awaitable[Usage]] = _nothing_used
        """What a session has used, as far as that is known: never raises."""
        self._clock = clock
        self._epoch_s = clock.now().timestamp() - clock.elapsed_s()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def now_s(self) -> float:
        """Seconds since 1970, by a clock that nobody sets meanwhile."""
        return self._epoch_s + self._clock.elapsed_s()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Begin what goes on even if its caller leaves."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, RefusedError):
            log.warning("work on a session failed", work=task.get_name(), error=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """Stop acting; sessions live on."""
        self.alarm.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def found(self, session: str, owner: Sees) -> Entry:
        """The entry of a live session; the same refusal for one that is unknown and for one that is somebody else's.

        Of one's own, and to who sees all, it says when and why it ended.
        """
        entry = await self.register.find(session, self.now_s)
        row = entry.row if entry is not None else None
        if entry is None or row is None or not row.is_live or not is_seen(row.owner, row.namespace, owner):
            ended = self.departed.sentence(session, owner, self.now_s)
            raise RefusedError(404, "session_not_found", f'session "{session[:64]}" not found{ended}')
        return entry

    async def changed(self, entry: Entry, *events: Event, **changed: Any) -> None:
        """Write a row anew, after events or without one; RefusedError."""
        if not entry.row.is_live:
            raise RefusedError(404, "session_not_found", f'session "{entry.row.id}" not found')
        try:
            await self.register.write(entry, self.now_s, *events, **changed)
        except IllegalEventError as error:
            raise RefusedError(409, "state", f'session "{entry.row.id}" is {entry.row.state}: {error}') from error
        except ChangedMeanwhileError:
            raise RefusedError(409, "conflict", f'session "{entry.row.id}" was changed meanwhile; ask again') from None
        self.look_again(entry)

    def look_again(self, entry: Entry) -> None:
        """A session's next deadline changed; it may be the first of all."""
        if entry.row.is_live:
            when, _ = next_due(entry.row, used_s=entry.used_s, is_busy=entry.busy > 0)
            self.alarm.put(entry.row.id, when)
