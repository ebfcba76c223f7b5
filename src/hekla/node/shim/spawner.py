"""Starts containers and commands inside them on the agent's order, and tells it how they end; holds containers while no agent is there.

One small single-threaded process per node, so that a fork copies 12 MB and not the agent. It is the parent of every container, and
remembers each with a note of the agent's, until the agent says that nobody has to know of it any more. An agent that was killed, or left,
and comes back is told of all of them, also of those that ended meanwhile. Where none comes within the grace, everything is ended.

Orders and reports are JSON objects, each led by its length in four bytes; file descriptors travel beside an order.
"""

import codecs
import contextlib
import errno
import fcntl
import gc
import glob
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import termios
import time
import traceback
from _operator import _compare_digest as is_same  # hmac has the same, and loads OpenSSL
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from hekla.node.shim import init, linux

Order = dict[str, Any]

MAX_ORDER = 16 * 1024 * 1024
MAX_HELLO = 4096
MAX_FILES = 1 << 20
MAX_LOOKS = 16
"""At what a process that is to be killed has begun."""
ROOM_FOR_AGENT = 2
"""Descriptors that are kept free for the next agent's connection, and for a look at who it is."""
NO_ROOM_S = 0.1
"""Between two looks at who knocks while no more descriptors may be opened: the socket would be ready all the time."""
MAX_CALLERS = 8
"""Connections that have not said hello yet; one more, and the first of them is closed."""
ALL_NAMESPACES = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


PROTOCOL = 1
"""Said in `hello` and in `welcome`: an agent that speaks otherwise does not take over what it might misunderstand; it ends it."""
FIRST_AGENT_S = 60.0
"""For the agent that started us to say its first word."""
LAST_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL for containers that nobody came back for, or whose machine goes down."""
LONGEST_WAIT_S = 3600.0
"""The kernel counts a wait in milliseconds; one without an end is many."""
OOM_SIGNAL = signal.SIGKILL


def secret_of(path: str) -> str:
    """Where what an agent must know lies, by the path of the socket."""
    return f"{os.path.splitext(path)[0]}.secret"


class Held:
    """One attempt at a container, from the order to start it until nobody has to know of it any more."""

    def __init__(self, spec: dict[str, Any], pid: int, control: "socket.socket | None", note: Order) -> None:
        """`note` is what the agent wants to know of it in its next life; empty: nothing, it may go."""
        self.spec, self.pid, self.control, self.note = spec, pid, control, note
        self.memory: Order = {}
        """What the agent has come to know of it since, for the same purpose."""
        self.commands: set[int] = set()
        self.started_at = 0.0
        self.end: Order | None = None
        """The report of its end, once its command has ended."""
        self.is_gone = False
        """Nothing of it runs any more: its number may be somebody else's."""


