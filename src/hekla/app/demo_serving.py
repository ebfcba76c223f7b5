"""The demo's model: one object becomes an engine in the training's queue, a chat is streamed while the training runs, and under load
the autoscaler adds replicas.

`demo.py` tells the rest. What is asked goes through the platform's own router, as any OpenAI client's request would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hekla.api.kthena import ModelBooster, ModelServing
from hekla.app.data_directory import DataDirectory
from hekla.app.demo_errors import DemoError
from hekla.wire.client import HttpClient
from hekla.wire.sse import EventParser

if TYPE_CHECKING:
    from hekla.app.demo import Stage

MODEL: Final = "chat"
SERVING: Final = "chat-demo"
EXAMPLE: Final = "serving/chat.yaml"
QUESTION: Final = "In one line: why do gangs start whole?"
WORDS: Final = 12
CROWD: Final = 24
"""Chats under way at once: the engine of the example runs four, so that twenty wait."""
LONG_ANSWER: Final = 200


class DemoModel:
    """The model of the demo, and who asks it."""

    def __init__(self, stage: "Stage", directory: DataDirectory) -> None:
        self._stage = stage
        self._directory = directory
        self._http = HttpClient()
        self.answered = 0

    async def bring_up(self) -> None:
        """Create the one object, and stream a chat when the first engine is ready."""
        stage = self._stage
        await stage.create(ModelBooster, EXAMPLE)
        stage.say(f"meanwhile `{MODEL}`, one ModelBooster, asks for an engine with one GPU in the same queue")
        await stage.until(stage.servings, lambda all_: _available(all_) >= 1, "the model's engine is ready")
        said = " ".join([word.strip() async for word in self._chat(QUESTION, WORDS)])
        stage.say(
            f"`{MODEL}` answers through the router while the training runs: {said!r} (its words are noise, its times are not)"
        )

    async def follow_the_load(self) -> None:
        """Let a crowd ask until there are more replicas."""
        stage = self._stage
        stage.say(f"act 4: {CROWD} chats at once; the engine takes four, so the autoscaler asks the queue for more")
        crowd = [asyncio.create_task(self._ask_on()) for _ in range(CROWD)]
        try:
            await stage.until(stage.servings, lambda all_: _wanted(all_) > 1, "the autoscaler asks for more replicas")
            stage.say(f"it asks for {_wanted(stage.servings.cache.list())} replicas; they are scheduled like every pod")
            await stage.until(stage.servings, lambda all_: _available(all_) > 1, "a second engine is ready")
            if lost := [one.exception() for one in crowd if one.done()]:
                raise DemoError(f"a chat was lost: {lost[0]}")
            engines = _available(stage.servings.cache.list())
            stage.say(f"{engines} engines share the load; {self.answered} answers so far, and none was lost")
        finally:
            for one in crowd:
                one.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)

    async def close(self) -> None:
        """Hang up."""
        await self._http.close()

    async def _ask_on(self) -> None:
        while True:
            async for _ in self._chat("tell me more", LONG_ANSWER):
                continue
            self.answered += 1

    async def _chat(self, question: str, words: int) -> AsyncIterator[str]:
        """The words of an answer as they come."""
        body = {
            "model": MODEL,
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


def _available(servings: Sequence[ModelServing]) -> int:
    return next((one.status.available_replicas for one in servings if one.metadata.name == SERVING), 0)


def _wanted(servings: Sequence[ModelServing]) -> int:
    return next((one.spec.replicas or 0 for one in servings if one.metadata.name == SERVING), 0)


def _key(file: Path) -> str:
    return file.read_text().splitlines()[0].partition(":")[2].strip()
