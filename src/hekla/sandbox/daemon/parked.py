"""The daemon as the first process of a sandbox that a node's zygote forked: it waits, warm, until the node says whose it is.

The node holds the other end of a control socket (messages are JSON, descriptors travel beside them) and the socket that the daemon listens
on; both come with the fork, and nothing in the sandbox can reach either. The node asks by `op`: claim, start, signal, dial, listen, stop
and what the node's own code adds (`operations`). When the node's end closes, the sandbox ends: the daemon is process 1 of its namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

from hekla.sandbox.daemon.becoming import may_be_looked_into
from hekla.sandbox.daemon.beginning import begin
from hekla.sandbox.daemon.http import HttpError, HttpServer
from hekla.sandbox.daemon.nursery import Nursery
from hekla.sandbox.daemon.processes import Identity
from hekla.sandbox.daemon.rehearsal import WANTED_AT, rehearse, rehearse_claim
from hekla.sandbox.daemon.server import Daemon, Options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hekla.sandbox.daemon.http import Answer, Request

    Operation = Callable[[dict[str, Any], list[int]], Awaitable[dict[str, Any]]]

LONGEST_MESSAGE = 1024 * 1024
MOST_DESCRIPTORS = 16
DIAL_TIMEOUT_S = 10.0
BACKLOG = 128
REST_AFTER_S = 0.5
"""A burst that refills a stock is over by then, and whom somebody waits for is claimed."""
SPARE_KEPT_S = 60.0
"""So long after a pod took this sandbox an interpreter waits for the first cell: a stock is bounded, idle pods are not, and it is 3 MiB."""
HALT_PATIENCE_S = 1.0
LOOK_EVERY_S = 0.001
LONGEST_WORDS = 4096
MOST_ENDS = 64
_CLOCK_REALTIME_COARSE = 5
"""By which the kernel dates files."""


class RefusedError(Exception):
    """An order that is not carried out, with a sentence for the node."""


def park(
    control: socket.socket,
    listener: socket.socket,
    options: Options,
    environment: Mapping[str, str],
    operations: Mapping[str, Operation],
) -> None:
    """Live as process 1 until the node lets go; never returns."""
    os.environ.clear()
    os.environ.update(environment)
    Identity.default = options.default_user
    nursery = Nursery.start(options.preload)
    may_be_looked_into(is_allowed=False)
    try:
        asyncio.run(Parked(control, options, nursery, operations).live(listener))
    finally:
        os._exit(0)


class Parked:
    """The daemon before and after its claim."""

    def __init__(
        self, control: socket.socket, options: Options, nursery: Nursery, operations: Mapping[str, Operation]
    ) -> None:
        self._control, self._options, self._nursery = control, options, nursery
        self._daemon = Daemon(options, nursery)
        self._is_claimed = self._is_at_head = False
        self._expected: dict[str, Any] | None = None
        """The claim of a copy whose pod is still to come."""
        self._taken_ns = 0
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: dict[str, int] = {}
        self._ends: dict[str, dict[str, Any]] = {}
        """How commands ended that were told to a node; a later one may ask."""
        self._operations: dict[str, Operation] = {
            "ping": self._ping, "claim": self._claim, "start": self._start, "signal": self._signal,
            "dial": self._dial, "listen": self._listen, "stop": self._stop, "halt": self._halt, "resume": self._resume, "go": self._go,
            "save": self._save, "load": self._load, "fill": self._fill, "copy": self._copy, "again": self._again, **operations,
        }  # fmt: skip

    async def live(self, listener: socket.socket) -> None:
        """Serve the node and, once claimed, clients."""
        loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        loop.add_reader(self._control.fileno(), self._hear)
        self._daemon.processes.begin()
        if os.getpid() != 1:  # process 1 has no handler that somebody inside could call
            loop.add_signal_handler(signal.SIGTERM, self._over.set)
        server = HttpServer(self._handle, Daemon.worded)
        # from 3.13 on asyncio looks for the socket's file, to delete it at the end: that is the host's, and its path leads elsewhere here
        kept: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        await loop.create_unix_server(server.protocol, sock=listener, backlog=BACKLOG, **kept)
        self._tell({"event": "ready"})
        loop.call_later(REST_AFTER_S, self._rest)
        await self._over.wait()

    def _rest(self) -> None:
        """Nobody has come yet: make ready what a first cell and a first program will want."""
        if self._is_nobodys:
            task = asyncio.ensure_future(self._make_ready())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def _is_nobodys(self) -> bool:
        """Whether nobody has run anything here, nor is about to."""
        return not self._is_claimed and not self._started

    async def _make_ready(self) -> None:
        """Each part gives way to whoever comes meanwhile."""
        if not self._taken_ns:  # it is in a node's stock, which is bounded; an interpreter is 3 MiB
            await self._daemon.contexts.make_spare()
        if self._is_nobodys:
            await self._rehearse()
        if self._is_nobodys:
            await self._come_to_head()

    async def _rehearse(self) -> None:
        """Whoever comes meanwhile is heard afterwards, 5 ms later at the most: nobody's program starts beside this one."""
        loop, orders = asyncio.get_running_loop(), self._control.fileno()
        loop.remove_reader(orders)
        try:
            await rehearse(self._options, self._nursery)
        finally:
            self._daemon.processes.begin()
            self._daemon.processes.reap()
            loop.add_reader(orders, self._hear)

    async def _handle(self, request: Request, answer: Answer) -> None:
        if self._is_claimed or request.path == "/health":  # a probe asks before anybody claims
            await self._daemon.handle(request, answer)
        elif request.path == WANTED_AT:
            await self._come_to_head()
            await answer.whole(204)
        else:
            raise HttpError(503, "nobody has claimed this sandbox yet")

    async def _come_to_head(self) -> None:
        """It is among those that are claimed next, or nobody does anything else here; several gateways may say so."""
        if not self._is_at_head:
            self._is_at_head = True
            await rehearse_claim(self._options, self._nursery)

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, _waiting(self._control), MOST_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._over.set()  # no node, no sandbox
            return
        task = asyncio.ensure_future(self._obey({**json.loads(data), "taken_ns": self._taken_ns}, descriptors))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self, order: dict[str, Any], descriptors: list[int]) -> None:
        given: list[int] = []
        try:
            answer = await self._operations[order["op"]](order, descriptors)
            given = answer.pop("descriptors", [])
        except Exception as error:  # noqa: BLE001 - whatever it is, the node waits for an answer
            answer = {"error": str(error) or type(error).__name__}
        finally:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._tell({"n": order["n"], **answer}, given)
        for descriptor in given:
            os.close(descriptor)

    def _tell(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        data = json.dumps(message).encode("utf-8", "surrogatepass")
        try:
            socket.send_fds(self._control, [data], descriptors or [])
        except BlockingIOError:  # the node does not read: it is stuck, and an order of it will time out
            return
        except OSError:
            self._over.set()

    async def _ping(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        return {}

    async def _claim(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Become somebody's: variables, secrets, a name and dice of one's own, all at once."""
        await self._be_told_of(order)
        self._open()
        return {"takes_key": bool(order.get("secrets", {}).get("token_key"))}

    async def _be_told_of(self, claim: dict[str, Any]) -> None:
        """Have all that a claim brings; whose it is may come in only once it is open."""
        if claim.get("hostname"):
            self.rename(claim["hostname"])
        os.environ.update(claim.get("env", {}))
        random.seed(os.urandom(32) + bytes.fromhex(claim.get("random_seed", "")))
        if claim.get("default_user"):
            Identity.default = self._options.default_user = claim["default_user"]
        self._daemon.processes.environment.update(claim.get("env", {}))
        await self._daemon.contexts.add_variables(claim.get("env", {}))
        self._daemon.claimed(claim.get("secrets", {}))

    def _open(self) -> None:
        self._daemon.contexts.fill_soon()
        self._is_claimed = True

    async def _go(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """What the pod brings: its name and its variables, and whose it is if that is known already; a copy that was told of its claim
        is open from here on.

        Until now nobody's code has run here.
        """
        self._take()
        asyncio.get_running_loop().call_later(SPARE_KEPT_S, self._daemon.contexts.let_spare_go)
        claim = self._expected or {}
        if not claim.get("hostname"):
            self.rename(order["hostname"])
        variables = {**order["env"], **claim.get("env", {})}
        os.environ.update(variables)
        self._daemon.processes.environment.update(variables)
        self._daemon.contexts.renew_environment()
        if self._expected is not None:
            self._open()
        if "claim" in order:
            return {**await self._claim(order["claim"], []), "is_claimed": True}
        return {}

    def _take(self) -> None:
        """What changes from now on is not as every sandbox has it."""
        self._taken_ns = self._taken_ns or time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)

    @staticmethod
    def rename(name: str) -> None:
        """The sandbox's host name, in the kernel and in /etc."""
        socket.sethostname(name)
        for path, text in (
            ("/etc/hostname", f"{name}\n"),
            ("/etc/hosts", f"127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.0.1\t{name}\n"),
        ):
            with contextlib.suppress(OSError), open(path, "w", encoding="ascii", errors="replace") as file:
                file.write(text)

    async def _start(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Run a command of the node's: the pod's own, or one of `kubectl exec`; its streams are the node's."""
        given: list[int] = []
        streams = descriptors
        if order["tty"]:  # one of this sandbox's, so that it has a name here
            master, slave = pty.openpty()
            os.fchown(slave, order["uid"], -1)
            given, streams = [master], [slave] * 3
            descriptors.append(slave)  # closed with the others, once the command has it
        home = order["env"].get("HOME", "/")
        cwd = order["cwd"] or (home if os.path.isdir(home) else "/")
        if not os.path.isdir(cwd):
            raise RefusedError(f'working directory "{cwd}": No such file or directory')

        try:
            pid = begin(
                order["argv"], cwd=cwd, env={**self._daemon.processes.environment, **order["env"]},
                streams=(streams[0], streams[1], streams[2]), user=("", order["uid"], order["gid"]), has_terminal=order["tty"],
            )  # fmt: skip
        except FileNotFoundError:
            where = "no such file or directory" if "/" in order["argv"][0] else "executable file not found in $PATH"
            raise RefusedError(f'exec: "{order["argv"][0]}": {where}') from None
        except (OSError, subprocess.SubprocessError) as error:
            reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
            raise RefusedError(f'exec: "{order["argv"][0]}": {reason}') from None
        self._started[order["id"]] = pid
        self._daemon.processes.adopt(pid, lambda status: self._ended(order, status))
        asyncio.get_running_loop().call_soon(self._daemon.processes.reap)  # after the answer: it may have ended already
        return {"pid": pid, "descriptors": given}

    def _ended(self, order: dict[str, Any], status: int) -> None:
        self._started.pop(order["id"], None)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + number if number else os.WEXITSTATUS(status)
        message = _last_words(order.get("message_path", ""))
        told = {"event": "exited", "id": order["id"], "code": code, "signal": number, "message": message}
        self._ends[order["id"]] = told
        while len(self._ends) > MOST_ENDS:
            self._ends.pop(next(iter(self._ends)))
        self._tell(told)

    async def _again(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """The node was killed and has come back: how one command ended if it did; those whose streams went with it are killed."""
        for name, pid in self._started.items():
            if name != order["id"] and not name.startswith(order["life"]):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        return {"ended": self._ends.get(order["id"])}

    async def _signal(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        pid = self._started.get(order["id"])
        if pid is not None:
            send = os.killpg if order["group"] else os.kill
            with contextlib.suppress(ProcessLookupError):
                send(pid, order["signal"])
        return {}

    async def _dial(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """A connection to a server of this sandbox, made here and used by the node."""
        loop = asyncio.get_running_loop()
        problem: OSError | None = None
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            made = socket.socket(family, socket.SOCK_STREAM)
            made.setblocking(False)
            try:
                await asyncio.wait_for(loop.sock_connect(made, (host, order["port"])), DIAL_TIMEOUT_S)
                return {"descriptors": [made.detach()]}
            except OSError as error:
                made.close()
                problem = problem or error
        raise RefusedError(f"nothing listens on port {order['port']} in the sandbox: {problem}")

    async def _listen(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """A listening socket on this sandbox's loopback, for the node to accept from."""
        made = socket.create_server(("127.0.0.1", order["port"]), backlog=BACKLOG)
        return {"descriptors": [made.detach()]}

    async def _halt(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Stop all that runs here but this process and the first one, which the node stops next; done once nothing moves any more."""
        deadline = time.monotonic() + HALT_PATIENCE_S
        while True:  # what was just being forked is stopped the next time
            _tell_everybody(signal.SIGSTOP)
            if not _moving():
                return {}
            if time.monotonic() >= deadline:
                _tell_everybody(signal.SIGCONT)
                raise RefusedError("something in the sandbox waits for the kernel and cannot be stopped now")
            time.sleep(LOOK_EVERY_S)  # and let nobody in meanwhile, who would start something else

    async def _resume(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        _tell_everybody(signal.SIGCONT)
        return {}

    async def _save(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Interpreters into a file: one line of JSON, then the variables of each. Only interpreters ever read these."""
        told, datas, left_out = await self._daemon.contexts.save()
        head = json.dumps({"contexts": told, "sizes": [len(data) for data in datas]}).encode()
        with os.fdopen(os.dup(descriptors[0]), "wb") as file:
            for piece in (head, b"\n", *datas):
                file.write(piece)
        return {"left_out": left_out[:100]}

    async def _load(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        with os.fdopen(os.dup(descriptors[0]), "rb") as file:
            head = json.loads(file.readline(LONGEST_MESSAGE))
            await self._daemon.contexts.load(head["contexts"], head["sizes"], file)
        if order["op"] == "load":
            self._daemon.contexts.fill_soon()
        return {}

    async def _copy(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Go on as a copy of another sandbox, and with an owner; in one order."""
        await self._fill(order, descriptors)
        return await self._claim(order["claim"], [])

    async def _fill(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Have files and interpreters' variables of another sandbox, if it had any, and what its claim brings if its pod comes later (`_go`).

        Of eight copies each takes a millisecond for that, while pods are still being bound; whoever forks would wait for it at the end.
        """
        self._take()
        parts = iter(descriptors)
        for has_part, fill in ((order["has_files"], self._operations["unpack"]), (order["has_variables"], self._load)):
            if has_part:
                await fill(order, [next(parts)])
        if order["op"] == "fill":
            await self._be_told_of(order["claim"])
            self._expected = order["claim"]
        return {}

    async def _stop(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(self._over.set)
        return {}


def _waiting(control: socket.socket) -> int:
    """Bytes to ask for: room for the longest message would be mapped and given back for each, two pages that have to be brought in.

    Raises BlockingIOError where nothing waits: a message that came then would meet room for one byte, and the rest of it would be gone.
    """
    while not (queued := int(struct.unpack("i", fcntl.ioctl(control, termios.FIONREAD, bytes(4)))[0])):
        if not control.recv(1, socket.MSG_PEEK):
            return 1  # to be told of the end
    return min(queued, LONGEST_MESSAGE)


def _last_words(path: str) -> str:
    """What a command left in its termination message, if that is a file."""
    if not path:
        return ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        return (
            os.read(descriptor, LONGEST_WORDS).decode("utf-8", "replace")
            if stat.S_ISREG(os.fstat(descriptor).st_mode)
            else ""
        )
    finally:
        os.close(descriptor)


def _tell_everybody(number: int) -> None:
    """A signal to all of this namespace but its first process and this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def _moving() -> bool:
    """Whether a thread of any other process is not stopped: each stops by itself, once it is run."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            with contextlib.suppress(OSError):  # it has just ended
                if any(
                    _state(f"/proc/{name}/task/{task}") in (b"R", b"S", b"D")
                    for task in os.listdir(f"/proc/{name}/task")
                ):
                    return True
    return False


def _state(process: str) -> bytes:
    with contextlib.suppress(OSError), open(f"{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0]
    return b""
