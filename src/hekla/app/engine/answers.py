"""What an engine answers: OpenAI's shapes as vLLM writes them, whole and as server-sent events.

An answer listens to the endings and tokens of its choices and hands finished bytes to its outlet: a stream that is
pushed, or a future that is resolved once. Fields and their order are those of vLLM 0.32.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from hekla.app.engine.bodies import Chat, Completion, Sampling
from hekla.app.engine.likelihoods import Likelihoods
from hekla.app.engine.prescribed import Call, call_of
from hekla.app.engine.stops import first_stop
from hekla.simulation.engine.happenings import Emission, Ending, Happening, Reason
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import detokenize

_json = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
VLLM_VERSION = "0.32.0"
"""The vLLM whose surface this is."""
FINGERPRINT = f"vllm-{VLLM_VERSION}-simulated"


def error_body(message: str, kind: str, status: int, param: str | None = None) -> bytes:
    """An error as vLLM writes it."""
    return _json({"error": {"message": message, "type": kind, "param": param, "code": status}})


def event(document: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _json(document) + b"\n\n"


class Choice:
    """One of the answers to a request."""

    __slots__ = ("_ends_as_call", "ask", "cached", "call", "index", "likelihoods", "reason", "shown", "stop", "texts", "tokens", "tool",)  # fmt: skip

    def __init__(self, index: int, ask: Ask, body: Sampling, call: Call | None) -> None:
        self.index = index
        self.ask = ask
        self.texts: list[str] = []
        self.tokens: list[int] = []
        self.shown = 0
        """Characters that were shown."""
        self.reason: str | None = None
        self.cached = 0
        self.stop = first_stop(body, ask)
        self.likelihoods = Likelihoods(body)
        self.tool = call.tool if call is not None else ""
        """The tool that it calls; empty: none."""
        self.call = f"chatcmpl-tool-{uuid4().hex[:16]}" if self.tool else ""
        self._ends_as_call = call is not None and call.ends_as_call

    @property
    def why(self) -> str:
        """Why it ends."""
        if self._ends_as_call and self.ask.ends_by_itself:
            return "tool_calls"
        return Reason.STOP if self.ask.ends_by_itself else Reason.LENGTH

    @property
    def stop_reason(self) -> str | int | None:
        """The text or token of the request's that ended it."""
        return self.stop.reason if self.stop else None

    def gain(self, written: tuple[int, ...]) -> str:
        """Take tokens; what of their text is shown. The text of a stop, and what stands behind it, is not."""
        text = detokenize(written)
        self.tokens += written
        if self.stop is not None:
            text = text[: max(0, self.stop.characters - self.shown)]
        self.shown += len(text)
        return text


