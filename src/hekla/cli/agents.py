"""How `hekla agent` reaches the gateway of sandboxes, and what it says to the daemon inside one.

Which gateway: $HEKLA_AGENTS_URL and $HEKLA_AGENTS_KEY, else the platform that runs on the data directory.
"""

import asyncio
import base64
import json
import os
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from hekla.cli.main import EXIT_UNREACHABLE, EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hekla.wire.client import HttpClient

Told = TypeVar("Told")
PIECE = 256 * 1024


class Gateway:
    """The gateway, for one command."""

    def __init__(self, client: "HttpClient", url: str, key: str) -> None:
        self._client, self._url, self._key = client, url.rstrip("/"), key

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """One call of Hekla's API; what it answers."""
        from hekla.wire.errors import WireError

        data = json.dumps(body).encode() if body is not None else b""
        headers = (("authorization", f"Bearer {self._key}"), ("content-type", "application/json"))
        try:
            answer = await self._client.request(method, f"{self._url}/hekla/v1/{path}", headers=headers, body=data)
        except WireError as error:
            raise CommandError(f"the gateway at {self._url} does not answer: {error}", EXIT_UNREACHABLE) from None
        assert isinstance(answer.body, bytes)
        if answer.status >= 400:
            raise CommandError(_sentence(answer.body, answer.status))
        return json.loads(answer.body) if answer.body else None

    async def run(
        self,
        session: str,
        argv: list[str],
        *,
        cwd: str,
        envs: dict[str, str],
        tag: str = "",
        size: tuple[int, int] | None = None,
    ) -> AsyncIterator[tuple[str, Any]]:
        """Start a command; what it says as it says it, and last `("end", exit code)`."""
        process: dict[str, Any] = {"cmd": argv[0], "args": argv[1:], "envs": envs}
        if cwd:
            process["cwd"] = cwd
        asked: dict[str, Any] = {"process": process, "stdin": size is not None}
        if tag:
            asked["tag"] = tag
        if size is not None:
            asked["pty"] = {"size": {"cols": size[0], "rows": size[1]}}
        async for message in self._stream(session, "process.Process/Start", asked):
            event = message.get("event", {})
            if "data" in event:
                for name, text in event["data"].items():
                    yield name, base64.b64decode(text)
            elif "end" in event:
                yield "end", event["end"].get("exitCode", 0)
            elif "start" in event:
                yield "start", event["start"]["pid"]

    async def _stream(self, session: str, call: str, asked: object) -> AsyncIterator[dict[str, Any]]:
        data = json.dumps(asked).encode()
        framed = struct.pack(">BI", 0, len(data)) + data
        headers = (
            ("authorization", f"Bearer {self._key}"),
            ("content-type", "application/connect+json"),
            ("connect-protocol-version", "1"),
        )
        async with self._client.stream("POST", self._inside(session, call), headers=headers, body=framed) as answer:
            if answer.status >= 400:
                raise CommandError(_sentence(await answer.read(), answer.status))
            left = b""
            async for piece in answer:
                left += piece
                while len(left) >= 5 and len(left) >= 5 + (length := int.from_bytes(left[1:5], "big")):
                    flags, text, left = left[0], left[5 : 5 + length], left[5 + length :]
                    message: dict[str, Any] = json.loads(text or b"{}")
                    if flags & 2:
                        if "error" in message:
                            raise CommandError(message["error"].get("message", "the call failed"))
                        return
                    yield message

    async def call(self, session: str, call: str, asked: object) -> Any:
        """One unary call of the daemon."""
        headers = (("authorization", f"Bearer {self._key}"), ("content-type", "application/json"))
        answer = await self._client.request(
            "POST", self._inside(session, call), headers=headers, body=json.dumps(asked).encode()
        )
        assert isinstance(answer.body, bytes)
        if answer.status >= 400:
            raise CommandError(_sentence(answer.body, answer.status))
        return json.loads(answer.body or b"{}")

    async def download(self, session: str, path: str, into: Callable[[bytes], object]) -> None:
        """A file out of a session, piece by piece."""
        url = f"{self._inside(session, 'files')}?{urlencode({'path': path})}"
        async with self._client.stream("GET", url, headers=(("authorization", f"Bearer {self._key}"),)) as answer:
            if answer.status >= 400:
                raise CommandError(_sentence(await answer.read(), answer.status))
            async for piece in answer:
                into(piece)

    async def upload(self, session: str, path: str, data: bytes) -> None:
        """A file into a session."""
        url = f"{self._inside(session, 'files')}?{urlencode({'path': path})}"
        headers = (("authorization", f"Bearer {self._key}"), ("content-type", "application/octet-stream"))
        answer = await self._client.request("POST", url, headers=headers, body=data)
        assert isinstance(answer.body, bytes)
        if answer.status >= 400:
            raise CommandError(_sentence(answer.body, answer.status))

    def _inside(self, session: str, path: str) -> str:
        return f"{self._url}/hekla/v1/sessions/{quote(session, safe='')}/daemon/{path}"


