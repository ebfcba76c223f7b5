"""Bodies that clients send, read as vLLM reads them, and turned into what an engine is asked."""

from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct, UnsetType

from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import hash_blocks, natural_length, render_chat, salt_of, tokenize

T = TypeVar("T")
Prompt = str | list[str | int | list[int]]
"""One or many, as text or as tokens; a list of numbers is one prompt."""
MOST_CHOICES = 128


class BadBodyError(Exception):
    """The body cannot be served; the sentence is for the client."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


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


class Sampling(Struct, kw_only=True):
    """What chats and completions have in common."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    ignore_eos: bool = False
    cache_salt: str | None = None
    request_id: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


class Chat(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


class Completion(Sampling, kw_only=True):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool = False


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


class Detokenize(Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class LoraChange(Struct, kw_only=True):
    """POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

    lora_name: str
    lora_path: str = ""
    load_inplace: bool = False


def read(body: bytes, kind: type[T]) -> T:
    """Decode a body. Raises BadBodyError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BadBodyError(str(error)) from None


def chat_tokens(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[int]:
    """The prompt of a chat; tools stand before the messages."""
    said = [(one.role, one.text()) for one in messages]
    if tools:
        said.insert(0, ("system", msgspec.json.encode(tools).decode()))
    return tokenize(render_chat(said))


def prompts_of(prompt: Prompt) -> list[list[int]]:
    """The prompts of a completion."""
    if isinstance(prompt, str):
        return [tokenize(prompt)]
    numbers = [one for one in prompt if isinstance(one, int)]
    if numbers:
        return [numbers]
    return [tokenize(one) if isinstance(one, str) else one for one in prompt if not isinstance(one, int)]


class Asker:
    """Turns bodies into asks, by the limits of one engine."""

    def __init__(self, *, max_model_len: int, block_size: int, mean_output_tokens: int) -> None:
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._mean = mean_output_tokens

    def asks(
        self, body: Sampling, prompts: Sequence[list[int]], lora: str, name: str, default: int | None
    ) -> list[Ask]:
        """One ask for each prompt and choice. Raises BadBodyError."""
        if not 1 <= body.n <= MOST_CHOICES:
            raise BadBodyError(f"n must be from 1 to {MOST_CHOICES}, got {body.n}.", param="n")
        if not prompts or not all(prompts):
            raise BadBodyError("The decoder prompt cannot be empty", param="prompt")
        return [self._ask(body, prompt, lora, f"{name}-{number}" if number else name, default)
                for number, prompt in enumerate(prompt for prompt in prompts for _ in range(body.n))]  # fmt: skip

    def _ask(self, body: Sampling, prompt: list[int], lora: str, name: str, default: int | None) -> Ask:
        length, by_itself = self._length(body, prompt, default)
        transfer = body.kv_transfer_params or {}
        return Ask(
            id=name,
            prompt_tokens=len(prompt),
            output_tokens=length,
            hashes=tuple(hash_blocks(prompt, self._block_size, salt_of(lora, body.cache_salt or ""))),
            tokens=tuple(prompt),
            lora=lora,
            ends_by_itself=by_itself,
            is_remote=bool(transfer.get("do_remote_prefill")),
            is_kept=bool(transfer.get("do_remote_decode")),
        )

    def _length(self, body: Sampling, prompt: list[int], default: int | None) -> tuple[int, bool]:
        """How long the answer is, and whether it ends by itself."""
        longest, asked = self._max_model_len, body.max_tokens
        name = "max_tokens"
        if body.max_completion_tokens is not None:
            asked, name = body.max_completion_tokens, "max_completion_tokens"
        if asked is not None and asked < 1:
            raise BadBodyError(f"{name} must be at least 1, got {asked}.", param=name)
        if asked is not None and asked > longest:
            raise BadBodyError(
                f"{name}={asked} cannot be greater than max_model_len={longest}. Please request fewer output tokens. "
                f"(parameter={name}, value={asked})",
                param=name,
            )
        if len(prompt) >= longest:
            raise BadBodyError(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains {len(prompt)} "
                f"input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
                f"input prompt. (parameter=input_tokens, value={len(prompt)})",
                param="input_tokens",
            )
        most = min(asked or default or longest, longest - len(prompt))  # what is too much is cut, as vLLM does
        natural = max(body.min_tokens, natural_length(prompt, self._mean))
        return (most, False) if body.ignore_eos or natural >= most else (natural, True)


def new_id(prefix: str, given: str | None) -> str:
    """The id of a request: what the client gave it, or a new one."""
    return f"{prefix}-{given or uuid4().hex}"
