r"""Read a request's body once: which model, which prompt, how long an answer; or say what is wrong with it.

One partial decode by msgspec; the prompt stays JSON text, because its bytes are a fair picture of what the engine renders.
`{"role":"user","content":""}` is as long as the `<|im_start|>user\n<|im_end|>` that a template makes of it, so a quarter of
the bytes is a fair count of tokens, and conversations that share a beginning share its bytes. `prefix/blocks.py` goes on there.
"""

import re
from collections.abc import Mapping

import msgspec
import xxhash
from msgspec import Raw, Struct

from hekla.serving.router.forms import read_form
from hekla.serving.router.plan import Refusal
from hekla.serving.router.question import Question

BYTES_PER_TOKEN = 4
MEDIA_TOKENS = 1024
"""What an image or a clip counts for: the tiles of one make 500 to 1,500 tokens; its base64 would count a hundred times that."""

_NOTHING = Raw(b"")


class _Body(Struct, gc=False):
    model: str = ""
    messages: Raw = _NOTHING
    prompt: Raw = _NOTHING
    input: Raw = _NOTHING
    stream: bool | None = None
    stream_options: Raw = _NOTHING
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    tools: Raw = _NOTHING
    system: Raw = _NOTHING
    instructions: Raw = _NOTHING
    query: Raw = _NOTHING
    queries: Raw = _NOTHING
    documents: Raw = _NOTHING
    text_1: Raw = _NOTHING
    text_2: Raw = _NOTHING
    tokens: Raw = _NOTHING
    cache_salt: Raw = _NOTHING


class _StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


_decode = msgspec.json.Decoder(_Body).decode
_decode_stream_options = msgspec.json.Decoder(_StreamOptions).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode

_PROMPTS = ("messages", "prompt", "input", "query", "queries", "text_1", "tokens")
"""Where a prompt may stand, by endpoint: chat, completions, embeddings and responses, rerank, score, detokenize."""
_WHERE_PROMPTS_ARE = "the body has none of messages, prompt, input, query, queries, text_1, tokens"
NO_MODEL = Refusal(
    400, "request_parsing", 'model not found: the body must name one, as {"model": "NAME", ...}', param="model"
)
"""Kthena answers 404 in these words; OpenAI's clients take a 404 for a model that is gone, and a 400 for their own mistake."""
_BEFORE = ("cache_salt", "tools", "system", "instructions")
_AFTER = ("documents", "text_2")
_ABSENT = (b"", b"null")
_MESSAGES = b"[{"
"""How nearly every prompt begins."""
_TOKEN_IDS = re.compile(rb"\[[\s\[]*\d")
_MEDIA_BYTES = 4 * MEDIA_TOKENS * BYTES_PER_TOKEN
"""Below this, media cannot make a prompt look more than four times as long as one picture."""
_MEDIA = re.compile(rb'(;base64,|"data"\s*:\s*")([A-Za-z0-9+/=_-]{512,})')


INFERENCE_PATHS = frozenset(
    f"/v1/{name}"
    for name in (
        "chat/completions", "completions", "responses", "embeddings", "messages", "messages/count_tokens", "rerank",
        "score", "tokenize", "detokenize", "audio/transcriptions", "audio/translations", "chat/completions/render",
        "completions/render", "audio/speech", "images/generations", "classify", "pooling",
    )
) | {
    "/rerank", "/v2/rerank", "/score", "/pooling", "/classify", "/tokenize", "/detokenize", "/generate",
    "/inference/v1/generate",
}  # fmt: skip
"""What clients may ask of engines, of vLLM, SGLang and vLLM-Omni. Everything else that engines have (sleep, adapters, caches, profiles) is for their operators."""


_FOR_OPERATORS = re.compile(
    r"/(?:v1/)?(?:(?:un)?load_lora_adapter|sleep|wake_up|is_sleeping|reset_\w+|start_profile|stop_profile|abort_request|flush_cache"
    r"|update_weights\w*|init_weights\w*|collective_rpc|scale_elastic_ep|pause\w*|resume\w*|release_\w+|set_\w+|metrics|debug"
    r"|get_\w+|server_info|load|version)(?:/|$)",
    re.IGNORECASE,
)


def is_for_operators(path: str) -> bool:
    """Whether a path is an engine's control, for HTTPRoutes, which may lead any path to it; what is written oddly counts as such."""
    return "/../" in path or "//" in path or "%" in path or _FOR_OPERATORS.match(path) is not None


def read(path: str, body: bytes, headers: Mapping[str, str] = {}, user: str = "") -> Question | Refusal:
    """The question that a body asks, or why it cannot be routed."""
    try:
        asked = _decode(body)
    except (
        msgspec.ValidationError
    ):  # JSON, but a field has another type than we expect: not every such field is our business
        return _read_tolerantly(path, body, headers, user)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return read_form(path, body, headers, user) or _malformed(body, error)
    return _question(asked, path, body, headers, user)


