"""The process that sandboxes are forked from: single-threaded, small, with all that they will need imported before the first one.

It is started by `supervisor.py` and speaks `packets.py`. An order `spawn` comes with the sandbox's control socket and the socket that its daemon
listens on; the child lives in `inside.py`. Every child is born as the supervisor's, so it does not miss a zygote that dies; when the
supervisor's end closes the zygote goes.
"""

import contextlib
import errno
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from hekla.node.shim import linux
from hekla.node.shim.sandbox import inside, packets

Order = packets.Message

NETWORKS = 4
"""Network namespaces kept ready: they are the dearest part of a sandbox, 1 of 2.5 ms."""
PACE_S = 0.02
"""They are made again when nothing was asked for so long."""
APART = (
    linux.CLONE_PARENT
    | linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
)  # the cgroup namespace comes later, inside its group


class Zygote:
    """The loop and what it holds."""

    def __init__(self, supervisor: socket.socket, daemon: Any) -> None:
        self._supervisor, self._daemon = supervisor, daemon
        self._selector = selectors.DefaultSelector()
        self._networks: deque[int] = deque()
        self._own_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._may_pool = os.geteuid() == 0

    def run(self) -> None:
        """Serve until the supervisor goes away."""
        self._selector.register(self._supervisor, selectors.EVENT_READ, self._receive)
        self._report({"event": "ready"})
        while True:
            idle_s = PACE_S if self._may_pool and len(self._networks) < NETWORKS else None
            ready = self._selector.select(idle_s)
            for key, _ in ready:
                key.data()
            if not ready:
                self._make_network()

    def _receive(self) -> None:
        received = packets.receive(self._supervisor)
        if received is None:
            os._exit(0)
        order, fds = received
        try:
            self._spawn(order["id"], order["spec"], fds)
        except OSError as problem:
            self._report({"event": "failed", "id": order["id"], "message": str(problem.strerror or problem)})
        for descriptor in fds:
            os.close(descriptor)

    def _spawn(self, name: str, spec: Order, fds: list[int]) -> None:
        """Fork into namespaces, with a user of the sandbox's own, and name its users from outside."""
        (ours, held), told = socket.socketpair(), os.pipe()
        network = self._networks.popleft() if self._networks else -1
        try:
            pid = self._fork(spec, network)
        finally:
            if network >= 0:
                os.close(network)
        if pid == 0:
            inside.live(spec, self._daemon, fds, held, told[1], has_network=network >= 0)
        held.close()
        os.close(told[1])
        self._report({"event": "forked", "id": name, "pid": pid})
        try:
            name_users(pid, spec)
            trees = trees_of(pid, spec)
            socket.send_fds(ours, [b"g"], trees)
            for tree in trees:
                os.close(tree)
        except OSError as problem:
            self._report({"event": "failed", "id": name, "message": f"{problem.strerror}"})
        finally:
            ours.close()
        self._selector.register(told[0], selectors.EVENT_READ, lambda: self._hear(told[0], name))

    def _fork(self, spec: Order, network: int) -> int:
        """As os.fork; the child is the daemon's user, whom nobody in the sandbox can become."""
        base, namespaces = spec["uid_base"], APART | (0 if network >= 0 else linux.CLONE_NEWNET)
        if network >= 0:
            linux.setns(network, linux.CLONE_NEWNET)
        pid = -1
        try:
            if base:
                _be(base + inside.USERS)
            pid = linux.fork_into(namespaces)
        finally:
            if pid != 0:
                if base:
                    _be(0)
                if network >= 0:
                    linux.setns(self._own_network, linux.CLONE_NEWNET)
        return pid

    def _hear(self, told: int, name: str) -> None:
        """What a child says of its making; once it is made, its daemon tells the node so."""
        problem = os.read(told, 4096)
        self._selector.unregister(told)
        os.close(told)
        if problem != inside.MADE:
            why = problem.decode("utf-8", "replace") or "it died while it was made"
            self._report({"event": "failed", "id": name, "message": why})

    def _make_network(self) -> None:
        """A namespace with a loopback device and nothing else, that the sandbox's root has no power over."""
        try:
            linux.unshare(linux.CLONE_NEWNET)
        except OSError:
            self._may_pool = False
            return
        try:
            inside.loopback_up()
            with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as file:
                file.write("0")
            self._networks.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        finally:
            linux.setns(self._own_network, linux.CLONE_NEWNET)

    def _report(self, report: Order) -> None:
        try:
            packets.send(self._supervisor, report)
        except OSError:
            os._exit(0)


def _be(user: int) -> None:
    """Be another user, and use files as root all the same: a child lets go of that first of all.

    Our securebits let a change of user change no capabilities, so that there is a way back for us; the child's are its namespace's.
    """
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    linux.set_file_owner(0, 0)


def name_users(pid: int, spec: Order) -> None:
    """Give a user namespace its users: a range of the host's, or us alone."""
    base = spec["uid_base"]
    maps: tuple[tuple[str, str], ...]
    if base:
        maps = (("uid_map", f"0 {base} {inside.USERS}"), ("gid_map", f"0 {base} {inside.USERS}"))
    else:
        maps = (("setgroups", "deny"), ("uid_map", f"0 {os.geteuid()} 1"), ("gid_map", f"0 {os.getegid()} 1"))
    for name, text in maps:
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
            file.write(text)


def trees_of(pid: int, spec: Order) -> list[int]:
    """The image and writable volumes, with owners as the sandbox numbers them; what a file system cannot do so stays as it is."""
    if not spec["uid_base"] or not spec["owned"]:
        return []
    users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return [_seen_by(path, users, spec["exact"]) for path in spec["owned"]]
    finally:
        os.close(users)


def _seen_by(path: str, users: int, exact: Sequence[str]) -> int:
    place = linux.open_place(path, exact)
    try:
        return linux.seen_by(f"/proc/self/fd/{place}", users)
    finally:
        os.close(place)


def main() -> None:
    """Entry: the supervisor's socket, where else modules are, the daemon's module, and modules to import ahead."""
    supervisor = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(supervisor.fileno(), False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # a library that starts threads when it is imported could not be forked from
    sys.path += [path for path in sys.argv[2].split(":") if path]
    for name in sys.argv[4].split(","):
        with contextlib.suppress(ImportError):
            importlib.import_module(name) if name else None
    daemon = importlib.import_module(sys.argv[3])
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError(errno.EBUSY, f"one of {sys.argv[4]} starts threads when it is imported: forks would lose them")
    if os.geteuid() == 0:
        linux.prctl(linux.PR_SET_SECUREBITS, linux.SECBIT_NO_SETUID_FIXUP)
    gc.collect()
    gc.freeze()
    gc.disable()
    Zygote(supervisor, daemon).run()
