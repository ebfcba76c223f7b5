"""E2B's dialect: `process.Process` and `filesystem.Filesystem` as Connect calls in JSON, and files over plain HTTP.

Connect: a unary call is a POST of a JSON document; a stream's messages are framed as one flag byte, four bytes of length, and JSON,
the last one flagged 2. Integers of 64 bits are strings and bytes are base64. What the names mean is `processes.py` and `tree.py`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import datetime
import gzip
import hashlib
import hmac
import json
import os
import secrets
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

from hekla.sandbox.daemon.asked import inner, milliseconds, named_texts, text, texts, whole_number
from hekla.sandbox.daemon.http import HttpError, document_of, file_name
from hekla.sandbox.daemon.processes import Command, CommandError, Identity, Listener, Processes
from hekla.sandbox.daemon.tree import Entry, Tree, TreeError
from hekla.sandbox.daemon.uploads import parts_of
from hekla.sandbox.daemon.watching import CHMOD, CREATE, REMOVE, RENAME, WRITE, Happening, Watch, WatchEndedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hekla.sandbox.daemon.http import Answer, Request

VERSION = "0.6.4"
"""Of envd, as far as clients ask what it can do."""
KEEPALIVE_S = 50.0
MOST_WATCHERS = 64
_MOST_32 = 2**32 - 1
LARGEST_MESSAGE = 8 * 1024 * 1024
LARGEST_FILE = 5 * 1024 * 1024 * 1024
STREAM = "application/connect+json"
_STATUS = {
    "not_found": 404, "invalid_argument": 400, "unauthenticated": 401, "permission_denied": 403, "already_exists": 409,
    "failed_precondition": 400, "resource_exhausted": 429, "unavailable": 503, "deadline_exceeded": 504, "unimplemented": 501,
}  # fmt: skip
_OF_TREE = {
    "not_found": "not_found", "already_exists": "already_exists", "denied": "permission_denied", "invalid": "invalid_argument",
    "not_a_file": "invalid_argument", "not_a_directory": "invalid_argument", "not_empty": "failed_precondition",
    "full": "resource_exhausted", "too_many": "resource_exhausted",
}  # fmt: skip
_EVENTS = {
    CREATE: "EVENT_TYPE_CREATE", WRITE: "EVENT_TYPE_WRITE", REMOVE: "EVENT_TYPE_REMOVE", RENAME: "EVENT_TYPE_RENAME", CHMOD: "EVENT_TYPE_CHMOD",
}  # fmt: skip
_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
_SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM, 9: signal.SIGKILL, 15: signal.SIGTERM}


class CallError(HttpError):
    """A call that is refused, in Connect's words."""

    def __init__(self, code: str, message: str, status: int = 0) -> None:
        """`status`: where files are served by plain HTTP, of which Connect knows fewer words."""
        super().__init__(status or _STATUS.get(code, 500), message, code)


