"""What the node runs inside a sandbox beside its daemon: the pod's own command with its log, and commands of `kubectl exec`."""

import asyncio
import contextlib
import os
import signal as signals
from collections.abc import Sequence
from pathlib import Path

from hekla.node.runtimes import ContainerSpec, ExecError, StartError
from hekla.node.runtimes.confine import LOG_FILES, LOG_MAX_BYTES
from hekla.node.runtimes.process_exec import ProcessExec
from hekla.node.runtimes.sandbox.cells import Cell
from hekla.node.runtimes.sandbox.channel import Message, OrderRefusedError, SandboxGoneError
from hekla.node.runtimes.spawner_link import Report
from hekla.node.shim.logfile import LogFile

MAIN = "main"
STREAMS = ("stdout", "stderr")
PIECE = 64 * 1024


class OwnCommand:
    """The pod's command, its output kept in its log."""

    def __init__(self, cell: Cell, container: ContainerSpec, log: Path) -> None:
        self._cell, self._container, self._path = cell, container, log
        self._log: LogFile | None = None
        """Made for a command that may print: most sandboxes have their daemon only."""
        self._sources: dict[int, str] = {}

    async def start(self) -> None:
        """Run it; a container without a command has its daemon only. Raises StartError."""
        if not self._container.argv:
            return
        try:
            self._open_log()
        except OSError as problem:
            raise StartError(f"its log {self._path} cannot be written: {problem}") from problem
        nothing = os.open(os.devnull, os.O_RDONLY)
        out, err = os.pipe(), os.pipe()
        try:
            order = order_for(MAIN, self._container, self._container.argv, has_tty=False)
            order["message_path"] = self._container.termination_message_path
            await self._cell.channel.ask("start", order, (nothing, out[1], err[1]))
        except (OrderRefusedError, SandboxGoneError) as refusal:
            os.close(out[0])
            os.close(err[0])
            raise StartError(str(refusal)) from None
        finally:
            for descriptor in (nothing, out[1], err[1]):
                os.close(descriptor)
        self._cell.keep("stdout", out[0])
        self._cell.keep("stderr", err[0])
        self._follow({out[0]: "stdout", err[0]: "stderr"})

    def go_on(self) -> None:
        """With the output that an earlier life of this node left: what was read and not written yet is all that is lost."""
        left = {self._cell.left_fds.pop(name): name for name in STREAMS if name in self._cell.left_fds}
        if left:
            self._open_log()
        self._follow(left)

    def _open_log(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log = LogFile(str(self._path.parent), self._path.name, max_bytes=LOG_MAX_BYTES, files=LOG_FILES)

    def _follow(self, sources: dict[int, str]) -> None:
        self._sources = sources
        for descriptor in sources:
            os.set_blocking(descriptor, False)
            asyncio.get_running_loop().add_reader(descriptor, self._copy, descriptor)

    async def signal(self, number: int) -> None:
        """Tell it, and it alone."""
        with contextlib.suppress(OrderRefusedError, SandboxGoneError):
            await self._cell.channel.ask("signal", {"id": MAIN, "signal": number, "group": False})

    def close(self) -> None:
        """Nothing of the sandbox runs any more: what is left in the pipes is the last of the log."""
        for descriptor in list(self._sources):
            while descriptor in self._sources:
                if self._copy(descriptor) is None:
                    self._drop(descriptor)
        if self._log is not None:
            self._log.close()

    def _copy(self, descriptor: int) -> bool | None:
        """True: there may be more; None: not now."""
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return None
        if data:
            assert self._log is not None, "output comes from what is followed"
            self._log.write(self._sources[descriptor], data)
            return True
        self._drop(descriptor)
        return False

    def _drop(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        del self._sources[descriptor]


def order_for(name: str, container: ContainerSpec, argv: Sequence[str], *, has_tty: bool) -> Message:
    """What the daemon is told to run, and as whom."""
    uid = container.user or 0
    home = "/root" if uid == 0 else "/"
    return {
        "id": name, "argv": list(argv), "env": {"HOME": home, **({"TERM": "xterm"} if has_tty else {})},
        "cwd": container.working_dir, "uid": uid, "gid": container.group if container.group is not None else uid,
        "tty": has_tty,
    }  # fmt: skip


class CommandLink:
    """Lets a `ProcessExec` run in a sandbox: its orders go to the daemon instead of a spawner."""

    def __init__(self, cell: Cell, container: ContainerSpec) -> None:
        self._cell, self._container = cell, container
        self.session: ProcessExec | None = None

    async def send(self, order: Report, fds: Sequence[int] = ()) -> None:
        """`exec`, or `kill_exec`."""
        name = order["session"]
        try:
            if order["order"] == "exec":
                wanted = order_for(name, self._container, order["argv"], has_tty=order["tty"])
                _, given = await self._cell.channel.ask("start", wanted, () if order["tty"] else fds)
                assert self.session is not None, "a session is told before it gives orders"
                for master in given:
                    self.session.take_terminal(master, self._cell.channel.resize)
                self.session.handle({"event": "exec_started"})
            else:
                await self._cell.channel.ask("signal", {"id": name, "signal": int(signals.SIGKILL), "group": True})
        except OrderRefusedError as refusal:
            raise ExecError(str(refusal)) from None
        except SandboxGoneError as problem:
            if order["order"] == "exec":
                raise ExecError(str(problem)) from None