def _question(asked: _Body, path: str, body: bytes, headers: Mapping[str, str], user: str) -> Question | Refusal:
    if not asked.model:
        return NO_MODEL
    prompt = _prompt(asked)
    if not prompt:
        return Refusal(400, "prompt_parsing", f"prompt not found: {_WHERE_PROMPTS_ARE}", param=_prompt_field(path))
    is_tokens = not prompt.startswith(_MESSAGES) and _TOKEN_IDS.match(prompt) is not None
    return Question(
        path,
        asked.model,
        prompt,
        prompt.count(b",") + 1 if is_tokens else -(-len(prompt) // BYTES_PER_TOKEN),
        asked.max_completion_tokens or asked.max_tokens or asked.max_output_tokens or 0,
        asked.stream is True,
        asked.stream_options is not _NOTHING and _wants_usage(asked.stream_options),
        headers,
        user,
        body,
        is_tokens,
    )


def _prompt_field(path: str) -> str:
    """Where the prompt of such a request would stand."""
    if path.endswith(("/chat/completions", "/messages")):
        return "messages"
    return (
        "prompt" if path.endswith(("/completions", "/generations")) else "query" if path.endswith("rerank") else "input"
    )


def _prompt(asked: _Body) -> bytes:
    """What an engine renders first comes first; in the common case one slice of the body."""
    prompt = bytes(asked.messages)
    if prompt in _ABSENT:
        prompt = next((text for name in _PROMPTS if (text := bytes(getattr(asked, name))) not in _ABSENT), b"")
    if prompt and (
        asked.tools is not _NOTHING
        or asked.system is not _NOTHING
        or asked.cache_salt is not _NOTHING
        or asked.instructions is not _NOTHING
        or asked.documents is not _NOTHING
        or asked.text_2 is not _NOTHING
    ):
        prompt = _with_surroundings(asked, prompt)
    if len(prompt) > _MEDIA_BYTES and _has_a_run_without_spaces(prompt):
        prompt = _MEDIA.sub(_as_long_as_its_tokens, prompt)
    return prompt[1:-1] if prompt.startswith(b'"') and prompt.endswith(b'"') else prompt


def _with_surroundings(asked: _Body, prompt: bytes) -> bytes:
    """Salt and tools before the messages, documents after the query."""
    before = [bytes(getattr(asked, name)) for name in _BEFORE]
    after = [bytes(getattr(asked, name)) for name in _AFTER]
    return b"".join(part for part in (*before, prompt, *after) if part not in _ABSENT)


def _has_a_run_without_spaces(prompt: bytes, run: int = 2048) -> bool:
    """Whether there may be base64; text has spaces. 15 us for 400 kB, where a search for `;base64,` takes 170."""
    find = prompt.find
    return any(find(b" ", at, at + run) < 0 for at in range(0, len(prompt) - run, run))


def _as_long_as_its_tokens(media: re.Match[bytes]) -> bytes:
    """Base64 gives way to its hash, repeated to as many bytes as its tokens would have: equal pictures stay equal."""
    return media[1] + xxhash.xxh3_64_hexdigest(media[2]).encode() * (MEDIA_TOKENS * BYTES_PER_TOKEN // 16)


def _wants_usage(stream_options: Raw) -> bool:
    try:
        return _decode_stream_options(stream_options).include_usage is True
    except msgspec.ValidationError:  # the engine will tell its client
        return False


def _read_tolerantly(path: str, body: bytes, headers: Mapping[str, str], user: str) -> Question | Refusal:
    """Take each field that is what it should be, and leave the judgement on the others to the engine."""
    try:
        fields = _decode_object(body)
    except msgspec.ValidationError:
        return Refusal(400, "request_parsing", "invalid request body: expected a JSON object")
    asked = _Body()
    for name, one in _FIELDS.items():
        if name in fields:
            try:
                setattr(asked, name, msgspec.json.decode(fields[name], type=one))
            except msgspec.ValidationError:
                continue
    return _question(asked, path, body, headers, user)


_GZIP = b"\x1f\x8b"
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(_Body)}


def _malformed(body: bytes, error: Exception) -> Refusal:
    if body.startswith(_GZIP):  # as engines read none either, nor does OpenAI's API
        return Refusal(415, "request_parsing", "the body is compressed with gzip, which is not read; send it as it is")
    if "trailing characters" in str(error):
        return Refusal(400, "request_parsing", "invalid request body")
    if isinstance(error, UnicodeDecodeError):
        return Refusal(400, "request_parsing", f"invalid request body: not UTF-8 at byte {error.start}")
    return Refusal(
        400, "request_parsing", f"invalid request body: {error}" if body else "invalid request body: it is empty"
    )
