"""The first process of a container: prepares its world, starts the command, reaps, keeps the log, tells how it ended.

It lives in the container's namespaces (where there are any) as pid 1, so that when it goes the kernel ends all the
others. Where there is no pid namespace it adopts orphans as a subreaper and ends them itself. It ends when the command
ends, or when the spawner's end of the control socket closes: no spawner, no container.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
import time
import warnings  # noqa: F401 - execvpe imports it, which fails when the container's user may not read our Python
from typing import Any

from hekla.node.shim import confinement, linux, own_address
from hekla.node.shim.logfile import LogFile
from hekla.node.shim.mounts import Root, below, decisive, is_within, ways_to

Spec = dict[str, Any]

MAX_MESSAGE = 4096
"""Bytes of a termination message, as in Kubernetes."""

CONTROL_FD = 3


def run(spec: Spec, control: socket.socket) -> None:
    """Be the container's init; never returns."""
    code = 1
    try:
        code = _run(spec, control)
    except OSError as problem:
        _tell(control, {"failed": _sentence(problem, spec["root"])})
    finally:
        os._exit(code)


def _run(spec: Spec, control: socket.socket) -> int:
    confinement.map_user(spec)
    _outlive_nobody(spec)
    log = LogFile(
        spec["log_dir"], spec["log_name"], max_bytes=spec["log_max_bytes"], files=spec["log_files"],
        is_conversation=bool(spec["tty"] or spec["stdin_fifo"]),
    )  # fmt: skip
    message_fd = _open_message(spec)
    stdin = _open_stdin(spec)
    linux.join_groups(spec["cgroups"])
    if spec["namespaces"] & linux.CLONE_NEWUTS:
        linux.set_hostname(spec["hostname"])
    if spec["namespaces"] & linux.CLONE_NEWNS:
        build_root(spec)
    streams = _Streams(spec, stdin)
    _watch_signals()
    pid, listener = _start_command(spec, streams)
    streams.close_childs_ends()
    _tell(control, {"started": pid, "at": time.time()})
    status = _Loop(spec, control, log, streams, pid, listener).until_end()
    log.close()
    _tell(control, {"exited": _describe(status), "at": time.time(), "message": _read_message(message_fd)})
    return 0


def build_root(spec: Spec) -> None:
    """Lay out the file system and enter it. Sources are opened first: what is laid over may hide them. What is hidden is so below them too."""
    sources = [
        (linux.open_place(source, spec["exact"]), source, target, is_ro) for source, target, is_ro in spec["mounts"]
    ]
    hidden = [(each, way) for each in spec["hidden"] for way in ways_to(each)]
    kept = [place for each in spec["hidden"] for place in decisive(each)]
    has_all_devices = spec["devices"] is None
    root = Root(spec["root"], spec["rootfs"], has_all_devices=has_all_devices)
    for target in spec["hidden"]:
        if not spec["rootfs"] or os.path.lexists(spec["rootfs"] + target):
            root.hide(target)
    if not has_all_devices:
        root.devices(spec["devices"])
    if spec["rootfs"]:
        for place in ("/dev", "/sys") if has_all_devices else ("/sys",):
            root.bind(os.open(place, os.O_PATH | os.O_CLOEXEC), place, is_read_only=True)
    root.scratch("/dev/shm", "mode=1777")
    for source, told, target, is_read_only in sources:
        shown = os.readlink(f"/proc/self/fd/{source}")
        covered = below(shown, told, hidden)
        root.bind(source, target, is_read_only=is_read_only)
        writable = "" if is_read_only else target
        try:
            for place in kept:
                if is_within(place, shown):
                    root.keep(f"{target}/{os.path.relpath(place, shown)}", writable)
            for each in covered:
                root.hide(f"{target}/{each}", writable)
        except OSError as refusal:
            raise OSError(refusal.errno, f"volume {told}: {refusal.strerror or refusal}") from None
        os.close(source)
    if spec["namespaces"] & linux.CLONE_NEWPID:
        root.proc()
    root.enter()


def _outlive_nobody(spec: Spec) -> None:
    if spec["namespaces"] & linux.CLONE_NEWPID:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)


def _open_message(spec: Spec) -> int | None:
    path = spec["message_file"]
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666) if path else None


