"""Copies sessions: snapshots that new ones can begin with, and forks of one that runs."""

import asyncio
import re
from collections.abc import Sequence

import msgspec
import structlog

from hekla.api.agents.node_contract import CheckpointKind, Child, Forked
from hekla.sandbox.link import LinkError
from hekla.sandbox.sessions.counts import Start
from hekla.sandbox.sessions.ending import Ending
from hekla.sandbox.sessions.lifecycle import Event, IllegalEventError, State
from hekla.sandbox.sessions.limits import RefusedError, check_room
from hekla.sandbox.sessions.making import Making
from hekla.sandbox.sessions.records import Sees, Session, Snapshot, is_seen, new_id
from hekla.sandbox.sessions.refusals import refusal_of, refused
from hekla.sandbox.sessions.register import ChangedMeanwhileError, Entry
from hekla.sandbox.sessions.sleeping import Sleeping
from hekla.sandbox.sessions.stock import Blueprint, Held
from hekla.sandbox.sessions.wishes import Wish, claim_of, new_row, order_of
from hekla.sandbox.sessions.workroom import Workroom

log = structlog.get_logger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
"""Of snapshots: what a templateID can say, in which a colon begins a tag."""


class Copying:
    """How sessions are copied."""

    def __init__(self, room: Workroom, making: Making, sleeping: Sleeping, ending: Ending) -> None:
        self._room, self._making, self._sleeping, self._ending = room, making, sleeping, ending

    async def snapshot(self, session: str, owner: Sees, name: str = "") -> Snapshot:
        """A checkpoint that new sessions can begin with; the session goes on, or sleeps on if it was paused."""
        if name and _NAME.fullmatch(name) is None:
            raise RefusedError(
                400,
                "name",
                f"the snapshot's name is {name[:64]!r}; take at most 128 of a-z, A-Z, 0-9, dot, dash, underscore and slash",
            )
        entry = await self._room.found(session, owner)
        was = entry.row
        await self._sleeping.wake(session)
        async with entry.acting:
            row = entry.row
            checkpoint = await self._sleeping.checkpointed(entry, CheckpointKind.INTERPRETER)
            snapshot = Snapshot(
                id=new_id(), owner=row.owner, namespace=row.namespace, session=row.id, kind=row.kind, name=row.name,
                checkpoint=checkpoint, checkpoint_node=entry.row.checkpoint_node, names=(name,) if name else (), created_s=self._room.now_s,
            )  # fmt: skip
            await self._room.store.put_snapshot(snapshot)
            await self._room.changed(entry, pending_checkpoint="")
        if was.state is State.PAUSED and not entry.busy:
            # awake its time would run, and end it
            try:
                await self._sleeping.pause(session, owner, keeps_memory=not was.checkpoint)
            except RefusedError as error:  # what was asked for is there
                log.warning("a paused session is awake after its snapshot", session=session, error=error.sentence)
        return snapshot

    async def snapshots(self, owner: Sees) -> list[Snapshot]:
        """Snapshots of an owner, the newest first."""
        found = [one for one in await self._room.store.snapshots() if is_seen(one.owner, one.namespace, owner)]
        return sorted(found, key=lambda one: (-one.created_s, one.id))

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Forget it. RefusedError: a node does not answer, and it is still there."""
        try:
            await self._room.link.drop_checkpoint(snapshot.checkpoint, snapshot.checkpoint_node)
        except LinkError as error:  # without its row nobody would ask again, and the node keep it for good
            raise refused(error) from error
        await self._room.store.delete_snapshot(snapshot.id)

    async def fork(self, session: str, owner: Sees, count: int, wish: Wish) -> list[Session | RefusedError]:
        """Copies of a running session: what each became. The parent goes on with its id and its time."""
        began_s = self._room.now_s
        entry = await self._room.found(session, owner)
        if not 1 <= count <= self._room.limits.forks:
            raise RefusedError(400, "count", f"{count} copies were asked for; ask for 1 to {self._room.limits.forks}")
        await self._sleeping.until_made(entry)
        _check_state(entry, State.RUNNING, State.FROZEN)
        blueprint = self._making.checked(wish)
        check_room(self._room.limits, wish.owner, count, self._room.register.live)
        await self._sleeping.wake(session)
        async with entry.acting:
            _check_state(entry, State.RUNNING)  # it may have been put to sleep again before our turn came
            parent = entry.row
            lineage = (*parent.lineage, parent.sandbox_uid)
            rows = [
                msgspec.structs.replace(new_row(wish, blueprint, self._room.now_s), parent=parent.id, lineage=lineage)
                for _ in range(count)
            ]
            entries = [await self._room.register.create(row, self._room.now_s) for row in rows]
            with self._making.waited_for(count):
                copies = await self._copied(parent, entries, blueprint)
        for copy in copies:
            if isinstance(copy, RefusedError):
                self._room.counts.refused(copy.reason)
            else:
                self._room.counts.started(Start.FORK, self._room.now_s - began_s)
        return copies

    async def _copied(
        self, parent: Session, entries: list[Entry], blueprint: Blueprint
    ) -> list[Session | RefusedError]:
        held: Sequence[Held | None] = [None] * len(entries)
        named: asyncio.Future[Sequence[Child]] = asyncio.get_running_loop().create_future()
        # the parent packs while its copies are named and written down: a new one is nobody's before its pod is bound, which it is not before
        # it is on disk, and one of the pool is told meanwhile, as when it is taken alone
        forking = asyncio.ensure_future(self._room.link.fork(parent.namespace, parent.pod, named))
        try:
            async with asyncio.timeout(self._room.limits.create_timeout_s):
                orders = [order_of(one.row, blueprint, fork_of=parent.pod) for one in entries]
                taken = held = await self._room.stock.take_forks(orders)
                lost = await asyncio.gather(*map(self._name, entries, taken))
                wanted = [(one, its) for one, its, why in zip(entries, taken, lost, strict=True) if why is None]
                if not wanted:
                    return [why for why in lost if why is not None]
                named.set_result([self._child(one, its) for one, its in wanted])
                for _, its in wanted:
                    await self._room.stock.settled(its)
                forked = await forking
            errors = {one.uid: one.error for one in forked.children}
            return [
                why
                or await self._settle_copy(one, its, errors.get(its.pod_uid or its.uid, "the node says nothing of it"))
                for one, its, why in zip(entries, taken, lost, strict=True)
            ]
        except BaseException as error:
            for one, one_held in zip(entries, held, strict=True):
                self._room.spawn(self._ending.undo(one, one_held), f"undo {one.row.id}")
            if (refusal := refusal_of(error)) is not None:
                raise refusal from error
            raise
        finally:
            forking.cancel()
            forking.add_done_callback(_heard)

    def _child(self, entry: Entry, held: Held) -> Child:
        claim = claim_of(entry.row, held, self._room.public_key)
        return Child(namespace=held.namespace, pod=held.pod, uid=held.pod_uid or held.uid, claim=claim)

    async def _settle_copy(self, entry: Entry, held: Held, error: str) -> Session | RefusedError:
        if error and entry.row.state not in (State.EXPIRING, State.GONE):
            why = self._room.stock.trouble(
                entry.row.id
            )  # a copy is made on its parent's node, which may take no pods any more
            self._room.spawn(self._ending.undo(entry, held), f"undo {entry.row.id}")
            return RefusedError(500, "fork", f"the copy failed: {error}" + (f": {why}" if why else ""))
        events = (Event.BOUND,) if held.is_warm else (Event.TAKEN, Event.BOUND)
        if (lost := await self._written(entry, held, *events)) is not None:
            return lost
        self._room.look_again(entry)
        return entry.row

    async def _name(self, entry: Entry, held: Held) -> RefusedError | None:
        """One of the pool is named in its row before it is told whose it is, as in `making.py`; the refusal of one that was ended meanwhile."""
        return await self._written(entry, held, Event.TAKEN) if held.is_warm else None

    async def _written(self, entry: Entry, held: Held, *events: Event) -> RefusedError | None:
        try:
            async with entry.acting:
                await self._making.write_running(entry, held, *events)
        except (IllegalEventError, ChangedMeanwhileError):  # its siblings have not been ended
            self._room.spawn(self._ending.undo(entry, held), f"undo {entry.row.id}")
            return RefusedError(404, "session_not_found", "the session was ended meanwhile")
        return None


def _heard(forking: "asyncio.Future[Forked]") -> None:
    """Where the sandboxes could not be had, nobody asks any more what became of the parent."""
    if not forking.cancelled():
        forking.exception()


def _check_state(entry: Entry, *allowed: State) -> None:
    if entry.row.state not in allowed:
        raise RefusedError(409, "state", f'session "{entry.row.id}" is {entry.row.state} and cannot be forked')
