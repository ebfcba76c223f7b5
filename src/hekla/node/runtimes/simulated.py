"""Runs nothing: containers that live as long, and end as, the pod's annotations say. For scale and for what-if.

    hekla.dev/simulated-duration: "90s"        how long a container runs (absent: until it is stopped)
    hekla.dev/simulated-exit-code: "0"         how it ends
    hekla.dev/simulated-start-delay: "2s"      how long it takes to start
    hekla.dev/simulated-start-error: "..."     it does not start, with this message
    hekla.dev/simulated-failures: "2"          the first so many attempts end with code 1 (or the exit code, if not 0)
    hekla.dev/simulated-logs: "text"           what its log holds

Each may be narrowed to one container: `hekla.dev/simulated-duration.<container>`. One timer serves all containers,
whatever their number, and it is the event loop's own: in virtual time days pass at once.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hekla.kube.clock import Clock
from hekla.lib.digits import whole_number
from hekla.lib.go_duration import DurationError, parse_duration
from hekla.node.pod_record import Exit
from hekla.node.runtimes import (
    ContainerKey,
    ContainerSpec,
    ExecError,
    ExecSession,
    Feature,
    LogOptions,
    Observed,
    OnExit,
    StartError,
)

PREFIX = "hekla.dev/simulated-"


@dataclass(frozen=True, slots=True)
class Script:
    """What a container will do."""

    duration_s: float | None = None
    exit_code: int = 0
    start_delay_s: float = 0.0
    start_error: str = ""
    log: str = ""


@dataclass(slots=True)
class _Life:
    script: Script
    started_at: float
    exit: Exit | None = None


class SimulatedRuntime:
    """Containers that only seem to run."""

    name = "simulated"
    features = frozenset({Feature.LOGS})

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lives: dict[ContainerKey, _Life] = {}
        self._by_pod: dict[str, set[ContainerKey]] = {}
        self._ends: list[tuple[float, ContainerKey]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self._on_exit: OnExit = lambda key, end: None

    async def open(self, on_exit: OnExit) -> None:
        """Nothing to get ready."""
        self._on_exit = on_exit

    async def start(self, container: ContainerSpec) -> str:
        """Begin a life; its end is put on the heap."""
        key = container.key
        if key not in self._lives:
            script = script_of(container.annotations, key)
            if script.start_delay_s:
                await asyncio.sleep(script.start_delay_s)
            if script.start_error:
                raise StartError(script.start_error)
            self._lives[key] = _Life(script, self._now())
            self._by_pod.setdefault(key.pod_uid, set()).add(key)
            if script.duration_s is not None:
                loop_time = asyncio.get_running_loop().time()
                heapq.heappush(self._ends, (loop_time + script.duration_s, key))
                self._arm()
        return f"simulated://{key.pod_uid}/{key.name}/{key.attempt}"

    async def stop(self, key: ContainerKey, *, grace_s: float, signal: str = "SIGTERM") -> None:
        """It obeys at once, as a program does that handles SIGTERM not at all."""
        number = 15 if grace_s > 0 else 9
        self._end(key, 128 + number, number)

    async def remember(self, key: ContainerKey, memory: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    async def observe(self) -> Mapping[ContainerKey, Observed]:
        """All lives."""
        return {
            key: Observed(f"simulated://{key.pod_uid}/{key.name}/{key.attempt}", each.started_at, each.exit)
            for key, each in self._lives.items()
        }

    async def exec(
        self, key: ContainerKey, argv: Sequence[str], *, has_stdin: bool = False, has_tty: bool = False
    ) -> ExecSession:
        """There is nothing to run a command in."""
        raise ExecError("this pod is simulated: it has no processes to run a command beside")

    async def attach(self, key: ContainerKey) -> ExecSession:
        """There are no streams."""
        raise ExecError("this pod is simulated: it has no streams to attach to")

    async def logs(self, key: ContainerKey, options: LogOptions) -> AsyncIterator[bytes]:
        """What the annotation says."""
        life = self._lives.get(key)
        if life is None:
            raise LookupError(f"there is no log of attempt {key.attempt} of container {key.name}")
        lines = life.script.log.splitlines(keepends=True)
        if options.tail_lines is not None:
            lines = lines[len(lines) - min(options.tail_lines, len(lines)) :]
        if lines:
            yield "".join(lines).encode()[: options.limit_bytes]

    async def remove(self, pod_uid: str) -> None:
        """Forget a pod's ended lives."""
        for key in self._by_pod.pop(pod_uid, ()):
            if self._lives[key].exit is not None:
                del self._lives[key]

    async def leave(self) -> None:
        """There is nothing that could run on."""
        await self.close()

    async def close(self) -> None:
        """Every life ends unreported."""
        if self._timer is not None:
            self._timer.cancel()
        self._lives.clear()
        self._ends.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            # kept here and not asked of the timer: uvloop returns one that does not know for a time that has passed
            if self._rings_at <= self._ends[0][0]:
                return
            self._timer.cancel()
        self._rings_at = self._ends[0][0]
        self._timer = asyncio.get_running_loop().call_at(self._rings_at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._ends and self._ends[0][0] <= now:
            _, key = heapq.heappop(self._ends)
            life = self._lives.get(key)
            if life is not None:
                self._end(key, life.script.exit_code)
        if self._ends:
            self._arm()

    def _end(self, key: ContainerKey, code: int, signal: int = 0) -> None:
        life = self._lives.get(key)
        if life is None or life.exit is not None:
            return
        life.exit = Exit(
            code=code, reason="Completed" if code == 0 else "Error", signal=signal, started_at=life.started_at,
            finished_at=self._now(), container_id=f"simulated://{key.pod_uid}/{key.name}/{key.attempt}",
        )  # fmt: skip
        self._on_exit(key, life.exit)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def script_of(annotations: Mapping[str, str], key: ContainerKey) -> Script:
    """What the annotations say about one attempt; StartError names the one that cannot be read."""

    def told(name: str) -> str | None:
        return annotations.get(f"{PREFIX}{name}.{key.name}", annotations.get(PREFIX + name))

    duration, delay = told("duration"), told("start-delay")
    code = _number(told("exit-code") or "0", "exit-code")
    if key.attempt < _number(told("failures") or "0", "failures"):
        code = code or 1
    elif told("failures"):
        code = 0
    return Script(
        duration_s=None if duration is None else _seconds(duration, "duration"),
        exit_code=code,
        start_delay_s=_seconds(delay, "start-delay") if delay else 0.0,
        start_error=told("start-error") or "",
        log=told("logs") or "",
    )


def _number(text: str, name: str) -> int:
    number = whole_number(text)
    if number is None or number > 255:
        raise StartError(f'annotation {PREFIX}{name} is "{text}"; write a number from 0 to 255')
    return number


def _seconds(text: str, name: str) -> float:
    try:
        return max(0.0, parse_duration(text).total_seconds())
    except DurationError:
        raise StartError(f'annotation {PREFIX}{name} is "{text}"; write a duration such as 90s or 1h30m') from None
