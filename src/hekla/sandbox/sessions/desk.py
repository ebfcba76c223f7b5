"""The desk where sessions are asked for: create, enter, freeze, pause, wake, fork and end, each in steps of which any may be the last.

State is written down first and acted on then, so that `recovery.py` can tell from the row what may be left. Who acts on one
session waits for who does already; requests that wake it wait together. Times are kept by the loop's clock (`deadlines.py`).
"""

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from hekla.api.agents.node_contract import CheckpointKind, CheckpointOrder, Child, Claim, Usage
from hekla.kube.clock import Clock
from hekla.sandbox.link import LinkError, SandboxGoneError, SandboxLink, UnsupportedError
from hekla.sandbox.sessions.deadlines import Deadlines, Due, next_due
from hekla.sandbox.sessions.lifecycle import Event, IllegalEventError, State, takes
from hekla.sandbox.sessions.limits import RefusedError, SessionLimits, check_room
from hekla.sandbox.sessions.records import FOREVER, OnTimeout, Session, Snapshot, new_id, new_token
from hekla.sandbox.sessions.recovery import Finding, Remedy, findings
from hekla.sandbox.sessions.register import BELIEVED_S, ChangedMeanwhileError, Entry, Register
from hekla.sandbox.sessions.stock import Blueprint, Held, Order, Stock, StockError
from hekla.sandbox.sessions.store import SessionStore, StoreUnavailableError

log = structlog.get_logger(__name__)

