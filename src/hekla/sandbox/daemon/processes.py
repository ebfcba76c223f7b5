"""Commands in the sandbox: started, fed, listened to, signalled, and ended with everything that they left behind.

Every command is a session of its own, marked in its environment. What it leaves behind may go on after it has ended well, as servers
that were put into the background do; when it is killed or its time is over, whatever carries its mark is killed too, however often it
forked, as the daemon is the reaper of orphans. Bounds: commands at a time, output kept for those who are behind, exits remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import pty
import pwd
import secrets
import signal
import struct
import subprocess
import termios
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from hekla.sandbox.daemon.becoming import may_choose
from hekla.sandbox.daemon.beginning import begin
from hekla.sandbox.daemon.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_RUNNING = 256
MOST_REMEMBERED = 256
"""Exits that a late client can still learn of."""
MOST_BEHIND = 1024 * 1024
"""Bytes that a client may be behind; then the command waits for it."""
PIECE = 32 * 1024
GRACE_S = 0.25
"""After its end a command's pipes are read so long; a grandchild may hold them for ever."""
MARK = "HEKLA_COMMAND"
_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1


class CommandError(Exception):
    """A command that cannot be started or found."""

    def __init__(self, message: str, code: str = "invalid_argument") -> None:
        super().__init__(message)
        self.code = code


