"""Starts containers and commands inside them on the agent's order, and tells it how they end.

One small single-threaded process per node process, so that a fork copies 12 MB and not the agent. When the agent's end
of the socket closes, however that came about, everything that runs is killed and the spawner ends.

Orders and reports are JSON objects, each led by its length in four bytes; file descriptors travel beside an order.
"""

import codecs
import contextlib
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hekla.node.shim import init, linux

Order = dict[str, Any]

MAX_ORDER = 16 * 1024 * 1024
ALL_NAMESPACES = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


class Held:
    """One container whose init lives."""

    def __init__(self, spec: dict[str, Any], pid: int, control: socket.socket) -> None:
        self.spec, self.pid, self.control = spec, pid, control
        self.commands: set[int] = set()
        self.has_reported_end = False


class Spawner:
    """The main loop and what it holds."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._selector = selectors.DefaultSelector()
        self._held: dict[str, Held] = {}
        self._by_pid: dict[int, str] = {}
        self._commands: dict[int, tuple[str, str]] = {}
        self._fds: deque[int] = deque()
        self._inbox = bytearray()

    def run(self) -> None:
        """Serve until the agent goes away."""
        self._watch(self._agent.fileno(), self._receive)
        self._watch(_children_signal(), self._reap)
        while True:
            for key, _ in self._selector.select():
                key.data(key.fd)

    def _watch(self, descriptor: int, callback: Callable[[int], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _receive(self, _: int) -> None:
        try:
            data, fds, _flags, _address = socket.recv_fds(self._agent, 1 << 18, 64)
        except OSError:
            data, fds = b"", []
        if not data:
            self._end_all()
        self._fds.extend(fds)
        self._inbox += data
        while len(self._inbox) >= 4:
            length = struct.unpack(">I", self._inbox[:4])[0]
            if length > MAX_ORDER:
                self._end_all()
            if len(self._inbox) < 4 + length:
                return
            order = json.loads(bytes(self._inbox[4 : 4 + length]))
            del self._inbox[: 4 + length]
            self._obey(order)

    def _obey(self, order: Order) -> None:
        kind = order["order"]
        if kind == "start":
            self._start(order["id"], order["spec"])
        elif kind == "exec":
            self._exec(order)
        elif kind == "tell" and order["id"] in self._held:
            self._tell_init(self._held[order["id"]], order["message"])
        elif kind == "kill" and order["id"] in self._held:
            init.kill_quietly(self._held[order["id"]].pid)
        elif kind == "kill_exec":
            for pid, (_, session) in list(self._commands.items()):
                if session == order["session"]:
                    _kill_tree(pid)

    def _start(self, name: str, spec: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = linux.fork_into(spec["namespaces"]) if spec["namespaces"] else os.fork()
        except OSError as problem:
            self._report({"event": "failed", "id": name, "message": str(problem.strerror)})
            self._report({"event": "gone", "id": name})
            ours.close()
            theirs.close()
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            _keep_only(theirs.fileno(), init.CONTROL_FD)
            init.run(spec, socket.socket(fileno=init.CONTROL_FD))
        theirs.close()
        self._held[name] = Held(spec, pid, ours)
        self._by_pid[pid] = name
        self._watch(ours.fileno(), lambda _: self._hear(name))

    def _hear(self, name: str) -> None:
        held = self._held.get(name)
        if held is None:
            return
        try:
            data = held.control.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(held.control.fileno())
            held.control.close()
            return
        message = json.loads(data)
        if "started" in message:
            self._report({"event": "started", "id": name, "pid": held.pid, "at": message["at"]})
        elif "failed" in message:
            held.has_reported_end = True
            self._report({"event": "failed", "id": name, "message": message["failed"]})
        elif "exited" in message:
            held.has_reported_end = True
            self._report({"event": "exited", "id": name, "at": message["at"], "message": message["message"],
                          **message["exited"]})  # fmt: skip

    def _reap(self, wakeup: int) -> None:
        os.read(wakeup, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._by_pid:
                self._buried(self._by_pid.pop(pid), status)
            elif pid in self._commands:
                self._exec_ended(pid, status)

    def _buried(self, name: str, status: int) -> None:
        held = self._held[name]
        while held.control.fileno() >= 0:
            self._hear(name)
        del self._held[name]
        for pid in held.commands:
            _kill_tree(pid)
        if not held.has_reported_end:
            # the init itself was killed, and with it all it held
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else 137
            self._report({"event": "exited", "id": name, "code": code, "signal": code - 128, "message": "",
                          "at": time.time()})  # fmt: skip
        self._report({"event": "gone", "id": name})

    def _tell_init(self, held: Held, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is ending
            held.control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def _exec(self, order: Order) -> None:
        fds = [self._fds.popleft() for _ in range(order["fds"])]
        held = self._held.get(order["id"])
        if held is None:
            self._report({"event": "exec_failed", "session": order["session"], "message": "container not running"})
        else:
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                _run_command(held, order, fds, writer)
            os.close(writer)
            held.commands.add(pid)
            self._commands[pid] = (order["id"], order["session"])
            self._watch(reader, lambda _: self._exec_started(reader, order["session"]))
        for descriptor in fds:
            os.close(descriptor)

    def _exec_started(self, reader: int, session: str) -> None:
        problem = os.read(reader, 4096)
        self._selector.unregister(reader)
        os.close(reader)
        if problem:
            message = problem.decode("utf-8", "replace")
            self._report({"event": "exec_failed", "session": session, "message": message})
        else:
            self._report({"event": "exec_started", "session": session})

    def _exec_ended(self, pid: int, status: int) -> None:
        name, session = self._commands.pop(pid)
        if name in self._held:
            self._held[name].commands.discard(pid)
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self._report({"event": "exec_ended", "session": session, "code": code})

    def _report(self, report: dict[str, Any]) -> None:
        data = json.dumps(report).encode()
        try:
            self._agent.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            self._end_all()

    def _end_all(self) -> None:
        """The agent has gone: so must everything it ran."""
        for held in self._held.values():
            if held.spec["namespaces"] & linux.CLONE_NEWPID:
                init.kill_quietly(held.pid)
            else:
                held.control.close()  # its init kills and reaps what it adopted
            for pid in held.commands:
                _kill_tree(pid)
        inits = set(self._by_pid)
        with contextlib.suppress(ChildProcessError):
            while (
                inits
            ):  # an init ends when all that entered its namespace are reaped, and those are children of ours by now
                inits.discard(os.waitpid(-1, 0)[0])
        os._exit(0)


def _run_command(held: Held, order: Order, fds: list[int], writer: int) -> None:
    """In a child: enter the container and run the command as its child; never returns."""
    spec = {**held.spec, "argv": order["argv"], "tty": order["tty"]}
    try:
        signal.set_wakeup_fd(-1)
        linux.join_groups(spec["cgroups"])
        joined = spec["namespaces"] & ALL_NAMESPACES
        if joined:
            linux.setns(os.pidfd_open(held.pid), joined)
        if order["own_terminal"]:
            fds = [_terminal_inside(fds[0])]
        streams = fds * 3 if order["tty"] else fds
        # the terminal's slave or the pipes move to 0, 1, 2 only in the grandchild
        pid = os.fork()
        if pid == 0:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            init.become(spec, lambda: _take(streams, is_tty=order["tty"]), writer)
        _keep_none()
        _, status = os.waitpid(pid, 0)
        os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
    except OSError as problem:
        os.write(writer, str(problem.strerror).encode())
    finally:
        os._exit(126)


def _terminal_inside(channel: int) -> int:
    """A terminal of the container that was entered; whoever asked for the command gets the end that reads and writes it."""
    master, slave = os.openpty()
    with socket.socket(fileno=channel) as asker:
        socket.send_fds(asker, [b"t"], [master])
    os.close(master)
    return slave


def _take(streams: list[int], *, is_tty: bool) -> None:
    for target, source in enumerate(streams[:3]):
        os.dup2(source, target, inheritable=True)
    if is_tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _kill_tree(pid: int) -> None:
    """A command and its descendants, children first, so that none is adopted by somebody else.

    Each is stopped before its children are killed: a shell would otherwise see its child die, go on with its next
    command, and end with that one's status.
    """
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
    for child in init.children_of(pid):
        _kill_tree(child)
    init.kill_quietly(pid)


def _keep_only(descriptor: int, as_number: int) -> None:
    if descriptor != as_number:
        os.dup2(descriptor, as_number, inheritable=False)
    os.closerange(as_number + 1, 1 << 20)


def _keep_none() -> None:
    os.closerange(0, 1 << 20)


def _children_signal() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C in a terminal is for the agent, which closes us in good order
    return reader


def main() -> None:
    """Entry: the agent's socket is the descriptor named by the first argument."""
    agent = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(agent.fileno(), False)
    codecs.lookup("ascii")  # loaded here once rather than in every container's init
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # whoever is above us may reap nobody
    gc.freeze()
    gc.disable()
    Spawner(agent).run()