USES_EVERY_S = 5.0
"""How often it is written down when sessions were used."""
SWEEP_EVERY_S = 60.0
WOKEN_S = 300.0
"""How long a session lives that was woken and whose owner never said how long, or said 0."""
FAILED_END_AGAIN_S = 1.0
"""How soon an end that failed is tried again."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A session that is asked for."""

    kind: str
    namespace: str
    name: str
    owner: str
    door: str
    timeout_s: float = 0.0
    """How long, unless asked again; 0: as long as its blueprint lets it."""
    uses_idle: bool = True
    """Whether its blueprint's idle time holds."""
    freeze_s: float = 0.0
    on_timeout: str = OnTimeout.KILL
    keeps_memory: bool = True
    auto_resume: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    mask_host: str = ""
    is_secured: bool = True
    """Whether the daemon's own doors ask for an access token."""
    is_public: bool = True
    """Whether its ports ask for none."""
    snapshot: Snapshot | None = None
    idempotency_key: str = ""


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
        self.limits = limits or SessionLimits()
        self.stock, self._store, self._link, self._clock = stock, store, link, clock
        self._public_key = public_key
        self._register = Register(store)
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waking: dict[str, asyncio.Task[None]] = {}
        self._by_key: dict[tuple[str, str], asyncio.Future[Session]] = {}
        """What was asked with an idempotency key, by owner and key."""
        self._suspects: set[tuple[str, str]] = set()
        self._epoch_s = clock.now().timestamp() - clock.elapsed_s()
        self.on_end: Callable[[str], None] = lambda session: None
        """Told when a session may no longer be served: whatever runs for it is cut."""

    # Time

    @property
    def now_s(self) -> float:
        """Seconds since 1970, by a clock that nobody sets meanwhile."""
        return self._epoch_s + self._clock.elapsed_s()

    async def start(self) -> None:
        """Read what is there and mend what a crash left."""
        await self._register.read_all(self.now_s)
        for entry in self._register:
            if entry.row.idempotency_key:
                known: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
                known.set_result(entry.row)
                self._by_key[entry.row.owner, entry.row.idempotency_key] = known
        await self.sweep(is_start=not self._store.is_shared)
        for entry in self._register:
            self._look_again(entry)
        self._spawn(self._forever(), "session upkeep")

    async def close(self) -> None:
        """Stop acting; sessions live on."""
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(StoreUnavailableError):
            await self._register.write_uses()

    async def _forever(self) -> None:
        swept = self.now_s
        while True:
            await asyncio.sleep(USES_EVERY_S)
            try:
                await self._register.write_uses()
                if self.now_s - swept >= SWEEP_EVERY_S:
                    swept = self.now_s
                    await self.sweep(is_start=False)
            except (StoreUnavailableError, StockError) as error:
                log.warning("upkeep of sessions failed", error=str(error))

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, RefusedError):
            log.warning("work on a session failed", work=task.get_name(), error=f"{type(error).__name__}: {error}")

    # Finding

    @property
    def is_shared(self) -> bool:
        """Whether other gateways have sessions in the same store."""
        return self._store.is_shared

    def known(self, session: str) -> Session | None:
        """A session that can be believed without reading the store: the way of every request."""
        entry = self._register.known(session)
        if entry is None or not self._register.is_fresh(entry, self.now_s):
            return None
        return entry.row if entry.row.is_live else None

    async def find(self, session: str, owner: str | None = None) -> Session:
        """A live session; the same refusal for one that is unknown and for one that is somebody else's."""
        return (await self._found(session, owner)).row

    async def _found(self, session: str, owner: str | None) -> Entry:
        entry = await self._register.find(session, self.now_s)
        if entry is None or not entry.row.is_live or (owner is not None and entry.row.owner != owner):
            raise RefusedError(404, "session_not_found", f'session "{session[:64]}" not found')
        return entry

    async def listed(self, owner: str | None) -> list[Session]:
        """Live sessions of an owner, or of all, the newest first."""
        if self._store.is_shared:
            await self._register.read_all(self.now_s)
        rows = [one.row for one in self._register if one.row.is_live and owner in (None, one.row.owner)]
        return sorted(rows, key=lambda row: (-row.created_s, row.id))

    def latest(self, most: int) -> list[Session]:
        """Live sessions of this gateway, those used last first, up to so many."""
        found = heapq.nlargest(most, (one for one in self._register if one.row.is_live), key=lambda one: one.used_s)
        return [one.row for one in found]

    def states(self) -> dict[str, int]:
        """Live sessions by state."""
        return Counter(str(one.row.state) for one in self._register if one.row.is_live)

    def used_s(self, session: str) -> float:
        """When a session was used last."""
        entry = self._register.known(session)
        return entry.used_s if entry is not None else 0.0

    # Creating

    async def create(self, wish: Wish) -> Session:
        """A session that runs; raises RefusedError. A caller who leaves leaves nothing behind."""
        if wish.idempotency_key:
            return await self._create_once(wish)
        making = self._spawn(self._create(wish), f"create for {wish.owner}")
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.cancel()  # the caller left: `_make` gives back what it took
            raise

    async def _create_once(self, wish: Wish) -> Session:
        """However often it is asked with one key, it is one session; who left may ask again, so nothing is given back."""
        key = wish.owner, wish.idempotency_key
        making = self._by_key.get(key)
        if making is None:
            making = self._by_key[key] = self._spawn(self._create(wish), f"create for {wish.owner}")
            making.add_done_callback(lambda done: self._forget_failed(key, done))
        session = await asyncio.shield(making)
        return (await self._found(session.id, None)).row

    def _forget_failed(self, key: tuple[str, str], made: "asyncio.Future[Session]") -> None:
        if made.cancelled() or made.exception() is not None:
            self._by_key.pop(key, None)

    async def _create(self, wish: Wish) -> Session:
        blueprint = self._checked(wish)
        row = self._new_row(wish, blueprint)
        entry = await self._register.create(row, self.now_s)
        await self._make(entry, self._order(row, blueprint, wish))
        return entry.row

    def _checked(self, wish: Wish) -> Blueprint:
        limits = self.limits
        if wish.timeout_s > limits.longest_timeout_s:
            raise RefusedError(
                400,
                "timeout",
                f"the timeout is {wish.timeout_s:g} s; at most {limits.longest_timeout_s:g} s can be asked",
            )
        for what, values in (("metadata", wish.metadata), ("environment", wish.env)):
            if sum(len(name) + len(value) for name, value in values.items()) > limits.metadata_bytes:
                raise RefusedError(400, what, f"the {what} is larger than {limits.metadata_bytes} bytes")
        blueprint = self.stock.blueprint(wish.kind, wish.namespace, wish.name)
        if blueprint is None:
            raise RefusedError(404, "template_not_found", f'{wish.kind} "{wish.namespace}/{wish.name}" not found')
        check_room(limits, wish.owner, 1, self._register.live)
        return blueprint

    def _new_row(self, wish: Wish, blueprint: Blueprint) -> Session:
        now = self.now_s
        return Session(
            id=new_id(), kind=wish.kind, namespace=wish.namespace, name=wish.name, owner=wish.owner, door=wish.door,
            created_s=now, touched_s=now, expires_s=now + wish.timeout_s if wish.timeout_s else 0.0, timeout_s=wish.timeout_s,
            ends_s=now + blueprint.life_s if wish.uses_idle and blueprint.life_s else 0.0,
            idle_s=blueprint.idle_s if wish.uses_idle else 0.0, freeze_s=wish.freeze_s,
            on_timeout=wish.on_timeout, keeps_memory=wish.keeps_memory, auto_resume=wish.auto_resume,
            entry_points=blueprint.entry_points, is_checked=blueprint.is_checked,
            access_token=new_token() if wish.is_secured else "", traffic_token="" if wish.is_public else new_token(),
            snapshot=wish.snapshot.id if wish.snapshot else "", metadata=wish.metadata, env=wish.env,
            network=wish.network, mask_host=wish.mask_host, idempotency_key=wish.idempotency_key,
        )  # fmt: skip

    @staticmethod
    def _order(row: Session, blueprint: Blueprint, wish: Wish) -> Order:
        return Order(
            session=row.id, blueprint=blueprint, owner=row.owner, env=row.env, ends_s=row.ends_s,
            restore_from=wish.snapshot.checkpoint if wish.snapshot else "", network=row.network,
        )  # fmt: skip

    async def _make(self, entry: Entry, order: Order) -> None:
        """From creating to running, or to nothing."""
        async with entry.acting:
            held: Held | None = None
            try:
                async with asyncio.timeout(self.limits.create_timeout_s):
                    held = await self.stock.take(order)
                    await self._bind(entry, held)
            except BaseException as error:
                self._spawn(self._undo(entry, held), f"undo {entry.row.id}")
                if (refusal := _refusal(error)) is not None:
                    raise refusal from error
                raise
        self._look_again(entry)

    async def _bind(self, entry: Entry, held: Held) -> None:
        """Make the sandbox the session's own. The row is written once: until then the sandbox's label tells."""
        row = entry.row
        await self._link.claim(held.namespace, held.pod, self._claim(row, held))
        entry.used_s = self.now_s
        await self._write_running(entry, held, Event.TAKEN, Event.BOUND)

    async def _write_running(self, entry: Entry, held: Held, *events: Event) -> None:
        where = {"sandbox": held.name, "sandbox_uid": held.uid, "pod": held.pod}
        await self._register.write(entry, self.now_s, *events, **where)

    def _claim(self, row: Session, held: Held) -> Claim:
        return Claim(
            session=row.id, owner=row.owner, env=row.env, access_token=row.access_token, traffic_token=row.traffic_token,
            public_key=self._public_key if row.is_checked else "", audience=held.uid,
        )  # fmt: skip

    async def _undo(self, entry: Entry, held: Held | None) -> None:
        async with entry.acting:
            if entry.row.is_live and takes(entry.row.state, Event.FAILED):
                await self._register.write(entry, self.now_s, Event.FAILED)
            await self._finish(entry, held)

    # Ending

    async def end(self, session: str, owner: str | None = None, *, why: str = "asked") -> None:
        """End a session and give its sandbox back; returns when both are done, even if the caller leaves meanwhile."""
        entry = await self._found(session, owner)
        await asyncio.shield(self._spawn(self._end(entry, why), f"end {session}"))

    async def _end(self, entry: Entry, why: str) -> None:
        async with entry.acting:
            if not entry.row.is_live:
                return
            for _ in range(3):
                try:
                    await self._register.write(entry, self.now_s, Event.END)
                    break
                except ChangedMeanwhileError:  # another gateway's: look again, an end wins over whatever it was
                    if self._register.known(entry.row.id) is not entry:
                        return
            log.info("session ends", session=entry.row.id, owner=entry.row.owner, why=why)
            await self._finish(entry, None)

    async def _finish(self, entry: Entry, held: Held | None) -> None:
        """What is left of a session that expires: its sandbox, its checkpoints, its row."""
        row = entry.row
        self.on_end(row.id)
        self._deadlines.forget(row.id)
        self._by_key.pop((row.owner, row.idempotency_key), None)
        sandbox = held or (_held(row) if row.sandbox else None)
        try:
            if sandbox is not None:
                await self.stock.drop(sandbox)
            await self._drop_checkpoints(row)
            await self._register.remove(entry)
        except (StockError, LinkError, StoreUnavailableError) as error:
            log.warning("a session could not be ended yet", session=row.id, error=str(error))
            self._again(entry, held)

    async def _drop_checkpoints(self, row: Session) -> None:
        """Those that a row names and no snapshot has made its own meanwhile."""
        wanted = {row.checkpoint, row.pending_checkpoint} - {""}
        if wanted:
            for checkpoint in wanted - {one.checkpoint for one in await self._store.snapshots()}:
                await self._link.drop_checkpoint(checkpoint)

    def _again(self, entry: Entry, held: Held | None) -> None:
        async def later() -> None:
            await asyncio.sleep(FAILED_END_AGAIN_S)
            async with entry.acting:
                if entry.row.state is State.EXPIRING:
                    await self._finish(entry, held)

        self._spawn(later(), f"end {entry.row.id} again")

    # Being used

    def enter(self, session: Session) -> None:
        """A request begins: idleness does not count while it lasts. `leave` follows."""
        entry = self._register.known(session.id)
        if entry is not None:
            entry.busy += 1
            entry.used_s, entry.was_used = self.now_s, True

    def leave(self, session: Session) -> None:
        """The request is over."""
        entry = self._register.known(session.id)
        if entry is not None and entry.busy:
            entry.busy -= 1
            entry.used_s, entry.was_used = self.now_s, True
            if not entry.busy and (entry.row.idle_s or entry.row.freeze_s):
                self._look_again(entry)

    async def set_timeout(self, session: str, owner: str | None, timeout_s: float, *, shortens: bool = True) -> Session:
        """Let a session live so long from now on; without `shortens` only ever longer."""
        if not 0 <= timeout_s <= self.limits.longest_timeout_s:
            raise RefusedError(
                400,
                "timeout",
                f"the timeout is {timeout_s:g} s; it must lie between 0 and {self.limits.longest_timeout_s:g}",
            )
        entry = await self._found(session, owner)
        async with entry.acting:
            expires = self.now_s + timeout_s
            if shortens or expires > entry.row.expires_s:
                await self._changed(entry, expires_s=expires, timeout_s=timeout_s)
        return entry.row

    async def change(self, session: str, owner: str | None, **changed: Any) -> Session:
        """Write something else of a session anew (its network, its metadata)."""
        entry = await self._found(session, owner)
        async with entry.acting:
            await self._changed(entry, **changed)
        return entry.row

    async def _changed(self, entry: Entry, *events: Event, **changed: Any) -> None:
        if not entry.row.is_live:
            raise RefusedError(404, "session_not_found", f'session "{entry.row.id}" not found')
        try:
            await self._register.write(entry, self.now_s, *events, **changed)
        except IllegalEventError as error:
            raise RefusedError(409, "state", f'session "{entry.row.id}" is {entry.row.state}: {error}') from error
        except ChangedMeanwhileError:
            raise RefusedError(409, "conflict", f'session "{entry.row.id}" was changed meanwhile; ask again') from None
        self._look_again(entry)

    # Sleeping and waking

    async def freeze(self, session: str, owner: str | None = None) -> Session:
        """Let a session stand still until the next request; one that does already is left."""
        entry = await self._found(session, owner)
        async with entry.acting:
            if entry.row.state is not State.FROZEN:
                await self._changed(entry, Event.FREEZE)
                await self._stand_still(entry, Event.THAW)
        return entry.row

    async def pause(self, session: str, owner: str | None = None, *, keeps_memory: bool = True) -> Session:
        """Put a session to sleep: its processes stand still, or its files alone are kept and its sandbox is given back."""
        entry = await self._found(session, owner)
        async with entry.acting:
            if entry.row.state is State.PAUSED:
                raise RefusedError(409, "paused", f'session "{session}" is paused already')
            if not takes(entry.row.state, Event.PAUSE):
                raise RefusedError(409, "state", f'session "{session}" is {entry.row.state} and cannot be paused')
            if keeps_memory:
                was_frozen = entry.row.state is State.FROZEN
                await self._changed(entry, Event.PAUSE)
                if not was_frozen:
                    await self._stand_still(entry, Event.THAW)
            else:
                await self._put_away(entry)
        self.on_end(session)
        return entry.row

    async def _stand_still(self, entry: Entry, back: Event) -> None:
        try:
            await self._link.freeze(entry.row.namespace, entry.row.pod)
        except SandboxGoneError as error:
            self._spawn(self._end(entry, "its sandbox is gone"), f"end {entry.row.id}")
            raise _refused(error) from error
        except LinkError as error:
            await self._register.write(entry, self.now_s, back)
            raise _refused(error) from error

    async def _put_away(self, entry: Entry) -> None:
        """A checkpoint first, then the row that knows it, then the sandbox goes."""
        row = entry.row
        if row.state is State.FROZEN:
            await self._link.thaw(row.namespace, row.pod)
            await self._register.write(entry, self.now_s, Event.THAW)
        checkpoint = await self._checkpointed(entry, CheckpointKind.FILESYSTEM)
        await self._register.write(
            entry,
            self.now_s,
            Event.PAUSE,
            checkpoint=checkpoint,
            pending_checkpoint="",
            sandbox="",
            sandbox_uid="",
            pod="",
        )
        try:
            await self.stock.drop(_held(row))
        except StockError as error:
            log.warning("the sandbox of a paused session could not be given back yet", session=row.id, error=str(error))

    async def _checkpointed(self, entry: Entry, kind: CheckpointKind) -> str:
        """Write a checkpoint whose name stands in the row before it is begun."""
        row = entry.row
        checkpoint = f"{row.id}-{row.revision}"
        await self._changed(entry, pending_checkpoint=checkpoint)
        try:
            order = CheckpointOrder(checkpoint=checkpoint, kind=kind, owner=row.owner)
            await self._link.checkpoint(row.namespace, row.pod, order)
        except LinkError as error:
            await self._changed(entry, pending_checkpoint="")
            raise _refused(error) from error
        return checkpoint

    async def wake(self, session: str) -> Session:
        """A session that serves, whatever sleep it was in; those who ask meanwhile wait together."""
        entry = await self._found(session, None)
        if entry.row.state is State.RUNNING:
            return entry.row
        waking = self._waking.get(session)
        if waking is None:
            waking = self._waking[session] = self._spawn(self._wake(entry), f"wake {session}")
            waking.add_done_callback(lambda _: self._waking.pop(session, None))
        await asyncio.shield(waking)
        return (await self._found(session, None)).row

    async def _wake(self, entry: Entry) -> None:
        await self._until_made(entry)
        async with entry.acting:
            row = entry.row
            entry.used_s = self.now_s
            if row.state in (State.FROZEN, State.PAUSED) and row.sandbox:
                await self._thaw(entry)
            elif row.state is State.PAUSED:
                await self._resume(entry)
            elif row.state is not State.RUNNING:
                raise RefusedError(404, "session_not_found", f'session "{row.id}" not found')

    async def _until_made(self, entry: Entry) -> None:
        """A copy that is being filled, or a session that another gateway makes: it serves soon, or ends."""
        try:
            async with asyncio.timeout(self.limits.create_timeout_s):
                while not entry.made.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(entry.made.wait(), BELIEVED_S if self._store.is_shared else None)
                    await self._register.find(entry.row.id, self.now_s)
        except TimeoutError:
            raise RefusedError(504, "create_timeout", f'session "{entry.row.id}" is still being made') from None

    async def _thaw(self, entry: Entry) -> None:
        try:
            await self._link.thaw(entry.row.namespace, entry.row.pod)
        except SandboxGoneError as error:
            self._spawn(self._end(entry, "its sandbox is gone"), f"end {entry.row.id}")
            raise _refused(error) from error
        except LinkError as error:
            raise _refused(error) from error
        await self._changed(entry, Event.THAW, **self._more_time(entry.row))

    def _more_time(self, row: Session) -> dict[str, float]:
        """One that was paused because its time was over would be paused again at once."""
        if row.state is not State.PAUSED or not row.expires_s:
            return {}
        return {"expires_s": max(row.expires_s, self.now_s + (row.timeout_s or WOKEN_S))}

    async def _resume(self, entry: Entry) -> None:
        """A new sandbox from the checkpoint, with the same credentials."""
        row = entry.row
        blueprint = self.stock.blueprint(row.kind, row.namespace, row.name)
        if blueprint is None:
            raise RefusedError(
                409, "template_not_found", f'{row.kind} "{row.namespace}/{row.name}" is gone; it cannot resume'
            )
        await self._changed(entry, Event.RESUME, **self._more_time(row))
        order = Order(
            session=row.id, blueprint=blueprint, owner=row.owner, env=row.env, ends_s=row.ends_s,
            restore_from=row.checkpoint, network=row.network,
        )  # fmt: skip
        held: Held | None = None
        try:
            async with asyncio.timeout(self.limits.create_timeout_s):
                held = await self.stock.take(order)
                await self._bind(entry, held)
        except BaseException as error:
            self._spawn(self._put_back(entry, held), f"put back {row.id}")
            if (refusal := _refusal(error)) is not None:
                raise refusal from error
            raise
        await self._link.drop_checkpoint(row.checkpoint)
        await self._changed(entry, checkpoint="")

    async def _put_back(self, entry: Entry, held: Held | None) -> None:
        async with entry.acting:
            if held is not None:
                await self.stock.drop(held)
            if takes(entry.row.state, Event.PUT_BACK):
                await self._register.write(entry, self.now_s, Event.PUT_BACK)

    # Copies

    async def snapshot(self, session: str, owner: str | None, name: str = "") -> Snapshot:
        """A checkpoint that new sessions can begin with; the session goes on."""
        entry = await self._found(session, owner)
        await self.wake(session)
        async with entry.acting:
            row = entry.row
            checkpoint = await self._checkpointed(entry, CheckpointKind.INTERPRETER)
            snapshot = Snapshot(
                id=new_id(), owner=row.owner, namespace=row.namespace, session=row.id, kind=row.kind, name=row.name,
                checkpoint=checkpoint, names=(name,) if name else (), created_s=self.now_s,
            )  # fmt: skip
            await self._store.put_snapshot(snapshot)
            await self._changed(entry, pending_checkpoint="")
        return snapshot

    async def snapshots(self, owner: str | None) -> list[Snapshot]:
        """Snapshots of an owner, the newest first."""
        found = [one for one in await self._store.snapshots() if owner in (None, one.owner)]
        return sorted(found, key=lambda one: (-one.created_s, one.id))

    async def delete_snapshot(self, snapshot: str, owner: str | None) -> bool:
        """Forget a snapshot; False: there is none of that id or name."""
        for one in await self.snapshots(owner):
            if snapshot == one.id or snapshot in one.names:
                await self._store.delete_snapshot(one.id)
                await self._link.drop_checkpoint(one.checkpoint)
                return True
        return False

    async def fork(self, session: str, owner: str | None, count: int, wish: Wish) -> list[Session | RefusedError]:
        """Copies of a running session: what each became. The parent goes on with its id and its time."""
        entry = await self._found(session, owner)
        if not 1 <= count <= self.limits.forks:
            raise RefusedError(400, "count", f"{count} copies were asked for; ask for 1 to {self.limits.forks}")
        await self._until_made(entry)
        if entry.row.state not in (State.RUNNING, State.FROZEN):
            raise RefusedError(409, "state", f'session "{session}" is {entry.row.state} and cannot be forked')
        blueprint = self._checked(wish)
        check_room(self.limits, wish.owner, count, self._register.live)
        await self.wake(session)
        async with entry.acting:
            parent = entry.row
            lineage = (*parent.lineage, parent.sandbox_uid)
            rows = [
                msgspec.structs.replace(self._new_row(wish, blueprint), parent=parent.id, lineage=lineage)
                for _ in range(count)
            ]
            entries = [await self._register.create(row, self.now_s) for row in rows]
            return await self._copied(parent, entries, blueprint)

    async def _copied(
        self, parent: Session, entries: list[Entry], blueprint: Blueprint
    ) -> list[Session | RefusedError]:
        held: Sequence[Held | None] = [None] * len(entries)
        try:
            async with asyncio.timeout(self.limits.create_timeout_s):
                orders = [
                    Order(
                        session=one.row.id, blueprint=blueprint, owner=one.row.owner, env=one.row.env,
                        ends_s=one.row.ends_s, fork_of=parent.pod, lineage=one.row.lineage, network=one.row.network,
                    )
                    for one in entries
                ]  # fmt: skip
                taken = held = await self.stock.take_forks(orders)
                children = [
                    Child(
                        namespace=its.namespace,
                        pod=its.pod,
                        uid=its.pod_uid or its.uid,
                        claim=self._claim(one.row, its),
                    )
                    for one, its in zip(entries, taken, strict=True)
                ]
                forked = await self._link.fork(parent.namespace, parent.pod, children)
            errors = {one.uid: one.error for one in forked.children}
            return [
                await self._settle_copy(one, its, errors.get(its.pod_uid or its.uid, "the node says nothing of it"))
                for one, its in zip(entries, taken, strict=True)
            ]
        except BaseException as error:
            for one, one_held in zip(entries, held, strict=True):
                self._spawn(self._undo(one, one_held), f"undo {one.row.id}")
            if (refusal := _refusal(error)) is not None:
                raise refusal from error
            raise

    async def _settle_copy(self, entry: Entry, held: Held, error: str) -> Session | RefusedError:
        if error:
            self._spawn(self._undo(entry, held), f"undo {entry.row.id}")
            return RefusedError(500, "fork", f"the copy failed: {error}")
        async with entry.acting:
            await self._write_running(entry, held, Event.TAKEN, Event.BOUND)
        self._look_again(entry)
        return entry.row

    async def usage(self, session: str, owner: str | None) -> Usage:
        """What a session's sandbox has used."""
        row = await self.find(session, owner)
        try:
            return await self._link.usage(row.namespace, row.pod)
        except LinkError as error:
            raise _refused(error) from error

    # What is due by itself

    def _look_again(self, entry: Entry) -> None:
        """A session's next deadline changed; it may be the first of all."""
        if not entry.row.is_live:
            return
        when, _ = next_due(entry.row, used_s=entry.used_s, is_busy=entry.busy > 0)
        if self._deadlines.put(entry.row.id, when):
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        earliest = self._deadlines.earliest
        self._timer = None
        if earliest != FOREVER:
            delay_s = max(0.0, earliest - self.now_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        now = self.now_s
        for session in self._deadlines.take(now):
            entry = self._register.known(session)
            if entry is None or not entry.row.is_live:
                continue
            when, due = next_due(entry.row, used_s=entry.used_s, is_busy=entry.busy > 0)
            if when > now:
                self._deadlines.put(session, when)
            else:
                self._spawn(self._do_due(entry, due), f"{due} {session}")
        self._set_timer()

    async def _do_due(self, entry: Entry, due: Due) -> None:
        """What its time says, unless another gateway or its owner was faster."""
        current = await self._register.find(entry.row.id, self.now_s)
        if current is not entry or not entry.row.is_live:
            return
        when, due = next_due(entry.row, used_s=entry.used_s, is_busy=entry.busy > 0)
        if when > self.now_s:
            self._look_again(entry)
        elif due is Due.FREEZE:
            await self._or_live_on(self.freeze(entry.row.id), entry)
        elif due is Due.PAUSE:
            await self._or_end(self.pause(entry.row.id, keeps_memory=entry.row.keeps_memory), entry)
        else:
            await self._end(entry, "its time is over")

    async def _or_live_on(self, freezing: Awaitable[Session], entry: Entry) -> None:
        try:
            await freezing
        except RefusedError as error:  # a runtime that cannot freeze: do not try each moment anew
            log.info("a session could not be frozen", session=entry.row.id, error=str(error))
            with contextlib.suppress(RefusedError):
                await self.change(entry.row.id, None, freeze_s=0.0)

    async def _or_end(self, pausing: Awaitable[Session], entry: Entry) -> None:
        try:
            await pausing
        except RefusedError as error:
            if entry.row.is_live and entry.row.state is not State.PAUSED:
                log.warning("a session that should have been paused ends", session=entry.row.id, error=str(error))
                await self._end(entry, "its time is over")

    # After a crash

    async def sweep(self, *, is_start: bool) -> int:
        """Compare rows with sandboxes and mend what does not fit; returns how much that was."""
        held = await self.stock.held()
        if not is_start:
            await self._register.read_all(self.now_s)
        rows = [entry.row for entry in self._register]
        young = {row.id for row in rows if not is_start and self.now_s - row.created_s < self.limits.create_timeout_s}
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
        entry = self._register.known(finding.session)
        if finding.remedy is Remedy.DROP:
            assert finding.held is not None
            await self.stock.drop(finding.held)
        elif entry is None:
            return
        elif finding.remedy is Remedy.END:
            async with entry.acting:
                if entry.row.is_live:
                    event = Event.LOST if takes(entry.row.state, Event.LOST) else Event.END
                    await self._register.write(entry, self.now_s, event)
                await self._finish(entry, finding.held)
        elif finding.remedy is Remedy.PUT_BACK:
            await self._put_back(entry, finding.held)
        elif finding.remedy is Remedy.SETTLE:
            assert finding.held is not None
            await self._settle(entry, finding.held)
        elif finding.remedy is Remedy.CLEAN:
            async with entry.acting:
                kept = entry.row.checkpoint if entry.row.state is State.PAUSED else ""
                await self._drop_checkpoints(
                    msgspec.structs.replace(entry.row, checkpoint="" if kept else entry.row.checkpoint)
                )
                await self._register.write(entry, self.now_s, checkpoint=kept, pending_checkpoint="")
        elif finding.remedy is Remedy.FREEZE:
            with contextlib.suppress(LinkError):
                await self._link.freeze(entry.row.namespace, entry.row.pod)

    async def _settle(self, entry: Entry, held: Held) -> None:
        try:
            async with entry.acting:
                if entry.row.state is State.CREATING:
                    await self._bind(entry, held)
                else:
                    await self._link.claim(held.namespace, held.pod, self._claim(entry.row, held))
                    await self._write_running(entry, held, Event.BOUND)
        except LinkError as error:
            log.warning("a half-made session could not be settled", session=entry.row.id, error=str(error))
            await self._undo(entry, held)


def _held(row: Session) -> Held:
    return Held(namespace=row.namespace, name=row.sandbox, uid=row.sandbox_uid, pod=row.pod, session=row.id)


def _refusal(error: BaseException) -> RefusedError | None:
    """What a caller is told of a step that failed; None: it is no news for callers."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, StockError):
        return RefusedError(error.status, error.reason, error.sentence)
    if isinstance(error, LinkError):
        return _refused(error)
    if isinstance(error, TimeoutError):
        return RefusedError(504, "create_timeout", "sandbox creation timed out")
    if isinstance(error, StoreUnavailableError):
        return RefusedError(503, "store", str(error))
    if isinstance(error, ChangedMeanwhileError):
        return RefusedError(404, "session_not_found", "the session was ended meanwhile")
    return None


def _refused(error: LinkError) -> RefusedError:
    if isinstance(error, UnsupportedError):
        return RefusedError(409, "unsupported", str(error))
    if isinstance(error, SandboxGoneError):
        return RefusedError(404, "sandbox_gone", str(error))
    return RefusedError(502, "node", str(error))
