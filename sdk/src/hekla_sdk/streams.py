"""Answers that come while something runs: a cell's lines of JSON, a command's framed messages. Bytes in, news out; nothing waits here.

What is kept is bounded; who wants more takes the pieces as they come.
"""

import base64
import binascii
import codecs
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hekla_sdk.answers import CodeError, Completed, Display, Output, Result
from hekla_sdk.documents import Document, document_in, document_of, number_in, text_in
from hekla_sdk.errors import BadAnswerError, CommandTimeoutError, InvalidError, RefusedError, refusal
from hekla_sdk.exchange import Request
from hekla_sdk.operations import inside

MOST_KEPT: Final = 8 * 1024 * 1024
"""Of each of stdout and stderr, and of all that a cell shows."""
LONGEST_MESSAGE: Final = 64 * 1024 * 1024


def execute(session: str, code: str, *, context: str, language: str, env: Mapping[str, str], timeout: float) -> Request:
    """Run a cell."""
    told: dict[str, object] = {"code": code, "env_vars": dict(env)}
    if context:
        told["context_id"] = context
    if language:
        told["language"] = language
    if timeout:
        told["timeout"] = timeout
    return Request(
        "POST", inside(session, "execute"), json.dumps(told).encode(), {"content-type": "application/json"}, None
    )


@dataclass(frozen=True, slots=True)
class Printed:
    """A piece of what a cell prints."""

    stream: str
    text: str


class CellReader:
    """A cell's lines: pieces and displays as they come, and at the end its result."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._left = b""
        self._printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._room = {"stdout": most, "stderr": most, "displays": most}
        self._displays: list[Display] = []
        self._error: CodeError | None = None
        self._count = 0
        self._is_cut = self._is_over = False

    def feed(self, data: bytes) -> list[Printed | Display]:
        """What the next bytes bring."""
        *lines, self._left = (self._left + data).split(b"\n")
        if len(self._left) > LONGEST_MESSAGE:
            raise BadAnswerError(f"a line of the cell's answer is longer than {LONGEST_MESSAGE} bytes")
        told = [self._take(document_of(line)) for line in lines if line.strip()]
        return [news for news in told if news is not None]

    def _take(self, told: Document) -> Printed | Display | None:
        kind = text_in(told, "type")
        if kind in ("stdout", "stderr"):
            text = text_in(told, "text")
            self._printed[kind].append(self._kept(kind, text))
            return Printed(kind, text)
        if kind == "result":
            forms = {name: value for name, value in told.items() if name not in ("type", "id", "is_main_result")}
            shown = Display(forms, bool(told.get("is_main_result")))
            self._room["displays"] -= sum(len(value) if isinstance(value, str) else 1 for value in forms.values())
            if self._room["displays"] >= 0:
                self._displays.append(shown)
            else:
                self._is_cut = True
            return shown
        if kind == "error":
            self._error = CodeError(text_in(told, "name"), text_in(told, "value"), text_in(told, "traceback"))
        elif kind == "number_of_executions":
            self._count = int(number_in(told, "execution_count"))
        elif kind == "end_of_execution":
            self._is_over = True
        return None

    def _kept(self, stream: str, text: str) -> str:
        room = self._room[stream]
        self._is_cut = self._is_cut or len(text) > room
        self._room[stream] = max(0, room - len(text))
        return text[:room]

    def end(self) -> Result:
        """All of it."""
        if not self._is_over:
            raise BadAnswerError("the answer ended before the cell did; the session may have ended")
        return Result(
            stdout="".join(self._printed["stdout"]), stderr="".join(self._printed["stderr"]), displays=tuple(self._displays),
            error=self._error, count=self._count, truncated=self._is_cut,
        )  # fmt: skip


def start(
    session: str, command: str | Sequence[str], *, cwd: str, env: Mapping[str, str], has_input: bool, timeout: float, tag: str
) -> Request:  # fmt: skip
    """Start a command; a text is one for the shell."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(one) for one in command]
    if not argv or not argv[0]:
        raise InvalidError("the command is empty; give a program and its arguments", "command", 400)
    process: dict[str, object] = {"cmd": argv[0], "args": argv[1:], "envs": dict(env)}
    if cwd:
        process["cwd"] = cwd
    told: dict[str, object] = {"process": process, "stdin": has_input}
    if tag:
        told["tag"] = tag
    return _streamed(session, "process.Process/Start", told, timeout)