def run_with_gateway(data_dir: Path | None, work: Callable[[Gateway], Awaitable[Told]]) -> Told:
    """Do something with the gateway."""

    async def main() -> Told:
        from hekla.wire.client import HttpClient

        url, key = find_gateway(data_dir)
        async with HttpClient() as client:
            return await work(Gateway(client, url, key))

    return asyncio.run(main())


def find_gateway(data_dir: Path | None) -> tuple[str, str]:
    """Its address and a key."""
    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir

    url, key = os.environ.get("HEKLA_AGENTS_URL", ""), os.environ.get("HEKLA_AGENTS_KEY", "")
    if url and not data_dir:
        if not key:
            raise CommandError("HEKLA_AGENTS_URL is set and HEKLA_AGENTS_KEY is not; set both", EXIT_USAGE)
        return url, key
    directory = DataDirectory((data_dir or default_data_dir()).absolute())
    try:
        url = directory.agents_url.read_text().strip()
        lines = directory.agents_key.read_text().splitlines()
    except OSError:
        raise CommandError(
            f"no gateway of sandboxes runs on {directory.root}; start one with `hekla up --detach`, or set HEKLA_AGENTS_URL",
            EXIT_UNREACHABLE,
        ) from None
    keys = [line.partition(":")[2].strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise CommandError(f"{directory.agents_key} has no key; write one as `owner: key`", EXIT_USAGE)
    return url, keys[0]


def _sentence(body: bytes, status: int) -> str:
    try:
        told = json.loads(body)
    except ValueError:
        return f"the gateway answered {status}: {body[:200].decode('utf-8', 'replace')}"
    return str(told.get("message") or told.get("error") or told) if isinstance(told, dict) else str(told)


async def interact(gateway: Gateway, session: str, argv: list[str]) -> int:
    """A terminal in a session; returns the command's exit code."""
    import secrets
    import shutil
    import termios
    import tty

    size = shutil.get_terminal_size()
    tag = f"shell-{secrets.token_hex(6)}"
    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor) if os.isatty(descriptor) else None
    loop.add_reader(descriptor, lambda: typed.put_nowait(os.read(descriptor, 4096)))

    async def send() -> None:
        while data := await typed.get():
            await gateway.call(
                session,
                "process.Process/SendInput",
                {"process": {"tag": tag}, "input": {"pty": base64.b64encode(data).decode()}},
            )

    sending: asyncio.Task[None] | None = None
    try:
        if before is not None:
            tty.setraw(descriptor)
        envs = {"TERM": os.environ.get("TERM", "xterm-256color"), "LANG": "C.UTF-8"}
        async for name, told in gateway.run(session, argv, cwd="", envs=envs, tag=tag, size=(size.columns, size.lines)):
            if name == "end":
                return int(told)
            if name == "start":
                sending = asyncio.create_task(send())
            else:
                os.write(sys.stdout.fileno(), told)
        return 1
    finally:
        loop.remove_reader(descriptor)
        if sending is not None:
            sending.cancel()
        if before is not None:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
