"""Lets sandboxes stand still, and asks again where nobody knows whether they do.

The row says first that a session sleeps, then its node is told: a gateway or a node that dies between the two leaves a sandbox that
may run although its session sleeps. That is harmless for the session, since to wake what runs does nothing, but it takes processor
time that nobody counts. So a session stays in doubt until a node has answered, and is in doubt again when a gateway starts.
"""

import asyncio
from typing import Any

import structlog

from hekla.sandbox.link import LinkError, SandboxGoneError, UnansweredError
from hekla.sandbox.sessions.lifecycle import Event, State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.register import BELIEVED_S, Entry
from hekla.sandbox.sessions.store import StoreUnavailableError
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

ASLEEP = frozenset({State.FROZEN, State.PAUSED})


class Stillness:
    """The sandboxes of one gateway's sessions that sleep."""

    def __init__(self, room: Workroom) -> None:
        self._room = room
        self._in_doubt: set[str] = set()
        """Sessions that sleep by their row while nobody knows whether their sandbox does; never more than there are sessions."""

    async def stop(self, entry: Entry, event: Event, **changed: Any) -> None:
        """Write down that a session sleeps, then let its sandbox stand still; LinkError, RefusedError, StoreUnavailableError.

        The caller holds the entry. After UnansweredError and SandboxGoneError the row still says that it sleeps; after another LinkError it
        runs as before.
        """
        self._in_doubt.add(entry.row.id)  # whatever happens from here on
        await self._room.changed(entry, event, **changed)
        await self._freeze(entry)

    async def _freeze(self, entry: Entry) -> None:
        row = entry.row
        try:
            await self._room.link.freeze(row.namespace, row.pod)
        except (SandboxGoneError, UnansweredError):
            raise
        except LinkError:
            await self._room.changed(entry, Event.THAW, spent="")
            self._in_doubt.discard(row.id)
            raise
        self._in_doubt.discard(row.id)

    def doubt(self, entry: Entry) -> None:
        """Its sandbox is about to be thawed, and its row says so afterwards: until then it may run although its session sleeps."""
        self._in_doubt.add(entry.row.id)

    def doubt_all(self) -> None:
        """A gateway starts: whoever told the nodes before may have died over it."""
        self._in_doubt.update(entry.row.id for entry in self._room.register if _sleeps_somewhere(entry))

    def ask_again(self) -> None:
        """Tell the nodes again about every session in doubt. Nobody is waited for: a silent node holds up its own sessions alone."""
        for session in tuple(self._in_doubt):
            entry = self._room.register.known(session)
            if entry is None:
                self._in_doubt.discard(session)
            elif not entry.acting.locked():
                self._room.spawn(self._stop_again(entry), f"freeze {session}")

    async def _stop_again(self, entry: Entry) -> None:
        session = entry.row.id
        async with entry.acting:  # somebody may have woken or ended it since it was looked at
            try:
                if await self._room.register.find(session, self._room.now_s) is entry and _sleeps_somewhere(entry):
                    await self._freeze(entry)
                    await self._unless_another_woke_it(entry)
                self._in_doubt.discard(session)
            except SandboxGoneError:
                self._in_doubt.discard(session)  # a sweep finds that, too, and ends it
            except (LinkError, RefusedError, StoreUnavailableError) as error:
                log.info("a session that sleeps may not stand still", session=session, why=str(error))

    async def _unless_another_woke_it(self, entry: Entry) -> None:
        """Another gateway thaws first and writes then: a row that says "running" a little later was woken while it was stopped here."""
        if not self._room.store.is_shared:
            return
        await asyncio.sleep(2 * BELIEVED_S)
        current = await self._room.register.find(entry.row.id, self._room.now_s)
        if current is not None and current.row.is_live and not _sleeps_somewhere(current):
            await self._room.link.thaw(current.row.namespace, current.row.pod)


def _sleeps_somewhere(entry: Entry) -> bool:
    """Whether it sleeps in a sandbox that it still has."""
    return entry.row.state in ASLEEP and bool(entry.row.sandbox)
