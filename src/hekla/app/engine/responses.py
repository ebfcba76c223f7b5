"""OpenAI's Responses API as vLLM serves it: one message, whole or as a stream of numbered events.

`api.py` reads the body as a chat's; here are its shape and the answer's.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from hekla.app.engine.bodies import BadBodyError, Message, Sampling
from hekla.simulation.engine.happenings import Emission, Ending, Happening
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import detokenize

_json = msgspec.json.Encoder().encode
_TEXTS = ("input_text", "output_text", "text")


class Item(Struct, kw_only=True):
    """One item of an input: a message, or something that carries no text for us (a call of a tool, its outcome)."""

    type: str = "message"
    role: str = "user"
    content: str | list[dict[str, Any]] | None = None
    output: str | None = None


class Respond(Struct, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    tools: list[dict[str, Any]] | None = None
    previous_response_id: str | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    ignore_eos: bool = False

    def messages(self) -> list[Message]:
        """The conversation that it stands for. Raises BadBodyError."""
        if self.previous_response_id:
            said = f"Response with id '{self.previous_response_id}' not found: nothing is stored here; send the whole input"
            raise BadBodyError(said, status=404, kind="NotFoundError", param="previous_response_id")
        given = [Item(content=self.input)] if isinstance(self.input, str) else self.input
        said_before = [Message(role="system", content=self.instructions)] if self.instructions else []
        found = said_before + [Message(role=one.role, content=_text(one)) for one in given]
        if not any(one.text() for one in found):
            raise BadBodyError("input cannot be empty", param="input")
        return found

    def sampling(self) -> Sampling:
        """How long the answer may be, as a chat says it."""
        return Sampling(
            model=self.model, stream=self.stream, max_tokens=self.max_output_tokens, cache_salt=self.cache_salt,
            request_id=self.request_id, ignore_eos=self.ignore_eos,
        )  # fmt: skip


def _text(item: Item) -> str:
    if isinstance(item.content, list):
        return "".join(str(part.get("text", "")) for part in item.content if part.get("type") in _TEXTS)
    return item.content or item.output or ""


class ResponseAnswer:
    """The answer to one request, while it grows."""

    def __init__(
        self, name: str, model: str, ask: Ask, *, is_stream: bool, write: Callable[[bytes], None], done: Callable[[], None]
    ) -> None:  # fmt: skip
        self._id, self._item_id, self._model, self._ask = name, f"msg_{name.removeprefix('resp_')}", model, ask
        self._is_stream, self._write, self._done = is_stream, write, done
        self._created = int(time.time())
        self._texts: list[str] = []
        self._tokens = self._events = 0

    def hear(self, happening: Happening) -> None:
        """Take what the engine tells."""
        if isinstance(happening, Emission):
            self._grow(detokenize(happening.written), len(happening.written))
        elif isinstance(happening, Ending):
            self._end(happening)

    def _grow(self, text: str, tokens: int) -> None:
        if not self._tokens:
            self._begin()
        self._tokens += tokens
        self._texts.append(text)
        self._tell("output_text.delta", **self._place, delta=text, logprobs=[])

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _begin(self) -> None:
        for name in ("created", "in_progress"):
            self._tell(name, response=self._document("in_progress", [], None))
        self._tell("output_item.added", output_index=0, item=self._item("in_progress", []))
        self._tell("content_part.added", **self._place, part=_part(""))

    def _end(self, ending: Ending) -> None:
        text = "".join(self._texts)
        is_cut = not self._ask.ends_by_itself
        item = self._item("incomplete" if is_cut else "completed", [_part(text)])
        self._tell("output_text.done", **self._place, text=text, logprobs=[])
        self._tell("content_part.done", **self._place, part=_part(text))
        self._tell("output_item.done", output_index=0, item=item)
        document = self._document("incomplete" if is_cut else "completed", [item], self._usage(ending))
        self._tell("incomplete" if is_cut else "completed", response=document)
        if not self._is_stream:
            self._write(_json(document))
        self._done()

    def _tell(self, name: str, **fields: Any) -> None:
        if self._is_stream:
            said = {"type": f"response.{name}", "sequence_number": self._events, **fields}
            self._events += 1
            self._write(b"event: response.%b\ndata: %b\n\n" % (name.encode(), _json(said)))

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _document(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id, "object": "response", "created_at": self._created, "status": status, "model": self._model,
            "output": output, "usage": usage, "incomplete_details": why, "error": None, "instructions": None,
            "metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": 1.0,
            "top_p": 1.0,
        }  # fmt: skip

    def _usage(self, ending: Ending) -> dict[str, Any]:
        prompt = self._ask.prompt_tokens
        return {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": ending.cached_tokens},
            "output_tokens": self._tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self._tokens,
        }  # fmt: skip


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
