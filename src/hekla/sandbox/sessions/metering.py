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
from hekla.sandbox.sessions.records import Sees, Session
from hekla.sandbox.sessions.refusals import refused
from hekla.sandbox.sessions.register import Entry
from hekla.sandbox.sessions.stillness import Stillness
from hekla.sandbox.sessions.store import StoreUnavailableError
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 10.0
"""How long a node is waited for that says what a sandbox used: when that one is given back for a while, and at each look."""
LAST_LOOK_S: Final = 0.1
"""The same before a session ends: nobody is served for longer than he may be because a node is slow."""
LOOK_EVERY_S: Final = 1.0
"""How often sessions with a budget are looked at: one may use a second more than it may."""
ASKED_IN_A_ROW: Final = 64
"""Questions that begin before others are served: a look at thousands of sessions would hold up every request."""


class Metering:
    """The accounts of one gateway's sessions."""

    def __init__(self, room: Workroom, stillness: Stillness) -> None:
        self._room, self._stillness = room, stillness
        room.check_budget, room.account = self.check, partial(self.used_so_far, patience_s=LAST_LOOK_S)
        self._told_of: set[tuple[str, str, str]] = set()
        """Objects whose budget makes no sense and was told of."""
        self._asked: set[str] = set()
        """Sessions whose node was asked and has not answered: one question each, so there are at most as many as sessions."""

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

    async def set_budget(self, session: str, owner: Sees, text: str) -> Session:
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
        """Have every session that has a budget compared with what it has used. Nobody is waited for: a silent node holds up its own alone."""
        due = [entry for entry in self._room.register if self._is_due(entry)]
        for number, entry in enumerate(due, 1):
            self._asked.add(entry.row.id)
            self._room.spawn(self._looked_at(entry), f"look at the budget of {entry.row.id}")
            if number % ASKED_IN_A_ROW == 0:
                await asyncio.sleep(0)

    def _is_due(self, entry: Entry) -> bool:
        row = entry.row
        if row.id in self._asked or entry.acting.locked():
            return False  # somebody pauses or ends it: a look a second later is as good
        return bool(row.spent or (row.state is State.RUNNING and self.budget(row)))

    async def _looked_at(self, entry: Entry) -> None:
        session = entry.row.id
        try:
            await self._judge(entry)
        except (RefusedError, StoreUnavailableError) as error:
            log.info("a session's budget could not be looked at", session=session, why=str(error))
        finally:
            self._asked.discard(session)

    async def check(self, row: Session) -> None:
        """Refuse to wake one whose budget is spent still; RefusedError."""
        try:
            why = self._why(row, await self._usage_now(row)) if row.spent else ""
        except LinkError as error:
            raise refused(error) from error
        if why:
            raise RefusedError(402, "budget_spent", f'session "{row.id}" stands still: {why}')

    async def _usage_now(self, row: Session) -> Usage | None:
        """What it has used, if that matters; None: it does not, or its sandbox is still starting; LinkError."""
        try:
            return await self.usage(row) if self.budget(row) else None
        except NotYetError:
            return None

    def _why(self, row: Session, usage: Usage | None) -> str:
        """Why it has to stand still; empty: it has not to. What is not known changes nothing."""
        budget = self.budget(row)
        if not budget:
            return ""
        return spent(budget, usage) if usage is not None else row.spent

    async def _judge(self, entry: Entry) -> None:
        """Stop it or let it go on. It is locked only once its node has answered: until then its owner may pause and end it."""
        row = entry.row
        try:
            async with asyncio.timeout(PATIENCE_S):
                usage = await self._usage_now(row)
            async with entry.acting:
                if (entry.row.pod, entry.row.used) != (row.pod, row.used):
                    return  # it got or gave back a sandbox meanwhile: the next look asks anew
                why = self._why(entry.row, usage)
                if why and entry.row.state is State.RUNNING:
                    await self._stop(entry, why)
                elif not why and entry.row.spent:
                    await self._go_on(entry)
        except LinkError as error:
            raise refused(error) from error
        except TimeoutError:
            sentence = f'the node of session "{row.id}" has not said within {PATIENCE_S:g} s what it used; ask again'
            raise RefusedError(504, "node", sentence) from None

    async def _stop(self, entry: Entry, why: str) -> None:
        row = entry.row
        log.info("session stands still", session=row.id, owner=row.owner, why=why)
        try:
            await self._stillness.stop(entry, Event.FREEZE, spent=why)
        finally:
            if entry.row.spent:  # also where its node has not answered
                self._room.on_end(row.id)  # who waits for an answer of it is told why

    async def _go_on(self, entry: Entry) -> None:
        row = entry.row
        log.info("session goes on", session=row.id, owner=row.owner, why="its budget was raised")
        if row.state is State.FROZEN:
            await self._stillness.go_on(entry)
            await self._room.changed(entry, Event.THAW, spent="")
        else:
            await self._room.changed(entry, spent="")


def closed(usage: Usage) -> Usage:
    """Of a sandbox that goes: nothing is taken of memory any more; files are kept and counted anew when it wakes."""
    return added(usage, Usage(at=usage.at, source=usage.source))