class Spawner:
    """The main loop and what it holds."""

    def __init__(self, listener: socket.socket, path: str, grace_s: float, secret: str) -> None:
        """`path` is the listener's, removed at the end; for `grace_s` containers wait for an agent that is away, and knows the secret."""
        self._listener, self._path, self._grace_s, self._secret = listener, path, grace_s, secret
        self._callers: dict[int, tuple[socket.socket, bytearray]] = {}
        """By descriptor: who has connected and not said hello yet, and what was heard."""
        self._selector = selectors.DefaultSelector()
        self._held: dict[str, Held] = {}
        self._by_pid: dict[int, str] = {}
        self._commands: dict[int, tuple[str, str]] = {}
        self._lingering: dict[int, str] = {}
        """Commands that have ended and hold what they left running, in containers without a pid namespace."""
        self._agent: socket.socket | None = None
        self._is_greeted = False
        """An agent hears of nothing before it has said hello and was told what there is."""
        self._is_retired = False
        """Another release starts containers: this one ends with its last."""
        self._is_ending = False
        self._fds: deque[int] = deque()
        self._inbox = bytearray()
        self._ends_at: float | None = time.monotonic() + FIRST_AGENT_S
        self._room: list[int] = []
        self._listens_at: float | None = None
        """When it is looked again who knocks; None: whenever somebody does."""
        self._is_full = False

    def run(self) -> NoReturn:
        """Serve one agent after the other until one says that it is over, or none comes back."""
        self._watch(self._listener.fileno(), self._accept)
        self._watch(_signals(), self._wake)
        self._keep_room()
        while True:
            moments = [each - time.monotonic() for each in (self._ends_at, self._listens_at) if each is not None]
            for key, _ in self._selector.select(max(0.0, min(*moments, LONGEST_WAIT_S)) if moments else None):
                if self._selector.get_map().get(key.fd) is key:  # else what was done for another one has closed it
                    _do(key.data, key.fd)
            if self._listens_at is not None and time.monotonic() >= self._listens_at:
                self._listens_at = None
                self._watch(self._listener.fileno(), self._accept)
            if self._ends_at is not None and time.monotonic() >= self._ends_at:
                self._wind_up()

    def _watch(self, descriptor: int, callback: Callable[[int], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    # the agent

    def _accept(self, _: int) -> None:
        """Somebody connects, who finds a descriptor however many containers there are."""
        while self._room:
            os.close(self._room.pop())
        try:
            caller, _address = self._listener.accept()
            self._is_full = False
        except OSError as problem:
            if problem.errno in (errno.EMFILE, errno.ENFILE):
                self._look_later(problem)
            else:
                self._keep_room()  # who knocked is gone
            return
        try:
            self._let_in(caller)
        finally:
            self._keep_room()

    def _look_later(self, problem: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            sys.stderr.write(f"an agent that knocks has to wait: {problem.strerror}\n")
        self._selector.unregister(self._listener.fileno())
        self._listens_at = time.monotonic() + NO_ROOM_S

    def _keep_room(self) -> None:
        with contextlib.suppress(OSError):  # what there is
            while len(self._room) < ROOM_FOR_AGENT:
                self._room.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _let_in(self, caller: socket.socket) -> None:
        """On the lowest rung a container may have the node's own user, and the socket in sight."""
        peer = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, _group = struct.unpack("3i", peer)
        if user != os.geteuid() or _may_be_a_containers(pid, os.path.dirname(self._path)):
            caller.close()
            return
        while len(self._callers) >= MAX_CALLERS:
            self._hang_up(next(iter(self._callers)))
        self._callers[caller.fileno()] = caller, bytearray()
        self._watch(caller.fileno(), self._hear_hello)

    def _hear_hello(self, descriptor: int) -> None:
        """Whoever says hello with the secret is the agent from now on: two at a time have the lock of their data directory against them.

        Nothing is read beyond the hello: descriptors may come with what follows.
        """
        caller, heard = self._callers[descriptor]
        length = struct.unpack(">I", heard[:4])[0] if len(heard) >= 4 else 0
        try:
            data = caller.recv(4 + length - len(heard), socket.MSG_DONTWAIT) if length <= MAX_HELLO else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        heard += data
        if not data:
            self._hang_up(descriptor)
        elif len(heard) > 4 and len(heard) == 4 + length:
            hello = _hello_in(bytes(heard[4:]), self._secret)
            self._hang_up(descriptor, is_closed=hello is None)
            if hello is not None:
                self._drop_agent()
                self._agent, self._ends_at = caller, None
                self._watch(descriptor, self._receive)
                self._welcome(hello)

    def _hang_up(self, descriptor: int, *, is_closed: bool = True) -> None:
        self._selector.unregister(descriptor)
        caller, _ = self._callers.pop(descriptor)
        if is_closed:
            caller.close()

    def _receive(self, _: int) -> None:
        agent = self._agent
        assert agent is not None, "who is heard is there"
        try:
            data, fds, flags, _address = socket.recv_fds(agent, 1 << 18, 64)
        except OSError:
            data, fds, flags = b"", [], 0
        if not data:
            self._lose_agent()
            return
        self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            self._drop_fds()  # too many are open: those that are missing would be taken from the next order's
        self._inbox += data
        while len(self._inbox) >= 4 and agent is self._agent:
            length = struct.unpack(">I", self._inbox[:4])[0]
            if length > MAX_ORDER:
                self._lose_agent()
                return
            if len(self._inbox) < 4 + length:
                return
            order = bytes(self._inbox[4 : 4 + length])
            del self._inbox[: 4 + length]
            _do(self._obey, json.loads(order))

    def _lose_agent(self) -> None:
        """It may come back for what it took note of; the rest ends now, and commands with the streams that the agent held."""
        self._drop_agent()
        if self._grace_s <= 0:
            self._end_all()
        for pid in list(self._commands):
            _kill_tree(pid)
        for name, held in list(self._held.items()):
            if not held.note:
                self._discard(name, held)
        self._ends_at = time.monotonic() + self._grace_s
        self._leave_if_empty()

    def _drop_agent(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent.fileno())
            self._agent.close()
        self._agent, self._is_greeted = None, False
        self._inbox.clear()
        self._drop_fds()
        self._keep_room()

    def _drop_fds(self) -> None:
        while self._fds:
            os.close(self._fds.popleft())

    def _welcome(self, hello: Order) -> None:
        """All that an agent before left here; what it took no note of nobody waits for."""
        self._is_greeted = True
        if hello["protocol"] == PROTOCOL:
            self._grace_s, self._is_retired = hello["grace_s"], hello["retires"]
            for name, held in list(self._held.items()):
                if held.note:
                    self._report({"event": "held", "id": name, "pid": held.pid, "note": held.note, "at": held.started_at,
                                  "end": held.end, "is_gone": held.is_gone, "memory": held.memory})  # fmt: skip
                else:
                    self._discard(name, held)
        self._report({"event": "welcome", "protocol": PROTOCOL, "pid": os.getpid()})
        if hello["protocol"] != PROTOCOL:
            self._is_greeted = False  # of us it understands this much

    def _discard(self, name: str, held: Held) -> None:
        if held.is_gone:
            del self._held[name]
        else:
            _kill_held(held)

    def _forget(self, pod: str) -> None:
        for name in [name for name, held in self._held.items() if held.is_gone and name.startswith(f"{pod}/")]:
            del self._held[name]
        self._leave_if_empty()

    def _leave_if_empty(self) -> None:
        """Without an agent, or once another release starts containers, we are here for what we hold."""
        if not self._held and (self._agent is None or self._is_retired):
            self._end_all()

    def _obey(self, order: Order) -> None:
        kind = order["order"]
        held = self._held.get(order.get("id", ""))
        if kind == "remember" and held is not None:
            held.memory = order["memory"]
        held = None if held is None or held.is_gone else held
        if kind == "start":
            self._start(order["id"], order["spec"], order["note"])
        elif kind == "exec":
            self._exec(order)
        elif kind == "tell" and held is not None:
            self._tell_init(held, order["message"])
        elif kind == "kill" and held is not None:
            _kill_held(held)
        elif kind == "kill_exec":
            for pid, (_, session) in list(self._commands.items()):
                if session == order["session"]:
                    _kill_tree(pid)
        elif kind == "forget":
            self._forget(order["pod"])
        elif kind == "end":
            self._end_all()

    # containers

    def _start(self, name: str, spec: dict[str, Any], note: Order) -> None:
        self._forget_long_ended(name)
        pair: list[socket.socket] = []
        try:
            pair += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = linux.fork_into(spec["namespaces"]) if spec["namespaces"] else os.fork()
        except OSError as problem:
            for each in pair:
                each.close()
            held = self._held[name] = Held({}, 0, None, note)
            self._ended(name, held, {"event": "failed", "message": str(problem.strerror), "at": time.time()})
            self._gone(name, held)
            return
        ours, theirs = pair
        if pid == 0:
            signal.set_wakeup_fd(-1)
            resource.setrlimit(resource.RLIMIT_NOFILE, _found_limits)
            _keep_only(theirs.fileno(), init.CONTROL_FD)
            init.run(spec, socket.socket(fileno=init.CONTROL_FD))
        theirs.close()
        self._held[name] = Held(spec, pid, ours, note)
        self._by_pid[pid] = name
        self._watch(ours.fileno(), lambda _: self._hear(name))

    def _forget_long_ended(self, name: str) -> None:
        """As attempts go on, all that is told of one that has ended is how the last before did."""
        container, _, number = name.rpartition("/")
        known = f"{container}/{int(number) - 2}"
        if known in self._held and self._held[known].is_gone:
            del self._held[known]

    def _hear(self, name: str) -> None:
        held = self._held.get(name)
        if held is None or held.control is None:
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
            held.started_at = message["at"]
            self._report({"event": "started", "id": name, "pid": held.pid, "at": message["at"]})
        elif "failed" in message:
            self._ended(name, held, {"event": "failed", "message": message["failed"], "at": time.time()})
        elif "exited" in message:
            self._ended(name, held, {"event": "exited", "at": message["at"], "message": message["message"],
                                     **message["exited"]})  # fmt: skip

    def _ended(self, name: str, held: Held, end: Order) -> None:
        """How it ended, and whether for want of memory: when an agent hears of it, its groups may be gone."""
        is_oom = end.get("signal") == OOM_SIGNAL and linux.was_oom_killed(held.spec["cgroups"])
        held.end = {**end, "is_oom": is_oom}
        self._report({**held.end, "id": name})

    def _wake(self, wakeup: int) -> None:
        """A child has ended, or the machine goes down; an agent that is there says itself what is to become of its containers."""
        numbers = os.read(wakeup, 4096)
        if signal.SIGTERM in numbers and self._agent is None:
            self._wind_up()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                self._kill_strangers()
                return
            if pid in self._by_pid:
                self._buried(self._by_pid.pop(pid), status)
            elif pid in self._commands:
                self._exec_ended(pid, _code_of(status))
            if pid in self._lingering:
                self._drop_command(pid, self._lingering.pop(pid))

    def _kill_strangers(self) -> None:
        """What is our child, and neither an init nor a command, was left by an init that was killed: nobody else would end it."""
        known = {*self._by_pid, *self._commands, *self._lingering}
        for pid in init.children_of(os.getpid()):
            if pid not in known:
                _kill_tree(pid)

    def _buried(self, name: str, status: int) -> None:
        held = self._held[name]
        while held.control is not None and held.control.fileno() >= 0:
            self._hear(name)
        for pid in held.commands:
            _kill_tree(pid)
        if not held.spec["namespaces"] & linux.CLONE_NEWPID:
            linux.kill_groups(held.spec["cgroups"])
        if held.end is None:
            # the init itself was killed, and with it all it held
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else 137
            self._ended(
                name, held, {"event": "exited", "code": code, "signal": code - 128, "message": "", "at": time.time()}
            )
        self._gone(name, held)

    def _gone(self, name: str, held: Held) -> None:
        held.is_gone, held.spec = True, {}
        self._report({"event": "gone", "id": name})
        if not held.note:
            del self._held[name]
        if self._agent is None:
            self._leave_if_empty()
        if self._is_ending and not self._by_pid:
            self._end_all()

    def _tell_init(self, held: Held, message: dict[str, Any]) -> None:
        if held.control is None:
            return
        with contextlib.suppress(OSError):  # it is ending
            held.control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def _exec(self, order: Order) -> None:
        fds = [self._fds.popleft() for _ in range(min(order["fds"], len(self._fds)))]
        held = self._held.get(order["id"])
        try:
            if len(fds) < order["fds"]:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if held is None or held.is_gone:
                raise OSError(errno.ESRCH, "container not running")
            self._begin_exec(held, order, fds)
        except OSError as problem:
            message = str(problem.strerror)
            self._report({"event": "exec_failed", "session": order["session"], "message": message})
        finally:
            for descriptor in fds:
                os.close(descriptor)

    def _begin_exec(self, held: Held, order: Order, fds: list[int]) -> None:
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            pid = os.fork()
        except OSError:
            for descriptor in pipes:
                os.close(descriptor)
            raise
        reader, writer, told, tells = pipes
        if pid == 0:
            _run_command(held, order, fds, writer, tells)
        os.close(writer)
        os.close(tells)
        held.commands.add(pid)
        self._commands[pid] = (order["id"], order["session"])
        self._watch(told, lambda _: self._exec_left_some(told, pid, order["session"]))
        self._watch(reader, lambda _: self._exec_started(reader, order["session"]))

    def _exec_started(self, reader: int, session: str) -> None:
        problem = os.read(reader, 4096)
        self._selector.unregister(reader)
        os.close(reader)
        if problem:
            message = problem.decode("utf-8", "replace")
            self._report({"event": "exec_failed", "session": session, "message": message})
        else:
            self._report({"event": "exec_started", "session": session})

    def _exec_left_some(self, told: int, pid: int, session: str) -> None:
        """A command has ended before what it began: that ends with the container."""
        code = os.read(told, 1)
        self._selector.unregister(told)
        os.close(told)
        if code and self._commands.get(pid, ("", ""))[1] == session:
            name = self._commands[pid][0]
            self._exec_ended(pid, code[0])
            self._lingering[pid] = name
            if name in self._held:
                self._held[name].commands.add(pid)

    def _drop_command(self, pid: int, name: str) -> None:
        if name in self._held:
            self._held[name].commands.discard(pid)

    def _exec_ended(self, pid: int, code: int) -> None:
        name, session = self._commands.pop(pid)
        self._drop_command(pid, name)
        self._report({"event": "exec_ended", "session": session, "code": code})

    def _report(self, report: dict[str, Any]) -> None:
        """Tell the agent; one that is away is told by what we hold when it comes back."""
        if self._agent is None or not self._is_greeted:
            return
        data = json.dumps(report).encode()
        try:
            self._agent.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            self._is_greeted = False  # it has gone, and that is read next

    # the end

    def _wind_up(self) -> None:
        """Nobody comes back: containers are told to end, and made to end a moment later."""
        if self._is_ending or not self._by_pid:
            self._end_all()
        self._close_door()
        self._is_ending, self._ends_at = True, time.monotonic() + LAST_GRACE_S
        for pid in self._by_pid:
            self._tell_init(self._held[self._by_pid[pid]], {"signal": int(signal.SIGTERM)})

    def _close_door(self) -> None:
        if self._listener.fileno() >= 0:
            if self._listens_at is None:
                self._selector.unregister(self._listener.fileno())
            self._listens_at = None
            self._listener.close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _end_all(self) -> NoReturn:
        """Nothing is left."""
        self._close_door()
        for held in self._held.values():
            if held.is_gone:
                continue
            _kill_held(held)
            for pid in held.commands:
                _kill_tree(pid)
        inits = set(self._by_pid)
        with contextlib.suppress(ChildProcessError):
            while (
                inits
            ):  # an init ends when all that entered its namespace are reaped, and those are children of ours by now
                inits.discard(os.waitpid(-1, 0)[0])
        self._by_pid.clear()
        self._kill_strangers()
        os._exit(0)


def _do(act: Callable[[Any], object], what: Any) -> None:
    """A task boundary: every container hangs on this process, so what goes wrong for one of them is told and ends nothing."""
    try:
        act(what)
    except Exception:  # noqa: BLE001 - what is left undone concerns one order or one report
        traceback.print_exc()


def _may_be_a_containers(pid: int, directory: str) -> bool:
    """Whether a process descends from a spawner of the directory, or that cannot be told. Twice, as one above it may end meanwhile."""
    known = {(os.getpid(), init.lineage(os.getpid())[0][1])}
    for path in glob.glob(f"{glob.escape(directory)}/*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as file:
            spawner = json.load(file)
            known.add((spawner["pid"], spawner["start"]))
    for _ in range(2):
        with contextlib.suppress(OSError):
            above = init.lineage(pid)
            return not above or not known.isdisjoint(above)
    return True


def _hello_in(body: bytes, secret: str) -> Any:
    """The hello, if it is one with the secret; else nothing."""
    try:
        order = json.loads(body)
        said = str(order["secret"])
        return order if order["order"] == "hello" and is_same(said.encode(), secret.encode()) else None
    except (ValueError, KeyError, TypeError):
        return None


def _run_command(held: Held, order: Order, fds: list[int], writer: int, tells: int) -> None:
    """In a child: enter the container and run the command as its child; never returns."""
    spec = {**held.spec, "argv": order["argv"], "tty": order["tty"]}
    try:
        signal.set_wakeup_fd(-1)
        resource.setrlimit(resource.RLIMIT_NOFILE, _found_limits)
        linux.join_groups(spec["cgroups"])
        joined = spec["namespaces"] & ALL_NAMESPACES
        if joined:
            linux.setns(os.pidfd_open(held.pid), joined)
        if order["own_terminal"]:
            fds = [_terminal_inside(fds[0])]
        streams = fds * 3 if order["tty"] else fds
        if not joined & linux.CLONE_NEWPID:
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        # the terminal's slave or the pipes move to 0, 1, 2 only in the grandchild
        pid = os.fork()
        if pid == 0:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            init.become(spec, lambda: _take(streams, is_tty=order["tty"]), writer)
        _keep_only(tells, init.CONTROL_FD)
        _, status = os.waitpid(pid, 0)
        if not joined & linux.CLONE_NEWPID:
            _hold_what_is_left(_code_of(status))
        os._exit(_code_of(status))
    except OSError as problem:
        os.write(writer, str(problem.strerror).encode())
    finally:
        os._exit(126)


def _hold_what_is_left(code: int) -> None:
    """The command has ended: say so if it left something running, and be the parent of that, so that the container's end finds it."""
    os.chdir("/")
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        os.write(init.CONTROL_FD, bytes([code]))
        os.close(init.CONTROL_FD)
        while True:
            os.waitpid(-1, 0)


def _code_of(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


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
    """A process and its descendants, children first, so that none is adopted by somebody else.

    All are stopped before one is killed: a shell would otherwise see its child die, go on with its next command, and end
    with that one's status. Whoever was about to fork when it was stopped has done so by the next look.
    """
    found, is_new = [pid], True
    known = {pid}
    for _ in range(MAX_LOOKS):
        for each in found:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGSTOP)
            new = [child for child in init.children_of(each) if child not in known]
            found += new
            known.update(new)
            is_new = is_new or bool(new)
        if not is_new:
            break
        is_new = False
    for each in reversed(found):
        init.kill_quietly(each)


def _kill_held(held: Held) -> None:
    """SIGKILL for a container: the kernel ends a pid namespace with its init; where there is none all of it is killed."""
    if held.spec["namespaces"] & linux.CLONE_NEWPID:
        init.kill_quietly(held.pid)
        return
    _kill_tree(held.pid)
    linux.kill_groups(held.spec["cgroups"])


def _limits_found() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = os.environ.get("HEKLA_FILES", "")
    return int(told) if told else soft, hard


_found_limits = _limits_found()
"""Of open files, for containers: what the agent was started with. What agent and spawner need for themselves is not theirs."""


def _raise_limit() -> None:
    """Two descriptors for each container and command: as many as we may, within what is closed in a child."""
    soft, hard = _found_limits
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _keep_only(descriptor: int, as_number: int) -> None:
    if descriptor != as_number:
        os.dup2(descriptor, as_number, inheritable=False)
    os.closerange(as_number + 1, MAX_FILES)


def _signals() -> int:
    """Where children's ends and the machine's end are read; Ctrl-C in a terminal is for the agent, which says what becomes of us."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reader


def main() -> None:
    """Entry: the listening socket, its path, and the grace in seconds. The agent's secret is in the file beside the socket."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(listener.fileno(), False)
    codecs.lookup("ascii")  # loaded here once rather than in every container's init
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # whoever is above us may reap nobody
    os.chdir("/")
    _raise_limit()
    gc.freeze()
    gc.disable()
    with open(secret_of(sys.argv[2]), encoding="ascii") as file:
        secret = file.read()
    Spawner(listener, sys.argv[2], float(sys.argv[3]), secret).run()