class Envd:
    """The dialect over one sandbox's commands and files."""

    def __init__(self, processes: Processes, tree: Tree, *, access_token: str = "", default_user: str = "") -> None:
        self._processes = processes
        self._tree = tree
        self._token = access_token
        """What every call must carry; empty: none."""
        self._user = default_user
        self._watchers: dict[str, Watch] = {}
        self._calls: dict[str, Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "/process.Process/List": self._list,
            "/process.Process/SendInput": self._send_input,
            "/process.Process/CloseStdin": self._close_stdin,
            "/process.Process/SendSignal": self._send_signal,
            "/process.Process/Update": self._update,
            "/filesystem.Filesystem/Stat": self._stat,
            "/filesystem.Filesystem/MakeDir": self._make_dir,
            "/filesystem.Filesystem/Move": self._move,
            "/filesystem.Filesystem/ListDir": self._list_dir,
            "/filesystem.Filesystem/Remove": self._remove,
            "/filesystem.Filesystem/CreateWatcher": self._create_watcher,
            "/filesystem.Filesystem/GetWatcherEvents": self._get_watcher_events,
            "/filesystem.Filesystem/RemoveWatcher": self._remove_watcher,
        }
        self._streams: dict[str, Callable[[Request, dict[str, Any], Stream], Awaitable[None]]] = {
            "/process.Process/Start": self._start,
            "/process.Process/Connect": self._connect,
            "/filesystem.Filesystem/WatchDir": self._watch_dir,
        }

    async def handle(self, request: Request, answer: Answer) -> bool:
        """Answer a request of this dialect; False: it is of another."""
        path, method = request.path, request.method
        if method == "GET" and path == "/health":
            await answer.whole(204)
        elif path == "/files" and method in ("GET", "POST", "HEAD"):
            self._check(request, may_be_signed=True)
            await (self._upload if method == "POST" else self._download)(request, answer)
        elif path == "/files/compose" and method == "POST":
            self._check(request)
            await self._compose(request, answer)
        elif method == "GET" and path in ("/envs", "/metrics", "/journal"):
            self._check(request)
            await answer.json(200, self._told(path))
        elif method == "POST" and path in self._calls:
            self._check(request)
            await answer.json(200, await self._call(request))
        elif method == "POST" and path == "/process.Process/StreamInput":
            self._check(request)
            await self._stream_input(request, answer)
        elif method == "POST" and path in self._streams:
            self._check(request)
            await self._stream(request, answer)
        else:
            return False
        return True

    def _told(self, path: str) -> object:
        if path == "/journal":
            return self._processes.journal.lines()
        return self._processes.environment if path == "/envs" else measured()

    # Calls

    async def _call(self, request: Request) -> dict[str, Any]:
        asked = await request.json(LARGEST_MESSAGE)
        with _in_connects_words():
            return await self._calls[request.path](request, asked)

    async def _list(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        return {"processes": [_process(one) for one in self._processes.running()]}

    async def _send_input(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        await self._found(asked).write(_input(asked.get("input")))
        return {}

    async def _close_stdin(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        self._found(asked).close_input()
        return {}

    async def _send_signal(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        named = asked.get("signal", "")
        number = _SIGNALS.get(named) if isinstance(named, (str, int)) else None
        if number is None:
            raise CallError("invalid_argument", f"signal {named!r} is none of SIGNAL_SIGKILL, SIGNAL_SIGTERM")
        self._processes.signal(self._found(asked), number)
        return {}

    async def _update(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        if (size := _size(asked)) is not None:
            self._found(asked).resize(*size)
        return {}

    async def _stat(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        entry = self._tree.stat(self._path(request, asked.get("path")))
        told = _entry(entry)
        if entry.target:  # a link is told as what it leads to, and where that is
            where = os.path.normpath(os.path.join(os.path.dirname(entry.path), entry.target))
            with contextlib.suppress(TreeError):
                told["type"] = _TYPES.get(self._tree.stat(where).kind, told["type"])
                told["symlinkTarget"] = _text(where)
        return {"entry": told}

    async def _make_dir(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        path = self._path(request, asked.get("path"))
        if not self._tree.make(path, owner=self._owner(request)):
            raise CallError("already_exists", f"directory already exists: {path}")
        return {"entry": _entry(self._tree.stat(path))}

    async def _move(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        source, target = self._path(request, asked.get("source")), self._path(request, asked.get("destination"))
        self._tree.make(target.rpartition("/")[0] or "/", owner=self._owner(request))
        return {"entry": _entry(self._tree.move(source, target))}

    async def _list_dir(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        depth = whole_number(asked, "depth", 1, _MOST_32) or 1
        found = await self._tree.listed(self._path(request, asked.get("path")), depth)
        return {"entries": [_entry(one) for one in found]}

    async def _remove(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            self._tree.remove(self._path(request, asked.get("path")))
        except TreeError as error:
            if error.code != "not_found":  # it is gone, as was asked
                raise
        return {}

    async def _create_watcher(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        if len(self._watchers) >= MOST_WATCHERS:
            raise CallError("resource_exhausted", f"{MOST_WATCHERS} directories are watched already")
        watcher = secrets.token_hex(8)
        self._watchers[watcher] = self._watched(request, asked)
        return {"watcherId": watcher}

    async def _get_watcher_events(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        return {"events": [_event(one) for one in self._watcher(asked).taken()]}

    async def _remove_watcher(self, request: Request, asked: dict[str, Any]) -> dict[str, Any]:
        self._watcher(asked).close()
        del self._watchers[asked["watcherId"]]
        return {}

    # Streams

    async def _stream(self, request: Request, answer: Answer) -> None:
        data = await request.body.read(LARGEST_MESSAGE + 5)
        stream = Stream(request, answer)
        try:
            with _in_connects_words():
                await self._streams[request.path](request, _unframed(data), stream)
            await stream.end(None)
        except HttpError as error:
            await stream.end(error)

    async def _start(self, request: Request, asked: dict[str, Any], stream: Stream) -> None:
        process = inner(asked, "process")
        size = _size(asked)
        timeout_ms = milliseconds(request.headers, "connect-timeout-ms")
        cwd = text(process, "cwd")
        command = self._processes.start(
            [text(process, "cmd"), *texts(process, "args")],
            cwd=self._path(request, cwd) if cwd else "",
            envs=named_texts(process, "envs"),
            user=self._user_of(request),
            tag=text(asked, "tag"),
            has_input=size is not None or bool(asked.get("stdin")),
            size=size,
            timeout_s=timeout_ms / 1000,
        )
        listener = command.listen()
        await stream.send({"event": {"start": {"pid": command.pid}}})
        await self._relay(command, listener, stream)

    async def _connect(self, request: Request, asked: dict[str, Any], stream: Stream) -> None:
        command = self._found(asked, may_be_over=True)
        listener = command.listen()
        await stream.send({"event": {"start": {"pid": command.pid}}})
        await self._relay(command, listener, stream)

    async def _relay(self, command: Command, listener: Listener, stream: Stream) -> None:
        """Send what a command says until it ends or the client leaves; it runs on without the client."""
        try:
            while (piece := await stream.or_keepalive(listener.next(), {"event": {"keepalive": {}}})) is not None:
                name, data = piece
                await stream.send({"event": {"data": {name: base64.b64encode(data).decode()}}})
        finally:
            listener.close()
        if command.timed_out:
            raise CallError("deadline_exceeded", "the command's time is over")
        await stream.send({"event": {"end": _end(command)}})

    async def _watch_dir(self, request: Request, asked: dict[str, Any], stream: Stream) -> None:
        watch = self._watched(request, asked)
        root = self._path(request, asked.get("path"))
        try:
            await stream.send({"start": {}})
            while True:
                happening = await stream.or_keepalive(watch.next(), {"keepalive": {}})
                event = _event(happening)
                if asked.get("includeEntry"):
                    with contextlib.suppress(TreeError):
                        event["entry"] = _entry(self._tree.stat(f"{root.rstrip('/')}/{happening.name}"))
                await stream.send({"filesystem": event})
        finally:
            watch.close()

    async def _stream_input(self, request: Request, answer: Answer) -> None:
        """A stream of the client's: first which process, then its input, keep-alives between."""
        command: Command | None = None
        left = b""
        with _in_connects_words():
            async for piece in request.body.pieces():
                left += piece
                while len(left) >= 5 and len(left) >= 5 + (length := int.from_bytes(left[1:5], "big")):
                    if length > LARGEST_MESSAGE:
                        raise CallError("resource_exhausted", f"a message has {length} bytes")
                    flags, message, left = left[0], left[5 : 5 + length], left[5 + length :]
                    if flags & 2:
                        continue
                    told = document_of(message, "message")
                    if "start" in told:
                        command = self._found(inner(told, "start"))
                    elif "data" in told and command is not None:
                        await command.write(_input(inner(told, "data").get("input")))
        await answer.begin(200, STREAM)
        await answer.piece(_framed({}) + _framed({}, flags=2))

    # Files over plain HTTP

    async def _download(self, request: Request, answer: Answer) -> None:
        with _in_connects_words():
            path = self._path(request, request.query.get("path"))
            descriptor, size = self._tree.open(path)
        with os.fdopen(descriptor, "rb") as file:
            headers = {"content-disposition": f'inline; filename="{file_name(path)}"'}
            if "gzip" in request.headers.get("accept-encoding", "") and size <= LARGEST_MESSAGE:
                headers["content-encoding"] = "gzip"
                await answer.whole(200, gzip.compress(file.read(), 1), "application/octet-stream", headers)
                return
            await answer.begin(200, "application/octet-stream", headers)
            while piece := file.read(256 * 1024):
                await answer.piece(piece)

    async def _upload(self, request: Request, answer: Answer) -> None:
        owner = self._owner(request)
        metadata = {
            name[len("x-metadata-") :]: value
            for name, value in request.headers.items()
            if name.startswith("x-metadata-")
        }
        written = []
        with _in_connects_words():
            asked = request.query.get("path", "")
            async for name, pieces in parts_of(request):
                path = self._path(request, asked or name)
                writer = self._tree.writer(path, owner=owner)
                with writer:
                    size = 0
                    async for piece in pieces:
                        size += len(piece)
                        if size > LARGEST_FILE:
                            raise CallError("resource_exhausted", f"the file has more than {LARGEST_FILE} bytes", 413)
                        writer.write(piece)
                if metadata:
                    self._tree.set_metadata(path, metadata)
                entry = self._tree.stat(path)
                written.append(
                    {
                        "name": entry.name,
                        "type": "file",
                        "path": entry.path,
                        **({"metadata": metadata} if metadata else {}),
                    }
                )
            if not written:
                raise CallError("invalid_argument", "the upload has no file")
        await answer.json(200, written)

    async def _compose(self, request: Request, answer: Answer) -> None:
        asked = await request.json()
        sources = asked.get("source_paths")
        with _in_connects_words():
            if not isinstance(sources, list) or not sources:
                raise CallError("invalid_argument", "source_paths must name at least one file")
            target = self._path(request, asked.get("destination"))
            with self._tree.writer(target, owner=self._owner(request)) as writer:
                for source in sources:
                    descriptor, _ = self._tree.open(self._path(request, source))
                    with os.fdopen(descriptor, "rb") as file:
                        while piece := file.read(256 * 1024):
                            writer.write(piece)
            for source in sources:
                self._tree.remove(self._path(request, source))
            entry = self._tree.stat(target)
        await answer.json(200, {"name": entry.name, "type": "file", "path": entry.path})

    # Who asks, for what

    def _check(self, request: Request, *, may_be_signed: bool = False) -> None:
        if not self._token:
            return
        given = request.headers.get("x-access-token", "")
        if given and hmac.compare_digest(given.encode(), self._token.encode()):
            return
        if may_be_signed and "signature" in request.query:
            self._check_signature(request)
            return
        raise CallError("unauthenticated", "the access token is missing or wrong")

    def _check_signature(self, request: Request) -> None:
        query = request.query
        expires = query.get("signature_expiration", "")
        operation = "write" if request.method == "POST" else "read"
        terms = [
            query.get("path", ""),
            operation,
            query.get("username", ""),
            self._token,
            *([expires] if expires else []),
        ]
        digest = base64.b64encode(hashlib.sha256(":".join(terms).encode()).digest()).decode().rstrip("=")
        if not hmac.compare_digest(query["signature"].encode(), f"v1_{digest}".encode()):
            raise CallError("unauthenticated", "invalid signature")
        if expires and (
            not expires.isascii() or not expires.isdigit() or len(expires) > 15 or int(expires) < time.time()
        ):
            raise CallError("unauthenticated", "signature is already expired")

    def _user_of(self, request: Request) -> str:
        named = request.query.get("username", "")
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if not named and scheme.lower() == "basic":
            with contextlib.suppress(binascii.Error, UnicodeDecodeError):
                named = base64.b64decode(credentials).decode().partition(":")[0]
        return self._user if not named or (named == "user" and not _is_known("user")) else named

    def _owner(self, request: Request) -> tuple[int, int]:
        with _in_connects_words():
            user = Identity.of(self._user_of(request))
        return user.uid, user.gid

    def _path(self, request: Request, path: object) -> str:
        """An absolute path: others are below the user's home."""
        if not isinstance(path, str):
            raise CallError("invalid_argument", "a path is missing")
        if path.startswith("/"):
            return path
        home = Identity.of(self._user_of(request)).home
        return (
            f"{home.rstrip('/')}/{path.removeprefix('~').lstrip('/')}"
            if path.startswith("~")
            else f"{home.rstrip('/')}/{path}"
        )

    def _found(self, asked: dict[str, Any], *, may_be_over: bool = False) -> Command:
        wanted = inner(asked, "process")
        pid = whole_number(wanted, "pid", 0, _MOST_32)
        return self._processes.find(pid=pid, tag=text(wanted, "tag"), may_be_over=may_be_over)

    def _watched(self, request: Request, asked: dict[str, Any]) -> Watch:
        path = self._path(request, asked.get("path"))
        inner = self._tree.enter(path)
        full = self._tree.root.rstrip("/") + inner if self._tree.root != "/" else inner
        return Watch(full, recursive=bool(asked.get("recursive")))

    def _watcher(self, asked: dict[str, Any]) -> Watch:
        watch = self._watchers.get(str(asked.get("watcherId")))
        if watch is None:
            raise CallError("not_found", f"there is no watcher {asked.get('watcherId')!r}")
        return watch


class Stream:
    """The framed messages of one answer."""

    def __init__(self, request: Request, answer: Answer) -> None:
        self._request = request
        self._answer = answer

    async def send(self, message: dict[str, Any]) -> None:
        """The next message."""
        if not self._answer.is_begun:
            await self._answer.begin(200, STREAM)
        await self._answer.piece(_framed(message))

    async def end(self, error: HttpError | None) -> None:
        """The last message."""
        if not self._answer.is_begun:
            await self._answer.begin(200, STREAM)
        told = {} if error is None else {"error": {"code": error.code, "message": error.message}}
        await self._answer.piece(_framed(told, flags=2))

    async def or_keepalive(self, news: Awaitable[Any], keepalive: dict[str, Any]) -> Any:
        """What the news bring; meanwhile the client is told that we live, and if it left, ConnectionError."""
        waiting = asyncio.ensure_future(news)
        every_s = _keepalive_s(self._request)
        try:
            while True:
                done, _ = await asyncio.wait(
                    [waiting, self._request.gone], timeout=every_s, return_when=asyncio.FIRST_COMPLETED
                )
                if waiting in done:
                    return waiting.result()
                if self._request.gone in done:
                    raise ConnectionError("the client left")
                await self.send(keepalive)
        finally:
            waiting.cancel()


@contextlib.contextmanager
def _in_connects_words() -> Iterator[None]:
    """Refusals of commands and files as Connect says them."""
    try:
        yield
    except CommandError as error:
        raise CallError(error.code, str(error)) from error
    except TreeError as error:
        status = 507 if error.code == "full" else 0
        raise CallError(_OF_TREE.get(error.code, "internal"), str(error), status) from error
    except WatchEndedError as error:  # as envd; E2B's client takes "resource_exhausted" for a rate of requests
        raise CallError("internal", str(error)) from error
    except OSError as error:
        code = "not_found" if isinstance(error, FileNotFoundError) else "internal"
        raise CallError(code, (error.strerror or str(error)).lower()) from error


def _framed(message: dict[str, Any], *, flags: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def _unframed(data: bytes) -> dict[str, Any]:
    """The one message of a server stream's request."""
    if len(data) < 5 or len(data) < 5 + int.from_bytes(data[1:5], "big"):
        raise CallError("invalid_argument", "the request is no framed message")
    if data[0] & 1:
        raise CallError("unimplemented", "compressed messages are not taken")
    return document_of(data[5 : 5 + int.from_bytes(data[1:5], "big")], "message")


def _input(asked: object) -> bytes:
    given = asked if isinstance(asked, dict) else {}
    try:
        return base64.b64decode(given.get("stdin") or given.get("pty") or "", validate=True)
    except (ValueError, TypeError) as error:
        raise CallError("invalid_argument", "the input is not base64") from error


def _size(asked: dict[str, Any]) -> tuple[int, int] | None:
    if asked.get("pty") is None:
        return None
    size = inner(inner(asked, "pty"), "size")
    columns, rows = whole_number(size, "cols", 80, _MOST_32), whole_number(size, "rows", 24, _MOST_32)
    if not (0 < columns < 65_536 and 0 < rows < 65_536):
        raise CallError("invalid_argument", f"a terminal of {columns} columns and {rows} rows cannot be")
    return columns, rows


def _process(command: Command) -> dict[str, Any]:
    config = {"cmd": command.argv[0], "args": command.argv[1:], "envs": command.envs, "cwd": command.cwd}
    return {"config": config, "pid": command.pid, **({"tag": command.tag} if command.tag else {})}


def _end(command: Command) -> dict[str, Any]:
    if command.signal:
        return {
            "exitCode": -1,
            "exited": False,
            "status": f"signal: {signal.strsignal(command.signal)}".lower(),
            "error": f"signal: {command.signal}",
        }
    told: dict[str, Any] = {"exitCode": command.exit_code, "exited": True, "status": f"exit status {command.exit_code}"}
    if command.exit_code:
        told["error"] = f"exit status {command.exit_code}"
    return told


def _entry(entry: Entry) -> dict[str, Any]:
    kinds = {"directory": "d", "symlink": "L"}
    letters = "".join(letter if entry.mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx"))
    modified = datetime.datetime.fromtimestamp(entry.modified, datetime.timezone.utc)
    told = {
        "name": _text(entry.name),
        "type": _TYPES.get(entry.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": _text(entry.path),
        "size": str(entry.size),
        "mode": entry.mode,
        "permissions": kinds.get(entry.kind, "-") + letters,
        "owner": entry.owner,
        "group": entry.group,
        "modifiedTime": modified.isoformat().replace("+00:00", "Z"),
    }
    if entry.target:
        told["symlinkTarget"] = _text(entry.target)
    if entry.metadata:
        told["metadata"] = entry.metadata
    return told


def _event(happening: Happening) -> dict[str, Any]:
    return {"name": _text(happening.name), "type": _EVENTS[happening.kind]}


def _text(name: str) -> str:
    """Names that are no text are told with the bytes that are none replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def _keepalive_s(request: Request) -> float:
    asked = request.headers.get("keepalive-ping-interval", "")
    return max(1.0, float(asked)) if asked.isascii() and asked.isdigit() and len(asked) < 10 else KEEPALIVE_S


def _is_known(user: str) -> bool:
    try:
        Identity.of(user)
    except CommandError:
        return False
    return True


def measured() -> dict[str, Any]:
    """What the sandbox uses now."""
    with open("/proc/meminfo") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file if line.split()[1:2]}
    disk = os.statvfs("/")
    used = memory["MemTotal"] - memory["MemAvailable"]
    return {
        "ts": int(time.time()),
        "cpu_count": os.cpu_count() or 1,
        "cpu_used_pct": round(100 * os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        "mem_total": memory["MemTotal"],
        "mem_used": used,
        "mem_total_mib": memory["MemTotal"] >> 20,
        "mem_used_mib": used >> 20,
        "disk_total": disk.f_blocks * disk.f_frsize,
        "disk_used": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
    }
