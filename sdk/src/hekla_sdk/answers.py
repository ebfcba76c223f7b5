"""What a program gets: sessions, results of code, completed commands, files."""

import base64
import binascii
import json
from dataclasses import dataclass, field

from hekla_sdk.documents import Document, document_in, number_in, text_in, texts_in
from hekla_sdk.errors import BadAnswerError, CommandFailedError


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as the gateway tells of it; times are seconds since 1970, 0 where there is none."""

    id: str
    state: str
    """`running`, `frozen`, `paused` and what lies between; `gone` when it has ended."""
    template: str
    namespace: str
    kind: str
    owner: str
    created: float
    expires: float
    """When its time is over; 0: when it has been idle for long."""
    ends: float
    """When it ends whatever happens."""
    parent: str
    """The session that it was forked from."""
    metadata: dict[str, str]

    @classmethod
    def read(cls, told: Document) -> "SessionInfo":
        """From the gateway's words."""
        if not text_in(told, "id"):
            raise BadAnswerError('the answer has no "id" of a session')
        return cls(
            id=text_in(told, "id"), state=text_in(told, "state"), template=text_in(told, "name"), namespace=text_in(told, "namespace"),
            kind=text_in(told, "kind"), owner=text_in(told, "owner"), created=number_in(told, "created"), expires=number_in(told, "expires"),
            ends=number_in(told, "ends"), parent=text_in(told, "parent"), metadata=texts_in(told, "metadata"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files (and variables, where the sandbox can) as they were at a moment; `Session.create(snapshot=id)` begins with them."""

    id: str
    names: tuple[str, ...]
    session: str
    created: float

    @classmethod
    def read(cls, told: Document) -> "Snapshot":
        """From the gateway's words."""
        names = told.get("names")
        return cls(
            id=text_in(told, "id"), session=text_in(told, "session"), created=number_in(told, "created"),
            names=tuple(map(str, names)) if isinstance(names, list) else (),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Template:
    """Something that sessions are made from."""

    name: str
    namespace: str
    kind: str

    @classmethod
    def read(cls, told: Document) -> "Template":
        """From the gateway's words."""
        return cls(name=text_in(told, "name"), namespace=text_in(told, "namespace"), kind=text_in(told, "kind"))


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session's sandbox has used since it was started."""

    cpu_s: float
    memory_bytes: int
    memory_byte_s: float
    storage_bytes: int
    network_sent_bytes: int
    network_received_bytes: int
    wall_s: float
    frozen_s: float

    @classmethod
    def read(cls, told: Document) -> "Usage":
        """From the gateway's words."""
        return cls(
            cpu_s=number_in(told, "cpuUs") / 1e6, memory_bytes=int(number_in(told, "memoryBytes")),
            memory_byte_s=number_in(told, "memoryByteS"), storage_bytes=int(number_in(told, "storageBytes")),
            network_sent_bytes=int(number_in(told, "networkSentBytes")),
            network_received_bytes=int(number_in(told, "networkReceivedBytes")),
            wall_s=number_in(told, "wallS"), frozen_s=number_in(told, "frozenS"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Context:
    """An interpreter inside a session, with variables of its own."""

    id: str
    language: str
    cwd: str

    @classmethod
    def read(cls, told: Document) -> "Context":
        """From the daemon's words."""
        return cls(id=text_in(told, "id"), language=text_in(told, "language"), cwd=text_in(told, "cwd"))


_KINDS = {"FILE_TYPE_FILE": "file", "FILE_TYPE_DIRECTORY": "directory", "FILE_TYPE_SYMLINK": "symlink"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a directory or a link."""

    name: str
    path: str
    kind: str
    """`file`, `directory`, `symlink` or `other`."""
    size: int
    mode: int
    owner: str
    modified: str
    """As ISO 8601 has it."""
    target: str
    """Where a link leads."""

    @property
    def is_directory(self) -> bool:
        """Whether it may have entries."""
        return self.kind == "directory"

    @classmethod
    def read(cls, told: Document) -> "Entry":
        """From the daemon's words."""
        return cls(
            name=text_in(told, "name"), path=text_in(told, "path"), kind=_KINDS.get(text_in(told, "type"), "other"),
            size=int(number_in(told, "size")), mode=int(number_in(told, "mode")), owner=text_in(told, "owner"),
            modified=text_in(told, "modifiedTime"), target=text_in(told, "symlinkTarget"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A command that runs."""

    pid: int
    argv: tuple[str, ...]
    cwd: str
    tag: str

    @classmethod
    def read(cls, told: Document) -> "ProcessInfo":
        """From the daemon's words."""
        config = document_in(told, "config")
        rest = config.get("args")
        return cls(
            pid=int(number_in(told, "pid")), cwd=text_in(config, "cwd"), tag=text_in(told, "tag"),
            argv=(text_in(config, "cmd"), *(map(str, rest) if isinstance(rest, list) else ())),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a command prints."""

    stream: str
    """`stdout` or `stderr`."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended."""

    exit_code: int
    """As a shell has it; -1 where a signal ended it."""
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    status: str = ""
    """In words: `exit status 1`, `signal: killed`."""
    truncated: bool = False
    """Whether it printed more than was asked to be kept."""

    @property
    def stdout(self) -> str:
        """Standard output; what is no UTF-8 is replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error, the same."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0

    def check(self) -> "Completed":
        """Itself, or CommandFailedError."""
        if not self.ok:
            raise CommandFailedError(self)
        return self


@dataclass(frozen=True, slots=True)
class CodeError:
    """What a cell raised."""

    name: str
    value: str
    traceback: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name


@dataclass(frozen=True, slots=True)
class Display:
    """A value that a cell showed, in the forms that it has: `text`, `html`, `markdown`, `svg`, `png`, `json`, ..."""

    forms: dict[str, object] = field(repr=False)
    is_main: bool
    """Whether it is the value of the cell's last expression."""

    def text_of(self, form: str) -> str:
        """One form as text; empty if it has none."""
        found = self.forms.get(form, "")
        return found if isinstance(found, str) else json.dumps(found)

    def image(self) -> bytes | None:
        """The picture, if it is one."""
        for form in ("png", "jpeg"):
            if form in self.forms:
                try:
                    return base64.b64decode(self.text_of(form), validate=False)
                except binascii.Error:
                    raise BadAnswerError(f"a picture of the cell is no base64 in its form {form}") from None
        return None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a cell of code."""

    stdout: str
    stderr: str
    displays: tuple[Display, ...]
    error: CodeError | None
    count: int
    """Which cell of its context it was."""
    truncated: bool = False
    """Whether it printed or showed more than was asked to be kept."""

    @property
    def text(self) -> str:
        """The value of the last expression; empty if there is none."""
        return next((one.text_of("text") for one in reversed(self.displays) if one.is_main), "")

    @property
    def images(self) -> list[bytes]:
        """Pictures that it showed, as PNG or JPEG."""
        return [image for one in self.displays if (image := one.image()) is not None]
