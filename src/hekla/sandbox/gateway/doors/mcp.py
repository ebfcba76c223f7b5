"""The Model Context Protocol at /mcp, streamable HTTP: agents run code and keep files in sessions by calling tools.

Every request is answered by itself, as JSON: there is no stream to listen on (GET is refused), and no state of ours but sessions,
which the tools name. `mcp_events.py` has the older way, by server-sent events; `hekla agent mcp` carries the same to programs that
speak it by standard input and output.
"""

import asyncio
from typing import Any, Final

import msgspec
import structlog

from hekla import __version__
from hekla.sandbox.gateway.answers import document
from hekla.sandbox.gateway.documents import NO_DOCUMENT, Asked, Reply
from hekla.sandbox.gateway.doors.mcp_events import EVENTS, MESSAGES, McpStreams, admitted
from hekla.sandbox.gateway.front import Arrival, House
from hekla.sandbox.gateway.guard import Principal
from hekla.sandbox.gateway.tools import TOOLS, Tool, check_arguments, schema_of
from hekla.sandbox.gateway.visitors import Taker
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session, SessionKind
from hekla.sandbox.sessions.store import StoreUnavailableError
from hekla.sandbox.sessions.wishes import Wish

log = structlog.get_logger(__name__)

PATH: Final = "/mcp"
VERSIONS: Final = ("2025-06-18", "2025-11-25", "2025-03-26", "2024-11-05")
"""Of the protocol; the first is offered to whoever asks for another."""
DEFAULT_TEMPLATE: Final = "base"
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, REFUSED = -32700, -32600, -32601, -32602, -32000
INTERNAL_ERROR: Final = -32603
_GRACE_S: Final = 5.0
"""A command that is out of time is told so by the daemon first."""
INSTRUCTIONS: Final = (
    "Each call runs in a sandbox of its own that ends with the call. To go on where a call left off, open a session with "
    "session_reuse and name its session_id from then on; end it with stop_session."
)


