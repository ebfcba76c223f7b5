"""The dialect of E2B's code interpreter: cells in contexts, answered as lines of JSON while they run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from hekla.sandbox.daemon.asked import named_texts, text
from hekla.sandbox.daemon.http import HttpError
from hekla.sandbox.daemon.processes import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hekla.sandbox.daemon.contexts import Context, Contexts, Message
    from hekla.sandbox.daemon.http import Answer, Request

_STATUS = {"not_found": 404, "resource_exhausted": 429, "unavailable": 503, "unimplemented": 501}


class CodeInterpreter:
    """The dialect over one sandbox's contexts."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    async def handle(self, request: Request, answer: Answer) -> bool:
        """Answer a request of this dialect; False: it is of another."""
        names = request.path.strip("/").split("/")
        try:
            if request.method == "POST" and names == ["execute"]:
                await self._execute(request, answer)
            elif names == ["contexts"] and request.method in ("GET", "POST"):
                await (self._create if request.method == "POST" else self._list)(request, answer)
            elif len(names) == 2 and names[0] == "contexts" and request.method == "DELETE":
                self._contexts.remove(names[1])
                await answer.whole(204)
            elif (
                len(names) == 3
                and names[0] == "contexts"
                and names[2] in ("restart", "interrupt")
                and request.method == "POST"
            ):
                getattr(self._contexts, names[2])(names[1])
                await answer.whole(204)
            else:
                return False
        except CommandError as error:
            raise HttpError(_STATUS.get(error.code, 400), str(error), error.code) from error
        return True

    async def _create(self, request: Request, answer: Answer) -> None:
        asked = await request.json()
        await answer.json(200, _told(self._contexts.create(text(asked, "language"), text(asked, "cwd"))))

    async def _list(self, request: Request, answer: Answer) -> None:
        await answer.json(200, [_told(one) for one in self._contexts.listed()])

    async def _execute(self, request: Request, answer: Answer) -> None:
        asked = await request.json()
        code = asked.get("code")
        if not isinstance(code, str):
            raise HttpError(400, '"code" must be text', "invalid_argument")
        context_id, language, envs = text(asked, "context_id"), text(asked, "language"), named_texts(asked, "env_vars")
        if context_id and language:
            raise HttpError(400, "give a context or a language, not both", "invalid_argument")
        timeout_s = asked.get("timeout") or 0.0  # hekla-sdk's; E2B's clients leave when their time is over
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or timeout_s < 0:
            raise HttpError(400, f'"timeout" is {timeout_s!r}; it must be a number of seconds', "invalid_argument")
        context = self._contexts.find(context_id) if context_id else self._contexts.default(language)
        await answer.begin(200, "application/json")
        await self._stream(self._contexts.run(context, code, envs, timeout_s), context, request, answer)

    async def _stream(
        self, cell: AsyncGenerator[Message, None], context: Context, request: Request, answer: Answer
    ) -> None:
        try:
            while True:
                waiting = asyncio.ensure_future(_next(cell))
                pending: list[asyncio.Future[Any]] = [waiting, request.gone]
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():  # the client left: the cell is interrupted
                    waiting.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await waiting
                    raise ConnectionError("the client left")
                if (message := waiting.result()) is None:
                    break
                if message["type"] in ("stdout", "stderr"):
                    self._contexts.journal.said(
                        message["type"], str(message.get("text", "")).encode("utf-8", "replace"), 0
                    )
                await answer.piece(_line(_message(message)))
        finally:
            await cell.aclose()
        await answer.piece(_line({"type": "number_of_executions", "execution_count": context.cells}))
        await answer.piece(_line({"type": "end_of_execution"}))


async def _next(cell: AsyncGenerator[Message, None]) -> Message | None:
    async for message in cell:
        return message
    return None


def _message(message: Message) -> dict[str, Any]:
    if message["type"] in ("stdout", "stderr"):
        return {**message, "timestamp": time.time_ns()}
    return message


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _told(context: Context) -> dict[str, Any]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}
