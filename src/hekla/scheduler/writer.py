"""Writes statuses behind the scheduler's back: the newest word about each object, in order, a few objects at once.

What is told about an object while an older word still waits is merged with it, field by field; so the queue is never
longer than there are objects, however slow the server is.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import structlog

from hekla.api.volcano.scheduling import PodGroup
from hekla.kube.commands import Command, Event, Patch, SetStatus, Target
from hekla.kube.errors import KubeError
from hekla.kube.execute import CommandError, Executor

log = structlog.get_logger()

AT_ONCE = 32

MOST_EVENTS = 3
"""Events that are kept for an object while they wait."""

REST_S = 0.05
"""How long the reason of a gang that waits is held back for what is told next: people look for it."""

LONG_REST_S = 1.0
"""How long counts, and the word that a gang was placed and runs, wait for what is told next; as long as a session of
Volcano's. Only a phase that others act on is urgent. A gang of thousands then counts its pods once a second and not at
every cycle, and what is over within a second was one write and not three."""

_URGENT_PHASES = frozenset({"Pending", "Inqueue"})

Key = tuple[str, str, str]


class StatusWriter:
    """Carries out commands about objects."""

    def __init__(self, executor: Executor, *, on_refused: Callable[[Target], None] = lambda _: None) -> None:
        self._executor = executor
        self._on_refused = on_refused
        self._waiting: dict[Key, list[Command]] = {}
        self._ready: OrderedDict[Key, None] = OrderedDict()
        """Those of them that need not rest any longer, the first come first."""

        self._resting: dict[Key, float] = {}
        """Until when each of the others rests."""

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
                self._rest(key, _rest_s(command))

    def _rest(self, key: Key, seconds: float) -> None:
        """Let an object wait for what is told of it next, no longer than what was told of it before may wait."""
        loop = asyncio.get_running_loop()
        if not seconds:
            self._release(key)
        elif loop.time() + seconds < self._resting.get(key, math.inf):
            self._resting[key] = loop.time() + seconds
            loop.call_later(seconds, self._release, key)

    def _release(self, key: Key) -> None:
        if key in self._waiting:
            self._ready[key] = None
        self._resting.pop(key, None)
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
        except (CommandError, KubeError) as error:
            # The object has changed meanwhile, or nobody answers: whoever told it may want to tell it again.
            log.info("status not written", object="/".join(key), error=str(error.__cause__ or error))
            self._on_refused(_target(commands[0]))
        finally:
            self._writing.discard(key)
            self._changed.set()


def _rest_s(command: Command) -> float:
    """How long a word may rest; 0 if it is urgent."""
    if isinstance(command, Event):
        return REST_S if command.type == "Warning" else LONG_REST_S
    if not isinstance(command, SetStatus) or not issubclass(command.target.kind, PodGroup):
        return 0.0
    if command.status.get("phase") in _URGENT_PHASES:
        return 0.0
    is_bad_news = any(one["type"] == "Unschedulable" for one in command.status.get("conditions") or ())
    return REST_S if is_bad_news or command.status.get("phase") == "Unknown" else LONG_REST_S


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
