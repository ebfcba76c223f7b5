"""How containers are run: the contract of a runtime. `process.py` is the specimen; `simulated.py` runs nothing at all.

The agent hands a runtime a `ContainerSpec` in which everything has been decided: argv, environment, mounts, limits.
Every call may be repeated; the second one finds it done. Ends are reported once through `on_exit`, and `observe` is
the truth that a restarted agent begins from.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hekla.node.pod_record import Exit


class Feature(StrEnum):
    """What a runtime can do beyond starting, stopping and observing."""

    EXEC = "exec"
    LOGS = "logs"
    STDIN = "stdin"
    TTY = "tty"
    MOUNTS = "mounts"
    """Volumes appear at their mount paths."""

    HOST_FILES = "host-files"
    """Without an image of its own a container has the host's programs, Python with its packages among them."""

    DAEMON = "daemon"
    """A daemon inside serves sessions; a container needs no command."""

    MEMORY = "memory"
    """What a node remembers of a container is kept with it for the node's next life."""

    PROCESSES = "processes"
    """There are real processes: argv is run."""


class ContainerKey(NamedTuple):
    """One attempt at one container of one pod."""

    pod_uid: str
    name: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path and where the container sees it."""

    source: Path
    target: str
    is_read_only: bool = False
    is_exact: bool = False
    """The source was looked at, and has no link in it: one that is there later is not followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a container may use; 0 means no limit."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    cpu_request_milli: int = 0
    """What it asked for of the processors: its weight where all want more than there is. 0: it gives way to whoever asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One attempt at a container, everything decided."""

    key: ContainerKey
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    hostname: str = ""
    pod_ip: str = ""
    hosts_file: Path | None = None
    mounts: tuple[Mount, ...] = ()
    rootfs: Path | None = None
    """A registered root file system; None is the host's own, read-only."""

    limits: Limits = Limits()
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    is_privileged: bool = False
    devices: tuple[int, ...] = ()
    """The numbers of the GPUs it was given; with any, it may open their devices."""

    may_gain_privileges: bool = True
    is_root_read_only: bool = False
    keep_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    has_stdin: bool = False
    stdin_once: bool = False
    has_tty: bool = False
    termination_message_path: str = ""
    falls_back_to_logs: bool = False
    """Take the last lines of the log as the message of a failed container that left none."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    """The pod's: the simulated runtime reads its outcome from them."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a runtime finds of one attempt: running if `exit` is None."""

    container_id: str
    started_at: float
    exit: Exit | None = None
    pod_ip: str = ""
    """The address it was given, where that matters to it; likewise its GPUs."""
    devices: tuple[int, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What an earlier life of the node said with `remember`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which lines of a log, as `kubectl logs` asks."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: float | None = None
    limit_bytes: int | None = None
    stream: str = ""
    """`stdout`, `stderr`, or both if empty."""


class ExecSession(Protocol):
    """A command that runs inside a container."""

    async def read(self) -> tuple[int, bytes]:
        """The next output and its file descriptor (1 or 2); empty bytes once all output has ended."""

    async def write(self, data: bytes) -> None:
        """Feed standard input."""

    async def close_stdin(self) -> None:
        """End standard input."""

    def resize(self, *, columns: int, rows: int) -> None:
        """Tell a terminal its size."""

    async def wait(self) -> int:
        """The exit code; 128 + n after signal n."""

    async def close(self) -> None:
        """Kill it if it still runs and free what it held."""


OnExit = Callable[[ContainerKey, Exit], None]


class Runtime(Protocol):
    """Runs containers in one way."""

    name: str

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do, on this host."""

    async def open(self, on_exit: OnExit) -> None:
        """Get ready; what an earlier life left running is taken up here, or ended."""

    async def start(self, container: ContainerSpec) -> str:
        """Start one attempt and return its container id; raises `StartError`."""

    async def stop(self, key: ContainerKey, *, grace_s: float, signal: str = "SIGTERM") -> None:
        """Signal, wait for at most `grace_s`, kill. Returns once nothing of it runs."""

    async def observe(self) -> Mapping[ContainerKey, Observed]:
        """All attempts known, running and ended."""

    async def remember(self, key: ContainerKey, memory: Mapping[str, Any]) -> None:
        """Keep this with an attempt for the node's next life, instead of what was kept before; without `Feature.MEMORY` nothing is."""

    async def exec(
        self, key: ContainerKey, argv: Sequence[str], *, has_stdin: bool = False, has_tty: bool = False
    ) -> ExecSession:
        """Run a command beside a running container; raises `ExecError`."""

    async def attach(self, key: ContainerKey) -> ExecSession:
        """Join the streams of the container's own process; closing leaves it running."""

    def logs(self, key: ContainerKey, options: LogOptions) -> AsyncIterator[bytes]:
        """The log's lines as asked; LookupError if there is no such attempt."""

    async def remove(self, pod_uid: str) -> None:
        """Forget the ended attempts of a pod, logs included."""

    async def leave(self) -> None:
        """Go, and leave what runs to the next life; what cannot run without us ends."""

    async def close(self) -> None:
        """End everything that runs."""


class NodeError(Exception):
    """Base of what this package raises.

    NodeError
    ├── StartError     a container could not be started: 128, as a person should read it
    ├── ExecError      a command could not be run inside a container
    ├── ConfigError    a container refers to something that is not there (a config map, a key)
    └── VolumeError    a volume could not be made
    """


class StartError(NodeError):
    """A container could not be started; the message names what was not found or not allowed."""


class ExecError(NodeError):
    """A command could not be run inside a container."""


class ConfigError(NodeError):
    """A container refers to something that does not exist; it is asked for again later."""


class VolumeError(NodeError):
    """A volume could not be made; tried again later."""
