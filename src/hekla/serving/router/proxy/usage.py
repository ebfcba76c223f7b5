"""What an engine counted, found in the last bytes of its answer, and the question that makes it count; no I/O.

A stream tells its usage only if asked (`stream_options.include_usage`): the wish is merged into the body, and the extra
event left out again for a client that had not asked. In JSON a quote inside a string is escaped, so that the text of a
model cannot be taken for the usage.
"""

import re

import msgspec

from hekla.serving.router.plan import Usage

TAIL_BYTES = 8 * 1024
"""Where the usage is looked for: vLLM, SGLang and OpenAI write it last."""

_INPUT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*([0-9]{1,15})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*([0-9]{1,15})')
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*([0-9]{1,15})')
_USUAL = re.compile(
    rb'"usage": ?\{"prompt_tokens": ?([0-9]{1,15}), ?(?:"total_tokens": ?[0-9]{1,15}, ?)?"completion_tokens": ?([0-9]{1,15})'
)
"""As vLLM, SGLang and OpenAI write it: one look instead of three."""
_STREAM_OPTIONS = re.compile(rb'"stream_options"')
_FIRST_FIELD = re.compile(rb"\s*\{\s*")


_NOTHING = msgspec.Raw(b"")


class _Options(msgspec.Struct):
    stream_options: msgspec.Raw = _NOTHING


_options = msgspec.json.Decoder(_Options)


def usage_of(tail: bytes) -> Usage | None:
    """The usage that the end of an answer tells; None: it tells none."""
    at = tail.rfind(b'"usage"')
    if at < 0:
        return None
    if (usual := _USUAL.match(tail, at)) is not None and tail.find(b"cache", usual.end()) < 0:
        return Usage(int(usual[1]), int(usual[2]))
    read = _INPUT.search(tail, at)
    written = _OUTPUT.search(tail, at)
    if read is None and written is None:
        return None
    cached = _CACHED.search(tail, at)
    return Usage(int(read[1]) if read else 0, int(written[1]) if written else 0, int(cached[1]) if cached else 0)


def tells_usage(path: str) -> bool:
    """Whether streams of a path tell their usage if they are asked to."""
    return path.endswith("/completions")


def asking_for_usage(body: bytes) -> bytes:
    """The body of a streaming request, with the wish for its usage merged into it; other options stay."""
    if _STREAM_OPTIONS.search(body) is None:
        return _with_options(body, b'{"include_usage":true}')
    options = bytes(_options.decode(body).stream_options)
    if not options:  # the word stands deeper in the body
        return _with_options(body, b'{"include_usage":true}')
    told: object = msgspec.json.decode(options)
    if told is not None and not isinstance(told, dict):
        return body  # the engine will tell its client
    asked = {**(told or {}), "include_usage": True}
    whole: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    whole["stream_options"] = msgspec.Raw(msgspec.json.encode(asked))
    return msgspec.json.encode(whole)


def _with_options(body: bytes, options: bytes) -> bytes:
    """One more field at the front: the rest is spliced, not decoded."""
    match = _FIRST_FIELD.match(body)
    assert match is not None, "a question was read from this body, so it is an object"
    comma = b"" if body[match.end() : match.end() + 1] == b"}" else b","
    return b'%b"stream_options":%b%b%b' % (body[: match.end()], options, comma, body[match.end() :])


class UsageRemover:
    """Leaves the event that only tells the usage out of a stream of payload, whole events at a time."""

    __slots__ = ("_held", "_limit")

    def __init__(self, limit: int) -> None:
        self._held = b""
        self._limit = limit

    @property
    def is_clear(self) -> bool:
        """Whether nothing is held back."""
        return not self._held

    def feed(self, payload: bytes) -> bytes:
        """What may go on now; the beginning of an event that is not whole waits, up to a bound."""
        data = self._held + payload
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            end = data.rfind(b"\r\n\r\n") + 4 if data.endswith(b"\r\n\r\n") else 0
        if len(data) - end > self._limit:
            end = len(data)
        self._held = data[end:]
        whole = data[:end]
        return (
            whole
            if whole.rfind(b'"usage"') < 0
            else b"".join(event for event in _EVENT.findall(whole) if not tells_usage_only(event))
        )

    def rest(self) -> bytes:
        """What was held back when the stream ended."""
        held, self._held = self._held, b""
        return held


_EVENT = re.compile(rb".*?(?:\n\n|\r\n\r\n)|.+\Z", re.DOTALL)
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')


def tells_usage_only(event: bytes) -> bool:
    """Whether an event is the extra one: no choices, and the usage."""
    return _NO_CHOICES.search(event) is not None and _USAGE_OBJECT.search(event) is not None
