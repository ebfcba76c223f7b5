"""The body of a prefill leg: the client's request, asked for one token and no stream.

What bounds an answer from below goes too: `min_tokens` above `max_tokens` is a 400 at vLLM.
"""

from collections.abc import Mapping
from typing import Any, Final

from hekla.serving.router.bodies import fields_of, with_fields

DROPPED: Final = ("stream", "stream_options", "min_tokens", "min_completion_tokens")


def prefill_body(body: bytes, path: str, put: Mapping[str, Any]) -> bytes:
    """One token of answer, no stream, and `put` on top."""
    fields = fields_of(body)
    asked: dict[str, Any] = {}
    if path.endswith("/responses"):
        asked["max_output_tokens"] = 1
    else:
        asked["max_tokens"] = 1
        if "max_completion_tokens" in fields:
            asked["max_completion_tokens"] = 1
    return with_fields(body, asked | dict(put), without=DROPPED)
