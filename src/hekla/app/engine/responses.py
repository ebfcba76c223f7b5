"""OpenAI's Responses API as vLLM serves it: one message, whole or as a stream of numbered events.

`api.py` reads the body as a chat's; here are its shape and the answer's.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from hekla.app.engine.bodies import Chat, Drawing, Message
from hekla.app.engine.checking import BadBodyError, parameter
from hekla.app.engine.stops import first_stop
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


class RespondedChat(Chat, kw_only=True):
    """The chat that a response stands for."""

    @property
    def limit(self) -> tuple[str, int | None]:
        """By the field's name here."""
        return "max_output_tokens", self.max_tokens


class Respond(Drawing, kw_only=True):
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
    background: bool | None = False
    store: bool | None = True
    metadata: dict[str, Any] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool | None = True
    truncation: str | None = "disabled"
    top_logprobs: int | None = None
    user: str | None = None

    def refuse_shape(self) -> None:
        """Fields that do not go together. Raises BadBodyError."""
        if self.background and not self.store:
            raise parameter("background can only be used when `store` is true", "background")
        if self.cache_salt == "":
            raise parameter("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
        if self.tool_choice not in ("auto", "none") and not self.tools:
            said = f"Tool choice '{self.tool_choice}' must be specified with 'tools' parameter."
            raise parameter(said, "tool_choice")

    def refuse_stored(self) -> None:
        """What needs a store of answers, which vLLM has only where it is told to. Raises BadBodyError."""
        if self.background:
            said = (
                "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
                "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
            )
            raise BadBodyError(said, kind="invalid_request_error", param="background")
        if self.previous_response_id:
            raise not_stored(self.previous_response_id)

    def messages(self) -> list[Message]:
        """The conversation that it stands for."""
        given = [Item(content=self.input)] if isinstance(self.input, str) else self.input
        said_before = [Message(role="system", content=self.instructions)] if self.instructions else []
        return said_before + [Message(role=one.role, content=_text(one)) for one in given]

    def chat(self) -> Chat:
        """The chat that it stands for. Raises BadBodyError: more is asked than a model can say."""
        return RespondedChat(
            messages=self.messages(), tools=self.tools, model=self.model, stream=self.stream,
            max_tokens=self.max_output_tokens, cache_salt=self.cache_salt, request_id=self.request_id,
            ignore_eos=self.ignore_eos, **self.drawn(),
        )  # fmt: skip


def not_stored(name: str) -> BadBodyError:
    """An answer that is not kept."""
    said = f"Response with id '{name}' not found."
    return BadBodyError(said, status=404, kind="invalid_request_error", param="response_id")


def _text(item: Item) -> str:
    if isinstance(item.content, list):
        return "".join(str(part.get("text", "")) for part in item.content if part.get("type") in _TEXTS)
    return item.content or item.output or ""


class ResponseAnswer:
    """The answer to one request, while it grows."""

    def __init__(
        self, name: str, model: str, ask: Ask, body: Respond, *, write: Callable[[bytes], None], done: Callable[[], None]
    ) -> None:  # fmt: skip
        self._id, self._item_id, self._model, self._ask = name, f"msg_{name.removeprefix('resp_')}", model, ask
        self._body, self._write, self._done = body, write, done
        self._is_stream = bool(body.stream)
        self._stop = first_stop(body.chat(), ask)
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
        if self._stop is not None:
            text = text[: max(0, self._stop.characters - sum(map(len, self._texts)))]
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
        item = self._item("completed", [_part(text) | {"logprobs": None}])
        self._tell("output_text.done", **self._place, text=text, logprobs=[])
        self._tell("content_part.done", **self._place, part=_part(text) | {"logprobs": None})
        self._tell("output_item.done", output_index=0, item=item)
        document = self._document("incomplete" if is_cut else "completed", [item], self._usage(ending))
        self._tell("completed", response=document)  # also of one that is not: so does vLLM
        if not self._is_stream:
            self._write(_json(document))
        self._done()

    def _tell(self, name: str, **fields: Any) -> None:
        if self._is_stream:
            said = {"type": f"response.{name}", "sequence_number": self._events, **fields}
            self._events += 1
            self._write(b"event: response.%b\ndata: %b\n\n" % (name.encode(), _json(said)))

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id, "content": content, "role": "assistant", "status": status, "type": "message", "phase": None,
        }  # fmt: skip

    def _document(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        asked = self._body
        return {
            "id": self._id, "created_at": self._created, "incomplete_details": why, "instructions": asked.instructions,
            "metadata": asked.metadata, "model": self._model, "object": "response", "output": output,
            "parallel_tool_calls": asked.parallel_tool_calls, "temperature": asked.temperature,
            "tool_choice": asked.tool_choice if asked.tools else "none", "tools": asked.tools or [], "top_p": asked.top_p,
            "background": False, "max_output_tokens": asked.max_output_tokens or self._ask.output_tokens,
            "max_tool_calls": None, "previous_response_id": None, "prompt": None, "reasoning": None,
            "service_tier": "auto", "status": status, "text": None, "top_logprobs": asked.top_logprobs,
            "truncation": asked.truncation, "usage": usage, "user": asked.user,
            "presence_penalty": asked.presence_penalty, "frequency_penalty": asked.frequency_penalty,
            "kv_transfer_params": None, "ec_transfer_params": None, "input_messages": None, "output_messages": None,
        }  # fmt: skip

    def _usage(self, ending: Ending) -> dict[str, Any]:
        prompt = self._ask.prompt_tokens
        read = {"cached_tokens": ending.cached_tokens, "cache_write_tokens": 0}
        written = {"reasoning_tokens": 0, "tool_output_tokens": 0}
        return {
            "input_tokens": prompt,
            "input_tokens_details": {**read, "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
            "output_tokens": self._tokens,
            "output_tokens_details": {**written, "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
            "total_tokens": prompt + self._tokens,
        }  # fmt: skip


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}
