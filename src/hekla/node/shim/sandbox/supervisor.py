"""Holds sandboxes while their node is away, and buries them: the parent of all, though the zygote forks them. Standard library only.

    node ──packets──> supervisor ──packets──> zygote
                          └── parent of ──> sandboxes

One small process per node, started by `supervisor_link.py`. It holds the node's end of each sandbox's control socket, and whatever else the node
gives it to keep (the reading ends of a command's output, a broker's listening socket), with a note on what the sandbox is for. A node that was
killed and comes back gets all of it; where none comes within the grace, everything is ended. Whoever kills the zygote ends no sandbox, and
whoever kills the supervisor ends all: that much its children ask of the kernel.

The zygote is started by exec, not forked from here: what it has in memory every sandbox has, and notes are nobody's business.
"""

import contextlib
import errno
import json
import os
import resource
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from hekla.node.shim import linux
from hekla.node.shim.init import children_of, kill_quietly
from hekla.node.shim.sandbox import notebook, packets
from hekla.node.shim.sandbox.packets import Message

PROTOCOL = 2
"""Said in `hello` and in `welcome`: a node that speaks otherwise does not take over what it might misunderstand; it ends it."""
TAKES = ["notes", "notebook"]
"""Said in `welcome`: orders that not every supervisor of this protocol follows. Whoever does not read of one here gives it otherwise."""
SOCKET = "supervisor.sock"
FIRST_NODE_S = 60.0
"""For the node that started us to say its first word."""
NO_ROOM_S = 0.1
"""Between two looks at a node that knocks while no more descriptors may be opened."""
DESCRIPTORS = 3
"""What a sandbox is made with: both ends of its control socket, and the socket that its daemon listens on."""
MOST_WAITING = 10_000
"""Reports for a node that does not read; one more and it counts as gone."""
THAWS = (("freezer.state", b"THAWED"), ("cgroup.freeze", b"0"))


@dataclass
class Held:
    """One sandbox."""

    name: str
    groups: list[str]
    kept: dict[str, int]
    """Descriptors by what they are."""
    note: Message = field(default_factory=dict)
    """What the node wants to know of it in its next life; empty: nothing, it may go."""
    pid: int = 0
    is_doomed: bool = False
    """It was to end before it was forked."""
    status: int | None = None
    """How it ended; from then on its number may be somebody else's. It stays until a node is told."""


