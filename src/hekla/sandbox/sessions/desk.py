"""The desk where sessions are asked for: create, enter, freeze, pause, wake, fork and end, each in steps of which any may be the last.

State is written down first and acted on then, so that `recovery.py` can tell from the row what may be left. Who acts on one
session waits for who does already; requests that wake it wait together. Times are kept by the loop's clock (`deadlines.py`).
The desk is the door; how each is done stands in `making.py`, `sleeping.py`, `copying.py`, `ending.py` and `upkeep.py`.
"""

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable
from typing import Any

from hekla.api.agents.node_contract import Usage
from hekla.kube.clock import Clock
from hekla.sandbox.link import LinkError, SandboxLink
from hekla.sandbox.sessions.budgets import Budget
from hekla.sandbox.sessions.copying import Copying
from hekla.sandbox.sessions.counts import SessionCounts
from hekla.sandbox.sessions.ending import Ending
from hekla.sandbox.sessions.limits import RefusedError, SessionLimits
from hekla.sandbox.sessions.making import Making
from hekla.sandbox.sessions.metering import Metering
from hekla.sandbox.sessions.network import egress_of
from hekla.sandbox.sessions.records import Sees, Session, Snapshot, is_seen
from hekla.sandbox.sessions.refusals import refused
from hekla.sandbox.sessions.sleeping import Sleeping
from hekla.sandbox.sessions.stillness import Stillness
from hekla.sandbox.sessions.stock import Stock, StockError
from hekla.sandbox.sessions.store import SessionStore, StoreUnavailableError
from hekla.sandbox.sessions.upkeep import Upkeep
from hekla.sandbox.sessions.wishes import Wish, held_of
from hekla.sandbox.sessions.workroom import Workroom


