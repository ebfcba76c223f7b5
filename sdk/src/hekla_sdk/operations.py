"""What can be asked about sessions, and of the daemon inside one, as steps that either shell takes (`exchange.py`)."""

import base64
import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from hekla_sdk.answers import Context, Entry, ProcessInfo, SessionInfo, Snapshot, Template, Usage
from hekla_sdk.documents import Document, document_in, document_of, documents_in, text_in
from hekla_sdk.errors import BadAnswerError, InvalidError, NotFoundError, RefusedError, refusal
from hekla_sdk.exchange import Request, Steps, fine

PAGE: Final = 1000
MOST_PAGES: Final = 100
INPUT_PIECE: Final = 256 * 1024
JSON: Final = {"content-type": "application/json"}


def _posted(path: str, body: Mapping[str, object]) -> Request:
    return Request("POST", path, json.dumps(body).encode(), JSON)


def session_path(session: str, rest: str = "") -> str:
    """Of a session."""
    return f"sessions/{quote(session, safe='')}" + (f"/{rest}" if rest else "")


def create(
    *, template: str, namespace: str, kind: str, snapshot: str, timeout: float, freeze_after: float, on_timeout: str,
    env: Mapping[str, str], metadata: Mapping[str, str], network: Mapping[str, object], budget: str, idempotency_key: str,
) -> Steps[SessionInfo]:  # fmt: skip
    """Open a session."""
    told = {
        "name": template, "namespace": namespace, "kind": kind, "snapshot": snapshot, "timeout": timeout, "freeze_after": freeze_after,
        "on_timeout": on_timeout, "env": dict(env), "metadata": dict(metadata), "network": dict(network),
        "budget": budget,
    }  # fmt: skip
    request = Request("POST", "sessions", json.dumps(told).encode(), {**JSON, "idempotency-key": idempotency_key})
    return SessionInfo.read(document_of(fine((yield request))))


def sessions() -> Steps[list[SessionInfo]]:
    """All of the key's owner."""
    found: list[SessionInfo] = []
    after = ""
    for _ in range(MOST_PAGES):
        query = urlencode({"limit": PAGE, "after": after})
        told = document_of(fine((yield Request("GET", f"sessions?{query}"))))
        found += [SessionInfo.read(one) for one in documents_in(told, "sessions")]
        after = text_in(told, "after")
        if not after:
            break
    return found


def templates() -> Steps[list[Template]]:
    """What sessions can be made from."""
    told = document_of(fine((yield Request("GET", "templates"))))
    return [Template.read(one) for one in documents_in(told, "templates")]


def snapshots() -> Steps[list[Snapshot]]:
    """All of the key's owner."""
    told = document_of(fine((yield Request("GET", "snapshots"))))
    return [Snapshot.read(one) for one in documents_in(told, "snapshots")]


def delete_snapshot(snapshot: str) -> Steps[None]:
    """Forget one."""
    fine((yield Request("DELETE", f"snapshots/{quote(snapshot, safe='')}")))


def info(session: str) -> Steps[SessionInfo]:
    """A session as it is now."""
    return SessionInfo.read(document_of(fine((yield Request("GET", session_path(session))))))


def kill(session: str) -> Steps[bool]:
    """End a session; False: there was none any more."""
    try:
        fine((yield Request("DELETE", session_path(session))))
    except NotFoundError:
        return False
    return True


def act(session: str, name: str, body: Mapping[str, object]) -> Steps[SessionInfo]:
    """`pause`, `resume`, `freeze`, `timeout` or `budget`."""
    return SessionInfo.read(document_of(fine((yield _posted(session_path(session, name), body)))))


def snapshot(session: str, name: str) -> Steps[Snapshot]:
    """Keep a session as it is now."""
    return Snapshot.read(document_of(fine((yield _posted(session_path(session, "snapshots"), {"name": name})))))


def usage(session: str) -> Steps[Usage]:
    """What a session has used."""
    return Usage.read(document_of(fine((yield Request("GET", session_path(session, "usage"))))))


def fork(session: str, count: int) -> Steps[tuple[list[SessionInfo], list[RefusedError]]]:
    """Copies of a session, and why there are not as many as were asked for."""
    if count < 1:
        raise InvalidError(f"fork({count}) makes no copies; ask for at least 1", "count", 400)
    told = document_of(fine((yield _posted(session_path(session, "fork"), {"count": count}))))
    made: list[SessionInfo] = []
    refused: list[RefusedError] = []
    for one in documents_in(told, "sessions"):
        if "error" in one:
            error = document_in(one, "error")
            refused.append(refusal(503, text_in(error, "reason"), text_in(error, "message")))
        else:
            made.append(SessionInfo.read(one))
    if refused and not made:
        raise refused[0]
    return made, refused


