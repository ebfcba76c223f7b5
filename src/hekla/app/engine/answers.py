"""What an engine answers: OpenAI's shapes as vLLM writes them, whole and as server-sent events.

An answer listens to the endings and tokens of its choices and hands finished bytes to its outlet: a stream that is
pushed, or a future that is resolved once.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hekla.simulation.engine.happenings import Emission, Ending, Happening, Reason
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import detokenize

_json = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


def error_body(message: str, kind: str, status: int, param: str | None = None) -> bytes:
    """An error as vLLM writes it."""
    return _json({"error": {"message": message, "type": kind, "param": param, "code": status}})


def event(document: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _json(document) + b"\n\n"


class Choice:
    """One of the answers to a request."""

    __slots__ = ("ask", "cached", "index", "reason", "texts", "tokens")

    def __init__(self, index: int, ask: Ask) -> None:
        self.index = index
        self.ask = ask
        self.texts: list[str] = []
        self.tokens = 0
        self.reason: str | None = None
        self.cached = 0


class Answer:
    """A request's answer, while it grows."""

    def __init__(
        self, *, name: str, model: str, asks: Sequence[Ask], is_chat: bool, is_stream: bool, wants_usage: bool,
        write: Callable[[bytes], None], done: Callable[[], None],
        transfer: Callable[[Ask], dict[str, Any] | None], counts_as_it_goes: bool = False,
    ) -> None:  # fmt: skip
        """`write` takes bytes; `done` is called at the end; `transfer` tells what is kept for another engine."""
        self.choices = [Choice(index, ask) for index, ask in enumerate(asks)]
        self._by_id = {choice.ask.id: choice for choice in self.choices}
        self._name, self._model = name, model
        self._created = int(time.time())
        self._is_chat, self._is_stream, self._wants_usage = is_chat, is_stream, wants_usage
        self._write, self._done, self._transfer = write, done, transfer
        self._counts_as_it_goes = counts_as_it_goes
        self._open = len(self.choices)

    def hear(self, happening: Happening) -> None:
        """Take what the engine tells of one choice."""
        choice = self._by_id[happening.request]
        if isinstance(happening, Emission):
            self._grow(choice, happening.written)
        elif isinstance(happening, Ending):
            choice.reason, choice.cached = happening.reason, happening.cached_tokens
            self._end(choice)

    def _grow(self, choice: Choice, written: tuple[int, ...]) -> None:
        text = detokenize(written)
        if not choice.tokens and self._is_stream and self._is_chat:
            self._write(self._chunk(choice, {"role": "assistant", "content": ""}))
        choice.tokens += len(written)
        if self._is_stream:
            reason = self._reason(choice) if choice.tokens >= choice.ask.output_tokens else None
            self._write(self._chunk(choice, {"content": text} if self._is_chat else text, reason))
        else:
            choice.texts.append(text)

    @staticmethod
    def _reason(choice: Choice) -> str:
        return Reason.STOP if choice.ask.ends_by_itself else Reason.LENGTH

    def _end(self, choice: Choice) -> None:
        self._open -= 1
        if self._open:
            return
        if self._is_stream:
            if self._wants_usage:
                self._write(event({**self._head(), "choices": [], "usage": self.usage()}))
            self._write(DONE)
        else:
            self._write(_json(self._whole()))
        self._done()

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {"id": self._name, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choice: Choice, gained: Any, reason: str | None = None) -> bytes:
        part = {"delta": gained} if self._is_chat else {"text": gained}
        one = {"index": choice.index, **part, "logprobs": None, "finish_reason": reason}
        if not self._is_chat or reason:
            one["stop_reason"] = None
        document = {**self._head(), "choices": [one]}
        if self._counts_as_it_goes:
            document["usage"] = self.usage()
        return event(document)

    def _whole(self) -> dict[str, Any]:
        head = self._head()
        if self._is_chat:
            head["object"] = "chat.completion"
        choices = [self._whole_choice(choice) for choice in self.choices]
        transfer = self._transfer(self.choices[0].ask)
        return {**head, "choices": choices, "usage": self.usage(), "kv_transfer_params": transfer}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.texts)
        part: dict[str, Any] = {"text": text}
        if self._is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
            part = {"message": message}
        end = {"logprobs": None, "finish_reason": choice.reason, "stop_reason": None}
        return {"index": choice.index, **part, **end}

    def usage(self) -> dict[str, Any]:
        """Tokens so far; each prompt is counted once, however many choices it has."""
        prompts = {choice.ask.tokens: choice.ask.prompt_tokens for choice in self.choices}
        prompt, output = sum(prompts.values()), sum(choice.tokens for choice in self.choices)
        cached = max(choice.cached for choice in self.choices)
        return {
            "prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
        }  # fmt: skip