def attach(session: str, pid: int) -> Request:
    """Hear a command that runs, from now on."""
    return _streamed(session, "process.Process/Connect", {"process": {"pid": pid}}, 0.0)


def _streamed(session: str, call: str, told: Mapping[str, object], timeout: float) -> Request:
    data = json.dumps(told).encode()
    headers = {"content-type": "application/connect+json", "connect-protocol-version": "1"}
    if timeout:
        headers["connect-timeout-ms"] = f"{max(1, round(timeout * 1000))}"
    return Request("POST", inside(session, call), struct.pack(">BI", 0, len(data)) + data, headers, None)


class Texts:
    """Pieces of bytes as texts; a character that is cut between two pieces comes with the second."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in ("stdout", "stderr")}

    def of(self, piece: Output) -> str:
        """The characters that are whole now."""
        return self._decoders[piece.stream].decode(piece.data)


class ProcessReader:
    """A command's messages: its number first, pieces as they come, and at the end how it ended."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._left = b""
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._end: Document | None = None
        self._refused: RefusedError | None = None
        self._is_cut = False
        self.pid = 0
        """0: it has not been told yet."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or was refused."""
        return self._end is not None or self._refused is not None

    def feed(self, data: bytes) -> list[Output]:
        """What the next bytes bring."""
        left, news = self._left + data, []
        while len(left) >= 5 and len(left) >= 5 + (length := int.from_bytes(left[1:5], "big")):
            flags, message, left = left[0], left[5 : 5 + length], left[5 + length :]
            news += self._take(flags, document_of(message))
        if len(left) >= 5 and int.from_bytes(left[1:5], "big") > LONGEST_MESSAGE:
            raise BadAnswerError(f"a message of the command's answer is longer than {LONGEST_MESSAGE} bytes")
        self._left = left
        return news

    def _take(self, flags: int, told: Document) -> list[Output]:
        if flags & 2:
            if error := document_in(told, "error"):
                self._refused = refusal(400, text_in(error, "code"), text_in(error, "message"))
            return []
        event = document_in(told, "event")
        if "start" in event:
            self.pid = int(number_in(document_in(event, "start"), "pid"))
        if "end" in event:
            self._end = document_in(event, "end")
        pieces = document_in(event, "data")
        return [self._keep(stream, text) for stream, text in pieces.items() if stream in self._kept]

    def _keep(self, stream: str, text: object) -> Output:
        try:
            data = base64.b64decode(f"{text}", validate=True)
        except binascii.Error:
            raise BadAnswerError("a piece of the command's output is no base64") from None
        kept = self._kept[stream]
        self._is_cut = self._is_cut or len(kept) + len(data) > self._most
        kept += data[: self._most - len(kept)]
        return Output(stream, data)

    def end(self) -> Completed:
        """How it ended; raises what it was refused with."""
        end = self._end if self._end is not None else {"exitCode": -1}
        completed = Completed(
            exit_code=int(number_in(end, "exitCode")), status=text_in(end, "status"), truncated=self._is_cut,
            stdout_bytes=bytes(self._kept["stdout"]), stderr_bytes=bytes(self._kept["stderr"]),
        )  # fmt: skip
        if self._refused is not None:
            if self._refused.reason == "deadline_exceeded":
                raise CommandTimeoutError(self._refused.sentence, completed)
            raise self._refused
        if self._end is None:
            raise BadAnswerError("the answer ended before the command did; the session may have ended")
        return completed
