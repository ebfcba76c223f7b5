"""Sessions for ordinary programs: `Session`. `AsyncSession` in `async_session.py` is its twin; what both mean is in `operations.py`.

with Session.create() as session:
    print(session.run_code("6 * 7").text)
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from hekla_sdk import operations, streams
from hekla_sdk.answers import (
    Completed,
    Context,
    Display,
    Entry,
    Output,
    ProcessInfo,
    Result,
    SessionInfo,
    Snapshot,
    Template,
    Usage,
)
from hekla_sdk.errors import RefusedError, UnreachableError
from hekla_sdk.exchange import MOST_ANSWER, Steps
from hekla_sdk.settings import Gateway, find_gateway
from hekla_sdk.streams import MOST_KEPT, CellReader, Printed, ProcessReader, Texts
from hekla_sdk.wire import Stream, Wire

Answered = TypeVar("Answered")
Told = Callable[[str], object]


class Session:
    """A place of its own to run code in, until it is ended or its time is over."""

    def __init__(self, wire: Wire, info: SessionInfo, *, is_ours: bool) -> None:
        self._wire, self._is_ours, self._is_closed = wire, is_ours, False
        self.id = info.id
        self.opened = info
        """The session as it was when this object was made; `info()` tells what it is now."""
        self.files = Files(wire, info.id)

    @classmethod
    def create(
        cls, template: str = "base", *, namespace: str = "default", kind: str = "", snapshot: str = "", timeout: float = 0.0,
        freeze_after: float = 0.0, on_timeout: str = "kill", env: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None,
        network: Mapping[str, object] | None = None, budget: str = "", gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None,
    ) -> Session:  # fmt: skip
        """Open a session. `timeout`: seconds until its time is over, 0: as its template says. `freeze_after`: seconds without
        a request until it stands still, to wake with the next one. `budget`: what it may use before it stands still, as "cpu=90s,network=1Gi". Leaving a `with` block ends it.
        """
        wire = Wire(gateway or find_gateway(data_dir))
        asked = operations.create(
            template=template, namespace=namespace, kind=kind, snapshot=snapshot, timeout=timeout, freeze_after=freeze_after,
            on_timeout=on_timeout, env=env or {}, metadata=metadata or {}, network=network or {}, budget=budget, idempotency_key=secrets.token_hex(16),
        )  # fmt: skip
        try:
            return cls(wire, wire.do(asked), is_ours=True)
        except BaseException:
            wire.close()
            raise

    @classmethod
    def connect(cls, session: str, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> Session:  # fmt: skip
        """A session that is there already. Leaving a `with` block does not end it."""
        wire = Wire(gateway or find_gateway(data_dir))
        try:
            return cls(wire, wire.do(operations.info(session)), is_ours=False)
        except BaseException:
            wire.close()
            raise

    @classmethod
    def all(cls, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> list[SessionInfo]:  # fmt: skip
        """All sessions of the key's owner, the newest first."""
        return _asked(operations.sessions(), gateway, data_dir)

    @classmethod
    def templates(cls, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> list[Template]:  # fmt: skip
        """What sessions can be made from."""
        return _asked(operations.templates(), gateway, data_dir)

    @classmethod
    def snapshots(cls, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> list[Snapshot]:  # fmt: skip
        """All snapshots of the key's owner."""
        return _asked(operations.snapshots(), gateway, data_dir)

    @classmethod
    def delete_snapshot(cls, snapshot: str, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> None:  # fmt: skip
        """Forget a snapshot, by its id."""
        _asked(operations.delete_snapshot(snapshot), gateway, data_dir)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        try:
            if self._is_ours:
                self.kill()
        except (RefusedError, UnreachableError):
            if kind is None:  # what went wrong in the block says more
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Give the connections back; the session goes on."""
        if not self._is_closed:  # its forks may use them still
            self._is_closed = True
            self._wire.close()

    # What becomes of it

    def info(self) -> SessionInfo:
        """The session as it is now."""
        return self._wire.do(operations.info(self.id))

    def kill(self) -> bool:
        """End it; False: it had ended."""
        return self._wire.do(operations.kill(self.id))

    def pause(self, *, memory: bool = True) -> SessionInfo:
        """Put it to sleep; the next request inside wakes it. Without `memory`, files alone are kept and its sandbox is given back."""
        return self._wire.do(operations.act(self.id, "pause", {"memory": memory}))

    def resume(self) -> SessionInfo:
        """Wake it."""
        return self._wire.do(operations.act(self.id, "resume", {}))

    def freeze(self) -> SessionInfo:
        """Let it stand still, in memory; the next request inside wakes it."""
        return self._wire.do(operations.act(self.id, "freeze", {}))

    def set_timeout(self, timeout: float) -> SessionInfo:
        """End it so many seconds from now."""
        return self._wire.do(operations.act(self.id, "timeout", {"timeout": timeout}))

    def set_budget(self, budget: str) -> SessionInfo:
        """What it may use from now on, as "cpu=90s,network=1Gi"; "" is no bound. One that stands still for want of it goes on where it is raised."""
        return self._wire.do(operations.act(self.id, "budget", {"budget": budget}))

    def fork(self, count: int = 1) -> list[Session]:
        """Copies of it with its files and variables; RefusedError if any of them could not be made, and then none is left."""
        made, refused = self._wire.do(operations.fork(self.id, count))
        forks = [Session(self._wire.shared(), one, is_ours=True) for one in made]
        if refused:
            for one in forks:
                one.__exit__(None, None, None)
            raise refused[0]
        return forks

    def snapshot(self, name: str = "") -> Snapshot:
        """Keep it as it is now."""
        return self._wire.do(operations.snapshot(self.id, name))

    def usage(self) -> Usage:
        """What it has used."""
        return self._wire.do(operations.usage(self.id))

    def url(self, port: int, path: str = "/") -> str:
        """Where a server inside that listens on a port is reached, with `headers`."""
        rest = operations.session_path(self.id, f"ports/{port}/{path.lstrip('/')}")
        return f"{self._wire.gateway.url}/hekla/v1/{rest}"

    @property
    def headers(self) -> dict[str, str]:
        """What a request to `url` must carry; the key goes no further than the gateway."""
        return {"authorization": f"Bearer {self._wire.gateway.key}"}

    # Code

    def run_code(
        self, code: str, *, context: Context | str = "", language: str = "", env: Mapping[str, str] | None = None, timeout: float = 0.0,
        on_stdout: Told | None = None, on_stderr: Told | None = None, on_display: Callable[[Display], object] | None = None,
        most: int = MOST_KEPT,
    ) -> Result:  # fmt: skip
        """Run a cell; its variables are there for the next one. Over `timeout` seconds it is interrupted, which its `error` tells."""
        reader, context_id = CellReader(most), context.id if isinstance(context, Context) else context
        request = streams.execute(
            self.id, code, context=context_id, language=language, env=env or {}, timeout=timeout
        )  # fmt: skip
        with self._wire.open(request) as stream:
            for piece in stream:
                for news in reader.feed(piece):
                    _tell_of_cell(news, on_stdout, on_stderr, on_display)
        return reader.end()

    def contexts(self) -> list[Context]:
        """Its interpreters."""
        return self._wire.do(operations.contexts(self.id))

    def create_context(self, language: str = "python", *, cwd: str = "") -> Context:
        """Another interpreter, with variables of its own."""
        return self._wire.do(operations.create_context(self.id, language, cwd))

    def restart_context(self, context: Context) -> None:
        """Let it forget its variables."""
        self._wire.do(operations.restart_context(self.id, context.id))

    def interrupt_context(self, context: Context) -> None:
        """Interrupt the cell that runs in it."""
        self._wire.do(operations.interrupt_context(self.id, context.id))

    def remove_context(self, context: Context) -> None:
        """End it."""
        self._wire.do(operations.remove_context(self.id, context.id))

    # Commands

    def exec(
        self, command: str | Sequence[str], *, stdin: str | bytes | None = None, cwd: str = "", env: Mapping[str, str] | None = None,
        timeout: float = 0.0, on_stdout: Told | None = None, on_stderr: Told | None = None, most: int = MOST_KEPT,
    ) -> Completed:  # fmt: skip
        """Run a command to its end: a program and its arguments, or a line for the shell."""
        process = self.start(command, cwd=cwd, env=env, timeout=timeout, stdin=stdin is not None, most=most)
        with process:
            if stdin is None:
                return process.wait(on_stdout=on_stdout, on_stderr=on_stderr)
            # a thread: a command that prints while it reads would else wait for us, and we for it
            data = stdin.encode() if isinstance(stdin, str) else stdin
            feeding = _Feeding(self._wire, self.id, process.pid, data)
            completed = process.wait(on_stdout=on_stdout, on_stderr=on_stderr)
            feeding.end()
            return completed

    def start(
        self, command: str | Sequence[str], *, stdin: bool = False, cwd: str = "", env: Mapping[str, str] | None = None,
        timeout: float = 0.0, tag: str = "", most: int = MOST_KEPT,
    ) -> Process:  # fmt: skip
        """Start a command, and be told its output while it runs; it runs on if nobody listens."""
        request = streams.start(self.id, command, cwd=cwd, env=env or {}, has_input=stdin, timeout=timeout, tag=tag)
        return Process(self._wire, self.id, self._wire.open(request), ProcessReader(most))

    def attach(self, pid: int, *, most: int = MOST_KEPT) -> Process:
        """A command that runs already, from now on."""
        return Process(self._wire, self.id, self._wire.open(streams.attach(self.id, pid)), ProcessReader(most))

    def processes(self) -> list[ProcessInfo]:
        """The commands that run."""
        return self._wire.do(operations.processes(self.id))


class Process:
    """A command that runs; iterate over what it prints."""

    def __init__(self, wire: Wire, session: str, stream: Stream, reader: ProcessReader) -> None:
        self._wire, self._session, self._stream, self._reader = wire, session, stream, reader
        self._pieces = iter(stream)
        self._news: list[Output] = []
        while not reader.pid and not reader.is_over and self._read():
            continue
        if not reader.pid:
            stream.close()
            reader.end()
        self.pid = reader.pid

    def _read(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._news += self._reader.feed(piece)
        return True

    def __iter__(self) -> Iterator[Output]:
        while True:
            while self._news:
                yield self._news.pop(0)
            if self._reader.is_over or not self._read():
                self._stream.close()
                return

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Listen no more; the command runs on."""
        self._stream.close()

    def wait(self, *, on_stdout: Told | None = None, on_stderr: Told | None = None) -> Completed:
        """Until it ends."""
        texts = Texts()
        for piece in self:
            told = on_stdout if piece.stream == "stdout" else on_stderr
            if told is not None and (text := texts.of(piece)):
                told(text)
        return self._reader.end()

    def write(self, data: str | bytes) -> None:
        """Feed its input; it was started with `stdin=True`."""
        self._wire.do(operations.send_input(self._session, self.pid, data.encode() if isinstance(data, str) else data))

    def close_stdin(self) -> None:
        """Its input is over."""
        self._wire.do(operations.close_input(self._session, self.pid))

    def terminate(self) -> bool:
        """Ask it to end; False: it had ended."""
        return self._wire.do(operations.send_signal(self._session, self.pid, "SIGTERM"))

    def kill(self) -> bool:
        """End it with all that it started; False: it had ended."""
        return self._wire.do(operations.send_signal(self._session, self.pid, "SIGKILL"))


class Files:
    """A session's files; paths that do not begin with / are below its user's home."""

    def __init__(self, wire: Wire, session: str) -> None:
        self._wire, self._session = wire, session

    def read(self, path: str, *, most: int = MOST_ANSWER) -> bytes:
        """A file's bytes; one with more than `most` is refused."""
        return self._wire.do(operations.read_file(self._session, path, most))

    def read_text(self, path: str, *, most: int = MOST_ANSWER) -> str:
        """A file's text, in UTF-8."""
        return self.read(path, most=most).decode()

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file, with the directories above it."""
        self._wire.do(operations.write_file(self._session, path, data.encode() if isinstance(data, str) else data))

    def list(self, path: str = ".", *, depth: int = 1) -> list[Entry]:
        """A directory's entries."""
        return self._wire.do(operations.list_directory(self._session, path, depth))

    def stat(self, path: str) -> Entry:
        """What is at a path; NotFoundError."""
        return self._wire.do(operations.stat(self._session, path))

    def exists(self, path: str) -> bool:
        """Whether anything is at a path."""
        return self._wire.do(operations.exists(self._session, path))

    def make_dir(self, path: str) -> bool:
        """Make a directory with those above it; False: it was there."""
        return self._wire.do(operations.make_directory(self._session, path))

    def move(self, source: str, target: str) -> Entry:
        """Give a file or a directory another path."""
        return self._wire.do(operations.move(self._session, source, target))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; what is not there is no failure."""
        self._wire.do(operations.remove(self._session, path))


class _Feeding:
    """A command's input on its way."""

    def __init__(self, wire: Wire, session: str, pid: int, data: bytes) -> None:
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._feed, args=(wire, session, pid, data), daemon=True)
        self._thread.start()

    def _feed(self, wire: Wire, session: str, pid: int, data: bytes) -> None:
        try:
            wire.do(operations.feed(session, pid, data))
        except Exception as error:  # noqa: BLE001 - told by `end`, in the caller's thread
            self._failure = error

    def end(self) -> None:
        """The command has ended, so its input has too."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def _tell_of_cell(
    news: Printed | Display, on_stdout: Told | None, on_stderr: Told | None, on_display: Callable[[Display], object] | None
) -> None:  # fmt: skip
    if isinstance(news, Display):
        if on_display is not None:
            on_display(news)
    elif (told := on_stdout if news.stream == "stdout" else on_stderr) is not None:
        told(news.text)


def _asked(steps: Steps[Answered], gateway: Gateway | None, data_dir: str | os.PathLike[str] | None) -> Answered:
    """One operation without a session."""
    wire = Wire(gateway or find_gateway(data_dir))
    try:
        return wire.do(steps)
    finally:
        wire.close()
