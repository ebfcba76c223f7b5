"""The Model Context Protocol of 2024-11-05, by server-sent events: a client listens at /mcp/sse, and is told there where to send.

What it sends to /mcp/messages is answered 202, and in full on its stream. `mcp.py` answers the messages themselves.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote

import structlog

from hekla.sandbox.gateway.answers import document, whole
from hekla.sandbox.gateway.documents import Asked, Reply
from hekla.sandbox.gateway.event_streams import EventStream
from hekla.sandbox.gateway.front import Arrival, House, Wording
from hekla.sandbox.gateway.guard import Principal
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.store import StoreUnavailableError

log = structlog.get_logger(__name__)

EVENTS: Final = "/mcp/sse"
MESSAGES: Final = "/mcp/messages"
MOST_STREAMS: Final = 1000
"""Clients that listen; one more is refused with 429."""
MOST_AT_WORK: Final = 32
"""Messages of one client that are under way; one more is refused with 429."""

Said = Callable[[House, Principal, Asked], Awaitable[Reply]]


async def admitted(house: House, headers: Mapping[str, str]) -> Principal:
    """Who asks; RefusedError for strangers, and for pages that a browser shows from elsewhere."""
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2] != headers.get("host"):
        raise RefusedError(403, "origin", "pages of other origins may not ask here")
    return await house.guard.by_headers(headers)


class McpStreams:
    """Clients that listen."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self._open: dict[str, tuple[EventStream, str]] = {}
        """Streams and their owners, by an id that only the client is told."""

    def open(self, house: House, arrival: Arrival, door: Wording) -> EventStream:
        """Listen, once it is known who does."""
        if len(self._open) >= MOST_STREAMS:
            raise RefusedError(
                429, "streams", f"{MOST_STREAMS} clients listen already; try again later", retry_after_s=1.0
            )
        name = secrets.token_urlsafe(24)
        stream = EventStream(arrival.visitor, lambda: self._close(name))
        self._open[name] = (stream, "")
        stream.work(asyncio.get_running_loop().create_task(self._admit(house, arrival, door, name, stream)))
        return stream

    def _close(self, name: str) -> None:
        self._open.pop(name, None)

    async def _admit(self, house: House, arrival: Arrival, door: Wording, name: str, stream: EventStream) -> None:
        try:
            who = await admitted(house, arrival.headers)
        except RefusedError as refusal:
            self._turn_away(arrival, name, house.refused(door, arrival.visitor.peer, refusal))
            return
        except StoreUnavailableError as error:
            self._turn_away(arrival, name, house.refusal(door, RefusedError(503, "store", str(error))))
            return
        except Exception as error:  # nobody else would tell the client, whose connection stays open
            log.exception("a listener was not let in", error=type(error).__name__)
            sentence = "internal server error"
            self._turn_away(arrival, name, house.refusal(door, RefusedError(500, "internal", sentence)))
            return
        self._open[name] = (stream, who.owner)
        query = arrival.head.target.partition(b"?")[2].decode("latin-1")
        template = next((one for one in query.split("&") if one.startswith("template=")), "")
        stream.begin()
        stream.say("endpoint", f"{MESSAGES}?session_id={quote(name)}{'&' + template if template else ''}".encode())

    def _turn_away(self, arrival: Arrival, name: str, reply: Reply) -> None:
        self._open.pop(name, None)
        body = reply.value if isinstance(reply.value, bytes) else document(reply.value)
        arrival.visitor.transport.write(whole(reply.status, body, keeps_alive=False))
        arrival.visitor.done(keeps_alive=False)

    def take(self, house: House, who: Principal, asked: Asked) -> Reply:
        """A message of somebody who listens; its answer goes there."""
        stream, owner = self._open.get(asked.query.get("session_id", ""), (None, ""))
        if stream is None or owner != who.owner:
            raise RefusedError(404, "stream_not_found", f"nobody listens by that session_id; open {EVENTS} first")
        if stream.at_work >= MOST_AT_WORK:
            raise RefusedError(
                429, "busy", f"{MOST_AT_WORK} messages are under way; wait for an answer", retry_after_s=1.0
            )
        stream.work(asyncio.get_running_loop().create_task(self._answer(stream, house, who, asked)))
        return Reply(202)

    async def _answer(self, stream: EventStream, house: House, who: Principal, asked: Asked) -> None:
        reply = await self._said(house, who, asked)
        if reply.value is not None:
            stream.say("message", document(reply.value))
