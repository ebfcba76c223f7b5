"""Sessions for programs that await: `AsyncSession`, the twin of `AsyncSession` in `session.py`; what both mean is in `operations.py`.

async with AsyncSession.create() as session:
    print((await session.run_code("6 * 7")).text)
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
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
from hekla_sdk.async_wire import AsyncStream, AsyncWire
from hekla_sdk.errors import RefusedError, UnreachableError
from hekla_sdk.exchange import MOST_ANSWER, Steps
from hekla_sdk.settings import Gateway, find_gateway
from hekla_sdk.streams import MOST_KEPT, CellReader, Printed, ProcessReader, Texts

Answered = TypeVar("Answered")
Piece = TypeVar("Piece")
Told = Callable[[str], object]


class AsyncSession:
    """A place of its own to run code in, until it is ended or its time is over."""

    def __init__(self, wire: AsyncWire, info: SessionInfo, *, is_ours: bool) -> None:
        self._wire, self._is_ours, self._is_closed = wire, is_ours, False
        self.id = info.id
        self.opened = info
        """The session as it was when this object was made; `info()` tells what it is now."""
        self.files = AsyncFiles(wire, info.id)

    @classmethod
    def create(
        cls, template: str = "base", *, namespace: str = "default", kind: str = "", snapshot: str = "", timeout: float = 0.0,
        freeze_after: float = 0.0, on_timeout: str = "kill", env: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None,
        network: Mapping[str, object] | None = None, budget: str = "", gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None,
    ) -> Opening:  # fmt: skip
        """Open a session: await it, or enter it with `async with`. `timeout`: seconds until its time is over, 0: as its template says. `freeze_after`: seconds without
        a request until it stands still, to wake with the next one. `budget`: what it may use before it stands still, as "cpu=90s,network=1Gi". Leaving the block ends it.
        """
        asked = operations.create(
            template=template, namespace=namespace, kind=kind, snapshot=snapshot, timeout=timeout, freeze_after=freeze_after,
            on_timeout=on_timeout, env=env or {}, metadata=metadata or {}, network=network or {}, budget=budget, idempotency_key=secrets.token_hex(16),
        )  # fmt: skip
        return Opening(_opened(gateway or find_gateway(data_dir), asked, is_ours=True))

    @classmethod
    def connect(cls, session: str, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> Opening:  # fmt: skip
        """A session that is there already. Leaving the block does not end it."""
        return Opening(_opened(gateway or find_gateway(data_dir), operations.info(session), is_ours=False))

    @classmethod
    async def all(cls, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> list[SessionInfo]:  # fmt: skip
        """All sessions of the key's owner, the newest first."""
        return await _asked(operations.sessions(), gateway, data_dir)

    @classmethod
    async def templates(cls, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> list[Template]:  # fmt: skip
        """What sessions can be made from."""
        return await _asked(operations.templates(), gateway, data_dir)

    @classmethod
    async def snapshots(cls, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> list[Snapshot]:  # fmt: skip
        """All snapshots of the key's owner."""
        return await _asked(operations.snapshots(), gateway, data_dir)

    @classmethod
    async def delete_snapshot(cls, snapshot: str, *, gateway: Gateway | None = None, data_dir: str | os.PathLike[str] | None = None) -> None:  # fmt: skip
        """Forget a snapshot, by its id."""
        await _asked(operations.delete_snapshot(snapshot), gateway, data_dir)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        try:
            if self._is_ours:
                await self.kill()
        except (RefusedError, UnreachableError):
            if kind is None:  # what went wrong in the block says more
                raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Give the connections back; the session goes on."""
        if not self._is_closed:  # its forks may use them still
            self._is_closed = True
            await self._wire.close()

    # What becomes of it

    async def info(self) -> SessionInfo:
        """The session as it is now."""
        return await self._wire.do(operations.info(self.id))

    async def kill(self) -> bool:
        """End it; False: it had ended."""
        return await self._wire.do(operations.kill(self.id))

    async def pause(self, *, memory: bool = True) -> SessionInfo:
        """Put it to sleep; the next request inside wakes it. Without `memory`, files alone are kept and its sandbox is given back."""
        return await self._wire.do(operations.act(self.id, "pause", {"memory": memory}))

    async def resume(self) -> SessionInfo:
        """Wake it."""
        return await self._wire.do(operations.act(self.id, "resume", {}))

    async def freeze(self) -> SessionInfo:
        """Let it stand still, in memory; the next request inside wakes it."""
        return await self._wire.do(operations.act(self.id, "freeze", {}))

    async def set_timeout(self, timeout: float) -> SessionInfo:
        """End it so many seconds from now."""
        return await self._wire.do(operations.act(self.id, "timeout", {"timeout": timeout}))

    async def set_budget(self, budget: str) -> SessionInfo:
        """What it may use from now on, as "cpu=90s,network=1Gi"; "" is no bound. One that stands still for want of it goes on where it is raised."""
        return await self._wire.do(operations.act(self.id, "budget", {"budget": budget}))

    async def fork(self, count: int = 1) -> list[AsyncSession]:
        """Copies of it with its files and variables; RefusedError if any of them could not be made, and then none is left."""
        made, refused = await self._wire.do(operations.fork(self.id, count))
        forks = [AsyncSession(self._wire.shared(), one, is_ours=True) for one in made]
        if refused:
            for one in forks:
                await one.__aexit__(None, None, None)
            raise refused[0]
        return forks

    async def snapshot(self, name: str = "") -> Snapshot:
        """Keep it as it is now."""
        return await self._wire.do(operations.snapshot(self.id, name))

    async def usage(self) -> Usage:
        """What it has used."""
        return await self._wire.do(operations.usage(self.id))

    def url(self, port: int, path: str = "/") -> str:
        """Where a server inside that listens on a port is reached, with `headers`."""
        rest = operations.session_path(self.id, f"ports/{port}/{path.lstrip('/')}")
        return f"{self._wire.gateway.url}/hekla/v1/{rest}"

    @property
    def headers(self) -> dict[str, str]:
        """What a request to `url` must carry; the key goes no further than the gateway."""
        return {"authorization": f"Bearer {self._wire.gateway.key}"}

    # Code

    async def run_code(
        self, code: str, *, context: Context | str = "", language: str = "", env: Mapping[str, str] | None = None, timeout: float = 0.0,
        on_stdout: Told | None = None, on_stderr: Told | None = None, on_display: Callable[[Display], object] | None = None,
        most: int = MOST_KEPT,
    ) -> Result:  # fmt: skip
        """Run a cell; its variables are there for the next one. Over `timeout` seconds it is interrupted, which its `error` tells."""
        reader, context_id = CellReader(most), context.id if isinstance(context, Context) else context
        request = streams.execute(
            self.id, code, context=context_id, language=language, env=env or {}, timeout=timeout
        )  # fmt: skip
        async with await self._wire.open(request) as stream:
            async for piece in stream:
                for news in reader.feed(piece):
                    await _tell_of_cell(news, on_stdout, on_stderr, on_display)
        return reader.end()

    async def contexts(self) -> list[Context]:
        """Its interpreters."""
        return await self._wire.do(operations.contexts(self.id))

    async def create_context(self, language: str = "python", *, cwd: str = "") -> Context:
        """Another interpreter, with variables of its own."""
        return await self._wire.do(operations.create_context(self.id, language, cwd))

    async def restart_context(self, context: Context) -> None:
        """Let it forget its variables."""
        await self._wire.do(operations.restart_context(self.id, context.id))

    async def interrupt_context(self, context: Context) -> None:
        """Interrupt the cell that runs in it."""
        await self._wire.do(operations.interrupt_context(self.id, context.id))

    async def remove_context(self, context: Context) -> None:
        """End it."""
        await self._wire.do(operations.remove_context(self.id, context.id))

    # Commands

    async def exec(
        self, command: str | Sequence[str], *, stdin: str | bytes | None = None, cwd: str = "", env: Mapping[str, str] | None = None,
        timeout: float = 0.0, on_stdout: Told | None = None, on_stderr: Told | None = None, most: int = MOST_KEPT,
    ) -> Completed:  # fmt: skip
        """Run a command to its end: a program and its arguments, or a line for the shell."""
        process = await self.start(command, cwd=cwd, env=env, timeout=timeout, stdin=stdin is not None, most=most)
        async with process:
            if stdin is None:
                return await process.wait(on_stdout=on_stdout, on_stderr=on_stderr)
            # a task: a command that prints while it reads would else wait for us, and we for it
            data = stdin.encode() if isinstance(stdin, str) else stdin
            feeding = asyncio.ensure_future(self._wire.do(operations.feed(self.id, process.pid, data)))
            try:
                completed = await process.wait(on_stdout=on_stdout, on_stderr=on_stderr)
                await feeding
            finally:
                feeding.cancel()
            return completed

    async def start(
        self, command: str | Sequence[str], *, stdin: bool = False, cwd: str = "", env: Mapping[str, str] | None = None,
        timeout: float = 0.0, tag: str = "", most: int = MOST_KEPT,
    ) -> AsyncProcess:  # fmt: skip
        """Start a command, and be told its output while it runs; it runs on if nobody listens."""
        request = streams.start(self.id, command, cwd=cwd, env=env or {}, has_input=stdin, timeout=timeout, tag=tag)
        return await AsyncProcess(self._wire, self.id, await self._wire.open(request), ProcessReader(most)).begun()

    async def attach(self, pid: int, *, most: int = MOST_KEPT) -> AsyncProcess:
        """A command that runs already, from now on."""
        stream = await self._wire.open(streams.attach(self.id, pid))
        return await AsyncProcess(self._wire, self.id, stream, ProcessReader(most)).begun()

    async def processes(self) -> list[ProcessInfo]:
        """The commands that run."""
        return await self._wire.do(operations.processes(self.id))


class Opening:
    """A session that is being opened: `await` it, or enter it with `async with`."""

    def __init__(self, opening: Coroutine[object, object, AsyncSession]) -> None:
        self._opening = opening
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[object, object, AsyncSession]:
        return self._opening.__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._opening
        return self._session

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        if self._session is not None:
            await self._session.__aexit__(kind, error, trace)


class AsyncProcess:
    """A command that runs; iterate over what it prints."""

    def __init__(self, wire: AsyncWire, session: str, stream: AsyncStream, reader: ProcessReader) -> None:
        self._wire, self._session, self._stream, self._reader = wire, session, stream, reader
        self._pieces = aiter(stream)
        self._news: list[Output] = []
        self.pid = 0

    async def begun(self) -> AsyncProcess:
        """Itself, once its number is known."""
        reader = self._reader
        while not reader.pid and not reader.is_over and await self._read():
            continue
        if not reader.pid:
            await self._stream.close()
            reader.end()
        self.pid = reader.pid
        return self

    async def _read(self) -> bool:
        piece = await anext(self._pieces, None)
        if piece is None:
            return False
        self._news += self._reader.feed(piece)
        return True

    async def __aiter__(self) -> AsyncIterator[Output]:
        while True:
            while self._news:
                yield self._news.pop(0)
            if self._reader.is_over or not await self._read():
                await self._stream.close()
                return

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # fmt: skip
        await self.close()

    async def close(self) -> None:
        """Listen no more; the command runs on."""
        await self._stream.close()

    async def wait(self, *, on_stdout: Told | None = None, on_stderr: Told | None = None) -> Completed:
        """Until it ends."""
        texts = Texts()
        async for piece in self:
            told = on_stdout if piece.stream == "stdout" else on_stderr
            if told is not None and (text := texts.of(piece)):
                await _told(told, text)
        return self._reader.end()

    async def write(self, data: str | bytes) -> None:
        """Feed its input; it was started with `stdin=True`."""
        await self._wire.do(
            operations.send_input(self._session, self.pid, data.encode() if isinstance(data, str) else data)
        )

    async def close_stdin(self) -> None:
        """Its input is over."""
        await self._wire.do(operations.close_input(self._session, self.pid))

    async def terminate(self) -> bool:
        """Ask it to end; False: it had ended."""
        return await self._wire.do(operations.send_signal(self._session, self.pid, "SIGTERM"))

    async def kill(self) -> bool:
        """End it with all that it started; False: it had ended."""
        return await self._wire.do(operations.send_signal(self._session, self.pid, "SIGKILL"))


class AsyncFiles:
    """A session's files; paths that do not begin with / are below its user's home."""

    def __init__(self, wire: AsyncWire, session: str) -> None:
        self._wire, self._session = wire, session

    async def read(self, path: str, *, most: int = MOST_ANSWER) -> bytes:
        """A file's bytes; one with more than `most` is refused."""
        return await self._wire.do(operations.read_file(self._session, path, most))

    async def read_text(self, path: str, *, most: int = MOST_ANSWER) -> str:
        """A file's text, in UTF-8."""
        return (await self.read(path, most=most)).decode()

    async def write(self, path: str, data: str | bytes) -> None:
        """Write a file, with the directories above it."""
        await self._wire.do(
            operations.write_file(self._session, path, data.encode() if isinstance(data, str) else data)
        )

    async def list(self, path: str = ".", *, depth: int = 1) -> list[Entry]:
        """A directory's entries."""
        return await self._wire.do(operations.list_directory(self._session, path, depth))

    async def stat(self, path: str) -> Entry:
        """What is at a path; NotFoundError."""
        return await self._wire.do(operations.stat(self._session, path))

    async def exists(self, path: str) -> bool:
        """Whether anything is at a path."""
        return await self._wire.do(operations.exists(self._session, path))

    async def make_dir(self, path: str) -> bool:
        """Make a directory with those above it; False: it was there."""
        return await self._wire.do(operations.make_directory(self._session, path))

    async def move(self, source: str, target: str) -> Entry:
        """Give a file or a directory another path."""
        return await self._wire.do(operations.move(self._session, source, target))

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; what is not there is no failure."""
        await self._wire.do(operations.remove(self._session, path))


async def _tell_of_cell(
    news: Printed | Display, on_stdout: Told | None, on_stderr: Told | None, on_display: Callable[[Display], object] | None
) -> None:  # fmt: skip
    if isinstance(news, Display):
        if on_display is not None:
            await _told(on_display, news)
    elif (told := on_stdout if news.stream == "stdout" else on_stderr) is not None:
        await _told(told, news.text)


async def _asked(steps: Steps[Answered], gateway: Gateway | None, data_dir: str | os.PathLike[str] | None) -> Answered:
    """One operation without a session."""
    wire = AsyncWire(gateway or find_gateway(data_dir))
    try:
        return await wire.do(steps)
    finally:
        await wire.close()


async def _opened(gateway: Gateway, steps: Steps[SessionInfo], *, is_ours: bool) -> AsyncSession:
    wire = AsyncWire(gateway)
    try:
        return AsyncSession(wire, await wire.do(steps), is_ours=is_ours)
    except BaseException:
        await wire.close()
        raise


async def _told(whom: Callable[[Piece], object], piece: Piece) -> None:
    """Callbacks may be plain functions or coroutines."""
    answer = whom(piece)
    if inspect.isawaitable(answer):
        await answer
