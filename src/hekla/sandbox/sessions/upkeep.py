"""Does what is due of sessions by itself: time that is over, uses to be written down, and what a crash left half-made.

`deadlines.py` decides when, `recovery.py` decides what does not fit.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Final

import msgspec
import structlog

from hekla.sandbox.link import LinkError
from hekla.sandbox.sessions.deadlines import Due, next_due
from hekla.sandbox.sessions.ending import Ending
from hekla.sandbox.sessions.lifecycle import SERVING, Event, State, takes
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.making import Making
from hekla.sandbox.sessions.records import Session
from hekla.sandbox.sessions.recovery import STARTED_ANEW, Finding, Remedy, findings, is_another
from hekla.sandbox.sessions.register import Entry
from hekla.sandbox.sessions.sleeping import Sleeping
from hekla.sandbox.sessions.stillness import Stillness
from hekla.sandbox.sessions.stock import Held, StockError
from hekla.sandbox.sessions.store import StoreUnavailableError
from hekla.sandbox.sessions.wishes import claim_of
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

USES_EVERY_S: Final = 5.0
"""How often it is written down when sessions were used."""
SWEEP_EVERY_S: Final = 60.0
AGAIN_S: Final = 5.0
"""When what was due is tried again, where a node or the store did not answer."""
PAUSE_PATIENCE_S: Final = 300.0
"""How long a session lives on whose time is over and whose node cannot put it away: as long as one takes to start anew."""
HOLDING: Final = SERVING | {State.PAUSED}
"""States in which a sandbox may hold what cannot be had again."""


class Upkeep:
    """What nobody asks for."""

    def __init__(
        self, room: Workroom, making: Making, sleeping: Sleeping, ending: Ending, stillness: Stillness
    ) -> None:
        self._room, self._making, self._sleeping, self._ending = room, making, sleeping, ending
        self._stillness = stillness
        self._suspects: set[tuple[str, str]] = set()
        self._under_way: set[str] = set()
        """Sessions for which what is due is being done."""
        self._not_before: dict[str, float] = {}
        """When it is tried again for those for which it could not be done."""
        room.alarm.on_due = self._time_is_up

    async def run(self) -> None:
        """Now and then, until cancelled."""
        swept = self._room.now_s
        while True:
            await asyncio.sleep(USES_EVERY_S)
            try:
                await self._stillness.ask_again()
                await self._room.register.write_uses()
                if self._room.now_s - swept >= SWEEP_EVERY_S:
                    swept = self._room.now_s
                    await self.sweep(is_start=False)
            except (StoreUnavailableError, StockError, LinkError) as error:
                log.warning("upkeep of sessions failed", error=str(error))

    # Time that is over

    def _time_is_up(self, session: str) -> None:
        entry = self._room.register.known(session)
        if entry is None or not entry.row.is_live:
            self._not_before.pop(session, None)
            return
        when, due = next_due(entry.row, used_s=entry.used_s, is_busy=entry.busy > 0)
        when = max(when, self._not_before.get(session, 0.0))
        if when > self._room.now_s:
            self._room.alarm.put(session, when)
        elif session not in self._under_way:
            self._under_way.add(session)
            self._room.spawn(self._do_due(entry), f"{due} {session}")

    async def _do_due(self, entry: Entry) -> None:
        """What its time says, unless another gateway or its owner was faster; again a little later if it could not be done."""
        session = entry.row.id
        try:
            await self._do(entry)
        except StoreUnavailableError as error:
            log.warning("what is due of a session cannot be written yet", session=session, error=str(error))
        finally:
            self._under_way.discard(session)
            self._not_before.pop(session, None)
            if entry.row.is_live:
                when, _ = next_due(entry.row, used_s=entry.used_s, is_busy=entry.busy > 0)
                if when <= self._room.now_s:
                    when = self._not_before[session] = self._room.now_s + AGAIN_S
                self._room.alarm.put(session, when)

    async def _do(self, entry: Entry) -> None:
        current = await self._room.register.find(entry.row.id, self._room.now_s)
        if current is not entry or not entry.row.is_live:
            return
        when, due = next_due(entry.row, used_s=entry.used_s, is_busy=entry.busy > 0)
        if when > self._room.now_s:
            return
        if due is Due.FREEZE:
            await self._or_live_on(self._sleeping.freeze(entry.row.id), entry)
        elif due is Due.PAUSE:
            await self._or_end(self._sleeping.pause(entry.row.id, keeps_memory=entry.row.keeps_memory), entry)
        else:
            is_idle = entry.row.idle_s and when == entry.used_s + entry.row.idle_s
            await self._ending.end_entry(entry, "nobody used it" if is_idle else "its time is over")

    async def _or_live_on(self, freezing: Awaitable[Session], entry: Entry) -> None:
        try:
            await freezing
        except RefusedError as error:
            log.info("a session could not be frozen", session=entry.row.id, error=str(error))
            if error.reason != "unsupported":
                return  # its row says that it sleeps, and its node is told again
            # a runtime that cannot freeze: do not try each moment anew
            with contextlib.suppress(RefusedError):
                await self._never_freeze(entry)

    async def _or_end(self, pausing: Awaitable[Session], entry: Entry) -> None:
        try:
            await pausing
        except RefusedError as error:
            if not entry.row.is_live or entry.row.state is State.PAUSED:
                return
            if error.reason == "node" and self._room.now_s < entry.row.expires_s + PAUSE_PATIENCE_S:
                log.info("a session cannot be paused yet", session=entry.row.id, error=str(error))
            else:
                log.warning("a session that should have been paused ends", session=entry.row.id, error=str(error))
                await self._ending.end_entry(entry, "its time is over")

    async def _never_freeze(self, entry: Entry) -> None:
        async with entry.acting:
            await self._room.changed(entry, freeze_s=0.0)

    # Sandboxes that start anew under their sessions

    def restarted(self, session: str, container: str, why: str) -> None:
        """Somebody's container was started anew: memory ran out, or its node did. It is better gone than empty; `why` is for its owner."""
        entry = self._room.register.known(session)
        if entry is not None and entry.row.state in HOLDING and is_another(entry.row, container, if_unknown=True):
            self._room.spawn(self._lose(entry, f"{STARTED_ANEW}: {why}" if why else STARTED_ANEW), f"lost {session}")

    async def _lose(self, entry: Entry, why: str) -> None:
        log.info("session ends", session=entry.row.id, owner=entry.row.owner, why=why)
        await self._mend(Finding(Remedy.END, entry.row.id, None, why))

    # After a crash

    async def sweep(self, *, is_start: bool) -> int:
        """Compare rows with sandboxes and mend what does not fit; returns how much that was."""
        held = await self._room.stock.held()
        if not is_start:
            await self._room.register.read_all(self._room.now_s)
        rows = [entry.row for entry in self._room.register]
        young = {
            row.id
            for row in rows
            if not is_start and self._room.now_s - row.created_s < self._room.limits.create_timeout_s
        }
        found = [one for one in findings(rows, held, is_start=is_start) if one.session not in young]
        # what another gateway is doing right now looks wrong for a moment: it must look wrong twice
        seen = {(one.session, one.held.uid if one.held else "") for one in found}
        known, self._suspects = self._suspects, seen
        mended = [one for one in found if is_start or (one.session, one.held.uid if one.held else "") in known]
        for one in mended:
            log.info("a session is mended", session=one.session, remedy=str(one.remedy), why=one.why)
            await self._mend(one)
        return len(mended)

    async def _mend(self, finding: Finding) -> None:
        entry = self._room.register.known(finding.session)
        if finding.remedy is Remedy.DROP:
            assert finding.held is not None
            await self._room.stock.drop(finding.held)
        elif entry is None:
            return
        elif finding.remedy is Remedy.END:
            async with entry.acting:
                if entry.row.is_live:
                    event = Event.LOST if takes(entry.row.state, Event.LOST) else Event.END
                    await self._room.register.write(entry, self._room.now_s, event)
                    self._room.departed.add(entry.row, finding.why, self._room.now_s)
                await self._ending.finish(entry, finding.held)
        elif finding.remedy is Remedy.PUT_BACK:
            await self._sleeping.put_back(entry, finding.held)
        elif finding.remedy is Remedy.SETTLE:
            assert finding.held is not None
            await self._settle(entry, finding.held)
        elif finding.remedy is Remedy.CLEAN:
            async with entry.acting:
                kept = entry.row.checkpoint if entry.row.state is State.PAUSED else ""
                await self._ending.drop_checkpoints(
                    msgspec.structs.replace(entry.row, checkpoint="" if kept else entry.row.checkpoint)
                )
                await self._room.register.write(entry, self._room.now_s, checkpoint=kept, pending_checkpoint="")

    async def _settle(self, entry: Entry, held: Held) -> None:
        try:
            async with entry.acting:
                if entry.row.state is State.CREATING:
                    await self._making.bind(entry, held)
                else:
                    await self._room.link.claim(
                        held.namespace, held.pod, claim_of(entry.row, held, self._room.public_key)
                    )
                    await self._making.write_running(entry, held, Event.BOUND)
        except LinkError as error:
            log.warning("a half-made session could not be settled", session=entry.row.id, error=str(error))
            await self._ending.undo(entry, held)