class Listener:
    """Somebody who hears a command's output from now on; `next` brings what came."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._pieces: deque[tuple[str, bytes]] = deque()
        self._filled = asyncio.Event()
        self.behind = 0

    def put(self, stream: str, data: bytes) -> None:
        """Another piece came."""
        self._pieces.append((stream, data))
        self.behind += len(data)
        self._filled.set()

    def over(self) -> None:
        """Nothing more comes."""
        self._filled.set()

    async def next(self) -> tuple[str, bytes] | None:
        """The next piece and the stream that it came from; None: the command has ended and all was heard."""
        while not self._pieces:
            if self._command.is_over:
                return None
            self._filled.clear()
            await self._filled.wait()
        stream, data = self._pieces.popleft()
        self.behind -= len(data)
        self._command.heard()
        return stream, data

    def close(self) -> None:
        """Hear no more."""
        self._command.listeners.discard(self)
        self._command.heard()


class Command:
    """One command, while it runs and for a while after."""

    def __init__(self, argv: Sequence[str], cwd: str, envs: Mapping[str, str], tag: str, journal: Journal) -> None:
        self.argv = list(argv)
        self._journal = journal
        self.cwd = cwd
        self.envs = dict(envs)
        self.tag = tag
        self.mark = secrets.token_hex(8)
        self.pid = 0
        self.started_at = time.time()
        self.ended_at = 0.0
        self.exit_code: int | None = None
        """As a shell has it: 128 + n for signal n."""
        self.signal = 0
        self.timed_out = False
        self.is_over = False
        self.listeners: set[Listener] = set()
        self.over = asyncio.Event()
        self._outputs: dict[int, str] = {}
        """Pipes that are read, to the streams' names."""
        self._input = -1
        self._paused: set[int] = set()
        self._is_pty = False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.exit_code is None

    def listen(self) -> Listener:
        """Hear what comes from now on."""
        listener = Listener(self)
        if not self.is_over:
            self.listeners.add(listener)
        return listener

    def start(self, *, user: Identity, has_input: bool, size: tuple[int, int] | None, base: Mapping[str, str]) -> None:
        """Fork and run it; `size` is columns and rows of a terminal."""
        environment = {**base, **user.environment(), **self.envs, MARK: self.mark}
        cwd = self.cwd or user.home
        if not os.path.isdir(cwd):
            raise CommandError(f'the working directory "{cwd}" does not exist')
        ends = _terminal(size) if size is not None else _pipes(has_input=has_input)
        self._is_pty = size is not None
        try:
            self.pid = begin(
                self.argv, cwd=cwd, env=environment, streams=ends.child, user=(user.name, user.uid, user.gid),
                has_terminal=self._is_pty,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            ends.close_all()
            raise CommandError(
                _why(self.argv[0], error), "not_found" if isinstance(error, FileNotFoundError) else "invalid_argument"
            ) from error
        ends.close_childs()
        self._input = ends.input
        loop = asyncio.get_running_loop()
        for descriptor, name in ends.outputs.items():
            os.set_blocking(descriptor, False)
            self._outputs[descriptor] = name
            loop.add_reader(descriptor, self._read, descriptor)

    def limit(self, seconds: float, kill: Callable[[Command], None]) -> None:
        """End it after so long."""

        def late() -> None:
            self.timed_out = True
            kill(self)

        self._deadline = asyncio.get_running_loop().call_later(seconds, late)

    def heard(self) -> None:
        """Somebody caught up: go on reading where everybody has."""
        if self._paused and all(one.behind < MOST_BEHIND for one in self.listeners):
            loop = asyncio.get_running_loop()
            for descriptor in self._paused & self._outputs.keys():
                loop.add_reader(descriptor, self._read, descriptor)
            self._paused.clear()

    async def write(self, data: bytes) -> None:
        """Feed its input; waits while it does not read."""
        if self._input < 0:
            raise CommandError(f"process {self.pid} takes no input", "failed_precondition")
        loop = asyncio.get_running_loop()
        while data:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                ready = loop.create_future()
                loop.add_writer(self._input, _settle, ready)
                try:
                    await asyncio.wait(
                        {ready, asyncio.ensure_future(self.over.wait())}, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    if self._input >= 0:
                        loop.remove_writer(self._input)
                if self._input < 0:
                    raise CommandError(f"process {self.pid} has ended", "failed_precondition") from None
            except OSError as error:
                raise CommandError(
                    f"process {self.pid} does not read: {error.strerror}", "failed_precondition"
                ) from error

    def close_input(self) -> None:
        """Nothing more is fed."""
        if self._input >= 0 and not self._is_pty:
            os.close(self._input)
            self._input = -1

    def resize(self, columns: int, rows: int) -> None:
        """Change its terminal's size."""
        if not self._is_pty or self._input < 0:
            raise CommandError(f"process {self.pid} has no terminal", "failed_precondition")
        fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self, status: int) -> None:
        """The daemon reaped it; what is left in its pipes is read for a moment longer."""
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.exit_code = 128 + self.signal if self.signal else os.WEXITSTATUS(status)
        self.ended_at = time.time()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._outputs:
            asyncio.get_running_loop().call_later(GRACE_S, self._finish)
        else:
            self._finish()

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal whose other end is closed
                raise
            data = b""
        if not data:
            self._close(descriptor)
            if not self._outputs and not self.is_running:
                self._finish()
            return
        if not self._is_pty:
            self._journal.said(self._outputs[descriptor], data, self.pid)
        for listener in self.listeners:
            listener.put(self._outputs[descriptor], data)
        if any(one.behind >= MOST_BEHIND for one in self.listeners):
            asyncio.get_running_loop().remove_reader(descriptor)
            self._paused.add(descriptor)

    def _finish(self) -> None:
        if self.is_over:
            return
        if self._paused and self.listeners:  # somebody is still behind: what is in the pipes is his
            asyncio.get_running_loop().call_later(GRACE_S, self._finish)
            return
        for descriptor in list(self._outputs):
            self._close(descriptor)
        if self._input >= 0:
            with contextlib.suppress(OSError):
                os.close(self._input)
            self._input = -1
        self.is_over = True
        self.over.set()
        for listener in self.listeners:
            listener.over()

    def _close(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._paused.discard(descriptor)
        del self._outputs[descriptor]
        if descriptor == self._input:
            self._input = -1
        os.close(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Identity:
    """Whom a command runs as."""

    default = ""
    """Whom commands run as that name nobody; empty: whoever the daemon is."""

    def __init__(self, name: str, uid: int, gid: int, home: str, shell: str) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.home = home
        self.shell = shell

    @classmethod
    def of(cls, name: str = "") -> Identity:
        """A user of the sandbox by name; empty: the default."""
        name = name or cls.default
        if "\0" in name:
            raise CommandError("a user's name has no NUL in it", "unauthenticated")
        try:
            entry = pwd.getpwnam(name) if name else pwd.getpwuid(os.getuid())
        except KeyError as error:
            if name:
                raise CommandError(f'the sandbox has no user "{name}"', "unauthenticated") from error
            return cls("", os.getuid(), os.getgid(), os.environ.get("HOME", "/"), "/bin/sh")
        if entry.pw_uid != os.getuid() and not may_choose():
            raise CommandError(
                f'commands run as "{pwd.getpwuid(os.getuid()).pw_name}" here, not as "{name}"', "permission_denied"
            )
        home = entry.pw_dir if os.path.isdir(entry.pw_dir) else "/"
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, home, entry.pw_shell or "/bin/sh")

    def environment(self) -> dict[str, str]:
        """What a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name} if self.name else {"HOME": self.home}


class Processes:
    """All commands of the sandbox; the reaper of everything that they leave."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        """What every command has, besides its own."""
        self.journal = Journal()
        self._running: dict[int, Command] = {}
        self._remembered: OrderedDict[int, Command] = OrderedDict()
        self._others: dict[int, Callable[[int], None]] = {}

    def begin(self) -> None:
        """Reap from now on, orphans too."""
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        envs: Mapping[str, str] | None = None,
        user: str = "",
        tag: str = "",
        has_input: bool = False,
        size: tuple[int, int] | None = None,
        timeout_s: float = 0.0,
    ) -> Command:
        """Start a command; `timeout_s` 0: it may run as long as the sandbox."""
        if not argv or not argv[0]:
            raise CommandError("the command is empty")
        if any("\0" in one for one in (*argv, cwd, *(envs or {}), *(envs or {}).values())):
            raise CommandError("arguments, directories and variables have no NUL in them")
        if len(self._running) >= MOST_RUNNING:
            raise CommandError(f"{MOST_RUNNING} commands run already", "resource_exhausted")
        if tag:
            for known in [one for one in self._remembered.values() if one.tag == tag]:
                del self._remembered[known.pid]
        command = Command(argv, cwd, envs or {}, tag, self.journal)
        command.start(user=Identity.of(user), has_input=has_input, size=size, base=self.environment)
        self._remembered.pop(command.pid, None)
        self._running[command.pid] = command
        self.journal.happened(f"{argv[0]} began", pid=str(command.pid))  # arguments may be secrets
        if timeout_s > 0:
            command.limit(timeout_s, self.kill)
        self.reap()  # it may have ended before we knew its name
        return command

    def adopt(self, pid: int, ended: Callable[[int], None]) -> None:
        """Tell of the end of a child that is no command."""
        self._others[pid] = ended

    def find(self, *, pid: int = 0, tag: str = "", may_be_over: bool = False) -> Command:
        """A command by its number or tag."""
        known: list[Command] = [*self._running.values(), *(self._remembered.values() if may_be_over else ())]
        for command in reversed(known):
            if (pid and command.pid == pid) or (tag and command.tag == tag):
                return command
        raise CommandError(f"there is no process {pid or tag!r}", "not_found")

    def running(self) -> list[Command]:
        """In the order in which they were started."""
        return list(self._running.values())

    def signal(self, command: Command, number: int) -> None:
        """Send a signal to a command and what is in its process group."""
        if number == signal.SIGKILL:
            self.kill(command)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, number)

    def kill(self, command: Command) -> None:
        """End a command and everything that carries its mark."""
        for _ in range(10):  # what forks while we look is found the next time
            left = [command.pid] if command.is_running else []
            left += [pid for pid in _marked(command.mark) if pid != command.pid]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGSTOP)
            if command.is_running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(command.pid, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()

    def kill_all(self) -> None:
        """End every command."""
        for command in self.running():
            self.kill(command)

    def reap(self) -> None:
        """Take in every child that has ended: commands, and orphans that became ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (command := self._running.pop(pid, None)) is not None:
                command.ended(status)
                self.journal.happened(
                    f"{command.argv[0]} ended",
                    pid=str(pid),
                    exit_code=str(command.exit_code),
                    timed_out=str(command.timed_out).lower(),
                )
                self._remembered[pid] = command
                if len(self._remembered) > MOST_REMEMBERED:
                    self._remembered.popitem(last=False)
            elif (ended := self._others.pop(pid, None)) is not None:
                ended(status)


class _Ends:
    """The ends of a command's pipes or terminal."""

    def __init__(self, child: tuple[int, int, int], outputs: dict[int, str], input_: int) -> None:
        self.child = child
        self.outputs = outputs
        self.input = input_

    def close_childs(self) -> None:
        for descriptor in set(self.child):
            os.close(descriptor)

    def close_all(self) -> None:
        for descriptor in {*self.child, *self.outputs, self.input} - {-1}:
            os.close(descriptor)


def _pipes(*, has_input: bool) -> _Ends:
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    if has_input:
        in_read, in_write = os.pipe()
        os.set_blocking(in_write, False)
    else:
        in_read, in_write = os.open(os.devnull, os.O_RDONLY), -1
    return _Ends((in_read, out_write, err_write), {out_read: "stdout", err_read: "stderr"}, in_write)


def _terminal(size: tuple[int, int]) -> _Ends:
    master, slave = pty.openpty()
    columns, rows = size
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return _Ends((slave, slave, slave), {master: "pty"}, master)


def _marked(mark: str) -> list[int]:
    """Processes that carry a command's mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = file.read()
                with open(f"/proc/{name}/stat", "rb") as file:
                    state = file.read().rpartition(b")")[2].split()[0]
            except OSError:  # it has just ended, or is another user's
                continue
            if wanted in environment.split(b"\0") and state != b"Z":
                found.append(int(name))
    return found


def _why(program: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f'exec: "{program}": executable file not found in $PATH'
    if isinstance(error, OSError):
        return f'exec: "{program}": {(error.strerror or str(error)).lower()}'
    return f'exec: "{program}": {error}'
