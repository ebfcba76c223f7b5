"""Writes statuses behind the scheduler's back: the newest word about each object, in order, a few objects at once.

What is told about an object while an older word still waits is merged with it, field by field; so the queue is never
longer than there are objects, however slow the server is.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from hekla.api.volcano.scheduling import PodGroup
from hekla.kube.commands import Command, Event, Patch, SetStatus, Target
from hekla.kube.errors import ConflictError, KubeError, NotFoundError, TransportError
from hekla.kube.execute import CommandError, Executor

log = structlog.get_logger()

AT_ONCE = 32

MOST_EVENTS = 3
"""Events that are kept for an object while they wait."""

REST_S = 0.05
"""How long a word about a gang rests for what is told next: the reason why it waits for so long, which people look for; that
its pods were placed, run or ended until nothing was added for so long."""

LONG_REST_S = 1.0
"""How long it rests at most while more is told all the time; as long as a session of Volcano's. A gang of thousands then
counts its pods once a second and not at every cycle."""

PROMPT_PER_S = 32
"""How many gangs a second may be told early that their pods were placed, run or ended. While more of them come and go, each
rests for the long time: what is over within a second is one write then and not three."""

RETELL_S = (1.0, 30.0)
"""First and longest wait until an object is told again that could not be written; it doubles with each refusal in a row."""

REFUSALS_IN_A_ROW, UNHEARD_IN_A_ROW = 6, 3
"""So many refusals in a row count at most: the longest wait; where the server could not be reached, 4 s, as it may be back at any
moment, and gangs wait for their phase."""

MOST_REFUSALS = 10_000
"""Objects whose refusals are counted. Where so many are refused already, whoever comes then waits the longest time, uncounted."""

FORGOTTEN_S = 2 * RETELL_S[1]
"""After so long the refusals of an object that was not told again, as it is gone most likely, give way to another's."""

_URGENT_PHASES = frozenset({"Pending", "Inqueue"})

Key = tuple[str, str, str]