class McpError(Exception):
    """An error of the protocol itself."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class McpDoor:
    """Tools for language models."""

    name = "mcp"

    def __init__(self) -> None:
        self._streams = McpStreams(self.said)

    def takes(self, arrival: Arrival) -> bool:
        """By path."""
        return arrival.path in (PATH, EVENTS, MESSAGES)

    def receive(self, house: House, arrival: Arrival) -> Taker:
        """One message, or a stream of answers."""
        if arrival.path == EVENTS and arrival.head.method == b"GET":
            return self._streams.open(house, arrival, self)
        return house.document(arrival, self, lambda asked: self._answer(house, asked))

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal of the request itself."""
        return status, document(_error(None, REFUSED, sentence))

    async def _answer(self, house: House, asked: Asked) -> Reply:
        who = await admitted(house, asked.headers)
        asked.owner = who.owner
        if asked.method != "POST" or asked.path == EVENTS:
            allowed = "GET" if asked.path == EVENTS else "POST"
            sentence = f"send messages with POST to {PATH}, or listen with GET at {EVENTS}"
            return Reply(405, _error(None, REFUSED, sentence), [("allow", allowed)])
        if asked.path == MESSAGES:
            return self._streams.take(house, who, asked)
        return await self.said(house, who, asked)

    async def said(self, house: House, who: Principal, asked: Asked) -> Reply:
        """What one message is answered."""
        try:
            message = msgspec.json.decode(asked.body, type=dict[str, Any])
        except msgspec.ValidationError:
            return Reply(400, _error(None, INVALID_REQUEST, "send one message, a JSON object"))
        except NO_DOCUMENT as error:
            return Reply(400, _error(None, PARSE_ERROR, f"the body is not JSON: {error}"))
        method, told_id, params = message.get("method"), message.get("id"), message.get("params", {})
        if message.get("jsonrpc") != "2.0" or isinstance(told_id, bool | float | dict | list):
            return Reply(
                400,
                _error(
                    None, INVALID_REQUEST, 'a message has "jsonrpc": "2.0", and an "id" that is text or a whole number'
                ),
            )
        if told_id is None or method is None:
            return Reply(202)  # a notification, or an answer to what we never ask
        if not isinstance(params, dict):
            return Reply(200, _error(told_id, INVALID_PARAMS, '"params" must be an object'))
        try:
            result = await self._called(house, who, asked, str(method), params)
        except McpError as error:
            return Reply(200, _error(told_id, error.code, str(error)))
        except StoreUnavailableError as error:
            return Reply(503, _error(told_id, REFUSED, str(error)), [("retry-after", "1")])
        except Exception as error:  # here the id is known, without which who listens to events would wait for ever
            log.exception("a message was not answered", method=str(method)[:64], error=type(error).__name__)
            return Reply(500, _error(told_id, INTERNAL_ERROR, "internal server error"))
        return Reply(200, {"jsonrpc": "2.0", "id": told_id, "result": result})

    async def _called(
        self, house: House, who: Principal, asked: Asked, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        if method == "initialize":
            wanted = params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hekla", "title": "Hekla sandboxes", "version": __version__},
                "instructions": INSTRUCTIONS,
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            listed = [
                {"name": one.name, "description": one.description, "inputSchema": schema_of(one)}
                for one in TOOLS.values()
            ]
            return {"tools": listed}
        if method == "tools/call":
            tool, given = TOOLS.get(str(params.get("name"))), params.get("arguments") or {}
            if tool is None:
                raise McpError(
                    INVALID_PARAMS, f'there is no tool "{str(params.get("name"))[:64]}"; there are {", ".join(TOOLS)}'
                )
            if not isinstance(given, dict):
                raise McpError(INVALID_PARAMS, '"arguments" must be an object')
            return await self._use(house, who, asked, tool, given)
        raise McpError(METHOD_NOT_FOUND, f'there is no method "{method[:64]}"')

    async def _use(
        self, house: House, who: Principal, asked: Asked, tool: Tool, given: dict[str, Any]
    ) -> dict[str, Any]:
        """A tool's result; what goes wrong with it is one, too, for the model to read."""
        try:
            check_arguments(tool, given)
            if tool.work is None:
                await house.desk.end(given["session_id"], who.sees)
                return _result([_text("session ended")], {"session_id": given["session_id"]})
            return await self._work(house, who, asked, tool, given)
        except RefusedError as refusal:
            return _result(
                [_text(refusal.sentence)], {"error": refusal.sentence, "reason": refusal.reason}, is_error=True
            )

    async def _work(
        self, house: House, who: Principal, asked: Asked, tool: Tool, given: dict[str, Any]
    ) -> dict[str, Any]:
        assert tool.work is not None
        timeout_s = float(given.get("timeout_seconds", 60))
        keeps = given.get("session_reuse", False)
        session, is_new = await self._session(house, who, asked, given.get("session_id", ""), keeps=keeps)
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S if tool.name == "execute_command" else timeout_s):
                outcome = await tool.work(house, session, given, timeout_s)
        except TimeoutError:
            raise RefusedError(504, "timeout", f"the call took longer than {timeout_s:g} s and was stopped") from None
        finally:
            if is_new and not keeps:
                await house.desk.end(session.id, why="its only call is over")
        structured = outcome.structured if is_new and not keeps else {**outcome.structured, "session_id": session.id}
        content = outcome.content if not is_new or not keeps else [*outcome.content, _text(f"session_id: {session.id}")]
        return _result(content, structured, is_error=outcome.is_error)

    async def _session(
        self, house: House, who: Principal, asked: Asked, named: str, *, keeps: bool
    ) -> tuple[Session, bool]:
        """The session that is named, or a new one: also where the named one is over and the caller would have a new one kept."""
        if named:
            try:
                return await house.desk.find(named, who.sees), False
            except RefusedError as refusal:
                if refusal.status != 404 or not keeps:
                    raise
        namespace, _, name = asked.query.get("template", DEFAULT_TEMPLATE).rpartition("/")
        namespace = namespace or who.namespace or "default"
        stock = house.desk.stock
        for kind in (SessionKind.INTERPRETER, SessionKind.TEMPLATE):
            if who.may_use(namespace) and stock.blueprint(kind, namespace, name) is not None:
                wish = Wish(
                    kind=kind, namespace=namespace, name=name, owner=who.owner, door=self.name, auto_resume=True
                )
                return await house.desk.create(wish), True
        raise RefusedError(404, "template_not_found", f'template "{namespace}/{name}" not found'[:200])


def _result(content: list[dict[str, Any]], structured: dict[str, Any], *, is_error: bool = False) -> dict[str, Any]:
    return {"content": content, "structuredContent": structured, "isError": is_error}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _error(told_id: object, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": told_id, "error": {"code": code, "message": message}}
