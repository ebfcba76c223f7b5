"""The node's end of the supervisor: finds the one that an earlier life left, or starts one, and gives it orders.

`hekla.node.shim.sandbox.supervisor` is the other end. Orders are given at once and in order; what the socket does not take waits here.
Notes go into a notebook that both ends hold (`note_taking.py`). Where the supervisor takes none, those of one turn of the loop go
together, and who has to know that they went waits (`delivered`).
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import structlog

import hekla
from hekla.node.runtimes.release import release_of
from hekla.node.runtimes.sandbox.encoding import encoded
from hekla.node.runtimes.sandbox.note_taking import Notebooks
from hekla.node.runtimes.spawner_link import SpawnerGoneError
from hekla.node.runtimes.sweep import describe_process, kill_process_of
from hekla.node.shim.sandbox import packets
from hekla.node.shim.sandbox.packets import Message
from hekla.node.shim.sandbox.supervisor import PROTOCOL, SOCKET

log = structlog.get_logger(__name__)

BACKLOG = 4
MOST_WAITING = 10_000
NOTES_AT_ONCE = 100
"""A note takes a kilobyte, and a packet of them no more than half of what its socket holds."""
LONGEST_NOTE = packets.LONGEST - 2048
"""As the supervisor tells it back: beside it are the sandbox's number and what is kept of it, and letters beyond ASCII are written with
six signs, three times as many as they may have here."""
WELCOME_TIMEOUT_S, END_TIMEOUT_S = 30.0, 30.0
SUPERVISOR, ZYGOTE = "hekla.node.shim.sandbox.supervisor", "hekla.node.shim.sandbox.zygote"
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {} import main; main()"
_SOURCE = Path(hekla.__file__).parent
MADE_OF = ("node/shim", "sandbox/daemon")
"""Folders of ours that a zygote has in memory: where one of their files differs, it is of another release."""

Report = Message


@dataclass(frozen=True)
class Left:
    """One sandbox that an earlier life of this node left running."""

    name: str
    pid: int
    note: Message
    descriptors: dict[str, int]


class SupervisorLink:
    """One supervisor and the socket to it."""

    def __init__(
        self,
        state: Path,
        on_report: Callable[[Report], None],
        on_lost: Callable[[], None],
        *,
        arguments: Sequence[str],
        grace_s: float,
    ) -> None:
        """`arguments` are the zygote's; for `grace_s` sandboxes wait for a node that was killed."""
        self._state, self._on_report, self._on_lost = state, on_report, on_lost
        self._grace_s = grace_s
        command = [*_boot(ZYGOTE), "{socket}", *arguments]
        self._hello: Message = {
            "order": "hello", "protocol": PROTOCOL, "grace_s": grace_s,
            "zygote": {"release": release_of(MADE_OF), "command": command},
        }  # fmt: skip
        self._directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # not by path: that of a state directory may be longer than a socket's may be
        self._address = f"/proc/self/fd/{self._directory}/{SOCKET}"
        self._socket: socket.socket | None = None
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._notebooks = Notebooks(self._offer_notebook, lambda: self.post({"order": "no notebook"}))
        self._noted: dict[str, Message] = {}
        """The last note of each sandbox that was not given yet."""
        self._takes_notes = False
        """Whether the supervisor takes many at once; one that an earlier release started does not."""
        self._undelivered: list[asyncio.Future[None]] = []
        """Who waits until all that was given so far is with the supervisor."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether orders reach a supervisor."""
        return self._socket is not None

    async def find(self) -> list[Left]:
        """What an earlier life left with its supervisor, which is ours from now on; where there is none, or one that we do not understand,
        whatever is left of it is ended.
        """
        found: list[Left] = []
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                welcome = await self._take_over(found)
        except (OSError, TimeoutError):
            welcome = {}
        except (KeyError, ValueError) as problem:  # no JSON, another meaning, or descriptors that did not come
            log.warning("the supervisor of an earlier life is not understood", error=repr(problem))
            welcome = {}
        if welcome.get("protocol") == PROTOCOL:
            return found
        self._drop()
        for one in found:
            for descriptor in one.descriptors.values():
                os.close(descriptor)
        for file in ("supervisor.json", "zygote.json"):
            await asyncio.to_thread(kill_process_of, self._state / file)
        return []

    async def _take_over(self, found: list[Left]) -> Message:
        loop = asyncio.get_running_loop()
        sock = self._new_socket()
        self._socket = sock
        await loop.sock_connect(sock, self._address)
        packets.send(sock, self._hello)
        while True:
            received = await _next_of(sock)
            if received is None:
                return {}
            report, descriptors = received
            if report["event"] == "welcome":
                self._greeted(report)
                self._listen()
                return report
            labels: list[str] = report["labels"]
            found.append(Left(report["id"], report["pid"], report["note"], dict(zip(labels, descriptors, strict=True))))

    def open(self) -> None:
        """Start one. Popen uses vfork here, so the agent's size does not matter."""
        if self._process is not None:
            self._process.poll()  # bury the one before
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self._directory)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
            (self._state / "zygote.log").open("ab") as written,
        ):
            listener.bind(self._address)
            listener.listen(BACKLOG)
            self._process = subprocess.Popen(
                [*_boot(SUPERVISOR), str(listener.fileno()), str(self._directory), str(self._grace_s)],
                pass_fds=[listener.fileno(), self._directory],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )
            (self._state / "supervisor.json").write_text(json.dumps(describe_process(self._process.pid)))
            self._socket = self._new_socket()
            self._socket.connect(self._address)  # does not wait: the socket listens already
        self._listen()
        self.post(self._hello)

    def post(self, order: Message, fds: Sequence[int] = ()) -> None:
        """Give one order, with descriptors if it has any (they may be closed afterwards); raises SpawnerGoneError."""
        self._give_notes()  # they were given before it
        try:
            self._give(order, fds)
        except packets.TooLongError as problem:
            raise SpawnerGoneError(f"the sandboxes' supervisor did not take an order: {problem}") from None

    def note(self, sandbox: str, note: Message) -> None:
        """Let the next life know this of a sandbox: at once, or where it goes by packet at the end of this turn; of two in one turn the
        later holds. Where no more orders wait for the socket than may, the last of each sandbox waits until they are gone.

        Of one that is too long the next life is told nothing, not what was noted before it either: so it ends the sandbox, and gives it to nobody else.
        """
        if self._socket is None:
            return  # the sandbox has ended with its supervisor
        entry = encoded({"id": sandbox, "note": note})
        if len(entry) > LONGEST_NOTE // 3 and len(json.dumps(note)) > LONGEST_NOTE:
            log.warning("a note on a sandbox is too long to be kept", sandbox=sandbox)
            note = {}
            entry = encoded({"id": sandbox, "note": note})
        with contextlib.suppress(SpawnerGoneError):
            if self._notebooks.write(sandbox, entry):
                return
        if not self._noted:
            asyncio.get_running_loop().call_soon(self._give_notes)
        self._noted[sandbox] = note

    def _offer_notebook(self, descriptor: int) -> bool:
        """Whether it went, behind all notes that were given before it."""
        self._give_notes()
        if self._socket is None or self._noted or self._outbox:
            return False
        try:
            packets.send(self._socket, {"order": "notebook"}, [descriptor])
        except OSError:
            return False
        return True

    async def delivered(self) -> None:
        """Return once all that was given so far is with the supervisor, which has it even if this process is killed; or neither is."""
        if self._noted or self._outbox:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._undelivered.append(waiting)
            await waiting

    def _give_notes(self) -> None:
        at_once = NOTES_AT_ONCE if self._takes_notes else 1
        while self._noted and len(self._outbox) < MOST_WAITING:
            some = list(islice(self._noted.items(), at_once))
            for name, _ in some:
                del self._noted[name]
            self._give_some(some)
        self._settle_delivered()

    def _give_some(self, entries: list[tuple[str, Message]]) -> None:
        if len(entries) > 1:
            order: Message = {"order": "notes", "notes": dict(entries)}
        else:
            order = {"order": "note", "id": entries[0][0], "note": entries[0][1]}
        try:
            self._give(order)
        except packets.TooLongError:  # together; none is by itself
            half = len(entries) // 2
            self._give_some(entries[:half])
            self._give_some(entries[half:])
        except SpawnerGoneError:  # then they have ended with their supervisor
            return

    def _give(self, order: Message, fds: Sequence[int] = ()) -> None:
        if self._socket is None:
            raise SpawnerGoneError("the sandboxes' supervisor has ended, and they with it; the next one starts another")
        if len(self._outbox) >= MOST_WAITING:
            raise SpawnerGoneError("the sandboxes' supervisor takes no orders")
        data = packets.bounded(encoded(order))
        try:
            if not self._outbox:
                packets.send_encoded(self._socket, data, fds)
                return
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._flush)
        except OSError as problem:
            raise SpawnerGoneError(f"the sandboxes' supervisor did not take an order: {problem}") from None
        self._outbox.append((data, [os.dup(one) for one in fds]))

    def _settle_delivered(self) -> None:
        if not self._noted and not self._outbox:
            waiting, self._undelivered = self._undelivered, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)

    async def leave(self) -> None:
        """Go, and leave it what we took note of, until the next life comes or the grace is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self.delivered()
        self._drop()
        os.close(self._directory)

    async def close(self) -> None:
        """Let it end every sandbox, and itself."""
        if self._socket is not None:
            ended = self._ended = asyncio.get_running_loop().create_future()
            with contextlib.suppress(SpawnerGoneError):
                self.post({"order": "end"})
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await ended
            except TimeoutError:  # it is stuck; what it is the parent of ends with it
                await asyncio.to_thread(kill_process_of, self._state / "supervisor.json")
            self._drop()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        (self._state / "supervisor.json").unlink(missing_ok=True)
        os.close(self._directory)

    def _new_socket(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return made

    def _listen(self) -> None:
        assert self._socket is not None, "who listens is connected"
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._hear)

    def _flush(self) -> None:
        while self._outbox and self._socket is not None:
            data, fds = self._outbox[0]
            try:
                packets.send_encoded(self._socket, data, fds)
            except BlockingIOError:
                return
            except OSError as problem:
                log.warning(
                    "the supervisor did not take an order", order=data[:64].decode(errors="replace"), error=str(problem)
                )
            self._outbox.popleft()
            for descriptor in fds:
                os.close(descriptor)
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
        self._give_notes()

    def _hear(self) -> None:
        while self._socket is not None:
            try:
                received = packets.receive(self._socket)
            except BlockingIOError:
                return
            if received is None:
                self._drop()
                if self._ended is None:
                    # a link may end without it (it takes one node at a time, and one that reads too little for gone): two
                    # supervisors would share a directory, and its sandboxes run on unheard
                    kill_process_of(self._state / "supervisor.json")
                    self._on_lost()
                elif not self._ended.done():  # else it was waited for in vain, and killed
                    self._ended.set_result(None)
                return
            report, descriptors = received
            for descriptor in descriptors:
                os.close(descriptor)
            try:
                if report["event"] == "welcome":
                    self._greeted(report)
                    continue
                if report["event"] == "notebook":
                    self._notebooks.taken(is_taken=report["is_taken"])
                    continue
                if report["event"] in ("gone", "failed"):
                    self._notebooks.forget(report["id"])
                self._on_report(report)
            except Exception:  # a task boundary: one report's trouble must not leave all sandboxes unheard
                log.exception("supervisor report not understood", report=report)

    def _drop(self) -> None:
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._socket = None
        for _, fds in self._outbox:
            for descriptor in fds:
                os.close(descriptor)
        self._outbox.clear()
        self._noted.clear()
        self._notebooks.close()
        self._takes_notes = False
        self._settle_delivered()

    def _greeted(self, welcome: Report) -> None:
        takes = welcome.get("takes", ())
        self._takes_notes, self._notebooks.is_wanted = "notes" in takes, "notebook" in takes


def _boot(module: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _BOOT.format(module), str(_SOURCE.parent)]


async def _next_of(sock: socket.socket) -> tuple[Message, list[int]] | None:
    while True:
        try:
            return packets.receive(sock)
        except BlockingIOError:
            await _until_readable(sock)


async def _until_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock.fileno(), lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(sock.fileno())
