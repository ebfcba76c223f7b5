"""Requests that the gateway answers itself: read whole within a bound, answered by a coroutine that ends when the client leaves."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from hekla.sandbox.gateway.answers import JSON, document, whole
from hekla.sandbox.gateway.visitors import Visitor
from hekla.sandbox.sessions.limits import RefusedError
from hekla.wire.raw_heads import RequestHead

_decode = msgspec.json.Decoder().decode
NO_DOCUMENT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no document: text that is none and brackets without end are two of them."""

LARGEST = 1e15
"""No number that a client means is larger; a whole one of 401 digits is no float at all."""


@dataclass(slots=True)
class Asked:
    """One such request."""

    method: str
    target: str
    headers: dict[str, str]
    """Names in lower case, the first of each; those that decide anything come once (`front.py`)."""
    body: bytes
    owner: str = ""
    """Who asks, once that is known."""
    peer: str = ""
    base_url: str = ""
    """How the client reached us."""

    @property
    def path(self) -> str:
        """The path as it came, without the query."""
        return self.target.partition("?")[0]

    @property
    def parts(self) -> list[str]:
        """Its segments, decoded one by one, so that an encoded slash stays within its segment."""
        return [unquote(one) for one in self.path.strip("/").split("/")]

    @property
    def query(self) -> dict[str, str]:
        """The query's values by name, the last of each."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def queries(self) -> list[tuple[str, str]]:
        """All of them, in order."""
        return parse_qsl(self.target.partition("?")[2], keep_blank_values=True)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; none is an empty one."""
        if not self.body.strip():
            return {}
        try:
            told = _decode(self.body)
        except NO_DOCUMENT as error:
            raise RefusedError(400, "body", f"the body is not JSON: {error}") from None
        if not isinstance(told, dict):
            raise RefusedError(400, "body", "the body must be a JSON object")
        return told


@dataclass(slots=True)
class Reply:
    """One answer."""

    status: int = 200
    value: Any = None
    """Sent as JSON, unless it is bytes."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    content_type: str = "application/json"
    refusal: RefusedError | None = None
    """What it refuses, for the log."""

    def bytes(self, *, keeps_alive: bool, is_head: bool) -> bytes:
        """As it goes out."""
        body = self.value if isinstance(self.value, bytes) else b"" if self.value is None else document(self.value)
        lines = b"".join(f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in self.headers)
        kind = self.content_type.encode() if self.content_type else JSON
        return whole(self.status, body, content_type=kind, lines=lines, keeps_alive=keeps_alive, is_head=is_head)


def whole_number(query: dict[str, str], name: str, otherwise: int | None, *, least: int, most: int) -> int | None:
    """A number that a query names; RefusedError."""
    text = query.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and least <= int(text) <= most):
        raise RefusedError(400, name, f'"{name}" is "{text[:32]}"; it must be a whole number from {least} to {most}')
    return int(text)


def one_of(query: dict[str, str], name: str, *words: str) -> str:
    """A word that a query names, of those that there are; empty: it names none. RefusedError."""
    text = query.get(name, "")
    if text and text not in words:
        raise RefusedError(400, name, f'"{name}" is "{text[:32]}"; it must be {" or ".join(words)}')
    return text


Handler = Callable[[Asked], Awaitable[Reply]]
Finished = Callable[["Document", int], None]


class Document:
    """One such request on its way."""

    __slots__ = (
        "_answer", "_asked", "_finished", "_is_over", "_limit", "_pieces", "_size", "_task", "door", "head", "refusal", "started_s",
        "visitor", "wants_payload",
    )  # fmt: skip

    def __init__(
        self,
        visitor: Visitor,
        head: RequestHead,
        asked: Asked,
        answer: Handler,
        *,
        door: str,
        limit: int,
        finished: Finished,
    ) -> None:
        self.visitor, self.head, self.door = visitor, head, door
        self._asked, self._answer, self._limit, self._finished = asked, answer, limit, finished
        self.wants_payload = True
        self._pieces: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self.refusal: RefusedError | None = None
        self.started_s = asyncio.get_running_loop().time()

    @property
    def asked(self) -> Asked:
        """The request."""
        return self._asked

    def feed(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """Keep a part of the body, up to the bound."""
        if self._is_over:
            return
        for piece in payload or ():
            self._size += len(piece)
            self._pieces.append(piece)
        if self._size > self._limit:
            self.refusal = RefusedError(413, "body", f"the body is larger than {self._limit} bytes; send a smaller one")
            self._over(413)
            self.visitor.refuse(413, self.refusal.sentence)
        elif is_last:
            self._asked.body = b"".join(self._pieces)
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        reply = await self._answer(self._asked)
        if self._is_over:
            return
        self.refusal = reply.refusal
        keeps = self.head.keeps_alive
        self.visitor.transport.write(reply.bytes(keeps_alive=keeps, is_head=self.head.method == b"HEAD"))
        self._over(reply.status)  # counted and logged when the answer is on its way: 0.3 ms
        self.visitor.done(keeps_alive=keeps)

    def raw(self, data: bytes) -> None:
        """There is no upgrade here."""

    def abandon(self) -> None:
        """The client left: so does the work for it."""
        if not self._is_over:
            self._over(499)
            if self._task is not None:
                self._task.cancel()

    def pause(self) -> None:
        """Answers are small."""

    def resume(self) -> None:
        """Answers are small."""

    def tick(self, now: float) -> None:
        """Whoever answers keeps his own time."""

    def _over(self, status: int) -> None:
        self._is_over = True
        self._pieces = []
        self._finished(self, status)
