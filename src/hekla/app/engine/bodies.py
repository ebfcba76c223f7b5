"""Bodies that clients send, read as vLLM reads them, and turned into what an engine is asked."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct, UnsetType

from hekla.app.engine.checking import BadBodyError
from hekla.simulation.engine.tokens import render_chat, tokenize

Prompt = str | list[str | int | list[int]]
"""One or many, as text or as tokens; a list of numbers is one prompt."""


class StreamOptions(Struct):
    """What a stream carries beside its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(Struct):
    """A chat message; content is text, or parts of which the text counts."""

    role: str
    content: str | list[dict[str, Any]] | None = None

    def text(self) -> str:
        """Its text."""
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class Drawing(Struct, kw_only=True):
    """How tokens are drawn, and at what text that ends: what a response has in common with a chat that stands for it."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: str | list[str] | None = None

    def drawn(self) -> dict[str, Any]:
        """The same for another body."""
        return {name: getattr(self, name) for name in Drawing.__struct_fields__}


class Sampling(Drawing, kw_only=True):
    """What chats and completions have in common."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    bad_words: list[str] = []
    allowed_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    use_beam_search: bool = False
    return_token_ids: bool | None = False
    ignore_eos: bool = False
    cache_salt: str | None = None
    request_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def stops(self) -> list[str]:
        """The texts that end the answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def limit(self) -> tuple[str, int | None]:
        """How long the answer may be, and by which field."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def shown_logprobs(self) -> int | None:
        """How many likely tokens are told beside each; None: not even its own likelihood."""
        return None


class Chat(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None

    @property
    def shown_logprobs(self) -> int | None:
        """As many as `top_logprobs` says, if `logprobs` is set."""
        return (self.top_logprobs or 0) if self.logprobs else None


class Completion(Sampling, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompt = ""
    prompt_embeds: str | list[str] | None = None
    suffix: str | None = None
    echo: bool = False
    logprobs: int | None = None

    @property
    def shown_logprobs(self) -> int | None:
        """As many as `logprobs` says."""
        return self.logprobs


class Embedding(Struct, kw_only=True):
    """POST /v1/embeddings."""

    input: Prompt
    model: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None


class Tokenize(Struct, kw_only=True):
    """POST /tokenize, of a prompt or of messages."""

    model: str | None = None
    prompt: str | UnsetType = UNSET
    messages: list[Message] | UnsetType = UNSET
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class Detokenize(Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class LoraChange(Struct, kw_only=True):
    """POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

    lora_name: str
    lora_path: str = ""
    load_inplace: bool = False


def chat_tokens(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[int]:
    """The prompt of a chat; tools stand before the messages."""
    said = [(one.role, one.text()) for one in messages]
    if tools:
        said.insert(0, ("system", msgspec.json.encode(tools).decode()))
    return tokenize(render_chat(said))


def prompts_of(prompt: Prompt) -> list[list[int]]:
    """The prompts of a completion. Raises BadBodyError: there is none."""
    if isinstance(prompt, str):
        return [tokenize(prompt)]
    if not prompt:
        raise BadBodyError("You must pass at least one prompt")
    numbers = [one for one in prompt if isinstance(one, int)]
    if numbers:
        return [numbers]
    return [tokenize(one) if isinstance(one, str) else one for one in prompt if not isinstance(one, int)]


def new_id(prefix: str, given: str | None) -> str:
    """The id of a request: what the client gave it, or a new one."""
    return f"{prefix}-{given or uuid4().hex}"
