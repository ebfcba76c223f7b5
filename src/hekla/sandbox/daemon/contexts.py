"""Interpreter contexts: places where code runs cell by cell and variables stay, told apart by id.

The daemon's side of `kernel.py`. One cell at a time in each context, the others wait in order; a context whose process dies says so to
whoever waits, and begins anew with the next cell. Other languages run a program per cell and keep nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
from collections import deque
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from hekla.sandbox.daemon.kernel import FORKED, LOADED, READY, SAVED
from hekla.sandbox.daemon.nursery import LOADING_S
from hekla.sandbox.daemon.printed import Heard, Printed
from hekla.sandbox.daemon.processes import MARK, Command, CommandError, Identity, Processes, _marked
from hekla.sandbox.daemon.telling import LONGEST_MESSAGE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from hekla.sandbox.daemon.nursery import Nursery

MOST_CONTEXTS = 64
INTERRUPT_GRACE_S = 2.0
"""After an interrupt a cell has so long to end; then its process is ended."""
INTERRUPT_EVERY_S = 0.1
START_TIMEOUT_S = 10.0
LOOK_EVERY_S = 0.01
FILL_AFTER_S = 0.05
"""A copy's variables come once nobody has asked for them for so long: its siblings are told whose they are first."""
PIECE = 1 << 20
PRINTED = {"stdout": b'{"type": "stdout"', "stderr": b'{"type": "stderr"'}
"""How messages begin that are put together with those before them."""
LONGEST_JOINED = 64 * 1024
PROGRAMS = {"bash": ("bash", "-c"), "javascript": ("node", "-e"), "js": ("node", "-e"), "r": ("Rscript", "-e")}
"""Languages that keep nothing between cells."""
PYTHON = "python"

Message = dict[str, Any]