class Desk:
    """Sessions of one gateway."""

    def __init__(
        self,
        *,
        store: SessionStore,
        stock: Stock,
        link: SandboxLink,
        clock: Clock,
        limits: SessionLimits | None = None,
        public_key: str = "",
    ) -> None:
        self.stock, self.limits = stock, limits or SessionLimits()
        self._room = Workroom(
            store=store, stock=stock, link=link, clock=clock, limits=self.limits, public_key=public_key
        )
        self._ending = Ending(self._room)
        self._stillness = Stillness(self._room)
        self._metering = Metering(self._room, self._stillness)
        self._making = Making(self._room, self._ending)
        self._sleeping = Sleeping(self._room, self._making, self._ending, self._metering, self._stillness)
        self._copying = Copying(self._room, self._making, self._sleeping, self._ending)
        self._upkeep = Upkeep(self._room, self._making, self._sleeping, self._ending, self._stillness)

    @property
    def now_s(self) -> float:
        """Seconds since 1970, by a clock that nobody sets meanwhile."""
        return self._room.now_s

    def tell_claims(self, listener: Callable[[str, str], None]) -> None:
        """Who is told of namespace and pod of sandboxes as they are claimed, where few are: something is asked of their daemons next."""
        self._making.on_claim = listener

    def tell_ends(self, listener: Callable[[str], None]) -> None:
        """Who is told when a session may no longer be served: whatever runs for it is cut."""
        self._room.on_end = listener

    async def start(self) -> None:
        """Read what is there and mend what a crash left."""
        register = self._room.register
        await register.read_all(self.now_s)
        self._making.recall()
        self.stock.tell_restarts(self._upkeep.restarted)
        await self.sweep(is_start=not self.is_shared)
        await (
            self._stillness.doubt_all()
        )  # beside the start: a node that is silent must not keep a gateway from opening
        for entry in register:
            self._room.look_again(entry)
        self._room.spawn(self._upkeep.run(), "session upkeep")
        self._room.spawn(self._metering.run(), "session accounts")

    async def close(self) -> None:
        """Stop acting; sessions live on."""
        await self._room.close()
        with contextlib.suppress(StoreUnavailableError):
            await self._room.register.write_uses()

    async def sweep(self, *, is_start: bool) -> int:
        """Compare rows with sandboxes and mend what does not fit; returns how much that was."""
        return await self._upkeep.sweep(is_start=is_start)

    # Finding

    @property
    def is_shared(self) -> bool:
        """Whether other gateways have sessions in the same store."""
        return self._room.store.is_shared

    def known(self, session: str) -> Session | None:
        """A session that can be believed without reading the store: the way of every request."""
        entry = self._room.register.known(session)
        if entry is None or not self._room.register.is_fresh(entry, self._room.now_s):
            return None
        return entry.row if entry.row.is_live else None

    async def find(self, session: str, owner: Sees = None) -> Session:
        """A live session; the same refusal for one that is unknown and for one that is somebody else's."""
        return (await self._room.found(session, owner)).row

    async def listed(self, owner: Sees) -> list[Session]:
        """Live sessions of an owner, or of all, the newest first."""
        if self._room.store.is_shared:
            await self._room.register.read_all(self._room.now_s)
        live = [one.row for one in self._room.register if one.row.is_live]
        rows = [row for row in live if is_seen(row.owner, row.namespace, owner)]
        return sorted(rows, key=lambda row: (-row.created_s, row.id))

    def latest(self, most: int) -> list[Session]:
        """Live sessions of this gateway, those used last first, up to so many."""
        found = heapq.nlargest(
            most, (one for one in self._room.register if one.row.is_live), key=lambda one: one.used_s
        )
        return [one.row for one in found]

    @property
    def counts(self) -> SessionCounts:
        """What was counted since it opened."""
        return self._room.counts

    def states(self) -> dict[str, int]:
        """Live sessions by state."""
        return Counter(str(one.row.state) for one in self._room.register if one.row.is_live)

    @property
    def is_making(self) -> bool:
        """Whether somebody waits for a session to be made: what nobody waits for gives way."""
        return self._making.was_busy(0.0)

    def was_making(self, within_s: float) -> bool:
        """Whether somebody waits, or has within so many seconds."""
        return self._making.was_busy(within_s)

    def used_s(self, session: str) -> float:
        """When a session was used last."""
        entry = self._room.register.known(session)
        return entry.used_s if entry is not None else 0.0

    # Being made, used and ended

    async def create(self, wish: Wish) -> Session:
        """A session that runs; raises RefusedError. A caller who leaves leaves nothing behind."""
        with self._room.counts.refusals(1):
            self._metering.check_object(wish.kind, wish.namespace, wish.name)
            return await self._making.create(wish)

    async def end(self, session: str, owner: Sees = None, *, why: str = "asked") -> None:
        """End a session and give its sandbox back; returns when both are done, even if the caller leaves meanwhile."""
        await self._ending.end(session, owner, why=why)

    def give_back(self, session: Session) -> None:
        """End a session, beside the caller, whose owner left before they were told of it; one with an idempotency key stays: they
        may ask again.
        """
        entry = self._room.register.known(session.id)
        if entry is not None and not session.idempotency_key:
            self._room.spawn(self._ending.end_entry(entry, "whoever asked for it has left"), f"give back {session.id}")

    def enter(self, session: Session) -> None:
        """A request begins: idleness does not count while it lasts. `leave` follows."""
        entry = self._room.register.known(session.id)
        if entry is not None:
            entry.busy += 1
            entry.used_s, entry.was_used = self._room.now_s, True

    def leave(self, session: Session) -> None:
        """The request is over."""
        entry = self._room.register.known(session.id)
        if entry is not None and entry.busy:
            entry.busy -= 1
            entry.used_s, entry.was_used = self._room.now_s, True
            if not entry.busy and (entry.row.idle_s or entry.row.freeze_s):
                self._room.look_again(entry)

    async def set_timeout(self, session: str, owner: Sees, timeout_s: float, *, shortens: bool = True) -> Session:
        """Let a session live so long from now on; without `shortens` only ever longer."""
        if not 0 <= timeout_s <= self._room.limits.longest_timeout_s:
            raise RefusedError(
                400,
                "timeout",
                f"the timeout is {timeout_s:g} s; it must lie between 0 and {self._room.limits.longest_timeout_s:g}",
            )
        entry = await self._room.found(session, owner)
        async with entry.acting:
            expires = self._room.now_s + timeout_s
            if shortens or expires > entry.row.expires_s:
                await self._room.changed(entry, expires_s=expires, timeout_s=timeout_s)
        return entry.row

    async def change(self, session: str, owner: Sees, **changed: Any) -> Session:
        """Write something else of a session anew (its network, its metadata)."""
        entry = await self._room.found(session, owner)
        async with entry.acting:
            await self._room.changed(entry, **changed)
        return entry.row

    async def restrict(self, session: str, owner: Sees, network: dict[str, Any]) -> Session:
        """Whom a session may reach from now on, within what its template allows: written down, then told to its sandbox."""
        entry = await self._room.found(session, owner)
        row = entry.row
        allowed = egress_of(self.stock.egress(row.kind, row.namespace, row.name), network)
        async with entry.acting:
            await self._room.changed(entry, network=network)
            if entry.row.sandbox:
                try:
                    await self._room.link.restrict(row.namespace, entry.row.pod, allowed)
                except LinkError as error:  # it may still reach whom it should not: whoever asked must know
                    raise refused(error) from error
        return entry.row

    async def usage(self, session: str, owner: Sees) -> Usage:
        """What a session has used, in all sandboxes that it ever had."""
        row = await self.find(session, owner)
        try:
            return await self._metering.usage(row)
        except LinkError as error:
            raise refused(error) from error

    async def logs(self, session: Session, most: int) -> str:
        """The last lines that the container of its sandbox wrote, each behind its time."""
        if not session.sandbox:
            return ""
        try:
            return await self.stock.logs(held_of(session), most)
        except StockError as error:
            raise RefusedError(error.status, error.reason, error.sentence) from error

    def budget(self, session: Session) -> Budget:
        """What it may use: its object's budget and its owner's, the smaller of each."""
        return self._metering.budget(session)

    async def set_budget(self, session: str, owner: Sees, text: str) -> Session:
        """What its owner lets it use from now on; one that stood still for want of it goes on."""
        return await self._metering.set_budget(session, owner, text)

    # Sleeping and waking

    async def freeze(self, session: str, owner: Sees = None) -> Session:
        """Let a session stand still until the next request; one that does already is left."""
        return await self._sleeping.freeze(session, owner)

    async def pause(self, session: str, owner: Sees = None, *, keeps_memory: bool = True) -> Session:
        """Put a session to sleep: its processes stand still, or its files alone are kept and its sandbox is given back."""
        return await self._sleeping.pause(session, owner, keeps_memory=keeps_memory)

    async def wake(self, session: str) -> Session:
        """A session that serves, whatever sleep it was in; those who ask meanwhile wait together."""
        return await self._sleeping.wake(session)

    # Copies

    async def snapshot(self, session: str, owner: Sees, name: str = "") -> Snapshot:
        """A checkpoint that new sessions can begin with; the session goes on."""
        return await self._copying.snapshot(session, owner, name)

    async def snapshots(self, owner: Sees) -> list[Snapshot]:
        """Snapshots of an owner, the newest first."""
        return await self._copying.snapshots(owner)

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Forget a snapshot."""
        await self._copying.delete_snapshot(snapshot)

    async def fork(self, session: str, owner: Sees, count: int, wish: Wish) -> list[Session | RefusedError]:
        """Copies of a running session: what each became. The parent goes on with its id and its time."""
        with self._room.counts.refusals(count):
            return await self._copying.fork(session, owner, count, wish)