def _read_message(descriptor: int | None) -> str:
    if descriptor is None:
        return ""
    return os.pread(descriptor, MAX_MESSAGE, 0).decode("utf-8", "replace")


def _open_stdin(spec: Spec) -> int:
    path = spec["stdin_fifo"]
    if not path:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


class _Streams:
    """The command's three streams: pipes, or one terminal; standard input comes through a fifo if it is wanted."""

    def __init__(self, spec: Spec, stdin: int) -> None:
        self.fifo = stdin if spec["stdin_fifo"] else -1
        self.is_tty = bool(spec["tty"])
        self.sources: dict[int, str] = {}
        self.feed = -1
        if self.is_tty:
            self.feed, slave = os.openpty()
            self.sources = {self.feed: "stdout"}
            self._childs = [slave, slave, slave]
            return
        out, err = os.pipe(), os.pipe()
        self.sources = {out[0]: "stdout", err[0]: "stderr"}
        if self.fifo >= 0:
            reader, self.feed = os.pipe()
        else:
            reader = stdin
        self._childs = [reader, out[1], err[1]]

    def give_to_child(self) -> None:
        """In the child: make them 0, 1 and 2."""
        for target, source in enumerate(self._childs):
            os.dup2(source, target, inheritable=True)
        if self.is_tty:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def close_childs_ends(self) -> None:
        """In init: keep only our ends."""
        for descriptor in set(self._childs):
            os.close(descriptor)

    def end_stdin(self) -> None:
        """The feeder has gone."""
        if self.fifo >= 0:
            os.close(self.fifo)
            self.fifo = -1
        if not self.is_tty and self.feed >= 0:
            os.close(self.feed)
            self.feed = -1


def _watch_signals() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
                   signal.SIGUSR2):  # fmt: skip
        signal.signal(number, lambda *_: None)
    global _wakeup
    _wakeup = reader


_wakeup = -1


def _start_command(spec: Spec, streams: _Streams) -> tuple[int, int]:
    """Fork and exec: the pid, and the listener of its binds or -1; an OSError of the child is raised here."""
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        become(spec, streams.give_to_child, writer, theirs)
    os.close(writer)
    theirs.close()
    problem = b""
    while piece := os.read(reader, 4096):
        problem += piece
    os.close(reader)
    if problem:
        os.waitpid(pid, 0)
        raise OSError(errno.ENOEXEC, problem.decode("utf-8", "replace"))
    with ours:
        return pid, own_address.receive(ours)


def become(spec: Spec, take_streams: Any, problem_pipe: int, channel: socket.socket | None = None) -> None:
    """In a fresh child: lock everything and become the command; what goes wrong is written to the pipe."""
    try:
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                signal.signal(number, signal.SIG_DFL)
        os.setsid()
        take_streams()
        if spec["tty"]:
            confinement.give_terminal(spec)
        if not spec["namespaces"] & linux.CLONE_NEWPID:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.umask(0o022)
        _enter_directory(spec["cwd"])
        confinement.lock(spec)
        if channel is not None and spec["own_address"]:
            own_address.install(channel)
        _execute(spec["argv"], spec["env"])
    except (OSError, ImportError) as problem:
        os.write(problem_pipe, _sentence(problem).encode())
    finally:
        os._exit(127)


def _enter_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as problem:
        raise OSError(problem.errno, f'working directory "{path}": {os.strerror(problem.errno or 0)}') from None


def _execute(argv: list[str], env: dict[str, str]) -> None:
    command = argv[0]
    try:
        os.execvpe(command, argv, env)
    except FileNotFoundError:
        where = "no such file or directory" if "/" in command else "executable file not found in $PATH"
        raise OSError(errno.ENOENT, f'exec: "{command}": {where}') from None
    except OSError as problem:
        raise OSError(problem.errno, f'exec: "{command}": {os.strerror(problem.errno or 0).lower()}') from None


def _sentence(problem: OSError | ImportError, root: str = "") -> str:
    """What went wrong, of which file; one of the container's, laid out below `root`, by the name that it has inside."""
    if not isinstance(problem, OSError):
        return str(problem)
    where = f" ({problem.filename.removeprefix(root)})" if isinstance(problem.filename, str) else ""
    return f"{problem.strerror or problem}{where}"


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the spawner may be gone, and so shall we be
        control.sendall(json.dumps(message).encode())


