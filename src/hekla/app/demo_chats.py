"""Who chats with the demo's model: one at a time, or a crowd. All go through the platform's own router, as any OpenAI client would."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from hekla.app.data_directory import DataDirectory
from hekla.app.demo_errors import DemoError
from hekla.wire.client import HttpClient
from hekla.wire.sse import EventParser


@dataclass
class Crowd:
    """Chats under way, begun again when they end."""

    answered: int = 0
    rest_s: float = 0.0
    """Between an answer and the next question."""
    chats: list[asyncio.Task[None]] = field(default_factory=list)

    def thin_out(self, rest_s: float) -> None:
        """Let one go on, unhurried, and the others leave."""
        self.rest_s = rest_s
        for one in self.chats[1:]:
            one.cancel()

    def check(self) -> None:
        """Raise DemoError if one was lost."""
        if lost := [one.exception() for one in self.chats if one.done() and not one.cancelled()]:
            raise DemoError(f"a chat was lost: {lost[0]}")


class ChatClient:
    """A client of one model."""

    def __init__(self, directory: DataDirectory, model: str) -> None:
        self._directory = directory
        self._model = model
        self._http = HttpClient()

    async def close(self) -> None:
        """Hang up."""
        await self._http.close()

    async def answer(self, question: str, words: int) -> str:
        """An answer, streamed, whole."""
        return "".join([piece async for piece in self._chat(question, words)]).strip()

    @contextlib.asynccontextmanager
    async def crowd(self, size: int, words: int) -> AsyncIterator[Crowd]:
        """So many chats at once while the block runs."""
        crowd = Crowd()
        crowd.chats = [asyncio.create_task(self._ask_on(crowd, words)) for _ in range(size)]
        try:
            yield crowd
        finally:
            for one in crowd.chats:
                one.cancel()
            await asyncio.gather(*crowd.chats, return_exceptions=True)

    async def _ask_on(self, crowd: Crowd, words: int) -> None:
        while True:
            async for _ in self._chat("tell me more", words):
                continue
            crowd.answered += 1
            await asyncio.sleep(crowd.rest_s)

    async def _chat(self, question: str, words: int) -> AsyncIterator[str]:
        """The words of an answer as they come."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": words,
            "stream": True,
        }
        headers = (
            ("authorization", f"Bearer {_key(self._directory.router_keys)}"),
            ("content-type", "application/json"),
        )
        url = f"{self._directory.router_url.read_text().strip()}/v1/chat/completions"
        parser = EventParser()
        async with self._http.stream("POST", url, headers, json.dumps(body).encode()) as answer:
            if answer.status != 200:
                raise DemoError(
                    f"the router answered {answer.status}: {(await answer.read()).decode(errors='replace')}"
                )
            async for piece in answer:
                for event in parser.feed(piece):
                    if event.data != "[DONE]":
                        for choice in json.loads(event.data)["choices"]:
                            yield choice["delta"].get("content") or ""


def _key(file: Path) -> str:
    return file.read_text().splitlines()[0].partition(":")[2].strip()
