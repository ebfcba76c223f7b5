"""Writes statuses behind the scheduler's back: the newest word about each object, in order, a few objects at once.

What is told about an object while an older word still waits is merged with it, field by field; so the queue is never
longer than there are objects, however slow the server is.
"""

import asyncio
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
"""How long counts and conditions of a gang wait for what is told next; only a phase that others act on is urgent. The
condition of a gang that was placed and the phase of one that was bound are then one write, and a gang of thousands
counts its pods 20 times a second and not at every cycle."""

_URGENT_PHASES = frozenset({"Pending", "Inqueue", "Running"})

Key = tuple[str, str, str]


class StatusWriter:
    """Carries out commands about objects."""

    def __init__(self, executor: Executor, *, on_refused: Callable[[Target], None] = lambda _: None) -> None:
        self._executor = executor
        self._on_refused = on_refused
        self._waiting: OrderedDict[Key, list[Command]] = OrderedDict()
        self._writing: set[Key] = set()
        self._changed = asyncio.Event()
        self._resting: set[Key] = set()

    @property
    def is_idle(self) -> bool:
        """Whether everything has been written."""
        return not self._waiting and not self._writing

    def tell(self, commands: Iterable[SetStatus | Patch | Event]) -> None:
        """Write these soon. A status that waits already takes over the fields of the newer one."""
        for command in commands:
            target = command.target
            key = (target.kind.__name__, target.namespace, target.name)
            is_new = key not in self._waiting
            self._waiting[key] = _merged(self._waiting.get(key, []), command)
            if _is_urgent(command):
                self._release(key)
            elif is_new:
                self._resting.add(key)
                asyncio.get_running_loop().call_later(REST_S, self._release, key)

    def _release(self, key: Key) -> None:
        self._resting.discard(key)
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
        """The object that has waited longest, is not being written and need not rest."""
        return next((key for key in self._waiting if key not in self._writing and key not in self._resting), None)

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


def _is_urgent(command: Command) -> bool:
    if not isinstance(command, SetStatus) or not issubclass(command.target.kind, PodGroup):
        return not isinstance(command, Event)
    return command.status.get("phase") in _URGENT_PHASES


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