class _Loop:
    """Copies output, reaps children, obeys the spawner, until the command has ended."""

    def __init__(
        self, spec: Spec, control: socket.socket, log: LogFile, streams: _Streams, pid: int, listener: int
    ) -> None:
        self._spec, self._control, self._log, self._streams, self._pid = spec, control, log, streams, pid
        self._listener = listener
        self._status: int | None = None
        self._poll = select.poll()
        for descriptor in (*streams.sources, control.fileno(), _wakeup):
            self._poll.register(descriptor, select.POLLIN)
        for descriptor in (streams.fifo, listener):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def until_end(self) -> int:
        while self._status is None:
            for descriptor, event in self._poll.poll():
                self._serve(descriptor, event)
        self._end_the_rest()
        self._drain()
        return self._status

    def _serve(self, descriptor: int, event: int) -> None:
        if descriptor in self._streams.sources:
            self._copy(descriptor)
        elif descriptor == self._streams.fifo:
            self._feed()
        elif descriptor == self._listener:
            if not event & select.POLLIN or not own_address.serve(descriptor, self._spec["own_address"]):
                self._poll.unregister(descriptor)
        elif descriptor == _wakeup:
            self._handle_signals(os.read(_wakeup, 256))
        elif descriptor == self._control.fileno():
            self._obey(self._control.recv(65536))

    def _copy(self, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, 65536)
        except OSError:
            data = b""  # EIO: the terminal's other end is closed
        if data:
            self._log.write(self._streams.sources[descriptor], data)
            return True
        self._poll.unregister(descriptor)
        del self._streams.sources[descriptor]
        if descriptor != self._streams.feed:
            os.close(descriptor)
        return False

    def _feed(self) -> None:
        try:
            data = os.read(self._streams.fifo, 4096)
            if self._streams.feed >= 0:
                os.write(self._streams.feed, data)
        except OSError:
            return  # nothing to read, or the command has closed its standard input

    def _handle_signals(self, numbers: bytes) -> None:
        for number in set(numbers):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                self._signal(number)

    def _obey(self, data: bytes) -> None:
        if not data:
            self._signal(signal.SIGKILL)
            self._poll.unregister(self._control.fileno())
            return
        order = json.loads(data)
        if "signal" in order:
            self._signal(order["signal"])
        elif "end_stdin" in order and self._streams.fifo >= 0:
            self._feed()
            self._poll.unregister(self._streams.fifo)
            self._streams.end_stdin()
        elif "size" in order and self._streams.is_tty:
            columns, rows = order["size"]
            fcntl.ioctl(self._streams.feed, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _signal(self, number: int) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _reap(self) -> bool:
        """Collect the dead; True if children are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._status = status

    def _end_the_rest(self) -> None:
        """A container ends with its command: whatever it left behind is killed and reaped."""
        while self._reap():
            # only as the first process of a namespace: anywhere else this would end everything on the machine
            if self._spec["namespaces"] & linux.CLONE_NEWPID and os.getpid() == 1:
                os.kill(-1, signal.SIGKILL)
            else:
                for pid in children_of(os.getpid()):
                    kill_quietly(pid)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _drain(self) -> None:
        for descriptor in list(self._streams.sources):
            os.set_blocking(descriptor, False)
            while self._copy(descriptor):
                pass


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(each) for each in file.read().split()]
    except OSError:
        pass
    return found


def lineage(pid: int) -> list[tuple[int, int]]:
    """A process and those above it, the nearest first, each with its start time in ticks since boot. OSError: one of them has gone."""
    found: list[tuple[int, int]] = []
    while pid > 0:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        found.append((pid, int(fields[19])))
        pid = int(fields[1])
    return found


def is_below(pid: int, ancestor: int) -> bool:
    """Whether a process is another one, or descends from it; not if it has gone."""
    try:
        return any(each == ancestor for each, _ in lineage(pid))
    except OSError:
        return False


def kill_quietly(pid: int) -> None:
    """SIGKILL; that it is gone already is fine."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _describe(status: int) -> dict[str, int]:
    if os.WIFSIGNALED(status):
        return {"code": 128 + os.WTERMSIG(status), "signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status), "signal": 0}
