"""agent-sandbox's dialect: a command line that answers when it has ended, and files, as its Python runtime has them."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from hekla.sandbox.daemon.http import HttpError
from hekla.sandbox.daemon.picod import unless_left
from hekla.sandbox.daemon.processes import CommandError, Processes
from hekla.sandbox.daemon.tree import Tree, TreeError
from hekla.sandbox.daemon.uploads import Form

if TYPE_CHECKING:
    from hekla.sandbox.daemon.http import Answer, Request

TIMEOUT_S = 300.0


class Legacy:
    """The dialect over one sandbox."""

    def __init__(self, processes: Processes, workspace: Tree) -> None:
        self._processes = processes
        self._tree = workspace

    async def handle(self, request: Request, answer: Answer) -> bool:
        """Answer a request of this dialect; False: it is of another."""
        verb, _, path = request.path.lstrip("/").partition("/")
        try:
            if request.method == "GET" and request.path == "/":
                await answer.json(200, {"status": "ok", "message": "Sandbox Runtime is active."})
            elif request.method == "POST" and request.path == "/execute":
                await answer.json(200, await self._execute(request))
            elif request.method == "POST" and request.path == "/upload":
                await answer.json(200, await self._upload(request))
            elif request.method == "GET" and verb == "download":
                await self._download(path, answer)
            elif request.method == "GET" and verb == "list":
                await answer.json(200, [_listed(one) for one in await self._tree.listed(path or "/")])
            elif request.method == "GET" and verb == "exists":
                await answer.json(200, {"path": path, "exists": self._exists(path)})
            elif request.method == "DELETE" and verb == "delete":
                self._tree.remove(path)
                await answer.json(200, {"path": path, "deleted": True})
            else:
                return False
        except TreeError as error:
            status = {"not_found": 404, "denied": 403, "full": 507}.get(error.code, 400)
            raise HttpError(status, str(error), error.code) from error
        return True

    async def _execute(self, request: Request) -> dict[str, Any]:
        line = (await request.json()).get("command")
        if not isinstance(line, str) or not line.strip():
            raise HttpError(400, '"command" must be a command line', "invalid_argument")
        said = request.headers.get("x-sandbox-timeout", "")
        timeout_s = float(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0.0
        try:
            argv = shlex.split(line)
            command = self._processes.start(argv, cwd=self._tree.root, timeout_s=timeout_s or TIMEOUT_S)
        except (ValueError, CommandError) as error:
            return {"stdout": "", "stderr": f"Failed to execute command: {error}", "exit_code": 1, "timed_out": False}
        output = await unless_left(request, self._processes, command)
        return {
            "stdout": output["stdout"].decode("utf-8", "replace"),
            "stderr": output["stderr"].decode("utf-8", "replace"),
            "exit_code": 124 if command.timed_out else command.exit_code,
            "timed_out": command.timed_out,
        }

    async def _upload(self, request: Request) -> dict[str, Any]:
        async for part in Form(request).parts():
            if part.file_name:
                with self._tree.writer(part.file_name) as writer:
                    async for piece in part.pieces():
                        writer.write(piece)
                return {"message": f"File '{part.file_name}' uploaded successfully."}
        raise HttpError(400, 'the form has no part "file"', "invalid_argument")

    async def _download(self, path: str, answer: Answer) -> None:
        descriptor, _ = self._tree.open(path)
        with os.fdopen(descriptor, "rb") as file:
            await answer.begin(200, "application/octet-stream")
            while piece := file.read(256 * 1024):
                await answer.piece(piece)

    def _exists(self, path: str) -> bool:
        try:
            self._tree.stat(path)
        except TreeError as error:
            if error.code in ("not_found", "not_a_directory"):
                return False
            raise
        return True


def _listed(entry: Any) -> dict[str, Any]:
    name = os.fsencode(entry.name).decode("utf-8", "replace")
    return {"name": name, "size": entry.size, "type": entry.kind, "mod_time": entry.modified}
