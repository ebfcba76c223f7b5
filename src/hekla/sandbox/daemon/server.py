"""The daemon itself: reads how it was started, forks its nursery before it learns a secret, and serves every dialect on its listeners.

    python hekla-daemon.pyz --listen unix:/run/hekla/daemon.sock --listen 127.0.0.1:49983 --workspace /workspace

Secrets come by a descriptor (`--secrets-fd`) as one JSON document and are never in the environment, where every command would see them:
`access_token` (E2B's dialect), `public_key`, `audience`, `session`, `token_key` (AgentCube's). PICOD_AUTH_PUBLIC_KEY is taken as picod takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hekla.sandbox.daemon import picod
from hekla.sandbox.daemon.code_interpreter import CodeInterpreter
from hekla.sandbox.daemon.contexts import Contexts
from hekla.sandbox.daemon.envd import CallError, Envd
from hekla.sandbox.daemon.http import HttpError, HttpServer
from hekla.sandbox.daemon.legacy import Legacy
from hekla.sandbox.daemon.nursery import Nursery
from hekla.sandbox.daemon.processes import Processes
from hekla.sandbox.daemon.tokens import Verifier
from hekla.sandbox.daemon.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hekla.sandbox.daemon.http import Answer, Request

NOT_FOR_COMMANDS = ("PICOD_AUTH_PUBLIC_KEY",)
_PR_SET_DUMPABLE = 4


@dataclass
class Options:
    """How the daemon was started."""

    listen: list[str] = field(default_factory=list)
    """`unix:PATH`, `HOST:PORT`, or `fd:N` for a socket that is open already."""
    workspace: str = "/"
    """What AgentCube's and agent-sandbox's dialects call the root; E2B's sees all files."""
    default_user: str = ""
    preload: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)


class Daemon:
    """All dialects over one sandbox."""

    def __init__(self, options: Options, nursery: Nursery) -> None:
        self._options = options
        hidden = {name: value for name, value in os.environ.items() if name not in NOT_FOR_COMMANDS}
        self.processes = Processes(hidden)
        self._workspace = Tree(options.workspace)
        self.contexts = Contexts(self.processes, nursery)
        self._interpreter = CodeInterpreter(self.contexts)
        self._legacy = Legacy(self.processes, self._workspace)
        self.claimed(options.secrets)

    def claimed(self, secrets: dict[str, str]) -> None:
        """Take secrets that were not there when it began; whatever runs goes on."""
        key = secrets.get("public_key", "")
        audience, session = secrets.get("audience", ""), secrets.get("session", "")
        verifier = None
        if key:
            verifier = Verifier(key, audience=audience, session=session, own_key=secrets.get("token_key", ""))
        self._picod = picod.Picod(self.processes, self._workspace, verifier)
        self._envd = self._make_envd(secrets.get("access_token", ""))

    def _make_envd(self, access_token: str) -> Envd:
        return Envd(self.processes, Tree("/"), access_token=access_token, default_user=self._options.default_user)

    async def handle(self, request: Request, answer: Answer) -> None:
        """Find the dialect of a request."""
        headers = request.headers  # AgentCube's router shows its token, E2B's clients none or a user's name
        if request.path == "/health" and (
            "picod" in headers.get("user-agent", "").lower()
            or headers.get("authorization", "").lower().startswith("bearer ")
        ):
            await answer.json(200, self._picod.health())
            return
        is_legacy = request.path == "/execute" and "x-sandbox-id" in request.headers
        order = (
            (self._picod, self._legacy, self._envd)
            if is_legacy
            else (self._picod, self._interpreter, self._envd, self._legacy)
        )
        for dialect in order:
            if await dialect.handle(request, answer):
                return

    @staticmethod
    def worded(request: Request | None, error: HttpError) -> dict[str, Any]:
        """An error in the dialect of the request."""
        if request is not None and request.path.startswith("/api/"):
            return picod.errors(error)
        if isinstance(error, CallError):
            code: object = (
                error.status if request is not None and request.path in ("/files", "/files/compose") else error.code
            )
            return {"code": code, "message": error.message}
        return {"code": error.code or error.status, "message": error.message}


async def serve(options: Options, nursery: Nursery) -> None:
    """Serve until SIGTERM or SIGINT."""
    daemon = Daemon(options, nursery)
    daemon.processes.begin()
    loop = asyncio.get_running_loop()
    server = HttpServer(daemon.handle, daemon.worded)
    listeners = [await _listen(loop, server, where) for where in options.listen]
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await stopping.wait()
    for listener in listeners:
        listener.close()
    daemon.processes.kill_all()


async def _listen(loop: asyncio.AbstractEventLoop, server: HttpServer, where: str) -> asyncio.AbstractServer:
    kind, _, rest = where.partition(":")
    if kind == "unix":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(rest)
        return await loop.create_unix_server(server.protocol, rest)
    if kind == "fd":
        opened = socket.socket(fileno=int(rest))
        make = loop.create_unix_server if opened.family == socket.AF_UNIX else loop.create_server
        return await make(server.protocol, sock=opened)
    host, _, port = where.rpartition(":")
    return await loop.create_server(server.protocol, host.strip("[]"), int(port), backlog=512)


def options_of(arguments: Sequence[str]) -> Options:
    """Read the command line; secrets are read from their descriptor later, when the nursery is born."""
    parser = argparse.ArgumentParser(
        prog="hekla-daemon", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="WHERE",
        help="unix:PATH, HOST:PORT or fd:N; may be given again",
    )
    parser.add_argument("--port", type=int, help="as picod: every address of this port")
    parser.add_argument("--workspace", default=os.getcwd(), help="root of AgentCube's and agent-sandbox's files")
    parser.add_argument("--default-user", default="", help="whom commands run as that name nobody")
    parser.add_argument("--preload", default="", help="modules that interpreters find imported, with commas between")
    parser.add_argument("--secrets-fd", type=int, default=-1, help="descriptor of a JSON document with secrets")
    read = parser.parse_args(arguments)
    listen = [*read.listen, *([f"0.0.0.0:{read.port}"] if read.port is not None else [])]
    if not listen:
        parser.error("say where to listen: --listen unix:PATH, HOST:PORT or fd:N")
    preload = [one for one in read.preload.split(",") if one]
    options = Options(listen=listen, workspace=read.workspace, default_user=read.default_user, preload=preload)
    options.secrets = {"fd": str(read.secrets_fd)} if read.secrets_fd >= 0 else {}
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon."""
    options = options_of(sys.argv[1:] if arguments is None else arguments)
    public_key = os.environ.pop("PICOD_AUTH_PUBLIC_KEY", "")
    nursery = Nursery.start(options.preload)
    # from here on there are secrets in memory: nobody of the same user may look into it
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if "fd" in options.secrets:
        with os.fdopen(int(options.secrets["fd"]), "rb") as file:
            options.secrets = json.load(file)
    if public_key:
        options.secrets.setdefault("public_key", public_key)
    asyncio.run(serve(options, nursery))
    return 0


if __name__ == "__main__":
    sys.exit(main())
