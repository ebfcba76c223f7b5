"""What a language model may do with a session, as tools: their schemas, and the questions to the daemon that each one is."""

import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from hekla.sandbox.gateway.asking import Told, ask_daemon
from hekla.sandbox.gateway.front import House
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session

MOST_KEPT: Final = 8 * 1024 * 1024
"""Of what a daemon answers."""
LONGEST_TEXT: Final = 100_000
"""Characters of one text for a model; what is more is cut, and it is said so."""
CUT: Final = "\n[cut: {} more characters]"


@dataclass(slots=True)
class Outcome:
    """What a tool says."""

    content: list[dict[str, Any]]
    structured: dict[str, Any]
    is_error: bool = False


_AT_HOME: Final = 'cd 2>/dev/null; exec /bin/sh -c "$1"'
"""Where code runs and relative paths begin, too; AgentCube's dialect begins elsewhere."""
Work = Callable[[House, Session, dict[str, Any], float], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. Arguments have been checked against its schema when it works."""

    name: str
    description: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...]
    work: Work | None = None
    """None: it is about sessions, and the door's own business."""


async def _run_code(house: House, session: Session, given: dict[str, Any], timeout_s: float) -> Outcome:
    asked = {"code": given["code"], "language": given.get("language", "python")}
    told = await ask_daemon(house, session, "POST", "/execute", json.dumps(asked).encode(), most=MOST_KEPT)
    if told.status >= 400:
        return _failure(told)
    said: dict[str, str] = {"stdout": "", "stderr": ""}
    results: list[str] = []
    content: list[dict[str, Any]] = []
    error = ""
    for line in told.body.splitlines():
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue  # the last line of an answer that was cut
        if event.get("type") in said:
            said[event["type"]] += str(event.get("text") or "")
        elif event.get("type") == "result":
            results += [str(event["text"])] if event.get("text") else []
            if event.get("png"):
                content.append({"type": "image", "data": str(event["png"]), "mimeType": "image/png"})
        elif event.get("type") == "error":
            error = str(event.get("traceback") or f"{event.get('name')}: {event.get('value')}")
    shown = "".join((said["stdout"], said["stderr"], *(f"{one}\n" for one in results), error))
    structured = {
        "stdout": _cut(said["stdout"]), "stderr": _cut(said["stderr"]), "results": [_cut(one) for one in results], "error": _cut(error),
    }  # fmt: skip
    return Outcome([_text(shown), *content], structured, is_error=bool(error))


async def _execute_command(house: House, session: Session, given: dict[str, Any], timeout_s: float) -> Outcome:
    asked = {"command": ["/bin/sh", "-c", _AT_HOME, "sh", given["command"]], "timeout": f"{timeout_s:g}s"}
    told = await ask_daemon(house, session, "POST", "/api/execute", json.dumps(asked).encode(), most=4 * MOST_KEPT)
    if told.status >= 400 or told.is_cut:
        return _failure(told)
    answer = msgspec.json.decode(told.body, type=dict[str, Any])
    code = int(answer["exit_code"])
    structured = {"stdout": _cut(answer["stdout"]), "stderr": _cut(answer["stderr"]), "exit_code": code}
    shown = answer["stdout"] + answer["stderr"] + (f"[exit code {code}]" if code else "")
    return Outcome([_text(shown)], structured, is_error=bool(code))


async def _write_file(house: House, session: Session, given: dict[str, Any], timeout_s: float) -> Outcome:
    data = given["content"].encode()
    target = f"/files?{urlencode({'path': given['path']})}"
    told = await ask_daemon(
        house, session, "POST", target, data, most=MOST_KEPT, content_type="application/octet-stream"
    )
    if told.status >= 400:
        return _failure(told)
    return Outcome([_text(f"{len(data)} bytes written to {given['path']}")], {"path": given["path"], "size": len(data)})


async def _read_file(house: House, session: Session, given: dict[str, Any], timeout_s: float) -> Outcome:
    told = await ask_daemon(house, session, "GET", f"/files?{urlencode({'path': given['path']})}", most=MOST_KEPT)
    if told.status >= 400:
        return _failure(told)
    if told.is_cut:
        return _refusal(f"{given['path']} is larger than {MOST_KEPT} bytes; read a part of it with execute_command")
    structured: dict[str, Any] = {"path": given["path"], "size": len(told.body)}
    try:
        text = told.body.decode()
    except UnicodeDecodeError:
        blob = {"uri": f"file://{given['path']}", "mimeType": "application/octet-stream"}
        resource = {"type": "resource", "resource": {**blob, "blob": base64.b64encode(told.body).decode()}}
        return Outcome([resource], structured)
    return Outcome([_text(text)], structured)


async def _list_files(house: House, session: Session, given: dict[str, Any], timeout_s: float) -> Outcome:
    asked = json.dumps({"path": given.get("path", "."), "depth": 1}).encode()
    told = await ask_daemon(house, session, "POST", "/filesystem.Filesystem/ListDir", asked, most=MOST_KEPT)
    if told.status >= 400 or told.is_cut:
        return _failure(told)
    found = msgspec.json.decode(told.body, type=dict[str, Any]).get("entries", [])
    entries = [
        {"name": one["name"], "is_directory": one.get("type") == "FILE_TYPE_DIRECTORY", "size": int(one.get("size", 0))}
        for one in found
    ]
    shown = "\n".join(f"{one['name']}/" if one["is_directory"] else f"{one['name']}  {one['size']}" for one in entries)
    return Outcome([_text(shown or "(empty)")], {"files": entries})


def _failure(told: Told) -> Outcome:
    if told.is_cut:
        return _refusal("the answer is too large; ask for less")
    try:
        answer = msgspec.json.decode(told.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return _refusal(f"the sandbox answered {told.status}")
    return _refusal(str(answer.get("message") or answer.get("error") or f"the sandbox answered {told.status}"))


def _refusal(sentence: str) -> Outcome:
    return Outcome([_text(sentence)], {"error": sentence}, is_error=True)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": _cut(text)}


def _cut(text: str) -> str:
    more = len(text) - LONGEST_TEXT
    return text if more <= 0 else text[:LONGEST_TEXT] + CUT.format(more)


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


SESSION_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "session_id": _string("The session to work in, as an earlier call told it; without one a new session is opened."),
    "session_reuse": {
        "type": "boolean",
        "default": False,
        "description": "Keep a session that this call opens, for calls that name its session_id; otherwise it ends with the call.",
    },
    "timeout_seconds": {
        "type": "number",
        "default": 60,
        "exclusiveMinimum": 0,
        "maximum": 3600,
        "description": "How long the call may take.",
    },
}
_PATH: Final = _string("A path in the sandbox; a relative one is below the home directory.")
TOOLS: Final = {
    one.name: one
    for one in (
        Tool("run_code", "Run code in the session's interpreter, which keeps its variables.", {
            "code": _string("The code."),
            "language": {**_string("Its language."), "default": "python"},
        }, ("code",), _run_code),
        Tool("execute_command", "Run a shell command.", {"command": _string("As a shell reads it.")}, ("command",), _execute_command),
        Tool("write_file", "Write a text file.", {"path": _PATH, "content": _string("Its text.")}, ("path", "content"), _write_file),
        Tool("read_file", "Read a file.", {"path": _PATH}, ("path",), _read_file),
        Tool("list_files", "List a directory.", {"path": {**_PATH, "default": "."}}, (), _list_files),
        Tool("stop_session", "End a session; its files and variables are gone.", {
            "session_id": _string("The session to end."),
        }, ("session_id",)),
    )
}  # fmt: skip


def schema_of(tool: Tool) -> dict[str, Any]:
    """Its arguments as JSON Schema."""
    properties = tool.properties | (SESSION_ARGUMENTS if tool.work else {})
    return {"type": "object", "properties": properties, "required": list(tool.required), "additionalProperties": False}


_TYPES: Final[dict[str, tuple[type, ...]]] = {"string": (str,), "boolean": (bool,), "number": (int, float)}


def check_arguments(tool: Tool, given: dict[str, Any]) -> None:
    """Refuse what the tool's schema does not allow. Null is not said: models whose arguments are all required send it for what they leave out."""
    for name in [name for name, value in given.items() if value is None and name not in tool.required]:
        del given[name]
    properties = schema_of(tool)["properties"]
    for name in tool.required:
        if name not in given:
            raise RefusedError(400, name, f'tool "{tool.name}" needs the argument "{name}"')
    for name, value in given.items():
        rule = properties.get(name)
        if rule is None:
            known = ", ".join(properties)
            raise RefusedError(400, "argument", f'tool "{tool.name}" has no argument "{name[:64]}"; it has {known}')
        kind = rule["type"]
        if not isinstance(value, _TYPES[kind]) or (kind == "number" and isinstance(value, bool)):
            raise RefusedError(400, name, f'the argument "{name}" of tool "{tool.name}" must be a {kind}')
        if kind == "number" and not rule["exclusiveMinimum"] < value <= rule["maximum"]:
            limits = f"above {rule['exclusiveMinimum']} and at most {rule['maximum']}"
            raise RefusedError(
                400, name, f'the argument "{name}" of tool "{tool.name}" is {value:g}; it must be {limits}'
            )
