"""Runs reconcilers: watches what they declare, calls them when something changed, carries out what they yield.

One object is reconciled by one worker at a time, and not again before the caches show what its last commands did (read
your writes). Failures back off per object, whatever its status says of them; a conflict is an ordinary reason to look again, and who waits
for room in a quota is woken when there is more of it (`quota_waiting.py`). What reconcilers are is said
in `reconcile.py`; the queue is `work_queue.py`, the caches `informer.py`, the writing `execute.py`.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import structlog
from msgspec.structs import replace
from prometheus_client import Counter, Gauge, Histogram

from hekla.api.core import ResourceQuota
from hekla.api.meta import OwnerReference, Resource
from hekla.kube.cache import Cache, ObjectKey, key_of
from hekla.kube.clock import Clock, SystemClock
from hekla.kube.commands import Command, RequeueAfter, SetStatus
from hekla.kube.errors import ApiError, ConflictError, KubeError, TransportError, hint_for_a_write
from hekla.kube.events import EventRecorder
from hekla.kube.execute import CommandError, Done, Executor, is_ending
from hekla.kube.informer import Informer, Informers
from hekla.kube.queue_metrics import QUEUES
from hekla.kube.quota_waiting import QuotaWaiting, is_over_quota
from hekla.kube.reconcile import Map, MapInWorld, Reconciler, World
from hekla.kube.work_queue import BACKOFF_S, OUTAGE_S, WorkQueue

T = TypeVar("T", bound=Resource)
log = structlog.get_logger()

CACHE_PATIENCE_S = 30.0
"""How long an object waits for its caches to show its own writes before it is looked at anyway."""

STOP_PATIENCE_S = 10.0
"""How long running reconciles may take to end when the runtime is told to stop."""

RECONCILES = Counter("hekla_reconciles_total", "Reconciles by outcome.", ["reconciler", "outcome"])
COMMANDS = Counter("hekla_reconcile_commands_total", "Commands carried out.", ["reconciler", "command"])
SECONDS = Histogram("hekla_reconcile_seconds", "Time of one reconcile, its commands included.", ["reconciler"])
QUEUED = Gauge("hekla_reconcile_queue_length", "Objects waiting for a worker.", ["reconciler"])


LONG_THOUGHT_S = 0.005
REST_PER_THOUGHT = 9.0
LONGEST_REST_S = 2.0
"""A decision that took more than 5 ms is followed by nine times as long a rest for its object, at most 2 s."""

LOOK_AGAIN_S = 0.05
"""How often a controller looks whether those that give way still have to."""
REST_PER_ASKING = 20.0
"""One of them is asked again how much quiet it needs when so many times as long has passed as that took."""
BUSY_PATIENCE = 4.0
"""A status that can wait waits so many times as long while more urgent work is under way."""


def _never_busy(within_s: float) -> bool:
    return False


def _never_moot(old: Resource, new: Resource) -> bool:
    return False


def _none_is_optional(kind: type[Resource]) -> bool:
    return False


class CacheWorld:
    """The caches of one reconciler as its read-only world."""

    def __init__(self, caches: dict[type[Resource], Cache[Any]], reconciler: str) -> None:
        self._caches = caches
        self._reconciler = reconciler

    def get(self, kind: type[T], namespace: str, name: str) -> T | None:
        """One object, or None."""
        return self._cache(kind).get(namespace, name)

    def list(self, kind: type[T], namespace: str = "", labels: dict[str, str] | None = None) -> Sequence[T]:
        """Objects of a namespace ("" for all) that carry all the labels, in order."""
        return self._cache(kind).list(namespace, labels)

    def owned(self, kind: type[T], uid: str) -> Sequence[T]:
        """Objects whose controller is `uid`, in order."""
        return self._cache(kind).owned(uid)

    def placed(self, kind: type[T], node: str) -> Sequence[T]:
        """Objects placed on a node, in order."""
        return self._cache(kind).placed(node)

    def selecting(self, kind: type[T], namespace: str, labels: Mapping[str, str]) -> Sequence[T]:
        """Objects of a namespace whose selector these labels satisfy, in order."""
        return self._cache(kind).selecting(namespace, labels)

    def _cache(self, kind: type[T]) -> Cache[T]:
        try:
            return self._caches[kind]
        except KeyError:
            raise LookupError(
                f"reconciler {self._reconciler!r} asks for {kind.__name__}, which it does not declare; "
                f"add it to `owns` or `reads`"
            ) from None


class Runtime:
    """Runs a set of reconcilers over shared informers until it is stopped.

    `component` is who events come from; `{}` in it stands for the reconciler's name.
    """

    def __init__(
        self,
        informers: Informers,
        reconcilers: Sequence[Reconciler],
        *,
        clock: Clock | None = None,
        dice: random.Random | None = None,
        component: str = "hekla",
        field_manager: str = "hekla",
        is_busy: Callable[[float], bool] = _never_busy,
        is_optional: Callable[[type[Resource]], bool] = _none_is_optional,
    ) -> None:
        """`is_busy` says whether somebody waits for more urgent work in this process: reconcilers that can give way to it;
        `is_optional`, which kinds the cluster may lack: who merely reads one works without it until it is there.
        """
        clock, dice = clock or SystemClock(), dice or random.Random()
        self._informers = informers
        self._events = EventRecorder(informers.client, clock, component=component)
        self._stop = asyncio.Event()
        self.controllers = []
        for spec in reconcilers:
            name = component.replace("{}", spec.name)
            executor = Executor(informers.client, self._events, field_manager=field_manager, component=name)
            self.controllers.append(Controller(spec, informers, executor, clock, dice, is_busy, is_optional))

    async def run(self) -> None:
        """Reconcile until `stop` is called (then what runs may end) or the task is cancelled (then it ends at once)."""
        work = asyncio.create_task(self._run_all(), name="reconcilers")
        told = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
            self._close()
            await asyncio.wait({work}, timeout=STOP_PATIENCE_S)
            if work.done():
                await work
        finally:
            self._close()
            told.cancel()
            work.cancel()
            await asyncio.gather(told, work, return_exceptions=True)

    def stop(self) -> None:
        """End in good order: no new reconcile starts, those that run may finish."""
        self._stop.set()

    async def idle(self) -> None:
        """Wait until no controller has anything to do at this moment (delayed looks excepted)."""
        await self._informers.synced()
        while not all(controller.queue.is_idle for controller in self.controllers):
            await asyncio.sleep(0.001)

    async def _run_all(self) -> None:
        recorder = asyncio.create_task(self._events.run(), name="events")
        try:
            async with asyncio.TaskGroup() as tasks:
                for controller in self.controllers:
                    tasks.create_task(controller.run(), name=f"controller {controller.name}")
            await self._events.written()
        finally:
            recorder.cancel()

    def _close(self) -> None:
        for controller in self.controllers:
            controller.close()


class Controller:
    """One reconciler at work."""

    def __init__(
        self,
        spec: Reconciler,
        informers: Informers,
        executor: Executor,
        clock: Clock,
        dice: random.Random,
        is_busy: Callable[[float], bool] = _never_busy,
        is_optional: Callable[[type[Resource]], bool] = _none_is_optional,
    ) -> None:
        self.name = spec.name
        self._is_optional = is_optional
        self._is_busy = is_busy
        self._spec = spec
        self._executor = executor
        self._clock = clock
        self._dice = dice
        self.queue = WorkQueue(dice=dice)
        # Read when metrics are collected; setting it at each event cost a third of the event.
        QUEUED.labels(spec.name).set_function(self.queue.__len__)
        QUEUES.tell_of(spec.name, self.queue)
        kinds = dict.fromkeys((spec.kind, *spec.owns, *spec.reads, *spec.wakes, *spec.finds))
        self._informers: dict[type[Resource], Informer[Any]] = {kind: informers.of(kind) for kind in kinds}
        self._by_resource = {kind.kind_info.resource: informer for kind, informer in self._informers.items()}
        self._world = CacheWorld({kind: informer.cache for kind, informer in self._informers.items()}, spec.name)
        self._handlers: list[tuple[Informer[Any], Any]] = []
        self._quotas = informers.of(ResourceQuota) if spec.awaits_quota else None
        self._quota_waiting = QuotaWaiting()
        self._rests_s: dict[ObjectKey, float] = {}
        self._put_off: dict[ObjectKey, float] = {}
        """Since when each object has had a status to write that can wait."""
        self._gave_way: dict[ObjectKey, float] = {}
        """Since when each object has given way."""
        self._held: dict[ObjectKey, _Hold] = {}
        """Those that give way now."""
        self._look: asyncio.TimerHandle | None = None
        self._outage_told_s = float("-inf")

    async def run(self) -> None:
        """Fill the caches, then work until closed."""
        for kind, informer in self._informers.items():
            await (informer.known() if self._may_lack(kind) else informer.synced())
        self._listen()
        log.debug("controller runs", reconciler=self.name, objects=len(self._informers[self._spec.kind].cache))
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._spec.at_once):
                tasks.create_task(self._work(), name=f"{self.name} {number}")

    def _may_lack(self, kind: type[Resource]) -> bool:
        """Whether it works without a kind; what it makes must be known, so that nothing is made twice."""
        return kind is not self._spec.kind and kind not in self._spec.owns and self._is_optional(kind)

    def close(self) -> None:
        """Take nothing more."""
        for informer, handler in self._handlers:
            informer.remove_handler(handler)
        self._handlers.clear()
        if self._look is not None:
            self._look.cancel()
        self.queue.close()

    def _listen(self) -> None:
        is_moot = self._is_its_own_word if self._spec.when_refused is not None else _never_moot
        self._hear(self._spec.kind, self._itself, is_moot=is_moot)
        for kind in self._spec.owns:
            self._hear(kind, self._owner)
        for kind, waking in self._spec.wakes.items():
            self._hear(kind, waking)
        for kind, finding in self._spec.finds.items():
            self._hear(kind, partial(_found, finding, self._world))
        if self._quotas is not None:
            self._add_handler(self._quotas, self._on_quota)

    def _on_quota(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        for key in self._quota_waiting.on_quota(old, new):
            self.queue.add(key)

    def _hear(
        self, kind: type[Resource], waking: Map, *, is_moot: Callable[[Resource, Resource], bool] = _never_moot
    ) -> None:
        part_of = self._spec.heeds.get(kind)

        def handler(old: Resource | None, new: Resource | None) -> None:
            if old is not None and new is not None and is_moot(old, new):
                return
            if part_of is not None and old is not None and new is not None and part_of(old) == part_of(new):
                return
            # Both sides: an object that moves to another owner or queue concerns the one it left as well.
            for obj in (old, new):
                if obj is not None:
                    for key in waking(obj):
                        self.queue.add(key)

        self._add_handler(self._informers[kind], handler)

    def _is_its_own_word(self, old: Resource, new: Resource) -> bool:
        """Whether an object that backs off only says what was refused. With a wording that varies (a port, one of two webhooks)
        each word woke it for the next try, without a pause.
        """
        return self.queue.is_backing_off(key_of(new)) and _differ_in_status_alone(old, new)

    def _add_handler(self, informer: Informer[Any], handler: Any) -> None:
        informer.add_handler(handler)
        self._handlers.append((informer, handler))

    def _itself(self, obj: Resource) -> Iterator[ObjectKey]:
        if self._spec.concerns is None or self._spec.concerns(obj, self._world):
            yield key_of(obj)

    def _owner(self, obj: Resource) -> Iterator[ObjectKey]:
        info = self._spec.kind.kind_info
        for owner in obj.metadata.owner_references:
            if owner.controller and owner.kind == info.kind and _group_of(owner) == info.group:
                yield (obj.metadata.namespace if info.is_namespaced else "", owner.name)

    async def _work(self) -> None:
        while (key := await self.queue.get()) is not None:
            structlog.contextvars.bind_contextvars(reconciler=self.name)
            done = await self._reconcile_or_back_off(key)
            self._release_when_seen(key, done)
            # A reconcile that finds nothing to do awaits nothing; thousands of them must not hold up a request.
            await asyncio.sleep(0)

    async def _reconcile_or_back_off(self, key: ObjectKey) -> Sequence[Done]:
        outcome, done = "error", []
        try:
            with SECONDS.labels(self.name).time():
                done = await self._reconcile(key)
            self._succeeded(key)
            outcome = "ok"
        except CommandError as error:
            outcome = self._back_off(key, error.__cause__)
            done = [*error.done, *await self._say_what_was_refused(key, error.command, error.__cause__)]
        except Exception as error:  # noqa: BLE001 - the task boundary: a mistake with one object must not stop the rest
            self._back_off(key, error)
        RECONCILES.labels(self.name, outcome).inc()
        return done

    def _succeeded(self, key: ObjectKey) -> None:
        self.queue.succeeded(key)
        if (next_key := self._quota_waiting.release(key)) is not None:
            self.queue.add(next_key)

    async def _reconcile(self, key: ObjectKey) -> list[Done]:
        obj = self._world.get(self._spec.kind, *key)
        if obj is None:
            self.queue.forget(key)
            self._put_off.pop(key, None)
            self._gave_way.pop(key, None)
            self._held.pop(key, None)
            return []
        began_s = self._clock.elapsed_s()
        if self._gives_way(key, obj, began_s):
            return []
        commands = list(self._spec.decide(obj, self._world, self._clock.now()))
        self._rest_after(key, self._clock.elapsed_s() - began_s)
        commands = self._without_what_can_wait(key, commands, began_s)
        for command in commands:
            COMMANDS.labels(self.name, type(command).__name__).inc()
        later = [command.seconds for command in commands if isinstance(command, RequeueAfter)]
        to_do: list[Command] = [command for command in commands if not isinstance(command, RequeueAfter)]
        is_cut_short = False

        def is_overtaken() -> bool:
            nonlocal is_cut_short
            is_cut_short = self._is_overtaken(key, obj)
            return is_cut_short

        done = await self._executor.run(to_do, is_overtaken) if to_do else []
        if is_cut_short:
            self.queue.add(key)
        if later:
            self.queue.add_after(key, max(min(later), 0.001))
        return done

    def _is_overtaken(self, key: ObjectKey, obj: Resource) -> bool:
        """Whether somebody has written another spec since it was looked at, by the same object."""
        now = self._world.get(self._spec.kind, *key)
        return now is not None and (now.metadata.uid, now.metadata.generation) != (
            obj.metadata.uid,
            obj.metadata.generation,
        )

    def _gives_way(self, key: ObjectKey, obj: Resource, now_s: float) -> bool:
        """Whether an object is to be looked at later because others are in a hurry; never for longer than its reconciler allows."""
        most_s = self._spec.gives_way_s
        if most_s:
            hold = _Hold(quiet_s=self._quiet_s(obj), ask_at_s=now_s)
            if self._is_busy(hold.quiet_s):
                since_s = self._gave_way.setdefault(key, now_s)
                hold.until_s = since_s + (most_s(obj, self._world) if callable(most_s) else most_s)
                if now_s < hold.until_s:
                    self._held[key] = hold
                    self._look_later()
                    return True
        self._gave_way.pop(key, None)
        self._held.pop(key, None)
        return False

    def _is_waited_for(self, key: ObjectKey, hold: "_Hold") -> bool:
        """Whether an object goes on giving way. A pool of very many members takes long to ask."""
        if not self._is_busy(hold.quiet_s):
            return False
        began_s = self._clock.elapsed_s()
        if began_s < hold.ask_at_s:
            return True
        obj = self._world.get(self._spec.kind, *key)
        try:
            hold.quiet_s = self._quiet_s(obj) if obj is not None else 0.0
        except Exception:  # noqa: BLE001 - a reconciler's own code: it is asked once more where it is told of
            return False
        hold.ask_at_s = began_s + REST_PER_ASKING * (self._clock.elapsed_s() - began_s)
        return obj is not None and self._is_busy(hold.quiet_s)

    def _quiet_s(self, obj: Resource) -> float:
        quiet_s = self._spec.quiet_s
        return quiet_s(obj, self._world) if callable(quiet_s) else quiet_s

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """Take up those that need not give way any more: one look for all, as three hundred of their own were in the way of whom they gave way to."""
        self._look = None
        now_s, is_busy = self._clock.elapsed_s(), self._is_busy(0.0)
        for key, hold in list(self._held.items()):
            is_waited_for = self._is_waited_for(key, hold) if self._spec.quiet_s else is_busy
            if hold.until_s <= now_s or not is_waited_for:
                del self._held[key]
                self.queue.add(key)
        if self._held:
            self._look_later()

    def _without_what_can_wait(self, key: ObjectKey, commands: list[Command], now_s: float) -> list[Command]:
        """Put off a status of little news until it has waited long enough; another look then decides what it says."""
        waits = [command.can_wait_s for command in commands if isinstance(command, SetStatus) and command.can_wait_s]
        if not waits:
            self._put_off.pop(key, None)
            return commands
        since_s = self._put_off.setdefault(key, now_s)
        left_s = since_s + min(waits) - now_s
        if left_s <= 0 and self._is_busy(0.0):
            left_s = min(LOOK_AGAIN_S + min(waits) / 2, since_s + BUSY_PATIENCE * min(waits) - now_s)
        if left_s <= 0:
            del self._put_off[key]
            return commands
        self.queue.add_after(key, left_s)
        return [command for command in commands if not (isinstance(command, SetStatus) and command.can_wait_s)]

    def _rest_after(self, key: ObjectKey, thought_s: float) -> None:
        """An object that takes long to think about is thought about less often: changes gather meanwhile.

        Without it a job of 4,000 pods was looked at after every change of any of them, and the loop did nothing else.
        """
        if thought_s > LONG_THOUGHT_S:
            self._rests_s[key] = min(thought_s * REST_PER_THOUGHT, LONGEST_REST_S)

    def _back_off(self, key: ObjectKey, error: BaseException | None) -> str:
        is_outage = isinstance(error, TransportError) or (isinstance(error, ApiError) and error.code >= 500)
        wait_s = self.queue.add_failed(key, longest_s=OUTAGE_S if is_outage else BACKOFF_S[1])
        if is_over_quota(error):
            self._quota_waiting.refuse(key)
        about = {"reconciler": self.name, "namespace": key[0], "name": key[1], "retry_in_s": round(wait_s, 3)}
        match error:
            case ConflictError():
                log.debug("object changed meanwhile", **about)
                return "conflict"
            case ApiError() if is_ending(error):
                log.debug("namespace is ending", **about)
            case ApiError() | TransportError():
                hint = hint_for_a_write(error)
                say = self._say_of_outage() if is_outage else log.info
                say("command refused", why=str(error), **about, **({"hint": hint} if hint else {}))
            case KubeError():
                log.warning("command failed", why=str(error), **about)
            case _:
                log.error("reconcile failed", exc_info=error, **about)
        return "error"

    def _say_of_outage(self) -> Callable[..., Any]:
        """At which level it is told: it is the same for all objects and at each try, and one line a minute says it."""
        now_s = self._clock.elapsed_s()
        if now_s - self._outage_told_s < OUTAGE_S:
            return cast(Callable[..., Any], log.debug)
        self._outage_told_s = now_s
        return cast(Callable[..., Any], log.info)

    async def _say_what_was_refused(self, key: ObjectKey, command: Command, error: BaseException | None) -> list[Done]:
        """Have the object say it. That it cannot be said is no news beside it: whoever tries again says it then."""
        is_refusal = isinstance(error, ApiError) and not isinstance(error, ConflictError) and not is_ending(error)
        obj = self._world.get(self._spec.kind, *key) if is_refusal and self._spec.when_refused is not None else None
        if obj is None or self._spec.when_refused is None:
            return []
        try:
            return await self._executor.run(
                list(self._spec.when_refused(obj, command, str(error), self._world, self._clock.now()))
            )
        except CommandError as second:
            return second.done

    def _release_when_seen(self, key: ObjectKey, done: Sequence[Done]) -> None:
        """Let the object be reconciled again once the caches show what was done, or after a while."""
        if done and self._spec.rests_s:
            self._rests_s[key] = max(self._rests_s.get(key, 0.0), self._spec.rests_s)
        mine = [(informer, one) for one in done if (informer := self._by_resource.get(one.kind.kind_info.resource))]
        if not mine:
            self._finish(key)
            return
        parking = _Parking(len(mine), lambda: self._finish(key))
        parking.timer = asyncio.get_running_loop().call_later(CACHE_PATIENCE_S, self._late, key, parking)
        for informer, one in mine:
            if one.revision:
                informer.when_seen(one.revision, parking.one_seen)
            else:
                informer.when_gone(one.key, one.uid, parking.one_seen)

    def _late(self, key: ObjectKey, parking: "_Parking") -> None:
        log.warning("caches do not show own writes", reconciler=self.name, namespace=key[0], name=key[1])
        parking.release()

    def _finish(self, key: ObjectKey) -> None:
        rest_s = self._rests_s.pop(key, 0.0)
        if rest_s:
            asyncio.get_running_loop().call_later(rest_s, self._finish, key)
            return
        self.queue.done(key)
        if self.queue.has_overflowed:
            self.queue.refill(self._informers[self._spec.kind].cache.keys())


@dataclass(slots=True)
class _Hold:
    """An object that gives way: until when at the latest, after how much quiet, and when it is asked again for how much."""

    quiet_s: float
    ask_at_s: float
    until_s: float = 0.0


class _Parking:
    """Counts down what an object still waits for."""

    def __init__(self, count: int, released: Any) -> None:
        self._left = count
        self._released = released
        self.timer: asyncio.TimerHandle | None = None

    def one_seen(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.release()

    def release(self) -> None:
        released, self._released = self._released, None
        if released is not None:
            if self.timer is not None:
                self.timer.cancel()
            released()


async def run_reconcilers(
    informers: Informers,
    reconcilers: Sequence[Reconciler],
    *,
    clock: Clock | None = None,
    component: str = "hekla",
    is_busy: Callable[[float], bool] = _never_busy,
) -> None:
    """Run reconcilers until cancelled."""
    await Runtime(informers, reconcilers, clock=clock, component=component, is_busy=is_busy).run()


def _found(finding: MapInWorld, world: World, obj: Resource) -> Iterator[ObjectKey]:
    return finding(obj, world)


def _differ_in_status_alone(old: Resource, new: Resource) -> bool:
    metadata = replace(new.metadata, resource_version=old.metadata.resource_version)
    others = (one for one in type(new).__struct_fields__ if one not in ("metadata", "status"))
    return metadata == old.metadata and all(getattr(old, one) == getattr(new, one) for one in others)


def _group_of(owner: OwnerReference) -> str:
    return owner.api_version.rpartition("/")[0]
