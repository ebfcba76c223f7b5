"""Bodies that are forms (multipart/form-data), as audio comes to be transcribed: which model, and the same form for another.

Only the fields that are text are looked at; a file goes on as it came.
"""

import re
from collections.abc import Mapping
from typing import Final

from hekla.serving.router.plan import Refusal
from hekla.serving.router.question import Question

MOST_PARTS: Final = 64
LONGEST_FIELD: Final = 64 * 1024
"""A longer text is no name and no switch, and is not looked at."""
MEDIA_TOKENS: Final = 1024
"""What a file counts for: half a minute of sound makes 1,500 positions in Whisper's encoder."""
_BOUNDARY = re.compile(r'(?i)\Amultipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))')
_NAME = re.compile(rb'(?i)\r\ncontent-disposition:[^\r\n]*?;[ \t]*name="([^"\r\n]{1,100})"')
_FILE = re.compile(rb"(?i)\r\ncontent-disposition:[^\r\n]*?;[ \t]*filename\*?=")
_TRUE: Final = (b"true", b"True", b"1")


def read_form(path: str, body: bytes, headers: Mapping[str, str], user: str) -> Question | Refusal | None:
    """The question that a form asks, or why it cannot be routed; None: this is no form."""
    told = _BOUNDARY.match(headers.get("content-type", ""))
    if told is None:
        return None
    fields = _fields(body, (told[1] or told[2]).encode())
    if fields is None:
        return Refusal(
            400, "request_parsing", "invalid request body: the parts of the form do not end as its boundary says"
        )
    texts = {name: body[begin:end] for name, (begin, end) in fields.items() if end - begin <= LONGEST_FIELD}
    model = texts.get("model", b"").decode("utf-8", "replace").strip()
    if not model:
        return Refusal(400, "request_parsing", 'model not found: the form must have a field "model"', param="model")
    prompt = texts.get("prompt", b"")
    return Question(
        path,
        model,
        b"",  # sound shares no cache
        MEDIA_TOKENS + len(prompt) // 4,
        is_stream=texts.get("stream", b"").strip() in _TRUE,
        wants_usage=True,  # nothing is to be asked for, nor left out
        headers=headers,
        user=user,
        body=body,
        is_form=True,
        was_tokenized=True,
    )


def form_with_model(body: bytes, model: str) -> bytes:
    """The form with another model."""
    fields = _fields(body, body[2 : body.find(b"\r\n")])
    assert fields is not None, "a question was read from this form"
    begin, end = fields["model"]
    return b"".join((body[:begin], model.encode(), body[end:]))


def _fields(body: bytes, boundary: bytes) -> dict[str, tuple[int, int]] | None:
    """Where each text stands, by its name; None: the form is broken. Of fields with one name the first counts."""
    line = b"--" + boundary
    if not body.startswith(line):
        return None
    found: dict[str, tuple[int, int]] = {}
    at = len(line)
    for _ in range(MOST_PARTS):
        if body[at : at + 2] == b"--":
            return found
        begin = body.find(b"\r\n\r\n", at) + 4
        end = body.find(b"\r\n" + line, max(begin - 2, at))
        if begin < 4 or end < 0:
            return None
        name = _NAME.search(body, at, begin)
        if name is not None and _FILE.search(body, at, begin) is None:
            found.setdefault(name[1].decode("utf-8", "replace"), (begin, max(begin, end)))
        at = end + 2 + len(line)
    return None
