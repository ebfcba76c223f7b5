"""How `hekla agent` reaches the gateway of sandboxes, and what it says to the daemon inside one.

Which gateway: $HEKLA_AGENTS_URL and $HEKLA_AGENTS_KEY, else the platform that runs on the data directory.
"""

import asyncio
import base64
import contextlib
import json
import os
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from hekla.cli import loops
from hekla.cli.main import EXIT_UNREACHABLE, EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from hekla.wire.client import HttpClient

Told = TypeVar("Told")
PATIENCE_S = 150.0
"""Until the gateway begins to answer: it may make a sandbox first, and gives up before we do."""
INPUT_BYTES = 65_536
"""At most so much of standard input goes in one call; no more is read before it has been taken."""
READS_S = 7 * 86_400.0
"""Until a command has read a piece of its input: it may compute before it reads, and what is said again would be read twice."""
READS_NO_MORE = frozenset({"not_found", "failed_precondition"})
"""Codes of a command that has ended or has closed its input."""


class RefusedError(CommandError):
    """The gateway or the daemon said no; `code` is its word for why."""

    def __init__(self, sentence: str, code: str) -> None:
        super().__init__(sentence)
        self.code = code


class Gateway:
    """The gateway, for one command."""

    def __init__(self, client: "HttpClient", url: str, key: str) -> None:
        self._client, self._url, self._key = client, url.rstrip("/"), key

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """One call of Hekla's API; what it answers."""
        data = _document(body) if body is not None else b""
        answer = await self._whole(method, f"{self._url}/hekla/v1/{path}", "application/json", data)
        return json.loads(answer) if answer else None

    async def message(self, data: bytes, template: str, timeout_s: float) -> bytes:
        """A message of the Model Context Protocol; its answer, which is empty for a notification."""
        headers = (
            ("authorization", f"Bearer {self._key}"),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        )
        url = f"{self._url}/mcp?{urlencode({'template': template})}"
        with self._reached():
            answer = await self._client.request("POST", url, headers=headers, body=data, timeout_s=timeout_s)
        assert isinstance(answer.body, bytes)
        return answer.body

    async def _whole(
        self, method: str, url: str, content_type: str, data: bytes, timeout_s: float = PATIENCE_S
    ) -> bytes:
        headers = (("authorization", f"Bearer {self._key}"), ("content-type", content_type))
        with self._reached():
            answer = await self._client.request(method, url, headers=headers, body=data, timeout_s=timeout_s)
        assert isinstance(answer.body, bytes)
        if answer.status >= 400:
            raise RefusedError(_sentence(answer.body, answer.status), _code(answer.body))
        return answer.body

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        from hekla.wire.errors import WireError

        try:
            yield
        except WireError as error:
            raise CommandError(f"the gateway at {self._url} does not answer: {error}", EXIT_UNREACHABLE) from None

    async def run(
        self,
        session: str,
        argv: list[str],
        *,
        cwd: str,
        envs: dict[str, str],
        tag: str = "",
        takes_input: bool = False,
        size: tuple[int, int] | None = None,
    ) -> AsyncIterator[tuple[str, Any]]:
        """Start a command; what it says as it says it, and last `("end", exit code)`."""
        process: dict[str, Any] = {"cmd": argv[0], "args": argv[1:], "envs": envs}
        if cwd:
            process["cwd"] = cwd
        asked: dict[str, Any] = {"process": process, "stdin": takes_input}
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
                yield "end", _exit_code(event["end"])
            elif "start" in event:
                yield "start", event["start"]["pid"]

    async def _stream(self, session: str, call: str, asked: object) -> AsyncIterator[dict[str, Any]]:
        data = _document(asked)
        framed = struct.pack(">BI", 0, len(data)) + data
        headers = (
            ("authorization", f"Bearer {self._key}"),
            ("content-type", "application/connect+json"),
            ("connect-protocol-version", "1"),
        )
        left = b""
        url = self._inside(session, call)
        with self._reached():
            async with self._client.stream("POST", url, headers=headers, body=framed, timeout_s=PATIENCE_S) as answer:
                if answer.status >= 400:
                    raise CommandError(_sentence(await answer.read(), answer.status))
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
        raise CommandError(f"session {session} ended before its command did")

    async def call(self, session: str, call: str, asked: object, timeout_s: float = PATIENCE_S) -> Any:
        """One unary call of the daemon."""
        url, data = self._inside(session, call), _document(asked)
        answer = await self._whole("POST", url, "application/json", data, timeout_s)
        return json.loads(answer or b"{}")

    async def download(self, session: str, path: str, into: Callable[[bytes], object]) -> None:
        """A file out of a session, piece by piece."""
        url = f"{self._inside(session, 'files')}?{urlencode({'path': path})}"
        headers = (("authorization", f"Bearer {self._key}"),)
        with self._reached():
            async with self._client.stream("GET", url, headers=headers, timeout_s=PATIENCE_S) as answer:
                if answer.status >= 400:
                    raise CommandError(_sentence(await answer.read(), answer.status))
                async for piece in answer:
                    into(piece)

    async def upload(self, session: str, path: str, data: bytes) -> None:
        """A file into a session."""
        url = f"{self._inside(session, 'files')}?{urlencode({'path': path})}"
        await self._whole("POST", url, "application/octet-stream", data)

    def _inside(self, session: str, path: str) -> str:
        return f"{self._url}/hekla/v1/sessions/{quote(session, safe='')}/daemon/{path}"


def _document(asked: object) -> bytes:
    """As it is sent. An argument that is no text raises UnicodeEncodeError, which says which; escaped, only the sandbox would have found it."""
    return json.dumps(asked, ensure_ascii=False).encode()


