"""A platform's data directory: made, checked, and claimed by one process at a time.

DIR/version        the layout's version
DIR/lock           held (flock) while a platform runs on it
DIR/platform.json  pid, start time and address of the one that runs
DIR/nodes.json     what nodes it was last started with
DIR/kubeconfig     how a client reaches it (mode 0600)
DIR/state.db       the objects
DIR/pki/           the generated authority, certificates and token keys
DIR/router.url     where the router listens for clients
DIR/router.debug   where it tells what it knows, and what would become of a request
DIR/router.keys    who may ask it, by API key (mode 0600)
DIR/router.log     its access log; older ones are router.log.1 to .3
DIR/agents.url     where the gateway of sandboxes listens
DIR/agents.key     who may ask it, by key (mode 0600)
DIR/agents.db      its sessions
DIR/node/          what the node agent keeps: logs, volumes, running processes
DIR/hekla.log      the log of a detached platform; older ones are hekla.log.1 to .3
"""

import fcntl
import json
import os
import shlex
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

LAYOUT_VERSION = 1
"""Raised when an older Hekla could no longer read a directory that a newer one wrote."""


class DataDirectoryError(Exception):
    """The directory cannot be used; the sentence says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """The platform that holds a directory."""

    pid: int
    start_ticks: int
    """The kernel's start time of that process, so that a reused pid is not mistaken for it."""

    url: str
    version: str

    nodes: int = 0
    """How many nodes it is to have: they join once the API server answers."""

    without: Sequence[str] = ()
    """The components that it goes without."""

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        return start_ticks_of(self.pid) == self.start_ticks