class StatusWriter:
    """Carries out commands about objects."""

    def __init__(self, executor: Executor, *, on_refused: Callable[[Target, float], None] = lambda _, __: None) -> None:
        """`on_refused` is told of what could not be written, and in how many seconds it may be told again."""
        self._executor = executor
        self._on_refused = on_refused
        self._refusals: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        """How often in a row an object could not be written, and when last, the longest ago first; those that could have no entry."""

        self._waiting: dict[Key, list[Command]] = {}
        self._ready: OrderedDict[Key, None] = OrderedDict()
        """Those of them that need not rest any longer, the first come first."""

        self._resting: dict[Key, _Rest] = {}
        """Until when each of the others rests."""

        self._prompt_left, self._prompt_until = PROMPT_PER_S, -math.inf
        """How many more may be told early, and until when that is so."""

        self._writing: set[Key] = set()
        self._changed = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether everything has been written."""
        return not self._waiting and not self._writing

    def tell(self, commands: Iterable[SetStatus | Patch | Event]) -> None:
        """Write these soon. A status that waits already takes over the fields of the newer one."""
        for command in commands:
            target = command.target
            key = (target.kind.__name__, target.namespace, target.name)
            self._waiting[key] = _merged(self._waiting.get(key, []), command)
            if key not in self._ready:
                self._rest(key, _haste(command))

    def _rest(self, key: Key, haste: "_Haste") -> None:
        """Let an object wait for what is told of it next."""
        if haste is _Haste.AT_ONCE:
            self._release(key)
            return
        loop = asyncio.get_running_loop()
        now, resting = loop.time(), self._resting.get(key)
        if resting is None:
            latest = now + LONG_REST_S
            resting = self._resting[key] = _Rest(latest, latest, loop.call_at(latest, self._wake, key))
            resting.is_early = haste is _Haste.IN_PASSING and self._is_one_of_few(now)
        if haste is _Haste.SOON:
            resting.latest = min(resting.latest, now + REST_S)
            resting.is_early = True
        if resting.is_early and haste is not _Haste.SOME_TIME:
            self._rest_until(key, resting, min(now + REST_S, resting.latest))

    def _rest_until(self, key: Key, resting: "_Rest", due: float) -> None:
        if due < resting.due:  # else it is found out when the timer rings
            resting.timer.cancel()
            resting.timer = asyncio.get_running_loop().call_at(due, self._wake, key)
        resting.due = due

    def _is_one_of_few(self, now: float) -> bool:
        """Whether this is one of the first objects within a second."""
        if now >= self._prompt_until:
            self._prompt_left, self._prompt_until = PROMPT_PER_S, now + LONG_REST_S
        self._prompt_left -= 1
        return self._prompt_left >= 0

    def _wake(self, key: Key) -> None:
        """Let an object go whose time has come, unless it rests for longer by now."""
        loop, resting = asyncio.get_running_loop(), self._resting[key]
        if loop.time() < resting.due:
            resting.timer = loop.call_at(resting.due, self._wake, key)
        else:
            self._release(key)

    def _release(self, key: Key) -> None:
        if key in self._waiting:
            self._ready[key] = None
        if (resting := self._resting.pop(key, None)) is not None:
            resting.timer.cancel()
        self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as workers:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while len(self._writing) < AT_ONCE and (key := self._next()) is not None:
                    self._writing.add(key)
                    workers.create_task(self._write(key, self._waiting.pop(key)))

    def _next(self) -> Key | None:
        """The object that has been ready longest and is not being written."""
        key = next((key for key in self._ready if key not in self._writing), None)
        if key is not None:
            del self._ready[key]
        return key

    async def _write(self, key: Key, commands: Sequence[Command]) -> None:
        try:
            await self._executor.run(commands)
            self._refusals.pop(key, None)
        except (CommandError, KubeError) as error:
            # The object has changed meanwhile, or nobody answers: whoever told it may want to tell it again.
            cause = error.__cause__ or error
            tell = (
                log.debug if isinstance(cause, ConflictError) else log.info
            )  # who binds pods by hundreds meets kubelets
            tell("status not written", object="/".join(key), error=str(cause))
            self._on_refused(_target(commands[0]), self._wait_after(key, cause))
        finally:
            self._writing.discard(key)
            self._changed.set()

    def _wait_after(self, key: Key, cause: BaseException) -> float:
        """How long an object is left alone. What has changed or gone meanwhile is no sign of trouble."""
        first, longest = RETELL_S
        if isinstance(cause, ConflictError | NotFoundError):
            self._refusals.pop(key, None)
            return first
        now = asyncio.get_running_loop().time()
        most = UNHEARD_IN_A_ROW if isinstance(cause, TransportError) else REFUSALS_IN_A_ROW
        refusals = min(self._refusals.pop(key, (0, now))[0] + 1, most)
        if self._has_room(now):
            self._refusals[key] = refusals, now
        else:
            refusals = most
        return min(first * 2.0 ** (refusals - 1), longest)

    def _has_room(self, now: float) -> bool:
        """Whether one more object's refusals can be counted; makes room if the oldest are of an object that is gone."""
        if len(self._refusals) >= MOST_REFUSALS:
            oldest, (_, since) = next(iter(self._refusals.items()))
            if now - since > FORGOTTEN_S:
                del self._refusals[oldest]
        return len(self._refusals) < MOST_REFUSALS


class _Haste(Enum):
    """How soon a word is wanted."""

    AT_ONCE = "others act on it"
    SOON = "people look for it"
    IN_PASSING = "people look for it, unless there is much of it"
    SOME_TIME = "nobody waits for it"


@dataclass(slots=True)
class _Rest:
    """Until when an object rests."""

    due: float
    latest: float
    timer: asyncio.TimerHandle
    is_early: bool = False
    """Whether it rests no longer than until nothing was added to what is told for `REST_S`."""


def _haste(command: Command) -> _Haste:
    if isinstance(command, Event):
        return _Haste.SOON if command.type == "Warning" else _Haste.SOME_TIME
    if not isinstance(command, SetStatus) or not issubclass(command.target.kind, PodGroup):
        return _Haste.AT_ONCE
    phase = command.status.get("phase")
    if phase in _URGENT_PHASES:
        return _Haste.AT_ONCE
    is_bad_news = any(one["type"] == "Unschedulable" for one in command.status.get("conditions") or ())
    return _Haste.SOON if is_bad_news or phase == "Unknown" else _Haste.IN_PASSING


def _merged(waiting: Sequence[Command], newer: SetStatus | Patch | Event) -> list[Command]:
    """What waits, and the newer command: one status at most, and the last few events."""
    events = [command for command in waiting if isinstance(command, Event)][-MOST_EVENTS:]
    older = [command for command in waiting if not isinstance(command, Event)]
    if isinstance(newer, Event):
        return [*older, *(e for e in events if e != newer), newer]
    if isinstance(newer, SetStatus):
        status = {key: value for o in (*older, newer) if isinstance(o, SetStatus) for key, value in o.status.items()}
        return [SetStatus(newer.target, status), *events]
    return [newer, *events]


def _target(command: Command) -> Target:
    assert isinstance(command, SetStatus | Patch | Event)
    return command.target