class Supervisor:
    """The loop and what it holds."""

    def __init__(self, listener: socket.socket, directory: int, grace_s: float) -> None:
        self._listener, self._directory, self._grace_s = listener, directory, grace_s
        self._door: os.stat_result | None = None
        """Our socket in the directory, as long as nobody else's has taken its place."""
        self._zygotes: Message = {}
        """What the node says zygotes are made of: a command with `{socket}` in it, and its release."""
        self._selector = selectors.DefaultSelector()
        self._held: dict[str, Held] = {}
        self._by_pid: dict[int, str] = {}
        self._early: dict[int, int] = {}
        """Who ended before the zygote had told whom it forked."""
        self._nobodys: set[int] = set()
        """Whom nobody wants: killed, and when they are reaped their numbers mean nothing to the next zygote."""
        self._node: socket.socket | None = None
        self._notebook = -1
        """What the node writes its notes into, if it does: read once the node is gone."""
        self._is_greeted = False
        """A node hears of nothing before it has said hello and was told what there is."""
        self._is_full = False
        """It has been said that no descriptor is left."""
        self._outbox: deque[tuple[Message, list[int]]] = deque()
        self._zygote: socket.socket | None = None
        self._zygote_pid = 0
        self._is_zygote_ready = False
        self._ends_at: float | None = time.monotonic() + max(grace_s, FIRST_NODE_S)

    def run(self) -> NoReturn:
        """Serve one node after the other until one says that it is over, or none comes back."""
        self._door = self._find_door()
        wakeup = _signals()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._wake(wakeup))
        while True:
            left_s = None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())
            for key, _ in self._selector.select(left_s):
                if self._selector.get_map().get(key.fd) is key:  # else what was done for another one has closed it
                    _do(key.data)
            if self._ends_at is not None and time.monotonic() >= self._ends_at:
                self._end_all()

    # the node

    def _accept(self) -> None:
        """The latest node is the one: two at a time have the lock of their data directory against them."""
        try:
            node, _ = self._listener.accept()
        except OSError as problem:
            if problem.errno in (errno.EMFILE, errno.ENFILE):
                if not self._is_full:
                    sys.stderr.write(f"a node that knocks has to wait: {problem.strerror}\n")
                self._is_full = True
                time.sleep(NO_ROOM_S)  # who knocks goes on knocking, and all we would do is look again
            return
        self._is_full = False
        peer = node.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] != os.geteuid():
            node.close()
            return
        self._drop_node()
        node.setblocking(False)
        self._node, self._is_greeted, self._ends_at = node, False, None
        self._selector.register(node, selectors.EVENT_READ, self._hear_node)

    def _hear_node(self) -> None:
        node = self._node
        while node is not None and node is self._node:
            try:
                received = packets.receive(node)
            except BlockingIOError:
                return
            if received is None:
                self._lose_node()
                return
            self._obey(*received)

    def _obey(self, order: Message, fds: list[int]) -> None:
        try:
            self._follow(order, fds)
        finally:
            _close_all(fds)

    def _follow(self, order: Message, fds: list[int]) -> None:
        """What of `fds` is kept is taken out of them."""
        kind = order["order"]
        held = self._held.get(order.get("id", ""))
        if kind == "spawn":
            self._spawn(order, fds)
        elif kind == "keep" and held is not None:
            self._keep(held, order["label"], fds)
        elif kind == "note" and held is not None:
            held.note = order["note"]
        elif kind == "notes":
            self._take_notes(order["notes"])
        elif kind == "notebook":
            self._take_notebook(fds)
        elif kind == "no notebook":
            self._close_notebook()
        elif kind == "kill" and held is not None:
            self._kill(held)
        elif kind == "hello":
            self._welcome(order)
        elif kind == "zygote":
            self._open_zygote()
        elif kind == "end":
            self._end_all()

    def _welcome(self, hello: Message) -> None:
        """All that a node of an earlier life left here; what it took no note of nobody waits for."""
        if hello.get("protocol") != PROTOCOL:  # of us it understands this much
            self._is_greeted = True
            self._tell({"event": "welcome", "protocol": PROTOCOL, "zygote": 0})
            self._is_greeted = False
            return
        self._use_zygotes_of(hello["zygote"])
        self._grace_s = hello.get("grace_s", self._grace_s)
        self._is_greeted = True
        for held in list(self._held.values()):
            if held.note:
                self._tell_of(held)
            else:
                self._kill(held)
        zygote = self._zygote_pid if self._is_zygote_ready else 0
        self._tell({"event": "welcome", "protocol": PROTOCOL, "takes": TAKES, "zygote": zygote})
        for held in list(self._held.values()):
            if held.status is not None:
                self._bury(held, held.status)

    def _tell_of(self, held: Held) -> None:
        """One whose note is too long to be told ends; or no node would be welcomed any more, and the others end with it."""
        labels = list(held.kept)
        told = {"event": "held", "id": held.name, "pid": held.pid, "note": held.note, "labels": labels}
        try:
            packets.encode(told)
        except packets.TooLongError as problem:
            sys.stderr.write(f"{held.name} cannot be told of and ends: {problem}\n")
            self._kill(held)
            return
        self._tell(told, [held.kept[label] for label in labels])

    def _use_zygotes_of(self, wanted: Message) -> None:
        """After an upgrade sandboxes stay as they were made, and new ones are made by the new release."""
        if wanted != self._zygotes and self._zygote is not None:
            self._lose_zygote()
        self._zygotes = wanted

    def _tell(self, report: Message, fds: Sequence[int] = ()) -> None:
        """Tell the node, now or once it reads; nobody is told nothing. The descriptors may be closed afterwards."""
        if self._node is None or not self._is_greeted:
            return
        if len(self._outbox) >= MOST_WAITING:
            self._lose_node()
            return
        try:
            if self._outbox or not self._is_sent(self._node, report, fds):
                self._outbox.append((report, [os.dup(one) for one in fds]))
        except OSError:
            self._lose_node()

    def _flush(self) -> None:
        try:
            while self._outbox and self._node is not None and self._is_sent(self._node, *self._outbox[0]):
                _close_all(self._outbox.popleft()[1])
        except OSError:
            self._lose_node()

    def _is_sent(self, node: socket.socket, report: Message, fds: Sequence[int]) -> bool:
        """False: the node does not read now; once it does we go on."""
        try:
            packets.send(node, report, fds)
        except BlockingIOError:
            self._selector.modify(node, selectors.EVENT_READ | selectors.EVENT_WRITE, self._talk)
            return False
        return True

    def _talk(self) -> None:
        if self._node is not None:
            self._selector.modify(self._node, selectors.EVENT_READ, self._hear_node)
        self._flush()
        self._hear_node()

    def _lose_node(self) -> None:
        """It may come back for what it took note of; the rest ends now."""
        self._drop_node()
        self._ends_at = time.monotonic() + self._grace_s
        for held in list(self._held.values()):
            if not held.note:
                self._kill(held)
        if not any(held.note for held in self._held.values()):
            self._end_all()

    def _drop_node(self) -> None:
        if self._node is not None:
            self._close_notebook()
            self._selector.unregister(self._node)
            self._node.close()
            self._node, self._is_greeted = None, False
            for _, fds in self._outbox:
                _close_all(fds)
            self._outbox.clear()

    # sandboxes

    def _spawn(self, order: Message, fds: list[int]) -> None:
        """The zygote forks it, with the first two descriptors; the third is the node's end of its control socket, which we keep."""
        name = order["id"]
        if len(fds) != DESCRIPTORS:  # the kernel leaves out what a process may not open any more
            why = f"{len(fds)} of {DESCRIPTORS} descriptors came: the supervisor may open no more"
            self._tell({"event": "failed", "id": name, "message": why, "is_alive": False})
            return
        held = self._held[name] = Held(name, list(order["spec"]["cgroups"]), {"control": fds.pop()})
        if self._zygote is None:
            self._fail(held, "the zygote has ended")
            return
        try:
            packets.send(self._zygote, order, fds)
        except (BrokenPipeError, ConnectionResetError):
            self._find_zygote_dead()
        except (OSError, packets.TooLongError) as problem:
            self._fail(held, str(problem))

    def _fail(self, held: Held, why: str) -> None:
        """It could not be made; one that was forked is gone a moment later."""
        self._tell({"event": "failed", "id": held.name, "message": why, "is_alive": held.pid > 0})
        if held.pid:
            self._kill(held)
        else:
            self._forget(held)

    def _keep(self, held: Held, label: str, fds: list[int]) -> None:
        if not fds:
            sys.stderr.write(f"{label} of {held.name} did not come: the supervisor may open no more\n")
            return
        if label in held.kept:
            os.close(held.kept[label])
        held.kept[label] = fds.pop()

    def _take_notes(self, notes: Message) -> None:
        """What a node notes of several in one turn: each packet would wake us, on a processor that the sandboxes want."""
        for name, note in notes.items():
            held = self._held.get(name)
            if held is not None:
                held.note = note

    def _take_notebook(self, fds: list[int]) -> None:
        """The node goes on with the one before, or with packets, until it is told that we have this one. Whatever else it notes until then is
        in it, too.
        """
        if not fds:  # the kernel leaves out what a process may not open any more
            self._tell({"event": "notebook", "is_taken": False})
            return
        if self._notebook >= 0:  # all that holds of it is in the new one
            os.close(self._notebook)
        self._notebook = fds.pop()
        self._tell({"event": "notebook", "is_taken": True})

    def _close_notebook(self) -> None:
        """What the node has noted is ours to tell the next one."""
        if self._notebook < 0:
            return
        for entry in notebook.entries(self._notebook):
            told = json.loads(entry)
            self._take_notes({told["id"]: told["note"]})
        os.close(self._notebook)
        self._notebook = -1

    def _kill(self, held: Held) -> None:
        """It is ours to bury, so its number is nobody else's yet. What stands still in a group cannot die."""
        held.is_doomed = True
        if held.pid and held.status is None:
            _thaw(held.groups)
            kill_quietly(held.pid)

    def _bury(self, held: Held, status: int) -> None:
        """Nothing of it runs any more; while no node is there its end, and its last words in the socket, wait for one."""
        self._by_pid.pop(held.pid, None)
        held.status = status
        self._tell({"event": "gone", "id": held.name, "status": status})
        if self._is_greeted or not held.note:  # a node that could not be told any more counts as none
            self._forget(held)

    def _forget(self, held: Held) -> None:
        self._held.pop(held.name, None)
        _close_all(held.kept.values())
        held.kept.clear()
        if self._node is None:
            _remove(held.groups)

    def _wake(self, wakeup: int) -> None:
        """A child has ended, or the machine goes down."""
        numbers = os.read(wakeup, 4096)
        if signal.SIGTERM in numbers and self._node is None:
            self._end_all()
        # what it told before they ended comes first; above all that it has ended itself, and they with it
        while self._hear_zygote():
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._by_pid:
                self._bury(self._held[self._by_pid[pid]], status)
            elif pid in self._nobodys:
                self._nobodys.discard(pid)
            elif pid != self._zygote_pid:
                self._early[pid] = status

    # the zygote

    def _open_zygote(self) -> None:
        if self._zygote is not None:
            if self._is_zygote_ready:
                self._tell({"event": "ready", "pid": self._zygote_pid})
            return
        try:
            self._zygote, self._zygote_pid = self._start_zygote()
        except OSError as problem:  # a host that has no room for one process more; those that run must not pay for it
            sys.stderr.write(f"the zygote cannot be started: {problem}\n")
            self._tell({"event": "zygote gone"})
            return
        self._selector.register(self._zygote, selectors.EVENT_READ, self._hear_zygote)

    def _start_zygote(self) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                for end in (ours, theirs):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * packets.LONGEST)
                command = [word.replace("{socket}", str(theirs.fileno())) for word in self._zygotes["command"]]
                started = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            except OSError:
                ours.close()
                raise
        started.returncode = 0  # we bury by number
        return ours, started.pid

    def _hear_zygote(self) -> bool:
        """Whether it said anything. Never waits: what made it readable in this round may have been heard by `_wake`, and its next word
        is an answer to our next order.
        """
        if self._zygote is None or not _is_readable(self._zygote):
            return False
        received = packets.receive(self._zygote)
        if received is None:
            self._lose_zygote()
            return False
        report, _ = received
        held = self._held.get(report.get("id", ""))
        if report["event"] == "ready":
            self._is_zygote_ready = True
            self._early.clear()  # it has forked nobody yet
            self._tell({"event": "ready", "pid": self._zygote_pid})
        elif report["event"] == "forked":
            self._adopt(held, report["pid"])
        elif held is not None:
            self._fail(held, report["message"])
        return True

    def _find_zygote_dead(self) -> None:
        """Its last words first, as in `_wake`: whom it told of lives on."""
        while self._hear_zygote():
            continue
        if self._zygote is not None:
            self._lose_zygote()

    def _adopt(self, held: Held | None, pid: int) -> None:
        status = self._early.pop(pid, None)
        if held is None:  # nobody wants it any more
            if status is None:
                self._nobodys.add(pid)
                kill_quietly(pid)
            return
        held.pid = pid
        self._by_pid[pid] = held.name
        self._tell({"event": "spawned", "id": held.name, "pid": pid})
        if status is not None:
            self._bury(held, status)
        elif held.is_doomed:
            self._kill(held)

    def _lose_zygote(self) -> None:
        """Its sandboxes live on; what it was making is made by nobody, and whom it forked without a word is nobody's."""
        assert self._zygote is not None, "who is lost was there"
        self._selector.unregister(self._zygote)
        self._zygote.close()
        self._zygote, self._is_zygote_ready = None, False
        kill_quietly(self._zygote_pid)
        for pid in children_of(os.getpid()):
            if pid not in self._by_pid:
                self._nobodys.add(pid)
                kill_quietly(pid)
        self._tell({"event": "zygote gone"})
        for held in [each for each in self._held.values() if not each.pid]:
            self._fail(held, "the zygote was killed")

    # the end

    def _find_door(self) -> os.stat_result | None:
        try:
            return os.stat(SOCKET, dir_fd=self._directory)
        except OSError:
            return None

    def _end_all(self) -> NoReturn:
        """No node comes back: nothing is left."""
        found = self._find_door()
        if found and self._door and os.path.samestat(found, self._door):  # else a later supervisor listens there
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=self._directory)
        self._listener.close()
        if self._zygote is not None:
            self._zygote.close()
            kill_quietly(self._zygote_pid)
        for held in self._held.values():
            self._kill(held)
        for pid in children_of(os.getpid()):
            kill_quietly(pid)
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        parents = {os.path.dirname(group) for held in self._held.values() for group in held.groups}
        for held in self._held.values():
            _remove(held.groups)
        if self._node is None:  # a node that ends in good order tidies up after itself
            _remove(list(parents))
        os._exit(0)


def _do(act: Callable[[], object]) -> None:
    """A task boundary: every sandbox hangs on this process, so what goes wrong for one of them is told and ends nothing."""
    try:
        act()
    except Exception:  # noqa: BLE001 - what is left undone concerns one order or one report
        traceback.print_exc()


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _is_readable(sock: socket.socket) -> bool:
    """Whether something was said, or the other end has gone. By poll: numbers of descriptors go beyond what select takes."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _thaw(groups: list[str]) -> None:
    for group in groups:
        for file, word in THAWS:
            with contextlib.suppress(OSError):
                descriptor = os.open(f"{group}/{file}", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(descriptor, word)
                finally:
                    os.close(descriptor)


def _remove(groups: list[str]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):
            os.rmdir(group)


def _signals() -> int:
    """Where children's ends and the machine's end are read; Ctrl-C in a terminal is for the node, which ends us in good order."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reader


def main() -> None:
    """Entry: the listening socket, its directory, and the grace."""
    listener, directory = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for descriptor in (listener.fileno(), directory):
        os.set_inheritable(descriptor, False)
    listener.setblocking(False)
    os.chdir("/")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # up to four for each sandbox
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # where there is one user only: notes name sessions
    Supervisor(listener, directory, float(sys.argv[3])).run()