@dataclass(frozen=True)
class DataDirectory:
    """Paths inside one data directory."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        """Where a client starts."""
        return self.root / "kubeconfig"

    @property
    def state(self) -> Path:
        """The revision log."""
        return self.root / "state"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def node(self) -> Path:
        """The node agent's own."""
        return self.root / "node"

    @property
    def log(self) -> Path:
        """The log of a detached platform."""
        return self.root / "hekla.log"

    @property
    def record(self) -> Path:
        """Who runs on it."""
        return self.root / "platform.json"

    @property
    def nodes(self) -> Path:
        """What nodes it was last started with."""
        return self.root / "nodes.json"

    @property
    def router_url(self) -> Path:
        """Where clients of models go."""
        return self.root / "router.url"

    @property
    def router_debug(self) -> Path:
        """Where `hekla route explain` asks."""
        return self.root / "router.debug"

    @property
    def router_keys(self) -> Path:
        """Users and their API keys, one per line."""
        return self.root / "router.keys"

    @property
    def access_log(self) -> Path:
        """The router's."""
        return self.root / "router.log"

    @property
    def agents_url(self) -> Path:
        """Where clients of sandboxes go."""
        return self.root / "agents.url"

    @property
    def agents_key(self) -> Path:
        """Owners and their keys, one per line."""
        return self.root / "agents.key"

    @property
    def agents_state(self) -> Path:
        """Sessions."""
        return self.root / "agents.db"

    def running(self) -> Running | None:
        """The platform that runs on this directory, or None."""
        try:
            told = json.loads(self.record.read_text())
            found = Running(**{one.name: told[one.name] for one in fields(Running) if one.name in told})
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            return None
        except PermissionError:
            raise DataDirectoryError(
                f"{self.record} may not be read by you; it belongs to {owner_of(self.root)}"
            ) from None
        except OSError as error:
            raise DataDirectoryError(file_trouble(error)) from None
        return found if found.is_alive else None

    def nobody_runs(self) -> str:
        """That no platform runs here, for a sentence; and where to read on if the last one did not end in good order."""
        sentence = f"no platform runs on {self.root}"
        try:
            pid = int(json.loads(self.record.read_text())["pid"])  # who ends in good order takes it away
        except (OSError, ValueError, TypeError, KeyError):
            return sentence
        return (
            f"{sentence}: the last one, process {pid}, was killed or died; its log, if it was detached, is {self.log}"
        )

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the directory for this process; made if absent. Released by the kernel however we end."""
        try:
            self._prepare()
            lock = (self.root / "lock").open("w")
        except OSError as error:
            raise DataDirectoryError(f"{file_trouble(error)}; choose another place with --data-dir") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataDirectoryError(self._already_running()) from None
            try:
                yield
            finally:
                self.record.unlink(missing_ok=True)

    def publish(self, url: str, version: str, *, nodes: int = 0, without: Collection[str] = ()) -> None:
        """Write down that this process serves from here, is to have so many nodes, and goes without some components."""
        pid = os.getpid()
        record = Running(
            pid=pid, start_ticks=start_ticks_of(pid) or 0, url=url, version=version, nodes=nodes, without=sorted(without)
        )  # fmt: skip
        _write_whole(self.record, json.dumps(asdict(record)))

    def last_nodes(self) -> dict[str, int]:
        """What `keep_nodes` was last told, nothing if nobody told it."""
        try:
            told = json.loads(self.nodes.read_text())
        except (OSError, ValueError):
            return {}
        return {name: count for name, count in told.items() if isinstance(count, int)} if isinstance(told, dict) else {}

    def keep_nodes(self, counts: dict[str, int]) -> None:
        """Write down what nodes this start has, for the next one to say which are missing."""
        _write_whole(self.nodes, json.dumps(counts))

    def publish_router(self, url: str) -> None:
        """Write down where the router listens."""
        _write_whole(self.router_url, f"{url}\n")

    def publish_agents(self, url: str) -> None:
        """Write down where the gateway of sandboxes listens."""
        _write_whole(self.agents_url, f"{url}\n")

    def _prepare(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise DataDirectoryError(
                f"{self.root} cannot be made ({error.strerror}); choose another with --data-dir"
            ) from None
        if not os.access(self.root, os.R_OK | os.W_OK | os.X_OK):
            raise DataDirectoryError(
                f"{self.root} may not be written by you; {_why_not_writable(self.root)}: choose another with --data-dir"
            )
        self._check_version()

    def _check_version(self) -> None:
        place = self.root / "version"
        try:
            found = int(place.read_text())
        except FileNotFoundError:
            place.write_text(f"{LAYOUT_VERSION}\n")
            return
        except ValueError:
            raise DataDirectoryError(
                f"{place} holds no version number; is {self.root} a data directory of Hekla?"
            ) from None
        if found > LAYOUT_VERSION:
            raise DataDirectoryError(
                f"{self.root} was written by a newer Hekla (layout {found}, this one knows {LAYOUT_VERSION}); "
                "upgrade Hekla, or choose another with --data-dir"
            )

    def _already_running(self) -> str:
        other = self.running()
        who = f"process {other.pid} serves {other.url} from it" if other else "another process holds it"
        return f"{self.root} is in use: {who}; stop it with `hekla down --data-dir {shlex.quote(str(self.root))}`, or choose another with --data-dir"


def start_ticks_of(pid: int) -> int | None:
    """When the kernel started that process, in clock ticks since boot; None if it does not run (a zombie does not)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def file_trouble(error: OSError) -> str:
    """What the operating system refused, as a sentence that names the file and, if that is why, its owner."""
    if not error.filename:
        return error.strerror.lower() if error.strerror else str(error)
    path, why = Path(os.fsdecode(error.filename)), (error.strerror or str(error)).lower()
    if not isinstance(error, PermissionError):
        return f"{path}: {why}"
    return f"{path}: {why}; it belongs to {owner_of(_nearest_seen(path))}"


def _why_not_writable(path: Path) -> str:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only"
    state = path.stat()
    if state.st_uid == os.geteuid():
        return f"it is yours, but its mode is {stat.S_IMODE(state.st_mode):04o} and 0700 is needed"
    return f"it belongs to {owner_of(path)}"


def _nearest_seen(path: Path) -> Path:
    """The path, or the folder above it whose owner this user can see."""
    for one in (path, *path.parents):
        try:
            one.stat()
        except OSError:
            continue
        return one
    return path


def owner_of(path: Path) -> str:
    """The user name that owns a path, for a sentence."""
    try:
        return path.owner()
    except (KeyError, OSError):
        return "somebody else"


def _write_whole(file: Path, text: str) -> None:
    """Who waits for a file is to find all of it."""
    scratch = file.with_name(f"{file.name}.new")
    scratch.write_text(text)
    scratch.replace(file)
