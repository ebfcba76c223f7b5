"""Anthropic's messages as vLLM serves them for every model: a chat in other words, whole or as a stream of named events."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from hekla.app.engine.bodies import Chat, Message
from hekla.app.engine.stops import first_stop
from hekla.simulation.engine.happenings import Emission, Ending, Happening
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import detokenize

_json = msgspec.json.Encoder().encode


class Messages(Struct, kw_only=True):
    """POST /v1/messages and /v1/messages/count_tokens."""

    messages: list[Message]
    model: str
    max_tokens: int = 1
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    tools: list[dict[str, Any]] | None = None

    def chat(self) -> Chat:
        """The chat that it stands for."""
        system = [Message(role="system", content=self.system)] if self.system else []
        return Chat(
            messages=system + self.messages, tools=self.tools, model=self.model, stream=self.stream,
            max_completion_tokens=self.max_tokens, stop=self.stop_sequences, temperature=self.temperature,
            top_p=self.top_p, top_k=self.top_k,
        )  # fmt: skip


def error_body(message: str, kind: str) -> bytes:
    """An error in Anthropic's shape."""
    return _json({"type": "error", "error": {"type": kind, "message": message}})


def counted(tokens: int) -> dict[str, Any]:
    """POST /v1/messages/count_tokens."""
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


class MessageAnswer:
    """The answer to one request, while it grows."""

    def __init__(
        self, name: str, model: str, ask: Ask, body: Messages, *, write: Callable[[bytes], None], done: Callable[[], None]
    ) -> None:  # fmt: skip
        self._name, self._model, self._ask, self._is_stream = name, model, ask, bool(body.stream)
        self._write, self._done = write, done
        self._stop = first_stop(body.chat(), ask)
        self._texts: list[str] = []
        self._tokens = 0

    def hear(self, happening: Happening) -> None:
        """Take what the engine tells."""
        if isinstance(happening, Emission):
            self._grow(detokenize(happening.written), len(happening.written))
        elif isinstance(happening, Ending):
            self._end()

    def _grow(self, text: str, tokens: int) -> None:
        if not self._tokens:
            self._tell("message_start", message=self._document([], None, 0) | {"stop_sequence": None})
            self._tell("content_block_start", content_block={"type": "text", "text": ""}, index=0)
        self._tokens += tokens
        if self._stop is not None:
            text = text[: max(0, self._stop.characters - sum(map(len, self._texts)))]
        self._texts.append(text)
        if text:
            self._tell("content_block_delta", delta={"type": "text_delta", "text": text}, index=0)

    def _end(self) -> None:
        why = "end_turn" if self._ask.ends_by_itself else "max_tokens"
        stop = self._stop.reason if self._stop else None
        if stop is not None:
            why = "stop_sequence"
        self._tell("content_block_stop", index=0)
        usage = {"input_tokens": self._ask.prompt_tokens, "output_tokens": self._tokens}
        self._tell("message_delta", delta={"stop_reason": why, "stop_sequence": stop}, usage=usage)
        self._tell("message_stop")
        if not self._is_stream:
            content = [{"type": "text", "text": "".join(self._texts)}]
            sequence = {} if stop is None else {"stop_sequence": stop}
            self._write(_json(self._document(content, why, self._tokens) | sequence))
        self._done()

    def _tell(self, name: str, **fields: Any) -> None:
        if self._is_stream:
            self._write(b"event: %b\ndata: %b\n\n" % (name.encode(), _json({"type": name, **fields})))

    def _document(self, content: list[dict[str, Any]], why: str | None, tokens: int) -> dict[str, Any]:
        usage = {"input_tokens": self._ask.prompt_tokens, "output_tokens": tokens}
        return {
            "id": self._name, "type": "message", "role": "assistant", "content": content, "model": self._model,
            "stop_reason": why, "usage": usage,
        }  # fmt: skip
