"""Lets sandboxes stand still, and asks again where nobody knows whether they do.

The row says first that a session sleeps, then its node is told: a gateway or a node that dies between the two leaves a sandbox that
may run although its session sleeps. That is harmless for the session, since to wake what runs does nothing, but it takes processor
time that nobody counts. So a session stays in doubt until a node has answered, and is in doubt again when a gateway starts.

Several gateways may tell one node of one session, and what was said first may arrive last. Orders are numbered by the row's revision:
a node refuses one that comes after a later one, so that what a sandbox does is what its row came to say.
"""

import asyncio
from typing import Any, Final

import structlog

from hekla.sandbox.link import LinkError, TooLateError, UnsupportedError
from hekla.sandbox.sessions.counts import Sleep
from hekla.sandbox.sessions.lifecycle import Event, State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session
from hekla.sandbox.sessions.register import Entry
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 5.0
"""How long a node is waited for that is told again: meanwhile nobody else can wake the session, or end it."""
ASKED_IN_A_ROW: Final = 64
"""Questions that begin before others are served."""
ASLEEP: Final = frozenset({State.FROZEN, State.PAUSED})


class Stillness:
    """The sandboxes of one gateway's sessions that sleep."""

    def __init__(self, room: Workroom) -> None:
        self._room = room
        self._in_doubt: set[str] = set()
        """Sessions of which nobody knows whether their sandbox sleeps as their row does; never more than there are sessions."""

    async def stop(self, entry: Entry, event: Event, **changed: Any) -> None:
        """Write down that a session sleeps, then let its sandbox stand still; LinkError, RefusedError, StoreUnavailableError.

        The caller holds the entry. After UnsupportedError the row says that it runs, as before. After every other LinkError it still says that
        it sleeps, for to wake what runs does nothing, and its node is told again: one that starts anew would else end what was to be paused.
        Where another gateway had it woken before its node heard of this, the entry has the row as that one wrote it.
        """
        self._in_doubt.add(entry.row.id)  # whatever happens from here on
        await self._room.changed(entry, event, **changed)
        await self._freeze(entry)
        self._room.counts.slept(Sleep.PAUSED if event is Event.PAUSE else Sleep.FROZEN)

    async def _freeze(self, entry: Entry) -> None:
        row = entry.row
        try:
            await self._room.link.freeze(row.namespace, row.pod, row.freeze_order)
        except TooLateError:  # its row is about to say that it runs: in doubt until it does
            await self._room.register.read_again(row.id, self._room.now_s)
            return
        except UnsupportedError:
            await self._room.changed(entry, Event.THAW, spent="")
            self._in_doubt.discard(row.id)
            raise
        self._in_doubt.discard(row.id)

    async def go_on(self, entry: Entry) -> None:
        """Let the sandbox of a session that sleeps go on; LinkError, RefusedError. The caller holds the entry and writes the row then.

        Until it is written the sandbox may run although its session sleeps.
        """
        row = entry.row
        self._in_doubt.add(row.id)
        try:
            await self._room.link.thaw(row.namespace, row.pod, row.thaw_order)
        except TooLateError:
            await self._room.register.read_again(row.id, self._room.now_s)
            raise RefusedError(409, "conflict", f'session "{row.id}" was changed meanwhile; ask again') from None

    async def doubt_all(self) -> None:
        """A gateway starts: whoever told the nodes before may have died over it."""
        self._in_doubt.update(entry.row.id for entry in self._room.register if sleeps_somewhere(entry))
        await self.ask_again()

    async def ask_again(self) -> None:
        """Tell the nodes again about every session in doubt. Nobody is waited for: a silent node holds up its own sessions alone.

        Another gateway may be waking the session meanwhile: what it tells the node has a greater number.
        """
        for number, session in enumerate(tuple(self._in_doubt), 1):
            entry = self._room.register.known(session)
            if entry is None or not (entry.acting.locked() or sleeps_somewhere(entry)):
                self._in_doubt.discard(session)
            elif not entry.acting.locked():
                self._room.spawn(self._stop_again(entry), f"freeze {session}")
            if number % ASKED_IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _stop_again(self, entry: Entry) -> None:
        session = entry.row.id
        async with entry.acting:  # somebody may have woken or ended it since it was looked at
            try:
                if sleeps_somewhere(entry):
                    await self._say_again(entry)
            except UnsupportedError:  # it could not be taken back when that was found
                if entry.row.state is State.FROZEN:
                    await self._room.changed(entry, Event.THAW, spent="")
            except (LinkError, TimeoutError) as error:
                # asleep is right meanwhile; a sweep ends it if its sandbox is gone
                log.info("a session that sleeps may not stand still", session=session, why=str(error))
                return
            self._in_doubt.discard(session)

    async def _say_again(self, entry: Entry) -> None:
        """With a number as great as it takes: one that was told to go on, while its row says for ever that it sleeps, has had a greater one.

        Whoever told it may have died over it, or writes the row right now: then it finds the row changed, and tells it once more.
        """
        row = entry.row
        try:
            await self._tell(row)
        except TooLateError:
            await self._room.register.read_again(row.id, self._room.now_s)
            if entry.row.revision == row.revision:
                await self._room.changed(entry)
            if sleeps_somewhere(entry):
                await self._tell(entry.row)

    async def _tell(self, row: Session) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._room.link.freeze(row.namespace, row.pod, row.freeze_order)


def sleeps_somewhere(entry: Entry) -> bool:
    """Whether it sleeps in a sandbox that it still has."""
    return entry.row.state in ASLEEP and bool(entry.row.sandbox)
