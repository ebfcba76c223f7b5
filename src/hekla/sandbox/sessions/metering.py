"""Keeps account of sessions: what each has used, in all sandboxes that it ever had, and lets those stand still whose budget is spent.

Nothing is killed for a budget: the session freezes with a sentence, refuses to wake with the same one, and goes on by itself once its
budget is raised. `budgets.py` decides.
"""

import asyncio
from functools import partial
from typing import Final

import structlog

from hekla.api.agents.node_contract import Usage
from hekla.sandbox.link import LinkError, NotYetError
from hekla.sandbox.sessions.budgets import Budget, BudgetError, added, read_budget, smaller, spent
from hekla.sandbox.sessions.lifecycle import Event, State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session
from hekla.sandbox.sessions.refusals import refused
from hekla.sandbox.sessions.register import Entry
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 10.0
"""How long a node is waited for that says what a sandbox used, before that one is given back for a while."""
LAST_LOOK_S: Final = 0.1
"""The same before a session ends: nobody is served for longer than he may be because a node is slow."""
LOOK_EVERY_S: Final = 1.0
"""How often sessions with a budget are looked at: one may use a second more than it may."""


class Metering:
    """The accounts of one gateway's sessions."""

    def __init__(self, room: Workroom) -> None:
        self._room = room
        room.check_budget, room.account = self.check, partial(self.used_so_far, patience_s=LAST_LOOK_S)
        self._told_of: set[tuple[str, str, str]] = set()
        """Objects whose budget makes no sense and was told of."""

    async def run(self) -> None:
        """Now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    # What was used

    async def usage(self, row: Session) -> Usage:
        """Everything until now; LinkError."""
        if not row.pod:
            return row.used
        return added(row.used, await self._room.link.usage(row.namespace, row.pod))

    async def used_so_far(self, row: Session, patience_s: float = PATIENCE_S) -> Usage:
        """The same before a sandbox goes: where it does not answer any more, what was known before."""
        try:
            async with asyncio.timeout(patience_s):
                return closed(await self.usage(row))
        except (LinkError, TimeoutError) as error:
            log.warning("what a session used last is not known", session=row.id, why=str(error))
            return row.used

    # What may be used

    def budget(self, row: Session) -> Budget:
        """Of a session: its object's and its owner's, the smaller of each."""
        blueprint = self._room.stock.blueprint(row.kind, row.namespace, row.name)
        try:
            allowed = read_budget(blueprint.budget) if blueprint is not None else {}
        except BudgetError as error:
            self._tell(row, error)
            allowed = {}
        return smaller(allowed, row.budget)

    def check_object(self, kind: str, namespace: str, name: str) -> None:
        """Refuse to make sessions of an object whose budget nobody can keep; RefusedError."""
        blueprint = self._room.stock.blueprint(kind, namespace, name)
        try:
            read_budget(blueprint.budget if blueprint is not None else "")
        except BudgetError as error:
            sentence = f'{kind} "{namespace}/{name}" has a budget that makes no sense: {error}'
            raise RefusedError(422, "budget", sentence) from None

    def _tell(self, row: Session, error: BudgetError) -> None:
        what = row.kind, row.namespace, row.name
        if what not in self._told_of:
            self._told_of.add(what)
            log.warning(
                "a budget makes no sense", kind=row.kind, namespace=row.namespace, name=row.name, why=str(error)
            )

    async def set_budget(self, session: str, owner: str | None, text: str) -> Session:
        """Its owner's budget of a session from now on; one that stood still for want of it goes on."""
        try:
            budget = read_budget(text)
        except BudgetError as error:
            raise RefusedError(400, "budget", f"the budget makes no sense: {error}") from None
        entry = await self._room.found(session, owner)
        async with entry.acting:
            await self._room.changed(entry, budget=budget)
        await self._judge(entry)
        return entry.row

    async def look(self) -> None:
        """Compare every session that has a budget with what it has used."""
        for entry in self._room.register:
            row = entry.row
            if entry.acting.locked():
                continue  # somebody pauses or ends it: a look a second later is as good
            if row.spent or (row.state is State.RUNNING and self.budget(row)):
                try:
                    await self._judge(entry)
                except RefusedError as error:
                    log.info("a session's budget could not be looked at", session=row.id, why=str(error))

    async def check(self, row: Session) -> None:
        """Refuse to wake one whose budget is spent still; RefusedError."""
        try:
            why = await self._spent(row) if row.spent else ""
        except LinkError as error:
            raise refused(error) from error
        if why:
            raise RefusedError(402, "budget_spent", f'session "{row.id}" stands still: {why}')

    async def _spent(self, row: Session) -> str:
        budget = self.budget(row)
        if not budget:
            return ""
        try:
            return spent(budget, await self.usage(row))
        except NotYetError:
            return row.spent

    async def _judge(self, entry: Entry) -> None:
        async with entry.acting:
            try:
                why = await self._spent(entry.row)
                if why and entry.row.state is State.RUNNING:
                    await self._stop(entry, why)
                elif not why and entry.row.spent:
                    await self._go_on(entry)
            except LinkError as error:
                raise refused(error) from error

    async def _stop(self, entry: Entry, why: str) -> None:
        row = entry.row
        log.info("session stands still", session=row.id, owner=row.owner, why=why)
        await self._room.changed(entry, Event.FREEZE, spent=why)
        try:
            await self._room.link.freeze(row.namespace, row.pod)
        except LinkError:
            await self._room.changed(entry, Event.THAW, spent="")
            raise
        self._room.on_end(row.id)  # who waits for an answer of it is told why

    async def _go_on(self, entry: Entry) -> None:
        row = entry.row
        log.info("session goes on", session=row.id, owner=row.owner, why="its budget was raised")
        if row.state is State.FROZEN:
            await self._room.link.thaw(row.namespace, row.pod)
            await self._room.changed(entry, Event.THAW, spent="")
        else:
            await self._room.changed(entry, spent="")


def closed(usage: Usage) -> Usage:
    """Of a sandbox that goes: nothing is taken of memory any more; files are kept and counted anew when it wakes."""
    return added(usage, Usage(at=usage.at, source=usage.source))