class Context:
    """One context."""

    def __init__(self, language: str, cwd: str, user: Identity, envs: Mapping[str, str]) -> None:
        self.id = secrets.token_hex(16)
        self.language = language
        self.cwd = cwd
        self.user = user
        self.mark = secrets.token_hex(8)
        self.is_in(envs)
        self.turn = asyncio.Lock()
        self.is_wanted = asyncio.Event()
        """Somebody asks something of it: variables that are to come may wait no longer."""
        self.cells = 0
        self.trouble = ""
        """Why it came without the variables that it should have come with: its next cell says so."""
        self.filling: asyncio.Future[None] | None = None
        """Its variables are on their way."""
        self.process: Process | None = None
        self.command: Command | None = None

    def is_in(self, envs: Mapping[str, str]) -> None:
        """It is in a sandbox of such an environment."""
        self.envs = {**envs, **self.user.environment(), MARK: self.mark}

    def wanted(self) -> asyncio.Lock:
        """Its turn, for who asks something of it."""
        self.is_wanted.set()
        return self.turn

    def kill(self) -> None:
        """End what runs in it, with everything that carries its mark."""
        if self.filling is not None:
            self.filling.cancel()
        if self.process is not None:
            self.process.kill()
            self.process = None
        for pid in _marked(self.mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


class Process:
    """A Python interpreter at the other end of a channel."""

    def __init__(self, pid: int, channel: socket.socket, outputs: tuple[int, int]) -> None:
        """`outputs`: where what its programs print is read, standard output and error."""
        self.pid = pid
        self._channel = channel
        self._printed = (Printed("stdout", outputs[0], self._wake), Printed("stderr", outputs[1], self._wake))
        self._rest = b""
        self._lines: deque[bytes] = deque()
        """Messages that came whole, as they came."""
        self._is_heard = False
        self._is_over = False
        """It is gone, and its programs' last words were read."""
        self._told: deque[Message] = deque()
        """What programs have printed that is told before the next message."""
        self._woken: asyncio.Future[None] | None = None

    def keep_all(self, is_cell: bool) -> None:
        """Whether a cell runs, whose programs wait if they print faster than its client reads."""
        for one in self._printed:
            one.keeps_all = is_cell

    async def ask(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a request."""
        loop = asyncio.get_running_loop()
        data = json.dumps(message).encode("utf-8", "surrogatepass") + b"\n"
        if descriptors:
            socket.send_fds(self._channel, [data], list(descriptors))
        else:
            await loop.sock_sendall(self._channel, data)

    async def next(self) -> Message | None:
        """What it tells next; None: it is gone.

        What it printed meanwhile is one message: `print` writes twice a line, and each message of its own costs daemon, gateway and
        client 0.8 ms together (16,000 lines took 25 s).
        """
        while not self._lines:
            data = await self._receive()
            if not data or len(self._rest) > 2 * LONGEST_MESSAGE:
                return None
            self._part(data)
        return self._next_of_lines()

    async def next_of_cell(self) -> Message | None:
        """What it tells next, or what its programs print meanwhile; None: it is gone.

        A pipe holds 64 KiB, and a program that prints more stands still until it is read.
        """
        while not self._told and not self._lines and not self._is_over:
            data = self._received()  # first: programs may print faster than they are read
            if data is None:
                self._tell_printed()
                if not self._told:
                    await self._until_woken()
                continue
            if data and len(self._rest) <= 2 * LONGEST_MESSAGE:
                self._part(data)
            else:
                self._is_over = True
            if self._lines or self._is_over:
                # what programs printed before that. Once: who goes on printing is told with what the cell tells next
                for one in self._printed:
                    one.read()
                self._tell_printed()
        if self._told:
            return self._told.popleft()
        return self._next_of_lines() if self._lines else None

    def _tell_printed(self) -> None:
        self._told += ({"type": one.name, "text": text} for one in self._printed if (text := one.text()))

    def _part(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(whole)

    def _next_of_lines(self) -> Message | None:
        told = self._taken()
        if told is None or told.get("type") not in PRINTED:
            return told
        texts = [str(told.get("text", ""))]
        size = len(texts[0])
        while self._lines and size < LONGEST_JOINED and self._lines[0].startswith(PRINTED[told["type"]]):
            size += len(self._lines[0])
            more = self._taken()
            if more is None:
                return None
            texts.append(str(more.get("text", "")))
        return {**told, "text": "".join(texts)}

    def _taken(self) -> Message | None:
        line = self._lines.popleft()
        try:
            told = json.loads(line)
        except ValueError:  # the code in it wrote into the channel: nothing that it says can be believed
            return None
        return told if isinstance(told, dict) else None

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def interrupt(self) -> None:
        """As Ctrl-C."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End it and its process group."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        self.close()

    async def _receive(self) -> bytes:
        if self._channel.fileno() < 0:
            return b""
        self._is_heard = True
        try:
            return await asyncio.get_running_loop().sock_recv(self._channel, 256 * 1024)
        except OSError:
            return b""
        finally:
            self._is_heard = False

    def _received(self) -> bytes | None:
        """Some bytes of what it tells; empty: it is gone; None: it has told nothing yet."""
        try:
            return self._channel.recv(256 * 1024)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    async def _until_woken(self) -> None:
        """Wait until it tells something, or something is printed."""
        loop = asyncio.get_running_loop()
        number = self._channel.fileno()
        for one in self._printed:
            one.gather()
        self._is_heard = True
        self._woken = loop.create_future()
        loop.add_reader(number, self._wake)
        try:
            await self._woken
        finally:
            loop.remove_reader(number)
            self._is_heard, self._woken = False, None

    def close(self) -> None:
        """Let go of its ends; whoever hears it now is told that it is gone, and then the channel goes with the object."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        if not self._is_heard:
            self._channel.close()
        for one in self._printed:
            one.close()


class Contexts:
    """All contexts of the sandbox."""

    def __init__(self, processes: Processes, nursery: Nursery) -> None:
        self._processes = processes
        self.journal = processes.journal
        self._nursery = nursery
        self._contexts: dict[str, Context] = {}
        self._defaults: dict[str, str] = {}
        """By language: the context of cells that name none."""
        self._spare: tuple[Process, tuple[int, int]] | None = None
        """An interpreter that is nobody's yet, and the user and group that it runs as."""

    async def make_spare(self) -> None:
        """Have an interpreter ready for the first context of who runs cells that name nobody: a first cell waits 4 ms less.

        It knows neither variables nor secrets, and rolls other dice once it is somebody's.
        """
        if self._spare is not None or self._contexts:
            return
        try:
            user = Identity.of()
            await self._until_loaded()
            process = self._born(user, user.home, {})
            await self._until_ready(process)
        except (CommandError, OSError):  # no process or memory is left for it: the first cell will say so
            return
        if self._contexts:
            process.kill()
        else:
            self._spare = process, (user.uid, user.gid)

    def let_spare_go(self) -> None:
        """Nobody ran a cell for long; its memory is more than the next may wait."""
        if self._spare is not None:
            self._spare[0].kill()
            self._spare = None

    def listed(self) -> list[Context]:
        """In the order in which they were made."""
        return list(self._contexts.values())

    def find(self, context_id: str) -> Context:
        """A context by its id."""
        try:
            return self._contexts[context_id]
        except KeyError:
            raise CommandError(f"there is no context {context_id}", "not_found") from None

    def default(self, language: str = "") -> Context:
        """The context of a language for cells that name none."""
        language = _language(language)
        if self._defaults.get(language) not in self._contexts:
            self._defaults[language] = self.create(language).id
        return self._contexts[self._defaults[language]]

    def create(self, language: str = "", cwd: str = "", user: str = "") -> Context:
        """Another context."""
        language = _language(language)
        if len(self._contexts) >= MOST_CONTEXTS:
            raise CommandError(f"{MOST_CONTEXTS} contexts are open already; remove one", "resource_exhausted")
        identity = Identity.of(user)
        if cwd and not os.path.isdir(cwd):
            raise CommandError(f'the working directory "{cwd}" does not exist')
        context = Context(language, cwd or identity.home, identity, self._processes.environment)
        self._contexts[context.id] = context
        return context

    def remove(self, context_id: str) -> None:
        """End a context."""
        context = self.find(context_id)
        context.kill()
        del self._contexts[context_id]

    def restart(self, context_id: str) -> Context:
        """Begin it anew: its variables are gone, its id stays."""
        context = self.find(context_id)
        context.kill()
        return context

    def interrupt(self, context_id: str) -> None:
        """Interrupt the cell that runs in it."""
        context = self.find(context_id)
        if context.command is not None:
            self._processes.kill(context.command)
        elif context.process is not None:
            context.process.interrupt()

    async def fork(self, context_id: str) -> Context:
        """Another context that goes on from where this one is: its variables come along."""
        context = self.find(context_id)
        copy = self.create(context.language, context.cwd, context.user.name)
        if context.language != PYTHON:
            return copy
        async with context.wanted():
            process = await self._process(context)
            own, its = socket.socketpair()
            heard = Heard()
            try:
                await process.ask({"op": "fork"}, (its.fileno(), *heard.written))
                told = await process.next()
            finally:
                its.close()
                heard.close_written()
            if told is None or told.get("type") != FORKED:
                own.close()
                heard.close()
                self.remove(copy.id)
                raise CommandError(f"context {context_id} could not be forked", "unavailable")
        own.setblocking(False)
        copy.process = Process(told["pid"], own, heard.outputs)
        await self._until_ready(copy.process)
        copy.cells = context.cells
        return copy

    async def save(self) -> tuple[list[dict[str, Any]], list[bytes], list[str]]:
        """All contexts: what they are, the variables of each, and what had to be left out. None stops for longer than it is written."""
        told: list[dict[str, Any]] = []
        datas: list[bytes] = []
        left_out: list[str] = []
        for context in self.listed():
            async with context.wanted():
                data, missing = await self._written(context)
            is_default = self._defaults.get(context.language) == context.id
            told.append({
                "id": context.id, "language": context.language, "cwd": context.cwd, "user": context.user.name,
                "cells": context.cells, "is_default": is_default, "has_variables": bool(data),
            })  # fmt: skip
            datas.append(data)
            left_out += [f"{context.id}: {one}" for one in missing]
        return told, datas, left_out

    async def add_variables(self, envs: Mapping[str, str]) -> None:
        """More of the environment, for contexts that are open already: a sandbox was continued before it was claimed."""
        for context in self.listed():
            context.envs.update(envs)
            if context.process is not None:
                await context.process.ask({"op": "env", "envs": dict(envs)})

    def renew_environment(self) -> None:
        """The sandbox's environment is another one: contexts were made before its pod was there. None of them runs yet."""
        for context in self.listed():
            context.is_in(self._processes.environment)

    def fill_soon(self) -> None:
        """Whoever has this sandbox has it now, so that variables which are to come wait little longer."""
        for context in self.listed():
            if context.filling is not None:
                asyncio.get_running_loop().call_later(FILL_AFTER_S, context.is_wanted.set)

    async def _written(self, context: Context) -> tuple[bytes, list[str]]:
        process = context.process
        if process is None:
            return b"", []
        copy = os.memfd_create("context")
        try:
            await process.ask({"op": "save"}, (copy,))
            told = await process.next()
            if told is None or told.get("type") != SAVED:
                return b"", ["its interpreter did not answer"]
            os.lseek(copy, 0, os.SEEK_SET)
            with open(copy, "rb", closefd=False) as file:  # one read ends after 2 GiB
                return file.read(), [str(one) for one in told["left_out"]]
        finally:
            os.close(copy)

    async def load(self, told: list[dict[str, Any]], sizes: list[int], file: IO[bytes]) -> None:
        """Make contexts that were saved, with their ids. Their variables come later: after `fill_soon`, or when somebody asks something of one.

        Of eight copies of a session none is slower for that, and who made them has them five times sooner.
        """
        for one, size in zip(told, sizes):
            context = self.create(one["language"], one["cwd"] if os.path.isdir(one["cwd"]) else "", one["user"])
            del self._contexts[context.id]
            context.id, context.cells = one["id"], one["cells"]
            self._contexts[context.id] = context
            if one["is_default"]:
                self._defaults[context.language] = context.id
            if one["has_variables"]:
                saved = _own_copy(file, size)
                await context.turn.acquire()  # before anybody's cell
                context.filling = asyncio.ensure_future(self._fill(context, saved))
                context.filling.add_done_callback(partial(_is_filled, context, saved))

    async def _fill(self, context: Context, saved: int) -> None:
        await context.is_wanted.wait()
        try:
            context.trouble = await self._filled(context, saved)
        except (CommandError, OSError) as error:
            context.trouble = str(error)

    async def _filled(self, context: Context, saved: int) -> str:
        process = await self._process(context)
        await process.ask({"op": "load", "cells": context.cells}, (saved,))
        answer = await process.next()
        return str(answer["problem"]) if answer and answer.get("type") == LOADED else "its interpreter did not answer"

    async def run(
        self, context: Context, code: str, envs: Mapping[str, str] | None = None, timeout_s: float = 0.0
    ) -> AsyncGenerator[Message, None]:
        """Run one cell: stdout, stderr, result and error messages as they come. Leaving early interrupts it."""
        async with context.wanted():
            context.cells += 1
            if context.trouble:
                text = f"this session's variables could not be brought along: {context.trouble}\n"
                context.trouble = ""
                yield {"type": "stderr", "text": text}
            cell = (
                self._python(context, code, envs or {})
                if context.language == PYTHON
                else self._program(context, code, envs or {})
            )
            late = asyncio.ensure_future(self._end_late(context, timeout_s)) if timeout_s > 0 else None
            is_whole = False
            try:
                async for message in cell:
                    yield message
                is_whole = True
            finally:
                if late is not None:
                    late.cancel()
                await cell.aclose()
                if not is_whole:
                    await self._stop(context)

    async def _python(self, context: Context, code: str, envs: Mapping[str, str]) -> AsyncGenerator[Message, None]:
        try:
            process = await self._process(context)
            await process.ask({"op": "run", "code": code, "envs": dict(envs)})
        except (CommandError, OSError) as error:  # the answer has begun
            context.kill()
            yield {"type": "error", "name": "KernelDied", "value": str(error), "traceback": ""}
            return
        process.keep_all(True)
        try:
            while (told := await process.next_of_cell()) is not None:
                if told["type"] == "end":
                    return
                yield told
        finally:
            process.keep_all(False)
        if context.process is process:
            context.kill()
        yield {
            "type": "error",
            "name": "KernelDied",
            "value": "the interpreter ended while it ran this cell, by its own code or because the sandbox has no more memory; "
            "its variables are gone",
            "traceback": "",
        }

    async def _program(self, context: Context, code: str, envs: Mapping[str, str]) -> AsyncGenerator[Message, None]:
        program, flag = PROGRAMS[context.language]
        command = self._processes.start([program, flag, code], cwd=context.cwd, envs=dict(envs), user=context.user.name)
        context.command = command
        try:
            listener = command.listen()
            while (piece := await listener.next()) is not None:
                yield {"type": piece[0], "text": piece[1].decode("utf-8", "replace")}
        finally:
            context.command = None
            self._processes.kill(command)
        if command.exit_code:
            value = f"{program} ended with exit code {command.exit_code}"
            yield {"type": "error", "name": "ExitCode", "value": value, "traceback": ""}

    async def _end_late(self, context: Context, timeout_s: float) -> None:
        """Interrupt a cell whose time is over, again while it may not have heard, and end its process if it does not listen."""
        await asyncio.sleep(timeout_s)
        for _ in range(int(INTERRUPT_GRACE_S / INTERRUPT_EVERY_S)):
            self.interrupt(context.id)
            await asyncio.sleep(INTERRUPT_EVERY_S)
        context.kill()

    async def _stop(self, context: Context) -> None:
        """Whoever ran a cell left: interrupt it, and end its process if it does not listen."""
        process = context.process
        if process is None:
            return
        process.interrupt()
        try:
            await asyncio.wait_for(_until_end(process), INTERRUPT_GRACE_S)
        except asyncio.TimeoutError:
            context.kill()

    async def _process(self, context: Context) -> Process:
        if context.process is not None:
            return context.process
        if (spare := await self._spare_for(context)) is not None:
            return spare
        await self._until_loaded()
        if (
            self._contexts.get(context.id) is not context
        ):  # it was removed meanwhile, and nobody would end its interpreter
            raise CommandError(f"there is no context {context.id}", "not_found")
        process = context.process = self._born(context.user, context.cwd, context.envs)
        await self._until_ready(process)
        return process

    async def _spare_for(self, context: Context) -> Process | None:
        """What waits, now this context's, if it runs as the same user and is alive."""
        if self._spare is None or self._spare[1] != (context.user.uid, context.user.gid):
            return None
        (process, _), self._spare = self._spare, None
        context.process = process
        try:
            await process.ask({"op": "take", "cwd": context.cwd, "envs": context.envs})
            await self._until_ready(process)
        except (CommandError, OSError):
            process.kill()
            if context.process is not process:
                raise  # it was removed, or its time was over: no other one is begun for it
            context.process = None
            return None
        return process

    async def _until_loaded(self) -> None:
        """What interpreters are forked from may import for long, once; the daemon serves meanwhile."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOADING_S
        while not self._nursery.is_ready():
            if loop.time() >= until_s:
                raise CommandError("no interpreter can begin yet: modules are still being imported", "unavailable")
            await asyncio.sleep(LOOK_EVERY_S)

    def _born(self, user: Identity, cwd: str, envs: Mapping[str, str]) -> Process:
        try:
            pid, channel, outputs = self._nursery.bear(cwd=cwd, envs=dict(envs), uid=user.uid, gid=user.gid)
        except BlockingIOError as error:
            raise CommandError(
                f"no interpreter can begin: {error.strerror}; end some of this sandbox's processes",
                "resource_exhausted",
            ) from error
        return Process(pid, channel, outputs)

    @staticmethod
    async def _until_ready(process: Process) -> None:
        try:
            told = await asyncio.wait_for(process.next(), START_TIMEOUT_S)
        except asyncio.TimeoutError:
            told = None
        if told is None or told.get("type") != READY:
            process.kill()
            raise CommandError("the interpreter did not start", "unavailable")


def _is_filled(context: Context, saved: int, filling: asyncio.Future[None]) -> None:
    """A callback: who was cancelled before the first step does nothing more by itself."""
    os.close(saved)
    context.filling = None
    context.turn.release()


def _own_copy(file: IO[bytes], size: int) -> int:
    """Some bytes as a file of this sandbox's alone: what several are filled from is not for the code in any of them."""
    copy = os.memfd_create("context")
    try:
        with os.fdopen(os.dup(copy), "wb") as own:
            while size > 0:
                piece = file.read(min(size, PIECE))
                if not piece:
                    raise CommandError("the variables end early")
                size -= own.write(piece)
        os.lseek(copy, 0, os.SEEK_SET)
    except BaseException:
        os.close(copy)
        raise
    return copy


async def _until_end(process: Process) -> None:
    while (told := await process.next()) is not None and told.get("type") != "end":
        continue


def _language(name: str) -> str:
    language = name.lower() or PYTHON
    if language in (PYTHON, "python3"):
        return PYTHON
    if language not in PROGRAMS:
        raise CommandError(f'the language "{name}" is none of python, {", ".join(PROGRAMS)}')
    if shutil.which(PROGRAMS[language][0]) is None:
        raise CommandError(
            f'"{name}" needs the program {PROGRAMS[language][0]}, which this sandbox does not have', "unimplemented"
        )
    return language
