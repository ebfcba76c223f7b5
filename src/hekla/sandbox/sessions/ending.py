"""Ends sessions: the end is written down first, then the sandbox goes, then the checkpoints, then the row; what fails is tried again."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from hekla.sandbox.link import LinkError
from hekla.sandbox.sessions.budgets import told
from hekla.sandbox.sessions.lifecycle import Event, State, takes
from hekla.sandbox.sessions.records import Sees, Session
from hekla.sandbox.sessions.register import ChangedMeanwhileError, Entry
from hekla.sandbox.sessions.stock import Held, StockError
from hekla.sandbox.sessions.store import StoreUnavailableError
from hekla.sandbox.sessions.wishes import held_of
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

ASKED: Final = "asked"
"""Why a session ends that its owner ended: to them it is no news."""
FAILED_END_AGAIN_S: Final = 1.0
"""How soon an end that failed is tried again."""


class Ending:
    """How sessions end."""

    def __init__(self, room: Workroom) -> None:
        self._room = room
        self.on_gone: Callable[[Session], None] = lambda row: None
        """Told of a row that is about to be removed."""

    async def end(self, session: str, owner: Sees = None, *, why: str = ASKED) -> None:
        """End a session and give its sandbox back; returns when both are done, even if the caller leaves meanwhile."""
        entry = await self._room.found(session, owner)
        await asyncio.shield(self._room.spawn(self.end_entry(entry, why), f"end {session}"))

    async def end_entry(self, entry: Entry, why: str) -> None:
        """End it unless that was begun already."""
        async with entry.acting:
            if not entry.row.is_live:
                return
            for _ in range(3):
                try:
                    await self._room.register.write(entry, self._room.now_s, Event.END)
                    break
                except ChangedMeanwhileError:  # another gateway's: look again, an end wins over whatever it was
                    if self._room.register.known(entry.row.id) is not entry:
                        return
            used = await self._room.account(entry.row)
            log.info("session ends", session=entry.row.id, owner=entry.row.owner, why=why, **told(used))
            self._room.counts.ended(why)
            if why != ASKED:
                self._room.departed.add(entry.row, why, self._room.now_s)
            await self.finish(entry, None)

    async def undo(self, entry: Entry, held: Held | None) -> None:
        """Take back what was begun for a session that could not be made."""
        async with entry.acting:
            if entry.row.is_live:
                # it may run: the disk that failed had written it down, or a later copy of its fork failed
                event = Event.FAILED if takes(entry.row.state, Event.FAILED) else Event.END
                await self._room.register.write(entry, self._room.now_s, event)
            await self.finish(entry, held)

    async def finish(self, entry: Entry, held: Held | None) -> None:
        """What is left of a session that expires: its sandbox, its checkpoints, its row."""
        row = entry.row
        self._room.on_end(row.id)
        self._room.alarm.forget(row.id)
        self.on_gone(row)
        sandbox = held or (held_of(row) if row.sandbox else None)
        try:
            if sandbox is not None:
                await self._room.stock.drop(sandbox)
            await self.drop_checkpoints(row)
            await self._room.register.remove(entry)
        except (StockError, LinkError, StoreUnavailableError) as error:
            log.warning("a session could not be ended yet", session=row.id, error=str(error))
            self._again(entry, held)

    async def drop_checkpoints(self, row: Session) -> None:
        """Those that a row names and no snapshot has made its own meanwhile."""
        wanted = {row.checkpoint, row.pending_checkpoint} - {""}
        if wanted:
            for checkpoint in wanted - {one.checkpoint for one in await self._room.store.snapshots()}:
                await self._room.link.drop_checkpoint(checkpoint, row.checkpoint_node)

    def _again(self, entry: Entry, held: Held | None) -> None:
        async def later() -> None:
            await asyncio.sleep(FAILED_END_AGAIN_S)
            async with entry.acting:
                if entry.row.state is State.EXPIRING:
                    await self.finish(entry, held)

        self._room.spawn(later(), f"end {entry.row.id} again")
