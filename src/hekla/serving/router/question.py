"""What a request asks, read from its body once: the model, the prompt's bytes, and how much is expected of the answer.

`reading.py` makes one from a body; `plan.py` takes it on.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Question(Struct, gc=False):
    """One request, as routes, limits and policies look at it."""

    path: str
    """As it came, without the query: /v1/chat/completions."""
    model: str
    """The name asked for: a route's model or a LoRA adapter."""
    prompt: bytes
    """The prompt's bytes in the order in which an engine renders them (tools, then messages): its prefix is what caches share."""
    input_tokens: int
    """Estimated, a quarter of the prompt's bytes, rounded up; exact where the prompt came as token ids."""
    output_tokens: int = 0
    """max_completion_tokens or max_tokens; 0 where the client did not say."""
    is_stream: bool = False
    wants_usage: bool = False
    """Whether the client asked for `stream_options.include_usage`."""
    headers: Mapping[str, str] = {}
    """Of the request, names in lower case; rules and stickiness look at them."""
    user: str = ""
    """The authenticated user; empty: unknown."""
    body: bytes = b""
    """The whole body, as it came."""
    is_tokens: bool = False
    """Whether the prompt came as token ids; `prompt` is their JSON text then."""
    token_ids: Any = None
    """The prompt's token ids, where a tokenizer was asked; a list or an array of uint32. Engines' KV events are matched by them."""
    recorded: Any = None
    """What Kthena's side-cars recorded of who holds the prompt, a `prefix.recorded.Recorded`, where it was looked up."""
    was_tokenized: bool = False
    """Whether it was tried to find its token ids, with whatever outcome."""
    is_form: bool = False
    """Whether the body is a form (multipart/form-data); its prompt is empty."""
    claims: Mapping[str, Any] = {}
    """What a believed token says of the user."""
    taken_alone: bool = False
    """Whether a shared budget's tokens for it were taken from the router's own, as their server was gone."""
    query: str = ""
    """What stood behind the path's `?`."""
