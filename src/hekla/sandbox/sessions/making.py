"""Makes sessions: a row, a sandbox from the stock, the claim that makes it the session's own, the row again. Or nothing of it stays."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hekla.sandbox.sessions.counts import Start
from hekla.sandbox.sessions.ending import Ending
from hekla.sandbox.sessions.lifecycle import Event
from hekla.sandbox.sessions.limits import RefusedError, check_room
from hekla.sandbox.sessions.records import Session, SessionKind, new_token
from hekla.sandbox.sessions.refusals import in_vain, refusal_of
from hekla.sandbox.sessions.register import Entry
from hekla.sandbox.sessions.stock import Blueprint, Held, Order
from hekla.sandbox.sessions.turns import Turns
from hekla.sandbox.sessions.wishes import Wish, check_size, claim_of, new_row, order_of
from hekla.sandbox.sessions.workroom import Workroom

BURST = 16
"""So many at once are a burst, of which more is to come: each is asked its first thing as soon as it runs."""
LINGERS_S, LINGERS_ALONE_S = 0.5, 0.01
"""How long after a burst, and after a single session, the first requests still come before what nobody waits for. After single ones
no longer than a program takes: a pool that waited behind each of them would be empty in a stream of four a second."""
BEGIN_AT_ONCE = 8
"""So many begin in one turn of the loop: 5 ms of work, and enough to share packets to supervisors and commits to the disk."""


class Making:
    """How sessions come to be."""

    def __init__(self, room: Workroom, ending: Ending) -> None:
        self._room, self._ending = room, ending
        self._by_key: dict[tuple[str, str, str], asyncio.Future[Session]] = {}
        """What was asked with an idempotency key, by owner, namespace and key."""
        self._under_way = self._most_under_way = 0
        self._lingers_until_s = 0.0
        self._turns = Turns(BEGIN_AT_ONCE)
        ending.on_gone = self._forget_key
        self.on_claim: Callable[[str, str], None] = lambda namespace, pod: None
        """Told of a pod whose daemon hears now that it is a session's, unless many are made at this moment."""

    def was_busy(self, within_s: float) -> bool:
        """Whether somebody waits for a session, or has within so many seconds. Who has just got one still waits for its first answer."""
        return self._under_way > 0 or self._room.now_s < self._lingers_until_s + within_s

    def recall(self) -> None:
        """Know what an earlier life was asked with a key."""
        for entry in self._room.register:
            if entry.row.idempotency_key:
                known: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
                known.set_result(entry.row)
                self._by_key[_key_of(entry.row)] = known

    async def create(self, wish: Wish) -> Session:
        """A session that runs; raises RefusedError. A caller who leaves leaves nothing behind."""
        if wish.idempotency_key:
            return await self._create_once(wish)
        # No task of its own: what has woken meanwhile would come before the answer, three times (2 ms of informers and reconcilers).
        return await self._create(wish)  # if the caller leaves, `_make` gives back what it took

    async def _create_once(self, wish: Wish) -> Session:
        """However often it is asked with one key, it is one session; who left may ask again, so nothing is given back."""
        key = _key_of(wish)
        making = self._by_key.get(key)
        if making is None:
            making = self._by_key[key] = self._room.spawn(self._create(wish), f"create for {wish.owner}")
            making.add_done_callback(lambda done: self._forget_failed(key, done))
        session = await asyncio.shield(making)
        return (await self._room.found(session.id, wish.owner)).row

    def _forget_failed(self, key: tuple[str, str, str], made: "asyncio.Future[Session]") -> None:
        if made.cancelled() or made.exception() is not None:
            self._by_key.pop(key, None)

    def _forget_key(self, row: Session) -> None:
        self._by_key.pop(_key_of(row), None)

    async def _create(self, wish: Wish) -> Session:
        began_s = self._room.now_s
        with self.waited_for(1):
            await self._turns.mine()
            row, start = await self._created(wish)
        self._room.counts.started(start, self._room.now_s - began_s)
        return row

    @contextmanager
    def waited_for(self, count: int) -> Iterator[None]:
        """Somebody waits for so many sessions meanwhile; what nobody waits for gives way."""
        self._under_way += count
        self._most_under_way = max(self._most_under_way, self._under_way)
        try:
            yield
        finally:
            self._under_way -= count
            if not self._under_way:
                lingers_s = LINGERS_S if self._most_under_way >= BURST else LINGERS_ALONE_S
                self._lingers_until_s = max(self._lingers_until_s, self._room.now_s + lingers_s)
                self._most_under_way = 0

    async def _created(self, wish: Wish) -> tuple[Session, Start]:
        blueprint = self.checked(wish)
        row = new_row(wish, blueprint, self._room.now_s)
        entry = await self._room.register.create(row, self._room.now_s)
        begins = wish.snapshot
        order = (
            order_of(row, blueprint, restore_from=begins.checkpoint, restore_at=begins.checkpoint_node)
            if begins
            else order_of(row, blueprint)
        )
        held = await self._make(entry, order)
        return entry.row, Start.RESTORED if begins else Start.WARM if held.is_warm else Start.COLD

    def checked(self, wish: Wish) -> Blueprint:
        """What a wish is made from, if it may be had; RefusedError."""
        check_size(wish, self._room.limits)
        begins = wish.snapshot
        if begins is not None and begins.owner != wish.owner:
            sentence = f'snapshot "{begins.id}" is of a session of "{begins.owner}"; only its owner can begin with it'
            raise RefusedError(403, "snapshot_owner", sentence)
        blueprint = self._room.stock.blueprint(wish.kind, wish.namespace, wish.name)
        if blueprint is None:
            raise RefusedError(404, "template_not_found", f'{wish.kind} "{wish.namespace}/{wish.name}" not found')
        if blueprint.trouble:
            raise RefusedError(422, "template", f'{wish.kind} "{wish.namespace}/{wish.name}": {blueprint.trouble}')
        check_room(self._room.limits, wish.owner, 1, self._room.register.live)
        return blueprint

    async def _make(self, entry: Entry, order: Order) -> Held:
        """From creating to running, in which sandbox, or to nothing."""
        async with entry.acting:
            held: Held | None = None
            try:
                key = new_token() if entry.row.is_checked else ""
                async with asyncio.timeout(self._room.limits.create_timeout_s):
                    with self._claim_told_early(entry.row, order, key) as told:
                        held = await self.taken(told)
                        await self.bind(entry, held, key)
            except BaseException as error:  # a cancellation, too, leaves nothing behind
                why = self._room.stock.trouble(entry.row.id) if isinstance(error, TimeoutError) else ""
                self._room.spawn(self._ending.undo(entry, held), f"undo {entry.row.id}")
                if why:
                    raise in_vain(why) from error
                if (refusal := refusal_of(error)) is not None:
                    raise refusal from error
                raise
        self._room.look_again(entry)
        return held

    @contextmanager
    def _claim_told_early(self, row: Session, order: Order, key: str) -> Iterator[Order]:
        """The order, of whose claim the node hears while the pod is on its way: one order to its daemon instead of two."""
        pods: list[str] = []

        def tell(made: Held) -> None:
            pods.append(made.pod_uid)
            self._room.link.expect_claim(made.pod_uid, claim_of(row, made, self._room.public_key, key))

        try:
            yield replace(order, tell_made=tell)
        finally:
            for pod in pods:
                self._room.link.let_claim_go(pod)

    async def taken(self, order: Order) -> Held:
        """A sandbox from the stock, on the node of the checkpoint that it begins with."""
        if order.restore_from:
            order = replace(order, node=await self._room.link.node_of(order.restore_from, order.restore_at))
        return await self._room.stock.take(order)

    async def bind(self, entry: Entry, held: Held, key: str = "") -> None:
        """Make the sandbox the session's own. The row is written once: until then the sandbox's label tells.

        One that waited in a pool is named before it is told whose it is. Its label may not be on disk yet, and a sandbox outlives a
        platform that is killed: it would be back in its pool with an owner, and nobody would know.
        `key` signs the tokens for its daemon, where one was told already.
        """
        row = entry.row
        events: tuple[Event, ...] = (Event.TAKEN, Event.BOUND)
        if held.is_warm:
            await self.write_running(entry, held, Event.TAKEN)
            events = (Event.BOUND,)
        key = key or (new_token() if row.is_checked else "")
        claimed = await self._room.link.claim(held.namespace, held.pod, claim_of(row, held, self._room.public_key, key))
        if self._under_way < BEGIN_AT_ONCE and row.kind != SessionKind.RUNTIME:
            self.on_claim(held.namespace, held.pod)
        await self._room.stock.settled(held)
        entry.used_s = self._room.now_s
        await self.write_running(entry, held, *events, token_key=key if claimed.takes_key else "")

    async def write_running(self, entry: Entry, held: Held, *events: Event, token_key: str = "") -> None:
        """The row of a session whose sandbox is its own, or is about to be."""
        where = {"sandbox": held.name, "sandbox_uid": held.uid, "pod": held.pod, "container": held.container}
        await self._room.register.write(entry, self._room.now_s, *events, **where, token_key=token_key)


def _key_of(asked: Wish | Session) -> tuple[str, str, str]:
    """By what an idempotency key is one session: a key that is held to a namespace must not be given one of another."""
    return asked.owner, asked.namespace, asked.idempotency_key