def _exit_code(end: dict[str, Any]) -> int:
    """As a shell has it: 128 and the number of the signal that ended the command."""
    what, _, number = str(end.get("error", "")).partition(": ")
    return 128 + int(number) if what == "signal" and number.isdecimal() else int(end.get("exitCode", 0))


def run_with_gateway(data_dir: Path | None, work: Callable[[Gateway], Awaitable[Told]]) -> Told:
    """Do something with the gateway."""

    async def main() -> Told:
        from hekla.wire.client import HttpClient

        url, key = await find_gateway(data_dir)
        async with HttpClient() as client:
            return await work(Gateway(client, url, key))

    return loops.run(main())


async def find_gateway(data_dir: Path | None) -> tuple[str, str]:
    """Its address and a key; a platform that has just come up is given a moment to open it."""
    from hekla.app.data_directory import DataDirectory
    from hekla.app.settings import default_data_dir

    url, key = os.environ.get("HEKLA_AGENTS_URL", ""), os.environ.get("HEKLA_AGENTS_KEY", "")
    if url and not data_dir:
        if not key:
            raise CommandError("HEKLA_AGENTS_URL is set and HEKLA_AGENTS_KEY is not; set both", EXIT_USAGE)
        return _reachable(url), _told(key, "HEKLA_AGENTS_KEY")
    directory = DataDirectory((data_dir or default_data_dir()).absolute())
    try:
        url = directory.agents_url.read_text().strip()
        lines = directory.agents_key.read_text(errors="replace").splitlines()
    except OSError:
        raise CommandError(
            f"no gateway of sandboxes runs on {directory.root}; start one with `hekla up --detach`, or set HEKLA_AGENTS_URL",
            EXIT_UNREACHABLE,
        ) from None
    keys = [line.partition(":")[2].strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise CommandError(f"{directory.agents_key} has no key; write one as `owner: key`", EXIT_USAGE)
    return url, _told(keys[0], f"the first key of {directory.agents_key}")


def _reachable(url: str) -> str:
    """The address, which can be asked; else a sentence with one that can."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port beyond 65535, half an IPv6 address
        is_one = False
    if not is_one or parts.query or parts.fragment or parts.username is not None:
        raise CommandError(
            f'HEKLA_AGENTS_URL is "{url}", which is no address of a gateway; write one such as http://127.0.0.1:8090',
            EXIT_USAGE,
        )
    return url


def _told(key: str, name: str) -> str:
    """The key, which can be sent; else a sentence that names it and does not show it."""
    from hekla.wire.heads import may_be_told

    if not may_be_told(key):
        what = "holds a character that no key has, such as a typographic quote or a line break; copy it anew"
        raise CommandError(f"{name} {what}", EXIT_USAGE)
    return key


def _sentence(body: bytes, status: int) -> str:
    try:
        told = json.loads(body)
    except ValueError:
        return f"the gateway answered {status}: {body[:200].decode('utf-8', 'replace')}"
    return str(told.get("message") or told.get("error") or told) if isinstance(told, dict) else str(told)


def _code(body: bytes) -> str:
    try:
        told = json.loads(body)
    except ValueError:
        return ""
    return str(told.get("code", "")) if isinstance(told, dict) else ""


async def interact(gateway: Gateway, session: str, shell: str) -> int:
    """A shell in a session; returns its exit code. Where a person types it has a terminal, else it reads a script."""
    import shutil
    import termios
    import tty

    descriptor, envs = sys.stdin.fileno(), {"LANG": "C.UTF-8"}
    if not os.isatty(descriptor):
        return await feed(gateway, session, [shell, "-l"], envs=envs)
    envs["TERM"] = os.environ.get("TERM", "xterm-256color")
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead is the shell's
        return await feed(gateway, session, [shell, "-i", "-l"], envs=envs, size=shutil.get_terminal_size())
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def feed(
    gateway: Gateway,
    session: str,
    argv: list[str],
    *,
    cwd: str = "",
    envs: dict[str, str],
    size: tuple[int, int] | None = None,
) -> int:
    """Run a command that gets our standard input, with a terminal if it is given a size; returns its exit code."""
    import secrets

    tag = f"fed-{secrets.token_hex(6)}"

    begun = asyncio.Event()

    async def send() -> None:
        await begun.wait()
        try:
            while data := await _typed(sys.stdin.fileno()):
                told = {"stdin" if size is None else "pty": base64.b64encode(data).decode()}
                asked = {"process": {"tag": tag}, "input": told}
                await gateway.call(session, "process.Process/SendInput", asked, READS_S)
            await gateway.call(session, "process.Process/CloseStdin", {"process": {"tag": tag}})
        except RefusedError as refusal:
            if refusal.code not in READS_NO_MORE:  # else its own call says how it ended
                raise

    async def listen() -> int:
        async for name, told in gateway.run(session, argv, cwd=cwd, envs=envs, tag=tag, takes_input=True, size=size):
            if name == "end":
                return int(told)
            if name == "start":
                begun.set()
            else:
                os.write(2 if name == "stderr" else 1, told)
        return 1

    sending, listening = asyncio.create_task(send()), asyncio.create_task(listen())
    try:
        await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            sending.result()  # of a command that lacks a part of its input nothing more is waited for
        return await listening
    finally:
        sending.cancel()
        listening.cancel()
        await asyncio.gather(sending, listening, return_exceptions=True)


async def _typed(descriptor: int) -> bytes:
    """What is typed next, or stands next in a pipe or a file; nothing at all is its end."""
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    try:
        loop.add_reader(descriptor, there.set)
    except PermissionError:  # a file: it is never waited for
        return os.read(descriptor, INPUT_BYTES)
    try:
        await there.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, INPUT_BYTES)