# Inside


def inside(session: str, path: str) -> str:
    """Of the daemon in a session."""
    return session_path(session, f"daemon/{path}")


def _call(session: str, name: str, body: Mapping[str, object]) -> Steps[Document]:
    return document_of(fine((yield _posted(inside(session, name), body))))


def contexts(session: str) -> Steps[list[Context]]:
    """The interpreters."""
    body = fine((yield Request("GET", inside(session, "contexts"))))
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    if not isinstance(told, list):
        raise BadAnswerError("the answer is no list of contexts")
    return [Context.read(one) for one in told]


def create_context(session: str, language: str, cwd: str) -> Steps[Context]:
    """Another interpreter."""
    return Context.read((yield from _call(session, "contexts", {"language": language, "cwd": cwd})))


def restart_context(session: str, context: str) -> Steps[None]:
    """Begin anew: its variables are gone."""
    fine((yield Request("POST", inside(session, f"contexts/{quote(context, safe='')}/restart"))))


def interrupt_context(session: str, context: str) -> Steps[None]:
    """KeyboardInterrupt in the cell that runs."""
    fine((yield Request("POST", inside(session, f"contexts/{quote(context, safe='')}/interrupt"))))


def remove_context(session: str, context: str) -> Steps[None]:
    """End an interpreter."""
    fine((yield Request("DELETE", inside(session, f"contexts/{quote(context, safe='')}"))))


def processes(session: str) -> Steps[list[ProcessInfo]]:
    """The commands that run."""
    told = yield from _call(session, "process.Process/List", {})
    return [ProcessInfo.read(one) for one in documents_in(told, "processes")]


def send_input(session: str, pid: int, data: bytes) -> Steps[None]:
    """Feed a command; waits while it does not read."""
    for start in range(0, len(data), INPUT_PIECE):
        text = base64.b64encode(data[start : start + INPUT_PIECE]).decode()
        yield from _call(session, "process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": text}})


def close_input(session: str, pid: int) -> Steps[None]:
    """A command's input is over."""
    yield from _call(session, "process.Process/CloseStdin", {"process": {"pid": pid}})


def feed(session: str, pid: int, data: bytes) -> Steps[None]:
    """All of a command's input, as far as it wants it: one that ends without reading is no failure."""
    try:
        yield from send_input(session, pid, data)
        yield from close_input(session, pid)
    except RefusedError as refused:
        if refused.reason not in ("failed_precondition", "not_found"):
            raise


def send_signal(session: str, pid: int, name: str) -> Steps[bool]:
    """SIGKILL or SIGTERM to a command and what it started; False: it is over."""
    try:
        yield from _call(session, "process.Process/SendSignal", {"process": {"pid": pid}, "signal": f"SIGNAL_{name}"})
    except NotFoundError:
        return False
    return True


def _file(session: str, path: str) -> str:
    return inside(session, f"files?{urlencode({'path': path})}")


def read_file(session: str, path: str, most: int) -> Steps[bytes]:
    """A file's bytes; more than `most` is refused."""
    return fine((yield Request("GET", _file(session, path), most=most)))


def write_file(session: str, path: str, data: bytes) -> Steps[None]:
    """Write a file, with the directories above it."""
    fine((yield Request("POST", _file(session, path), data, {"content-type": "application/octet-stream"})))


def _entry(session: str, call: str, body: Mapping[str, object]) -> Steps[Entry]:
    return Entry.read(document_in((yield from _call(session, f"filesystem.Filesystem/{call}", body)), "entry"))


def stat(session: str, path: str) -> Steps[Entry]:
    """What is at a path."""
    return (yield from _entry(session, "Stat", {"path": path}))


def exists(session: str, path: str) -> Steps[bool]:
    """Whether anything is at a path."""
    try:
        yield from stat(session, path)
    except NotFoundError:
        return False
    return True


def list_directory(session: str, path: str, depth: int) -> Steps[list[Entry]]:
    """A directory's entries."""
    told = yield from _call(session, "filesystem.Filesystem/ListDir", {"path": path, "depth": depth})
    return [Entry.read(one) for one in documents_in(told, "entries")]


def make_directory(session: str, path: str) -> Steps[bool]:
    """Make a directory with those above it; False: it was there."""
    try:
        yield from _entry(session, "MakeDir", {"path": path})
    except RefusedError as refused:
        if refused.reason != "already_exists":
            raise
        return False
    return True


def move(session: str, source: str, target: str) -> Steps[Entry]:
    """Give a file or a directory another path."""
    return (yield from _entry(session, "Move", {"source": source, "destination": target}))


def remove(session: str, path: str) -> Steps[None]:
    """Remove a file, or a directory with all that is in it."""
    yield from _call(session, "filesystem.Filesystem/Remove", {"path": path})
