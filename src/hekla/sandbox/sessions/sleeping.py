"""Puts sessions to sleep and wakes them: frozen in memory, or paused, with or without their sandbox; requests that wake one wait together."""

import asyncio
import contextlib
from typing import Final

import structlog

from hekla.api.agents.node_contract import CheckpointKind, CheckpointOrder
from hekla.sandbox.link import LinkError, SandboxGoneError
from hekla.sandbox.sessions.counts import SANDBOX_GONE, Sleep
from hekla.sandbox.sessions.ending import Ending
from hekla.sandbox.sessions.lifecycle import Event, State, takes
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.making import Making
from hekla.sandbox.sessions.metering import Metering
from hekla.sandbox.sessions.records import Sees, Session
from hekla.sandbox.sessions.refusals import refusal_of, refused
from hekla.sandbox.sessions.register import BELIEVED_S, Entry
from hekla.sandbox.sessions.stillness import Stillness, sleeps_somewhere
from hekla.sandbox.sessions.stock import Held, StockError
from hekla.sandbox.sessions.wishes import held_of, order_of
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

WOKEN_S: Final = 300.0
"""How long a session lives that was woken and whose owner never said how long, or said 0."""
TRIES: Final = 3
"""How often a session is woken that another gateway changes in the same moment."""


class Sleeping:
    """How sessions sleep and wake."""

    def __init__(
        self, room: Workroom, making: Making, ending: Ending, metering: Metering, stillness: Stillness
    ) -> None:
        self._room, self._making, self._ending, self._metering = room, making, ending, metering
        self._stillness = stillness
        self._waking: dict[str, asyncio.Task[None]] = {}

    async def freeze(self, session: str, owner: Sees = None) -> Session:
        """Let a session stand still until the next request; one that does already is left."""
        entry = await self._room.found(session, owner)
        async with entry.acting:
            if entry.row.state is not State.FROZEN:
                await self._stand_still(entry, Event.FREEZE)
        return entry.row

    async def pause(self, session: str, owner: Sees = None, *, keeps_memory: bool = True) -> Session:
        """Put a session to sleep: its processes stand still, or its files alone are kept and its sandbox is given back."""
        entry = await self._room.found(session, owner)
        async with entry.acting:
            if entry.row.state is State.PAUSED:
                raise RefusedError(409, "paused", f'session "{session}" is paused already')
            if not takes(entry.row.state, Event.PAUSE):
                raise RefusedError(409, "state", f'session "{session}" is {entry.row.state} and cannot be paused')
            if keeps_memory:
                if entry.row.state is State.FROZEN:
                    await self._room.changed(entry, Event.PAUSE)
                else:
                    await self._stand_still(entry, Event.PAUSE)
            else:
                await self._put_away(entry)
        row = entry.row
        if row.state is State.PAUSED:  # and was not woken meanwhile
            self._room.on_end(session)
        return row

    async def _stand_still(self, entry: Entry, event: Event) -> None:
        try:
            await self._stillness.stop(entry, event)
        except SandboxGoneError as error:
            self._room.spawn(self._ending.end_entry(entry, SANDBOX_GONE), f"end {entry.row.id}")
            raise refused(error) from error
        except LinkError as error:
            raise refused(error) from error

    async def _put_away(self, entry: Entry) -> None:
        """A checkpoint first, then the row that knows it, then the sandbox goes."""
        row = entry.row
        if row.state is State.FROZEN:
            await self._go_on(entry)
            await self._room.register.write(entry, self._room.now_s, Event.THAW)
        checkpoint = await self.checkpointed(entry, CheckpointKind.FILESYSTEM)
        used = await self._metering.used_so_far(row)
        gone = {"sandbox": "", "sandbox_uid": "", "pod": "", "pending_checkpoint": ""}
        try:
            await self._room.register.write(
                entry, self._room.now_s, Event.PAUSE, checkpoint=checkpoint, used=used, **gone
            )
        finally:
            if entry.row.checkpoint == checkpoint:  # also where the store says that it failed after it had written
                await self._give_back(row)
        self._room.counts.slept(Sleep.STORED)

    async def _give_back(self, row: Session) -> None:
        try:
            await self._room.stock.drop(held_of(row))
        except StockError as error:
            log.warning("the sandbox of a paused session could not be given back yet", session=row.id, error=str(error))

    async def checkpointed(self, entry: Entry, kind: CheckpointKind) -> str:
        """Write a checkpoint whose name stands in the row before it is begun."""
        row = entry.row
        checkpoint = f"{row.id}-{row.revision}"
        place = self._room.link.place(row.namespace, row.pod)
        await self._room.changed(entry, pending_checkpoint=checkpoint, checkpoint_node=place)
        try:
            order = CheckpointOrder(checkpoint=checkpoint, kind=kind, owner=row.owner)
            await self._room.link.checkpoint(row.namespace, row.pod, order)
        except LinkError as error:
            await self._room.changed(entry, pending_checkpoint="")
            raise refused(error) from error
        return checkpoint

    async def wake(self, session: str) -> Session:
        """A session that serves, whatever sleep it was in; those who ask meanwhile wait together."""
        entry = await self._room.found(session, None)
        if entry.row.state is State.RUNNING:
            return entry.row
        waking = self._waking.get(session)
        if waking is None:
            waking = self._waking[session] = self._room.spawn(self._wake(entry), f"wake {session}")
            waking.add_done_callback(lambda _: self._waking.pop(session, None))
        await asyncio.shield(waking)
        return (await self._room.found(session, None)).row

    async def _wake(self, entry: Entry) -> None:
        began_s = self._room.now_s
        await self.until_made(entry)
        async with entry.acting:
            row = entry.row
            entry.used_s = self._room.now_s
            await self._room.check_budget(row)
            if sleeps_somewhere(entry):
                await self._thaw(entry)
                self._room.counts.woke(Sleep(row.state), self._room.now_s - began_s)
            elif row.state is State.PAUSED:
                await self._resume(entry)
                self._room.counts.woke(Sleep.STORED, self._room.now_s - began_s)
            elif row.state is not State.RUNNING:
                raise RefusedError(404, "session_not_found", f'session "{row.id}" not found')

    async def until_made(self, entry: Entry) -> None:
        """A copy that is being filled, or a session that another gateway makes: it serves soon, or ends."""
        try:
            async with asyncio.timeout(self._room.limits.create_timeout_s):
                while not entry.made.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(entry.made.wait(), BELIEVED_S if self._room.store.is_shared else None)
                    await self._room.register.find(entry.row.id, self._room.now_s)
        except TimeoutError:
            raise RefusedError(504, "create_timeout", f'session "{entry.row.id}" is still being made') from None

    async def _thaw(self, entry: Entry) -> None:
        """It runs in the end, whoever woke it; another gateway may put it to sleep as often as it is woken here."""
        for is_last in (*[False] * (TRIES - 1), True):
            try:
                await self._go_on(entry)
                await self._room.changed(entry, Event.THAW, spent="", **self._more_time(entry.row))
                return
            except RefusedError as error:
                if error.reason == "conflict" and entry.row.state is State.RUNNING:
                    return  # by another gateway
                if is_last or error.reason != "conflict" or not sleeps_somewhere(entry):
                    raise

    async def _go_on(self, entry: Entry) -> None:
        try:
            await self._stillness.go_on(entry)
        except SandboxGoneError as error:
            self._room.spawn(self._ending.end_entry(entry, SANDBOX_GONE), f"end {entry.row.id}")
            raise refused(error) from error
        except LinkError as error:
            raise refused(error) from error

    def _more_time(self, row: Session) -> dict[str, float]:
        """One that was paused because its time was over would be paused again at once."""
        if row.state is not State.PAUSED or not row.expires_s:
            return {}
        return {"expires_s": max(row.expires_s, self._room.now_s + (row.timeout_s or WOKEN_S))}

    async def _resume(self, entry: Entry) -> None:
        """A new sandbox from the checkpoint, with the same credentials."""
        row = entry.row
        blueprint = self._room.stock.blueprint(row.kind, row.namespace, row.name)
        if blueprint is None:
            raise RefusedError(
                409, "template_not_found", f'{row.kind} "{row.namespace}/{row.name}" is gone; it cannot resume'
            )
        await self._room.changed(entry, Event.RESUME, spent="", **self._more_time(row))
        order = order_of(row, blueprint, restore_from=row.checkpoint, restore_at=row.checkpoint_node)
        held: Held | None = None
        try:
            async with asyncio.timeout(self._room.limits.create_timeout_s):
                held = await self._making.taken(order)
                await self._making.bind(entry, held)
        except BaseException as error:
            self._room.spawn(self.put_back(entry, held), f"put back {row.id}")
            if (refusal := refusal_of(error)) is not None:
                raise refusal from error
            raise
        try:
            await self._room.link.drop_checkpoint(row.checkpoint, row.checkpoint_node)
        except LinkError as error:  # it runs; a node that is away keeps what nobody needs
            log.info("a checkpoint that is used up stays", session=row.id, checkpoint=row.checkpoint, error=str(error))
        await self._room.changed(entry, checkpoint="")

    async def put_back(self, entry: Entry, held: Held | None) -> None:
        """A resume failed: it is paused still."""
        async with entry.acting:
            if held is not None:
                await self._room.stock.drop(held)
            if takes(entry.row.state, Event.PUT_BACK):
                await self._room.register.write(entry, self._room.now_s, Event.PUT_BACK)
