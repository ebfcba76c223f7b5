"""AgentCube's dialect: commands that answer when they have ended, and files below a workspace."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import os
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from hekla.sandbox.daemon.asked import named_texts, text
from hekla.sandbox.daemon.http import HttpError, file_name
from hekla.sandbox.daemon.processes import Command, CommandError, Processes
from hekla.sandbox.daemon.tree import Entry, Tree, TreeError
from hekla.sandbox.daemon.uploads import Form, Part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hekla.sandbox.daemon.http import Answer, Request
    from hekla.sandbox.daemon.tokens import Verifier

VERSION = "0.0.1"
DEFAULT_TIMEOUT_S = 60.0
LONGEST_TIMEOUT_S = 24 * 3600.0
LARGEST_BODY = 32 * 1024 * 1024
LONGEST_OUTPUT = 16 * 1024 * 1024
"""Of one stream; what is more is dropped, and the answer says so."""
CUT = b"\n[output cut by the sandbox]\n"
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_STATUS = {"not_found": 404, "full": 507, "failed": 500}


class Picod:
    """The dialect over one sandbox."""

    def __init__(self, processes: Processes, workspace: Tree, verifier: Verifier | None) -> None:
        self._processes = processes
        self._tree = workspace
        self._verifier = verifier
        """Checks the bearer; None: whoever reaches the daemon may."""
        self._began = time.monotonic()

    async def handle(self, request: Request, answer: Answer) -> bool:
        """Answer a request of this dialect; False: it is of another."""
        path, method = request.path, request.method
        if not path.startswith("/api/"):
            return False
        self._check(request)
        try:
            if path == "/api/execute" and method == "POST":
                await answer.json(200, await self._execute(request))
            elif path == "/api/files" and method == "POST":
                await answer.json(200, await self._upload(request))
            elif path == "/api/files" and method == "GET":
                entries = await self._tree.listed(request.query.get("path") or "/")
                await answer.json(200, {"files": [_listed(one) for one in entries]})
            elif path.startswith("/api/files/") and method == "GET":
                await self._download(path[len("/api/files/") :], answer)
            else:
                return False
        except TreeError as error:
            raise HttpError(_STATUS.get(error.code, 400), str(error), error.code) from error
        except CommandError as error:
            raise HttpError(400, str(error), error.code) from error
        return True

    def health(self) -> dict[str, Any]:
        """What `GET /health` tells."""
        uptime_s = int(time.monotonic() - self._began)
        return {"status": "ok", "service": "PicoD", "version": VERSION, "uptime": f"{uptime_s}s"}

    async def _execute(self, request: Request) -> dict[str, Any]:
        asked = await request.json(LARGEST_BODY)
        argv = asked.get("command")
        if not isinstance(argv, list) or not argv or not all(isinstance(one, str) for one in argv):
            raise HttpError(400, '"command" must be a list of at least one text', "invalid_argument")
        timeout_s = duration_s(asked.get("timeout") or "60s")
        envs = named_texts(asked, "env")
        cwd = self._working_directory(text(asked, "working_dir"))
        began = datetime.datetime.now(datetime.timezone.utc)
        try:
            command = self._processes.start(argv, cwd=cwd, envs=envs, timeout_s=timeout_s)
        except CommandError as error:
            if error.code != "not_found":
                raise
            return _ran(began, b"", str(error).encode(), 1)
        output = await unless_left(request, self._processes, command)
        if command.timed_out:
            output["stderr"] += f"Command timed out after {timeout_s:g} seconds".encode()
            return _ran(began, output["stdout"], output["stderr"], 124)
        return _ran(began, output["stdout"], output["stderr"], command.exit_code or 0)

    def _working_directory(self, path: str) -> str:
        if path:
            self._tree.make(path)
            return self._tree.root.rstrip("/") + self._tree.enter(path)
        return self._tree.root

    async def _upload(self, request: Request) -> dict[str, Any]:
        if request.headers.get("content-type", "").lower().startswith("multipart/"):
            return await self._upload_form(request)
        asked = await request.json(LARGEST_BODY)
        path, content = asked.get("path"), asked.get("content")
        if not isinstance(path, str) or not path or not isinstance(content, str):
            raise HttpError(400, '"path" and "content" must be texts, and "path" not empty', "invalid_argument")
        try:
            data = base64.b64decode(content, validate=True)
        except ValueError as error:
            raise HttpError(400, f'"content" is not base64: {error}', "invalid_argument") from error
        self._tree.write(path, data, mode=mode_of(asked.get("mode")))
        return self._written(path)

    async def _upload_form(self, request: Request) -> dict[str, Any]:
        fields: dict[str, str] = {}
        path = staged = ""
        mode: int | None = None
        try:
            async for part in Form(request).parts():
                if not part.file_name and part.name != "file":
                    fields[part.name] = await part.text()
                    continue
                path, mode = fields.get("path", ""), mode_of(fields.get("mode"))
                staged = (
                    "" if path else f".hekla-{secrets.token_hex(8)}"
                )  # its place is told after it, or is its own name
                await self._received(part, path or staged, mode)
                fields.setdefault("name", part.file_name)
            if not path and not staged:
                raise HttpError(400, 'the form has no part "file"', "invalid_argument")
            if staged:
                path = fields.get("path") or fields["name"]
                if not path:
                    raise HttpError(400, 'the form needs a field "path"', "invalid_argument")
                self._tree.copy(staged, path, mode=mode)
        finally:
            if staged:
                with contextlib.suppress(TreeError):
                    self._tree.remove(staged)
        if (told := mode_of(fields.get("mode"))) != mode and told is not None:
            self._tree.set_mode(path, told)
        return self._written(path)

    async def _received(self, part: Part, path: str, mode: int | None) -> None:
        size = 0
        with self._tree.writer(path, mode=mode) as writer:
            async for piece in part.pieces():
                size += len(piece)
                if size > LARGEST_BODY:
                    raise HttpError(413, f"the file has more than {LARGEST_BODY} bytes", "full")
                writer.write(piece)

    def _written(self, path: str) -> dict[str, Any]:
        entry = self._tree.stat(path)
        return {
            "path": entry.path.lstrip("/"),
            "size": entry.size,
            "mode": _letters(entry),
            "modified": _time(entry.modified),
        }

    async def _download(self, path: str, answer: Answer) -> None:
        descriptor, _ = self._tree.open(path)
        with os.fdopen(descriptor, "rb") as file:
            await answer.begin(
                200, "application/octet-stream", {"content-disposition": f'attachment; filename="{file_name(path)}"'}
            )
            while piece := file.read(256 * 1024):
                await answer.piece(piece)

    def _check(self, request: Request) -> None:
        if self._verifier is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            raise HttpError(401, "Missing Authorization header", "unauthenticated")
        if scheme.lower() != "bearer" or not token:
            raise HttpError(401, "Invalid Authorization header format: use Bearer <token>", "unauthenticated")
        if refusal := self._verifier.refusal(token.strip(), time.time()):
            raise HttpError(401, f"Invalid token: {refusal}", "unauthenticated")


async def unless_left(request: Request, processes: Processes, command: Command) -> dict[str, bytes]:
    """All that a command says; nobody else hears it, so it is ended when who asked for it leaves."""

    def left(_: asyncio.Future[None]) -> None:
        processes.kill(command)

    request.gone.add_done_callback(left)
    try:
        output = await collected(command, LONGEST_OUTPUT)
    finally:
        request.gone.remove_done_callback(left)
    if request.gone.done():
        raise ConnectionError("the client left")
    return output


async def collected(command: Command, most: int) -> dict[str, bytes]:
    """All that a command says, so much of each stream at the most."""
    output = {"stdout": b"", "stderr": b""}
    pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    sizes = {"stdout": 0, "stderr": 0}
    async for name, data in heard(command):
        room = most - sizes[name]
        if room > 0:
            pieces[name].append(data[:room])
        if 0 < room < len(data):
            pieces[name].append(CUT)
        sizes[name] += len(data)
    for name in output:
        output[name] = b"".join(pieces[name])
    return output


async def heard(command: Command) -> AsyncIterator[tuple[str, bytes]]:
    """What a command says from now on."""
    listener = command.listen()
    try:
        while (piece := await listener.next()) is not None:
            yield piece
    finally:
        listener.close()


def duration_s(text: object) -> float:
    """A duration as Go writes it."""
    said = text if isinstance(text, str) else ""
    parts = _DURATION.findall(said)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != said or not 0 < total <= LONGEST_TIMEOUT_S:
        raise HttpError(400, f'timeout {text!r} is no duration from 1ms to 24h, as in "30s"', "invalid_argument")
    return total


def mode_of(text: object) -> int | None:
    """Permission bits in octal; None: as usual."""
    if not text:
        return None
    if not isinstance(text, str) or not re.fullmatch(r"0{0,8}[0-7]{1,3}", text):
        raise HttpError(400, f'mode {text!r} must be octal, from "0000" to "0777"', "invalid_argument")
    return int(text, 8)


def _ran(began: datetime.datetime, stdout: bytes, stderr: bytes, exit_code: int) -> dict[str, Any]:
    ended = datetime.datetime.now(datetime.timezone.utc)
    return {
        "stdout": stdout.decode("utf-8", "replace"),
        "stderr": stderr.decode("utf-8", "replace"),
        "exit_code": exit_code,
        "duration": (ended - began).total_seconds(),
        "start_time": began.isoformat().replace("+00:00", "Z"),
        "end_time": ended.isoformat().replace("+00:00", "Z"),
    }


def _listed(entry: Entry) -> dict[str, Any]:
    name = os.fsencode(entry.name).decode("utf-8", "replace")
    is_directory = entry.kind == "directory"
    return {
        "name": name,
        "size": entry.size,
        "modified": _time(entry.modified),
        "mode": _letters(entry),
        "is_dir": is_directory,
    }


def _letters(entry: Entry) -> str:
    first = {"directory": "d", "symlink": "L"}.get(entry.kind, "-")
    return first + "".join(letter if entry.mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx"))


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def errors(error: HttpError) -> dict[str, Any]:
    """An error in this dialect."""
    return {"error": error.message, "code": error.status, "detail": error.code}