class Answer:
    """A request's answer, while it grows."""

    def __init__(
        self, *, name: str, model: str, body: Chat | Completion, asks: Sequence[Ask],
        write: Callable[[bytes], None], done: Callable[[], None], transfer: Callable[[Ask], dict[str, Any] | None],
    ) -> None:  # fmt: skip
        """`write` takes bytes; `done` is called at the end; `transfer` tells what is kept for another engine."""
        call = call_of(body)
        self.choices = [Choice(index, ask, body, call) for index, ask in enumerate(asks)]
        self._by_id = {choice.ask.id: choice for choice in self.choices}
        self._name, self._model, self._body = name, model, body
        self._created = int(time.time())
        self._is_chat, self._is_stream = isinstance(body, Chat), bool(body.stream)
        options = body.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._counts_as_it_goes = self._wants_usage and bool(options and options.continuous_usage_stats)
        self._write, self._done, self._transfer = write, done, transfer
        self._open = len(self.choices)
        self._has_begun = False
        self._echoes = isinstance(body, Completion) and body.echo
        self._is_echo_alone = self._echoes and body.max_tokens == 0

    def hear(self, happening: Happening) -> None:
        """Take what the engine tells of one choice."""
        choice = self._by_id[happening.request]
        if isinstance(happening, Emission):
            self._grow(choice, happening.written)
        elif isinstance(happening, Ending):
            choice.reason = choice.why if happening.reason == Reason.STOP else happening.reason
            choice.cached = happening.cached_tokens
            self._end()

    def _grow(self, choice: Choice, written: tuple[int, ...]) -> None:
        if not self._has_begun and self._is_stream and self._is_chat:
            self._begin()
        self._has_begun = True
        is_first = not choice.tokens
        text = choice.gain(written)
        if self._is_echo_alone:
            text = ""
        if self._echoes and is_first:
            text = detokenize(choice.ask.tokens) + text
        choice.texts.append(text)
        if self._is_stream:
            self._write(self._chunk(choice, text, written, is_first=is_first))

    def _begin(self) -> None:
        """Each choice of a chat begins with its role, all of them before any text."""
        ids = list(self.choices[0].ask.tokens) if self._body.return_token_ids else None
        for choice in self.choices:
            gained = {"role": "assistant", "content": ""}
            one = {"index": choice.index, "delta": gained, "logprobs": None, "finish_reason": None}
            document: dict[str, Any] = {**self._head(), "choices": [one]}
            if self._counts_as_it_goes:
                document["usage"] = {**_counted(choice.ask.prompt_tokens, 0), "completion_tokens_details": None}
            self._write(event({**document, "prompt_token_ids": ids, "prompt_text": None}))

    def _end(self) -> None:
        self._open -= 1
        if self._open:
            return
        if self._is_stream:
            if self._wants_usage:
                usage = {name: value for name, value in self.usage().items() if value is not None}
                self._write(event({**self._head(), "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}))
            self._write(DONE)
        else:
            self._write(_json(self._whole()))
        self._done()

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {"id": self._name, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choice: Choice, text: str, written: tuple[int, ...], *, is_first: bool) -> bytes:
        is_last = len(choice.tokens) >= choice.ask.output_tokens
        end: dict[str, Any] = {"finish_reason": choice.why if is_last else None}
        if is_last or not self._is_chat:
            end["stop_reason"] = choice.stop_reason if is_last else None
        if not self._is_chat:
            shows_prompt = is_first and (self._echoes or self._body.return_token_ids)
            end["prompt_token_ids"] = list(choice.ask.tokens) if shows_prompt else None
        end["token_ids"] = list(written) if self._body.return_token_ids else None
        part: dict[str, Any] = {"delta": _said(choice, text, is_first=is_first)} if self._is_chat else {"text": text}
        one = {"index": choice.index, **part, "logprobs": choice.likelihoods.of(written), **end}
        document = {**self._head(), "choices": [one]}
        if self._counts_as_it_goes:
            document["usage"] = _counted(choice.ask.prompt_tokens, len(choice.tokens))
            if self._is_chat:
                document["usage"]["completion_tokens_details"] = None
        if is_last and not self._wants_usage:
            document["system_fingerprint"] = FINGERPRINT
        return event(document)

    def _whole(self) -> dict[str, Any]:
        head = self._head()
        end: dict[str, Any] = {
            "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": self.usage(),
        }  # fmt: skip
        if self._is_chat:
            head["object"] = "chat.completion"
            ids = list(self.choices[0].ask.tokens) if self._body.return_token_ids else None
            end |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
        kept = self._transfer(self.choices[0].ask)
        choices = [self._whole_choice(choice) for choice in self.choices]
        return {
            **head,
            "choices": choices,
            **end,
            "kv_transfer_params": kept,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.texts)
        ids = list(choice.tokens) if self._body.return_token_ids else None
        end: dict[str, Any] = {
            "logprobs": choice.likelihoods.of(choice.tokens), "finish_reason": choice.reason,
            "stop_reason": choice.stop_reason, "token_ids": ids,
        }  # fmt: skip
        if self._is_chat:
            said: dict[str, Any] = {"content": text} if not choice.tool else {"content": ""}
            message = {
                "role": "assistant", **said, "refusal": None, "annotations": None, "audio": None,
                "function_call": None, "reasoning": None,
            }  # fmt: skip
            if choice.tool:
                called = {"name": choice.tool, "arguments": text}
                message["tool_calls"] = [{"id": choice.call, "type": "function", "function": called}]
            return {"index": choice.index, "message": message, **end, "routed_experts": None}
        prompt = list(choice.ask.tokens) if self._body.return_token_ids else None
        end |= {"prompt_logprobs": None, "prompt_token_ids": prompt, "routed_experts": None}
        return {"index": choice.index, "text": text, **end}

    def usage(self) -> dict[str, Any]:
        """Tokens so far; each prompt is counted once, however many choices it has."""
        prompt = sum(choice.ask.prompt_tokens for choice in self.choices[:: self._body.n])
        output = sum(len(choice.tokens) for choice in self.choices)
        cached = max(choice.cached for choice in self.choices)
        return {
            **_counted(prompt, output),
            "prompt_tokens_details": {"cached_tokens": cached} if cached else None, "completion_tokens_details": None,
        }  # fmt: skip


def _said(choice: Choice, text: str, *, is_first: bool) -> dict[str, Any]:
    """What a chunk of a chat adds: text, or a piece of a tool's arguments, the first with the tool."""
    if not choice.tool:
        return {"content": text}
    if not is_first:
        return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
    function = {"name": choice.tool, "arguments": text}
    return {"tool_calls": [{"index": 0, "id": choice.call, "type": "function", "function": function}]}


def _counted(prompt: int, output: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
